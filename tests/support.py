"""What many tests share: scaled time, the vectors, unique names, spawned Python programs."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "golden"
VECTORS = ROOT / "tests" / "vectors"

# All waits are in units of MS; a slow machine sets EGRESS_TEST_SLOWNESS above 1.
SLOWNESS = float(os.environ.get("EGRESS_TEST_SLOWNESS", "1"))
MS = 0.001 * SLOWNESS

_serial = itertools.count()


def unique_name(stem: str = "t") -> str:
    """A ring or instance name no other test process uses: stem, pid, serial number."""
    return f"{stem}{os.getpid()}-{next(_serial)}"


def load_vectors(name: str) -> Any:
    """The parsed vector file `name` (without .json)."""
    return json.loads((VECTORS / f"{name}.json").read_text(encoding="utf-8"))


def wait_until(condition: Callable[[], Any], timeout: float = 10.0, what: str = "condition") -> Any:
    """Wait for `condition()` to be true and return its value; AssertionError after timeout * SLOWNESS s."""
    deadline = time.monotonic() + timeout * SLOWNESS
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true within {timeout * SLOWNESS:.1f} s")
        time.sleep(5 * MS)
    return value


def spawn_python(code: str, *args: str, **kwargs: Any) -> subprocess.Popen[str]:
    """A fresh interpreter running `code` with `args`, pipes as text, from the repository's root."""
    kwargs.setdefault("stdout", subprocess.PIPE)
    kwargs.setdefault("stderr", subprocess.PIPE)
    return subprocess.Popen([sys.executable, "-c", code, *args], text=True, cwd=ROOT, **kwargs)


def files_of(name: str) -> list[str]:
    """What lies in /dev/shm for the ring `name`: its segment, temporary ones, FIFOs; sorted file names."""
    prefix = f"ringbuf.{name}"
    return sorted(file for file in os.listdir("/dev/shm") if file == prefix or file.startswith(prefix + "~"))

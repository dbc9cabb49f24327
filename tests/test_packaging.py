"""What is shipped: both archives, installed where nothing else is, with and without a compiler."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import numpy as np
import pytest
from support import ROOT

pytestmark = pytest.mark.slow

SHIPPED = ["pyproject.toml", "README.md", "ringbuf", "egress"]
PROVE = (
    "import os, ringbuf; name = f'pack{os.getpid()}'\n"
    "with ringbuf.create(name, 1 << 16) as producer, ringbuf.attach(name) as consumer:\n"
    "    producer.write(1, b'here'); frame = consumer.read(5)\n"
    "    print(ringbuf.__impl__, bytes(frame.payload).decode())\n"
)


def run(*command: str | Path, **environment: str) -> str:
    """What a command prints, started where no package of ours lies."""
    done = subprocess.run(
        [*map(str, command)],
        capture_output=True,
        text=True,
        timeout=200,
        env=os.environ | environment,
        cwd="/",
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The sdist, and the wheel that is built from it, of what a checkout has without earlier builds."""
    tree = tmp_path_factory.mktemp("tree")
    for part in SHIPPED:
        for source in [ROOT / part, *(ROOT / part).rglob("*")]:
            target = tree / source.relative_to(ROOT)
            if source.is_file() and source.suffix != ".so" and "__pycache__" not in source.parts:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(source.read_bytes())
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", tree / "out", tree)
    return {path.suffix: path for path in (tree / "out").iterdir()}


def installed(where: Path, archive: Path, **environment: str) -> Path:
    """The interpreter of a new environment that holds the archive, and what it depends on by way of ours."""
    venv.create(where, with_pip=False)
    python = where / "bin" / "python"
    (packages,) = (where / "lib").glob("python*/site-packages")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    run(*pip, "--target", packages, archive, **environment)
    # Not the whole of ours, where an editable install of this package lies.
    for entry in Path(np.__file__).parents[1].iterdir():
        if entry.name.startswith(("numpy", "posix_ipc", "msgspec")):
            (packages / entry.name).symlink_to(entry)
    return python


def test_the_wheel_has_the_c_body(archives: dict[str, Path], tmp_path: Path) -> None:
    python = installed(tmp_path / "clean", archives[".whl"])
    assert run(python, "-c", PROVE, RINGBUF_IMPL="") == "c here\n"
    assert run(python, "-c", PROVE, RINGBUF_IMPL="python") == "python here\n"


def test_without_a_compiler_the_sdist_installs_the_python_body(
    archives: dict[str, Path], tmp_path: Path
) -> None:
    python = installed(tmp_path / "clean", archives[".gz"], CC="/bin/false")
    assert run(python, "-c", PROVE, RINGBUF_IMPL="") == "python here\n"


def test_archives_hold_types_pages_and_sources(archives: dict[str, Path]) -> None:
    with zipfile.ZipFile(archives[".whl"]) as wheel:
        names = wheel.namelist()
    for needed in ("ringbuf/py.typed", "ringbuf/_cops.pyi", "egress/py.typed", "egress/serve/page/"):
        assert any(name.startswith(needed) for name in names), needed
    assert not any(name.startswith(("tests", "bench")) for name in names)
    with tarfile.open(archives[".gz"]) as sdist:
        files = {name.split("/", 1)[-1] for name in sdist.getnames()}
    assert {"ringbuf/_cops.h", "ringbuf/_cops.c", "ringbuf/_cops_frame.c", "pyproject.toml"} <= files

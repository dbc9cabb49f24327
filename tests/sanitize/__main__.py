"""The C body under sanitizers: `python -m tests.sanitize asan|tsan [pytest arguments]`.

asan: the body, built with AddressSanitizer and UndefinedBehaviorSanitizer, under the ring's own tests.
tsan: `race.c`, two threads over one mapping under ThreadSanitizer, without the interpreter, whose lock would
order everything. Then the same with the publication relaxed, which must be reported, or nothing was tested.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CC = shlex.split(os.environ.get("CC", "cc"))
PARTS = ["_cops.c", "_cops_frame.c", "_cops_reader.c", "_cops_room.c", "_cops_sleep.c", "_cops_writer.c"]
INCLUDE = "-I" + sysconfig.get_paths()["include"]


def run(*command: str | Path, **kwargs: object) -> int:
    """Run a command, shown, and return what it returned."""
    print("+", shlex.join(map(str, command)), flush=True)
    return subprocess.run([*map(str, command)], check=False, **kwargs).returncode  # type: ignore[call-overload, no-any-return]


def library(name: str) -> str:
    """Where the compiler keeps a sanitizer's runtime."""
    return subprocess.run(
        [*CC, f"-print-file-name={name}"], check=True, capture_output=True, text=True
    ).stdout.strip()


def asan(tree: Path, arguments: list[str]) -> int:
    """Test a copy of the tree whose C body is instrumented."""
    for entry in ROOT.iterdir():
        if entry.name not in ("ringbuf", ".git", "build", "dist"):
            (tree / entry.name).symlink_to(entry)
    package = tree / "ringbuf"
    package.mkdir()
    for entry in (ROOT / "ringbuf").iterdir():
        if entry.suffix != ".so":
            (package / entry.name).symlink_to(entry)
    built = run(
        *CC, "-std=c11", "-O1", "-g", "-fPIC", "-shared",
        "-fsanitize=address,undefined", "-fno-sanitize-recover",
        INCLUDE, *(package / part for part in PARTS), "-o", package / "_cops.so",
    )  # fmt: skip
    if built:
        return built
    environment = os.environ | {
        "LD_PRELOAD": f"{library('libasan.so')} {library('libubsan.so')}",
        # The interpreter keeps much until it ends, and its own allocator hides what is used after free.
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1:allocator_may_return_null=1",
        "PYTHONMALLOC": "malloc",
        "RINGBUF_IMPL": "c",
        "PYTHONPATH": str(tree),
        "EGRESS_TEST_SLOWNESS": "3",
    }
    arguments = arguments or ["tests/ringbuf", "-k", "c] or agree or cops", "-m", "not slow"]
    return run(
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments,
        cwd=tree, env=environment,
    )  # fmt: skip


def tsan(tree: Path) -> int:
    """Race two threads; then again without the ordering they need."""
    sources = [entry for entry in (ROOT / "ringbuf").iterdir() if entry.name.startswith("_cops")]
    for entry in [*sources, ROOT / "tests" / "sanitize" / "race.c"]:
        (tree / entry.name).write_bytes(entry.read_bytes())
    libraries = sysconfig.get_config_var("LIBDIR")
    # Fences are not modelled by ThreadSanitizer; what needs one here is the wait, and race.c never sleeps.
    build = [
        *CC, "-std=c11", "-O1", "-g", "-fsanitize=thread", "-Wno-tsan",
        INCLUDE, "race.c", "-o", "race", "-pthread",
        f"-L{libraries}", f"-Wl,-rpath,{libraries}", f"-lpython{sysconfig.get_config_var('LDVERSION')}",
    ]  # fmt: skip
    if run(*build, cwd=tree) or run("./race", cwd=tree):
        return 1
    header = tree / "_cops.h"
    text = header.read_text(encoding="utf-8")
    relaxed = text.replace("value, memory_order_release)", "value, memory_order_relaxed)")
    assert relaxed != text
    header.write_text(relaxed, encoding="utf-8")
    if run(*build, cwd=tree):
        return 1
    quiet = run("./race", cwd=tree, stderr=subprocess.DEVNULL) == 0
    print(
        "without the release store nothing was reported" if quiet else "without the release store: reported"
    )
    return int(quiet)


def main() -> int:
    """What the command line asks for."""
    if sys.argv[1:2] not in (["asan"], ["tsan"]):
        print(__doc__)
        return 2
    with tempfile.TemporaryDirectory() as directory:
        tree = Path(directory)
        return asan(tree, sys.argv[2:]) if sys.argv[1] == "asan" else tsan(tree)


if __name__ == "__main__":
    raise SystemExit(main())

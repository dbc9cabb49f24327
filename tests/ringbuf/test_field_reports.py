"""The table of field reports is whole and names tests that exist; and reports that are tried here."""

from __future__ import annotations

import ast
import os
import re
import threading
from pathlib import Path

import pytest
from support import MS, ROOT, spawn_python

import ringbuf
from ringbuf import wait
from ringbuf.layout import BARRIER_SLEEPER
from ringbuf.testing import open_pair, recording
from ringbuf.wait import best_barrier

from .conftest import BODIES

TABLE = (Path(__file__).parent / "FIELD_REPORTS.md").read_text(encoding="utf-8")
ROWS = [line.split("|")[1:4] for line in TABLE.splitlines() if line.startswith("| R0")]


def test_every_report_has_a_row_with_a_trial_or_a_reason() -> None:
    assert [row[0].strip() for row in ROWS] == [f"R{number:03}" for number in range(1, 51)]
    assert all(row[2].strip() for row in ROWS)


def test_every_named_test_exists() -> None:
    sources = {path.name: path.read_text(encoding="utf-8") for path in ROOT.glob("tests/**/*.py")}
    for _, _, trial in ROWS:
        file = ""
        for reference in re.findall(r"`([^`]+)`", trial):
            found = re.fullmatch(
                r"(?:tests/\w+/)?(test_\w+\.py)?(?:::)?(?:\.\.\.)?(\w*?)(?:_?\.\.\.)?", reference
            )
            if found is None or not (found[1] or "::" in reference):
                continue
            file = found[1] or file
            assert file in sources, reference
            assert found[2] in sources[file], reference
        for program in re.findall(r"stress/(\w+)", trial):
            assert f"{program}.py" in sources


def test_nothing_decodes_code_from_a_segment() -> None:
    """R049: no pickle, no marshal, no eval anywhere in the package."""
    for path in (ROOT / "ringbuf").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
                assert not {"pickle", "marshal", "shelve", "dill"} & set(names), path
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec"), path


FORBID_MEMBARRIER = """
import ctypes, errno, os, platform, struct, sys, ringbuf
NUMBER = {"x86_64": 324, "aarch64": 283}[platform.machine()]
# A seccomp filter: load the call's number; if it is membarrier, EPERM; else allow.
code = [(0x20, 0, 0, 0), (0x15, 0, 1, NUMBER), (0x06, 0, 0, 0x50000 | errno.EPERM), (0x06, 0, 0, 0x7FFF0000)]
filters = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in code))
program = struct.pack("HxxxxxxP", len(code), ctypes.addressof(filters))
libc = ctypes.CDLL(None, use_errno=True)
def outcome(call):
    try:
        return call()
    except OSError as error:
        assert not isinstance(error, TimeoutError), error
        return errno.errorcode[error.errno]
with ringbuf.create(sys.argv[1], 4096) as producer, ringbuf.attach(sys.argv[1]) as consumer:
    assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0, "no seccomp"
    print(outcome(lambda: consumer.read(60)), outcome(lambda: consumer.read(60)))
    producer.write(1, b"x")
    print(bytes(consumer.read(60).payload))
    while producer.try_write(1, b"y" * 100):
        pass
    print(outcome(lambda: producer.write(1, b"y" * 100, timeout=60)))
    info = ringbuf.inspect(sys.argv[1])
    print(info.producer.waiting, info.consumers[0].parked, len(consumer.read_many()) > 20)
"""


@pytest.mark.skipif(best_barrier() != BARRIER_SLEEPER, reason="membarrier is not allowed here anyway")
@pytest.mark.parametrize("impl", ["c" if body == "c" else "python" for body in BODIES])
def test_a_barrier_that_fails_is_an_error_of_that_wait_and_of_nothing_else(impl: str, name: str) -> None:
    """R019: it is never skipped, no flag stays up, and what needs no barrier goes on."""
    child = spawn_python(FORBID_MEMBARRIER, name, env=os.environ | {"RINGBUF_IMPL": impl})
    out, errors = child.communicate(timeout=120)
    assert out.splitlines() == ["EPERM EPERM", "b'x'", "EPERM", "False False True"], errors
    assert child.returncode == 0


@pytest.mark.skipif(best_barrier() != BARRIER_SLEEPER, reason="membarrier is not allowed here anyway")
def test_after_a_barrier_that_failed_once_the_next_wait_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []

    def fail_once(*args: object) -> int:
        calls.append(args)
        return -1 if len(calls) == 1 else int(real(*args))

    real = wait._syscall
    monkeypatch.setattr(wait, "_syscall", fail_once)
    # The recorder asks for the Python body, whose barrier is called from here.
    with recording(), open_pair() as (producer, consumer):
        with pytest.raises(OSError, match="membarrier"):
            consumer.read(60)
        timer = threading.Timer(20 * MS, producer.write, (1, b"x"))
        timer.start()
        assert consumer.read(60).payload == b"x"
        timer.join()
    assert len(calls) > 1


NUMA_MAPS = Path("/proc/self/numa_maps")


@pytest.mark.skipif(not NUMA_MAPS.exists(), reason="the kernel tells nothing of memory nodes")
def test_the_creator_touches_every_page_and_nobody_sets_a_memory_policy(name: str) -> None:
    """R044: the memory policy of the creator decides the node of every page, and nothing hidden does."""
    with ringbuf.create(name, 1 << 20) as producer:
        segment = Path(f"/dev/shm/ringbuf.{name}")
        there = segment.stat().st_blocks
        assert there * 512 >= segment.stat().st_size
        with ringbuf.attach(name) as consumer:
            for _ in range(3):
                while producer.try_write(1, bytes(60_000)):
                    pass
                assert len(consumer.read_many()) > 10
            maps = [line.split() for line in NUMA_MAPS.read_text().splitlines() if f"ringbuf.{name}" in line]
            assert {fields[1] for fields in maps} == {"default"}
        assert segment.stat().st_blocks == there

"""What only the C body can get wrong: references, buffers, arguments, objects of somebody else's making."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from support import files_of, spawn_python

import ringbuf
from ringbuf import _ops, _pyops, frame, layout
from ringbuf.room import Room

_cops = pytest.importorskip("ringbuf._cops")


@pytest.fixture
def pair(name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ringbuf.Producer, ringbuf.Consumer]]:
    monkeypatch.setattr(_ops, "make_writer", _cops.make_writer)
    monkeypatch.setattr(_ops, "make_reader", _cops.make_reader)
    with ringbuf.create(name, 1 << 16, slots=2) as producer, ringbuf.attach(name) as consumer:
        yield producer, consumer


def blocks_grown(use: Callable[[], object]) -> int:
    """How many blocks of memory 1,000 uses leave behind, once the first ones have filled every cache."""
    for _ in range(100):
        use()
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(1000):
        use()
    gc.collect()
    return sys.getallocatedblocks() - before


def test_no_operation_keeps_a_reference(pair: tuple[ringbuf.Producer, ringbuf.Consumer]) -> None:
    producer, consumer = pair
    small, big, array = os.urandom(40), os.urandom(5000), np.arange(300)
    many = [(1, small), (2, big), (3, [small, array])]

    def refuse() -> None:
        for payload in ("text", [small, 3], None, [b""] * 20 + [1]):
            with pytest.raises(TypeError):
                producer.try_write(1, payload)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="tag"):
            producer.try_write(1 << 70, small)

    def lease() -> None:
        producer.write_many([*many, (4, [big] * 2), (5, [small] * 30)])
        frames = consumer.read_many()
        assert [frame.tag for frame in frames] == [1, 2, 3, 4, 5]
        views = [np.frombuffer(frame.payload, np.uint8)[3:] for frame in frames]
        with pytest.raises(ringbuf.FrameInUse):
            frames[1].release()
        del views[1]
        frames[1].release()

    def fill() -> None:
        while producer.try_write(1, big):
            pass
        while consumer.try_read() is not None:
            pass
        assert consumer.read_many() == []

    # One reference lost a use would be 1,000; a few more blocks are somebody else's caches.
    counted = (small, big, array, None, True, False, _cops.Frame)
    gc.collect()  # what earlier tests left behind refers to None, too
    references = [sys.getrefcount(thing) for thing in counted]
    assert blocks_grown(refuse) < 500
    assert blocks_grown(lease) < 500
    assert blocks_grown(fill) < 500
    for thing, before in zip(counted, references, strict=True):
        assert abs(sys.getrefcount(thing) - before) < 500, thing


def test_a_list_that_is_emptied_while_it_is_written_is_no_harm(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_ops, "make_writer", _cops.make_writer)
    # Whoever is watched asks for room through Room.grant, so here it can be met.
    monkeypatch.setattr("ringbuf._hooks.on_step", lambda name: None)
    grant = Room.grant
    frames: list[Any] = []

    def empty_and_grant(room: Room, position: int, need: int) -> int:
        frames.clear()
        return grant(room, position, need)

    monkeypatch.setattr(Room, "grant", empty_and_grant)
    with ringbuf.create(name, 4096) as producer, ringbuf.attach(name) as consumer:
        frames += [(1, os.urandom(100)) for _ in range(30)]
        assert producer.write_many(frames) == 1
        assert len(consumer.read_many()) == 1
        assert producer.try_write(1, b"fine")
        assert consumer.read(0).payload == b"fine"


def test_arguments_are_checked_as_python_checks_them(pair: tuple[ringbuf.Producer, ringbuf.Consumer]) -> None:
    producer, consumer = pair
    try_write: Any = producer.try_write
    assert try_write(payload=b"named", tag=3, align_at=3)
    assert try_write(4, payload=b"half")
    for args, named in [
        ((), {}),
        ((1,), {}),
        ((1, b"", 0, 0), {}),
        ((1, b""), {"tag": 1}),
        ((1, b""), {"size": 1}),
    ]:
        with pytest.raises(TypeError, match=r"try_write\(\)"):
            try_write(*args, **named)
    with pytest.raises(TypeError):
        try_write(1, b"", 1.5)
    try_read: Any = consumer.try_read
    with pytest.raises(TypeError):
        try_read(1)
    assert [frame.tag for frame in consumer.read_many()] == [3, 4]


def test_a_frame_is_no_buffer_itself_as_in_the_other_body(
    pair: tuple[ringbuf.Producer, ringbuf.Consumer],
) -> None:
    producer, consumer = pair
    producer.write(1, b"bytes")
    read = consumer.read(0)
    for use in (memoryview, bytes, np.frombuffer):
        with pytest.raises((TypeError, ValueError, BufferError)):
            use(read)
    assert {attribute for attribute in dir(frame.Frame) if not attribute.startswith("_")} == {
        attribute for attribute in dir(_cops.Frame) if not attribute.startswith("_")
    }
    with pytest.raises(TypeError):
        _cops.Frame()


def test_pages_that_are_none_are_refused() -> None:
    page = memoryview(bytearray(layout.PAGE)).cast("Q")
    control = memoryview(bytearray(layout.SLOT_PAGES + layout.PAGE)).cast("Q")
    data = bytearray(4096)
    evicted = memoryview(bytearray(8)).cast("Q")

    def make(**changed: Any) -> Any:
        given = {
            "own": page, "words": None, "data": data, "wake": page, "control": control, "evicted": evicted,
            "capacity": 4096, "position": 0, "seq": 0, "slots": 1, "many": False,
            "slow": None, "grant": None, "wake_up": None, "fence": None,
        } | changed  # fmt: skip
        return _cops.make_writer(**given)

    make()
    for changed in (
        {"own": page[:100]}, {"wake": page[:1]}, {"data": data[:100]}, {"capacity": 4000}, {"capacity": 8192},
        {"capacity": 32}, {"position": 4}, {"slots": 2}, {"slots": -1}, {"control": page},
        {"own": memoryview(bytearray(layout.PAGE + 4))[4:]},
    ):  # fmt: skip
        with pytest.raises(ValueError, match="no pages"):
            make(**changed)
    with pytest.raises((TypeError, BufferError)):
        make(own=page.toreadonly())
    with pytest.raises(TypeError):
        make(own=[1, 2])


def test_handles_that_are_dropped_leave_no_mapping_without_a_collection(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_ops, "make_writer", _cops.make_writer)
    monkeypatch.setattr(_ops, "make_reader", _cops.make_reader)

    def mapped() -> int:
        with open("/proc/self/maps", encoding="utf-8") as maps:
            return sum(f"ringbuf.{name}" in line for line in maps)

    gc.disable()
    try:
        for _ in range(3):
            producer, consumer = ringbuf.create(name, 4096), ringbuf.attach(name)
            producer.write(1, b"x" * 2000)
            view = consumer.read(0).payload
            del producer, consumer
            assert view == b"x" * 2000
            del view
            assert mapped() == 0
    finally:
        gc.enable()


# The Python body runs on x86-64 alone.
PYTHON_TOO = _pyops.unsupported() is None


@pytest.mark.parametrize("asked", ["c", "python", ""] if PYTHON_TOO else ["c", ""])
def test_the_body_that_is_asked_for_is_the_one_that_runs(asked: str) -> None:
    process = spawn_python(
        "import ringbuf, ringbuf._ops as ops;"
        "print(ringbuf.__impl__, ringbuf.Frame.__module__, ops.make_reader.__module__)",
        env=os.environ | {"RINGBUF_IMPL": asked},
    )
    output, errors = process.communicate(timeout=60)
    expected = (
        "python ringbuf.frame ringbuf._pyreader" if asked == "python" else "c ringbuf._cops ringbuf._cops"
    )
    assert (output.strip(), errors) == (expected, "")


def test_a_body_that_cannot_be_loaded_is_an_import_error_with_the_cause() -> None:
    block = "import sys; sys.modules['ringbuf._cops'] = None; import ringbuf; print(ringbuf.__impl__)"
    for asked, returned, said in [
        ("", 0, "python") if PYTHON_TOO else ("", 1, "install the package with a C compiler"),
        ("python", 0, "python") if PYTHON_TOO else ("python", 1, "install the package with a C compiler"),
        ("c", 1, "the C body cannot be loaded (import of ringbuf._cops halted"),
        ("rust", 1, "RINGBUF_IMPL must be c or python, not 'rust'"),
    ]:
        process = spawn_python(block, env=os.environ | {"RINGBUF_IMPL": asked})
        output, errors = process.communicate(timeout=60)
        assert process.returncode == returned
        assert said in (errors if returned else output)


def test_a_build_for_another_layout_is_refused() -> None:
    # The package without its door, which would import the body before the layout was changed.
    code = (
        "import sys, types; package = sys.modules['ringbuf'] = types.ModuleType('ringbuf');"
        "package.__path__ = ['ringbuf']; import ringbuf.layout;"
        "ringbuf.layout.C_CURSOR = 5; import ringbuf._cops"
    )
    process = spawn_python(code)
    _, errors = process.communicate(timeout=60)
    assert "built for C_CURSOR = 0, but ringbuf.layout says 5: build it again" in errors


def test_the_python_body_says_where_it_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert _pyops.unsupported() is None
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert "aarch64" in str(_pyops.unsupported())
    with pytest.raises(ImportError, match="this machine is aarch64"):
        _ops._choose("python")


def test_without_the_interpreters_lock_nothing_opens(
    name: str, producer: ringbuf.Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys._is_gil_enabled", lambda: False, raising=False)
    opens = (lambda: ringbuf.create(f"{name}-2"), lambda: ringbuf.attach(name), lambda: ringbuf.resume(name))
    for open_ring in opens:
        with pytest.raises(ringbuf.RingError, match=r"needs the interpreter's lock .*PYTHON_GIL"):
            open_ring()
    assert not files_of(f"{name}-2")
    monkeypatch.setattr("sys._is_gil_enabled", lambda: True, raising=False)
    ringbuf.attach(name).close()

"""Names taken away from those who use them, and names that are no rings (R012)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support import MS, files_of, spawn_python

import ringbuf


def fill(producer: ringbuf.Producer, reader: ringbuf.Consumer | None = None) -> None:
    """Write until an error comes."""
    while True:
        producer.try_write(1, b"x" * 1000)
        if reader is not None:
            reader.try_read()


def read_on(consumer: ringbuf.Consumer) -> None:
    """Read until an error comes."""
    while True:
        consumer.read(1000 * MS)


def test_unlink_ends_a_living_ring_for_both_sides(name: str) -> None:
    producer = ringbuf.create(name, 4096)
    with ringbuf.attach(name) as consumer, ringbuf.attach(name) as other:
        producer.write(1, b"before")
        ringbuf.unlink(name)
        assert files_of(name) == []
        for one in (consumer, other):
            assert one.read(0).payload == b"before"
            with pytest.raises(ringbuf.RingClosed, match="removed its name"):
                one.read(1000 * MS)
        with pytest.raises(ringbuf.RingClosed, match="removed its name"):
            fill(producer)
    producer.close()


def test_removed_files_never_make_the_living_look_dead(name: str) -> None:
    with ringbuf.create(name, 4096) as producer, ringbuf.attach(name) as slow, ringbuf.attach(name) as fast:
        producer.write(1, b"kept")
        for file in files_of(name):
            os.unlink(f"/dev/shm/{file}")
        with pytest.raises(ringbuf.RingClosed, match="removed its name"):
            fill(producer, fast)
        assert slow.read(0).payload == b"kept"
        with pytest.raises(ringbuf.RingClosed, match="removed its name"):
            read_on(slow)


@pytest.mark.parametrize("kind", ["fifo", "folder", "link", "empty", "text"])
def test_nothing_that_bears_a_rings_name_stops_looking_at_rings(name: str, kind: str, tmp_path: Path) -> None:
    path = f"/dev/shm/ringbuf.{name}"
    make = {
        "fifo": lambda: os.mkfifo(path),
        "folder": lambda: os.mkdir(path),
        "link": lambda: os.symlink(tmp_path, path),
        "empty": lambda: Path(path).touch(),
        "text": lambda: Path(path).write_text("no ring\n" * 100),
    }
    make[kind]()
    code = (
        "import sys, ringbuf; n = sys.argv[1]; "
        "print(n in [r.name for r in ringbuf.rings()]); ringbuf.inspect(n)"
    )
    child = spawn_python(code, name)
    try:
        out, err = child.communicate(timeout=60)
    finally:
        child.kill()
        if kind == "folder":
            os.rmdir(path)
    assert out == "False\n"
    assert "ringbuf.errors.Ring" in err

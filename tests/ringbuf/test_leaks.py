"""What handles leave behind in their process and on the machine: nothing, however they end."""

from __future__ import annotations

import gc
import os
import resource
from pathlib import Path

import pytest
from support import files_of, spawn_python

import ringbuf

pytestmark = pytest.mark.usefixtures("body")


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def mappings(of: str = "/dev/shm/ringbuf.") -> int:
    return Path("/proc/self/maps").read_text().count(of)


@pytest.mark.slow
def test_attaching_and_closing_10_000_times_leaks_nothing(producer: ringbuf.Producer) -> None:
    def once(i: int) -> None:
        with ringbuf.attach(producer.name, start="latest") as consumer:
            if i % 10 == 0:
                producer.write(1, b"x")
                consumer.read_many()
                with pytest.raises(TimeoutError):
                    consumer.read(0)

    for i in range(50):
        once(i)
    gc.collect()
    before = descriptors(), mappings(), len(files_of(producer.name))
    for i in range(10_000):
        once(i)
    gc.collect()
    after = descriptors(), mappings(), len(files_of(producer.name))
    assert after == before


def test_dropped_handles_leave_no_descriptor(name: str) -> None:
    with ringbuf.create(name, 1 << 16, slots=1) as producer:
        producer.write(1, bytes(10_000))
        before = descriptors()
        for _ in range(200):
            view = ringbuf.attach(name).read(0).payload
            assert len(view) == 10_000
            del view
        assert descriptors() == before


@pytest.mark.slow
def test_1000_rings_fit_under_the_usual_limit_of_descriptors(name: str) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    gc.collect()
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    producers: list[ringbuf.Producer] = []
    try:
        if descriptors() > 20:
            pytest.skip("this process has too many descriptors open already")
        for i in range(1000):
            producers.append(ringbuf.create(f"{name}-{i}", 4096, slots=1))
        for producer in producers:
            assert producer.try_write(1, b"x")
    finally:
        for producer in producers:
            producer.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    "end", ["pass", "sys.exit(0)", "raise RuntimeError", "signal.raise_signal(signal.SIGINT)"]
)
def test_exit_of_the_interpreter_ends_the_ring_without_noise(name: str, end: str) -> None:
    code = (
        "import sys, signal, ringbuf\n"
        "p = ringbuf.create(sys.argv[1], 1 << 16)\nc = ringbuf.attach(sys.argv[1])\n"
        "p.write(1, bytes(10000))\nf = c.read()\nv = f.payload\ncycle = [p, c, f]\ncycle.append(cycle)\n"
        + end
    )
    _, errors = spawn_python(code, name).communicate()
    assert "ringbuf" not in errors.replace(str(Path(ringbuf.__file__).parent), "")
    assert "Exception ignored" not in errors
    assert files_of(name) == []


def test_a_reader_of_a_restarting_producer_keeps_no_old_mapping(name: str) -> None:
    counts = []
    for i in range(100):
        with ringbuf.create(name, 4096) as producer, ringbuf.attach(name) as consumer:
            producer.write(1, b"%d" % i)
            assert consumer.read(0).payload == b"%d" % i
        if i in (20, 99):
            del producer, consumer
            counts.append((descriptors(), mappings(f"/dev/shm/ringbuf.{name}")))
    assert counts[0] == counts[1]
    assert counts[1][1] == 0

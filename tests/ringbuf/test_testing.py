"""The kit that ships: pairs, steps, the recorder, check_ring."""

from __future__ import annotations

import os
import re
import struct
import threading
import time
from pathlib import Path

import pytest
from support import ROOT

import ringbuf
from ringbuf import layout
from ringbuf.testing import COLD_STEPS, HOT_STEPS, at_step, check_ring, open_pair, recording


def poke(name: str, offset: int, value: int) -> None:
    fd = os.open(f"/dev/shm/ringbuf.{name}", os.O_RDWR)
    os.pwrite(fd, struct.pack("=Q", value), offset)
    os.close(fd)


def test_every_named_step_is_in_the_list_and_every_listed_one_is_taken() -> None:
    source = "".join(path.read_text(encoding="utf-8") for path in Path(ROOT, "ringbuf").glob("*.py"))
    assert sorted(set(re.findall(r'\bstep\("([a-z.]+)"\)', source))) == sorted(COLD_STEPS)


def test_a_pair_of_many_consumers_receives_everything() -> None:
    with open_pair(consumers=3, position=2**32 - 64) as (producer, *consumers):
        producer.write_many([(1, b"a"), (2, b"b")])
        for consumer in consumers:
            assert [bytes(frame.payload) for frame in consumer.read_many()] == [b"a", b"b"]


@pytest.mark.parametrize("step", HOT_STEPS)
def test_a_fault_at_a_hot_step_comes_out_of_the_operation(step: str, name: str) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    def pass_one_frame() -> None:
        # A fault in closing leaves the ring behind, for the fixture.
        with open_pair(name=name) as (producer, consumer):
            producer.try_write(1, b"x")
            consumer.try_read()

    with at_step(step, fail), pytest.raises(ZeroDivisionError):
        pass_one_frame()


def test_a_fault_comes_at_the_nth_time_only() -> None:
    taken: list[str] = []
    with at_step("write.publish", lambda: taken.append("x"), nth=3), open_pair() as (producer, _):
        for _ in range(2):
            producer.try_write(1, b"x")
        assert not taken
        for _ in range(3):
            producer.try_write(1, b"x")
        assert taken == ["x"]


def test_an_unknown_step_is_refused_with_the_list() -> None:
    with (
        pytest.raises(ValueError, match=r"no step 'create\.nothing'; there are create\.open"),
        at_step("create.nothing", list),
    ):
        pass


def test_the_recorder_leaves_with_its_block() -> None:
    with recording() as log:
        pass
    with open_pair() as (producer, _):
        producer.try_write(1, b"x")
    assert log == []


def test_an_access_that_never_was_is_an_error() -> None:
    with recording() as log, pytest.raises(ValueError, match=r"no store of data\[0\] among 0 accesses"):
        log.first("data", "store", 0)


def test_check_ring_counts_what_it_saw() -> None:
    with open_pair(consumers=2) as (producer, *_):
        producer.write_many([(1, b"x")] * 5)
        assert check_ring(producer.name)[:2] == (5, 2)


def test_check_ring_holds_while_frames_flow() -> None:
    with open_pair(1024) as (producer, consumer):
        stop = threading.Event()

        def write() -> None:
            size = 0
            while not stop.is_set():
                if not producer.try_write(1, b"x" * size):
                    time.sleep(0)  # or this thread keeps the interpreter for all of its switch interval
                size = (size + 7) % 300

        def read() -> None:
            while not stop.is_set():
                if not consumer.read_many(8):
                    time.sleep(0)

        threads = [threading.Thread(target=write), threading.Thread(target=read)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(200):
                check_ring(producer.name)
        finally:
            stop.set()
            for thread in threads:
                thread.join()


@pytest.mark.parametrize(
    ("page", "word", "value", "reason"),
    [
        (1, layout.P_POS, 8, "frame"),
        (1, layout.P_POS, 1 << 40, "floor is 0 and position"),
        (1, layout.P_FLOOR, 1 << 40, "floor is"),
        (1, layout.P_STATE, 7, "state is 7"),
        (1, layout.P_INCARNATION, 0, "incarnation is 0"),
        (1, layout.P_WAITING, 99, "waits in generation 99"),
        (1, layout.P_HIGH_WATER, 1 << 20, "high-water mark"),
        (1, layout.P_FRAMES, 1, "counts 1 frames, frame 2 is published"),
        (3, layout.C_STATE, 7, "slot 0 has state 3"),
        (3, layout.C_CURSOR, 12, "cursor of slot 0 is 12"),
        (3, layout.C_CURSOR, 1 << 50, "cursor of slot 0"),
        (3, layout.C_START_POS, 1 << 50, "before its start"),
        (3, layout.C_LEASES, 1, "leases frame 77 of 3"),
        (5, 1, 9, "has seq 1, expected 10"),
        (5, 0, 1 << 40, "frame, tag 0"),
    ],
)
def test_check_ring_names_what_is_broken(page: int, word: int, value: int, reason: str) -> None:
    with open_pair() as (producer, _):
        producer.write_many([(1, b"x" * 8)] * 3)
        poke(producer.name, layout.slot_page(0) + layout.C_OLDEST_LEASE * 8, 77)
        offset = (page if page < 5 else layout.slot_page(2) // layout.PAGE) * layout.PAGE + word * 8
        fd = os.open(f"/dev/shm/ringbuf.{producer.name}", os.O_RDONLY)
        sound = struct.unpack("=Q", os.pread(fd, 8, offset))[0]
        os.close(fd)
        poke(producer.name, offset, value)
        text = "padding" if reason == "frame, tag 0" else reason
        with pytest.raises(ringbuf.RingCorrupt, match=re.escape(text)):
            check_ring(producer.name)
        poke(producer.name, offset, sound)


def test_check_ring_misses_a_fifo() -> None:
    with open_pair() as (producer, _):
        fifo = next(path for path in Path("/dev/shm").glob(f"ringbuf.{producer.name}~*.c1"))
        fifo.unlink()
        with pytest.raises(ringbuf.RingCorrupt, match=r"FIFO .* is missing"):
            check_ring(producer.name)

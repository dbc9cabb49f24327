"""`for frame in consumer`: what is there comes without waiting, the rest as `read` brings it."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import sys
import threading

import pytest
from support import MS, spawn_python, wait_until

import ringbuf
from ringbuf import layout

pytestmark = pytest.mark.usefixtures("body")


def test_what_is_there_comes_in_order_and_once(
    producer: ringbuf.Producer, consumer: ringbuf.Consumer
) -> None:
    sizes = [0, 1, 7, 8, 9, 64, 300, 1000]
    for round_ in range(20):  # over the end of the ring, with padding
        for size in sizes:
            assert producer.try_write(1 + size % 200, bytes([round_]) * size)
            (frame,) = itertools.islice(consumer, 1)
            assert (frame.tag, bytes(frame.payload)) == (1 + size % 200, bytes([round_]) * size)
            assert frame.seq == round_ * len(sizes) + sizes.index(size)
            del frame
    assert consumer.try_read() is None
    assert ringbuf.inspect(producer.name).consumers[0].lag_bytes == 0


def test_every_way_to_read_goes_on_where_the_last_one_was(
    producer: ringbuf.Producer, consumer: ringbuf.Consumer
) -> None:
    producer.write_many([(tag, b"x") for tag in range(1, 10)])
    each = iter(consumer)
    got = [next(each), next(consumer), consumer.read(), next(iter(consumer)), consumer.try_read(), next(each)]
    assert [frame.tag for frame in got if frame] == [1, 2, 3, 4, 5, 6]
    assert [frame.tag for frame in consumer.read_many()] == [7, 8, 9]


def test_it_waits_for_the_next_and_is_woken(producer: ringbuf.Producer, consumer: ringbuf.Consumer) -> None:
    got: list[int] = []
    thread = threading.Thread(target=lambda: got.extend(frame.tag for frame in consumer))
    thread.start()
    for tag in range(1, 6):
        wait_until(lambda: ringbuf.inspect(producer.name).consumers[0].parked)
        producer.write(tag, b"x" * tag)
        wait_until(lambda tag=tag: len(got) == tag)
    producer.close()
    thread.join(60)
    assert got == [1, 2, 3, 4, 5]


def test_a_loop_keeps_its_consumer(producer: ringbuf.Producer) -> None:
    producer.write_many([(1, b"a"), (2, b"b")])
    producer.close(unlink=False)
    assert [frame.tag for frame in ringbuf.attach(producer.name)] == [1, 2]
    gc.collect()
    assert not ringbuf.inspect(producer.name).consumers, "the consumer went with the loop"
    ringbuf.unlink(producer.name)


def test_what_is_left_of_an_iterator_holds_nothing_back(
    producer: ringbuf.Producer, consumer: ringbuf.Consumer
) -> None:
    producer.write(1, b"a")
    before = sys.getrefcount(consumer)
    for _ in range(100):
        iter(consumer)
    each = iter(consumer)
    assert next(each).tag == 1
    del each
    assert sys.getrefcount(consumer) == before


def test_a_closed_handle_ends_its_loop_at_once(
    producer: ringbuf.Producer, consumer: ringbuf.Consumer
) -> None:
    producer.write_many([(1, b"a"), (2, b"b"), (3, b"c")])
    seen = []
    for frame in consumer:
        seen.append(frame.tag)
        if frame.tag == 2:
            consumer.close()
    assert seen == [1, 2]
    assert list(consumer) == []


def test_a_closed_handle_ends_the_loop_that_waits_in_a_thread(
    producer: ringbuf.Producer, consumer: ringbuf.Consumer
) -> None:
    thread = threading.Thread(target=lambda: list(consumer))
    thread.start()
    wait_until(lambda: ringbuf.inspect(producer.name).consumers[0].parked)
    consumer.close()
    thread.join(60)
    assert not thread.is_alive()


def test_what_is_no_frame_is_an_error(producer: ringbuf.Producer, consumer: ringbuf.Consumer) -> None:
    producer.write_many([(1, b"a"), (2, b"b")])
    each = iter(consumer)
    assert next(each).tag == 1
    size = layout.frame_bytes(1)
    segment = os.open(f"/dev/shm/ringbuf.{producer.name}", os.O_RDWR)
    try:
        at = os.fstat(segment).st_size - producer.capacity + size
        os.pwrite(segment, b"\xff" * 8, at)
    finally:
        os.close(segment)
    for _ in range(2):
        with pytest.raises(ringbuf.RingCorrupt):
            next(each)


DYING = """
import os, sys, ringbuf
producer = ringbuf.create(sys.argv[1], capacity=4096)
producer.write_many([(1, b"a"), (2, b"b")])
os.kill(os.getpid(), 9)
"""


def test_a_dead_producer_is_told_of_once(name: str) -> None:
    child = spawn_python(DYING, name)
    with child, ringbuf.attach(name, timeout=60) as consumer:
        seen: list[int] = []
        with pytest.raises(ringbuf.PeerDead):
            seen.extend(frame.tag for frame in consumer)
        assert seen == [1, 2]
        with ringbuf.resume(name) as producer:
            producer.write(3, b"c")
            assert [frame.tag for frame in itertools.islice(consumer, 1)] == [3]


def test_an_inherited_loop_is_an_error_in_a_child(
    producer: ringbuf.Producer, consumer: ringbuf.Consumer
) -> None:
    producer.write_many([(1, b"a"), (2, b"b")])
    each = iter(consumer)
    next(each)
    child = os.fork()
    if not child:
        try:
            next(each)
        except ringbuf.UseAfterFork:
            os._exit(7)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert next(each).tag == 2


def test_a_signal_ends_the_wait_and_the_loop_goes_on(
    producer: ringbuf.Producer, consumer: ringbuf.Consumer
) -> None:
    def interrupt() -> None:
        wait_until(lambda: ringbuf.inspect(producer.name).consumers[0].parked)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Timer(10 * MS, interrupt)
    thread.start()
    each = iter(consumer)
    with pytest.raises(KeyboardInterrupt):
        next(each)
    thread.join()
    producer.write(5, b"x")
    assert next(each).tag == 5

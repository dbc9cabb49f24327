from __future__ import annotations

import os
import threading
import time

import numpy as np
import pytest
from support import MS, wait_until

import ringbuf
from ringbuf import layout

pytestmark = pytest.mark.usefixtures("body")


def payloads(consumer: ringbuf.Consumer) -> list[bytes]:
    return [bytes(frame.payload) for frame in consumer.read_many()]


def fill(producer: ringbuf.Producer, payload: bytes) -> int:
    count = 0
    while producer.try_write(1, payload):
        count += 1
    return count


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (b"", b""),
        (b"x", b"x"),
        (b"bytes", b"bytes"),
        (bytearray(b"array"), b"array"),
        (memoryview(b"view")[1:], b"iew"),
        (memoryview(b"abcdef")[::2], b"ace"),
        (np.arange(3, dtype=np.int32), np.arange(3, dtype=np.int32).tobytes()),
        (np.arange(3, dtype=">i4"), np.arange(3, dtype=">i4").tobytes()),
        (
            np.arange(6, dtype=np.float32).reshape(2, 3).T,
            np.arange(6, dtype=np.float32).reshape(2, 3).T.tobytes(),
        ),
        (np.empty((0, 3), np.float32), b""),
        ([b"ab", np.uint8([99]), b"", bytearray(b"d")], b"abcd"),
        ((b"ab", b"cd"), b"abcd"),
        ([], b""),
    ],
)
def test_any_buffer_or_list_of_buffers_is_one_payload(
    producer: ringbuf.Producer, consumer: ringbuf.Consumer, payload: ringbuf.payload.Payload, expected: bytes
) -> None:
    assert producer.try_write(9, payload)
    producer.write(9, payload)
    assert producer.write_many([(9, payload)]) == 1
    assert payloads(consumer) == [expected] * 3


@pytest.mark.parametrize("payload", ["text", 3, None, [1], ["a"], {}])
def test_other_payloads_are_refused_and_nothing_is_written(
    producer: ringbuf.Producer, consumer: ringbuf.Consumer, payload: object
) -> None:
    for write in (producer.try_write, producer.write):
        with pytest.raises(TypeError, match="payload must be"):
            write(1, payload)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="payload must be"):
        producer.write_many([(1, b"good"), (1, payload)])  # type: ignore[list-item]
    assert consumer.try_read() is None


@pytest.mark.parametrize("tag", [0, 256, -1, 1 << 70])
def test_tags_outside_1_to_255_are_refused(producer: ringbuf.Producer, tag: int) -> None:
    for call in (producer.try_write, producer.write, lambda t, p: producer.write_many([(t, p)])):
        with pytest.raises(ValueError, match="tag must be 1 to 255"):
            call(tag, b"x")
    with pytest.raises(ValueError, match="tag must be 1 to 255"):
        producer.claim(tag, 1)


@pytest.mark.parametrize("tag", [1.0, "1", None])
def test_tags_are_integers(producer: ringbuf.Producer, tag: object) -> None:
    with pytest.raises(TypeError):
        producer.try_write(tag, b"x")  # type: ignore[arg-type]


def test_the_caller_may_change_its_buffers_afterwards(
    producer: ringbuf.Producer, consumer: ringbuf.Consumer
) -> None:
    array = np.arange(400, dtype=np.int32)
    producer.write(1, array)
    array[:] = -1
    assert np.frombuffer(consumer.read(0).payload, np.int32).tolist() == list(range(400))


@pytest.mark.parametrize("align_at", range(20))
def test_align_at_puts_that_byte_on_an_8_byte_boundary(
    producer: ringbuf.Producer, consumer: ringbuf.Consumer, align_at: int
) -> None:
    payload = os.urandom(1000)
    producer.write(1, payload, align_at=align_at)
    assert producer.try_write(2, payload, align_at=align_at)
    assert producer.write_many([(3, payload)], align_at=align_at) == 1
    for _ in range(3):
        assert consumer.read(0).payload == payload


def test_aligned_columns_of_a_lease_can_be_viewed_in_place(name: str) -> None:
    with ringbuf.create(name, capacity=1 << 18) as producer, ringbuf.attach(name) as consumer:
        for header in range(17):
            column = np.arange(8000, dtype=np.int64)
            producer.write(1, [b"h" * header, column], align_at=header)
            with consumer.read(0) as frame:
                view = np.frombuffer(frame.payload, np.int64, offset=header)
                assert view.flags.aligned
                assert (view == column).all()
                del view


def test_try_write_is_false_when_full_and_true_again_after_a_read(
    producer: ringbuf.Producer, consumer: ringbuf.Consumer
) -> None:
    assert fill(producer, b"x" * 100) == 4096 // layout.frame_bytes(100)
    assert consumer.read(0).payload == b"x" * 100
    assert producer.try_write(2, b"y" * 100) in (True, False)
    consumer.read(0)
    consumer.read(0)
    assert producer.try_write(2, b"y" * 100)


@pytest.mark.parametrize("capacity", [64, 128, 256, 4096, 65536])
def test_exact_fit_fills_the_ring_to_the_last_byte(name: str, capacity: int) -> None:
    with ringbuf.create(name, capacity) as producer, ringbuf.attach(name) as consumer:
        half = b"h" * (capacity // 2 - 16)
        for _ in range(5):
            assert producer.try_write(1, half)
            assert producer.try_write(2, half)
            assert not producer.try_write(3, b"")
            assert [frame.tag for frame in consumer.read_many()] == [1, 2]
        assert ringbuf.inspect(name).padding_bytes == 0


def test_a_frame_that_fits_at_neither_end_waits(name: str) -> None:
    with ringbuf.create(name, 256) as producer, ringbuf.attach(name) as consumer:
        for payload in (b"a" * 64, b"b" * 64):  # 80 bytes each: 96 are left at the end
            assert producer.try_write(1, payload)
        consumer.read(0)  # 80 are free at the start
        assert not producer.try_write(1, b"c" * 90)  # 112 bytes: neither 96 nor 80
        consumer.read(0)
        assert producer.try_write(1, b"c" * 90)
        assert consumer.read(0).payload == b"c" * 90
        assert ringbuf.inspect(name).padding_bytes == 96


@pytest.mark.parametrize("excess", [1, 2, 100, 1 << 20])
def test_too_large_frames_are_refused_at_once_with_both_numbers(
    producer: ringbuf.Producer, consumer: ringbuf.Consumer, excess: int
) -> None:
    size = producer.max_payload + excess
    big = bytes(size)
    calls = [
        lambda: producer.try_write(1, big),
        lambda: producer.write(1, big, timeout=None),
        lambda: producer.write(1, [big], timeout=1),
        lambda: producer.write_many([(1, b"a"), (1, big)]),
        lambda: producer.claim(1, size),
    ]
    for call in calls:
        with pytest.raises(ringbuf.FrameTooLarge) as caught:
            call()
        assert (caught.value.size, caught.value.limit) == (size, 4096 // 2 - 16)
        assert str(size) in str(caught.value)
    assert consumer.try_read() is None
    producer.write(1, bytes(producer.max_payload))
    assert len(consumer.read(0)) == producer.max_payload


def test_write_many_publishes_once_and_counts(producer: ringbuf.Producer, consumer: ringbuf.Consumer) -> None:
    assert producer.write_many([]) == 0
    assert producer.write_many((i + 1, b"%d" % i) for i in range(50)) == 50
    assert [(frame.tag, frame.seq) for frame in consumer.read_many()] == [(i + 1, i) for i in range(50)]
    count = producer.write_many([(1, b"x" * 100)] * 100)
    assert count == 4096 // layout.frame_bytes(100)
    assert len(consumer.read_many()) == count


def test_write_many_of_a_bad_frame_publishes_nothing(
    producer: ringbuf.Producer, consumer: ringbuf.Consumer
) -> None:
    producer.write(1, b"before")
    with pytest.raises(ValueError, match="tag"):
        producer.write_many([(1, b"a"), (2, b"b"), (0, b"bad")])
    producer.write(1, b"after")
    assert payloads(consumer) == [b"before", b"after"]


def test_write_many_waits_for_the_rest_when_asked(
    producer: ringbuf.Producer, consumer: ringbuf.Consumer
) -> None:
    got: list[bytes] = []

    def read() -> None:
        while len(got) < 500:
            got.append(bytes(consumer.read(10).payload))

    thread = threading.Thread(target=read)
    thread.start()
    sent = [b"%d" % i * 20 for i in range(500)]
    assert producer.write_many([(1, payload) for payload in sent], timeout=10) == 500
    thread.join()
    assert got == sent
    fill(producer, b"x" * 500)
    assert producer.write_many([(1, b"x" * 1000)], timeout=20 * MS) == 0


def test_claim_publishes_on_a_clean_exit(producer: ringbuf.Producer, consumer: ringbuf.Consumer) -> None:
    with producer.claim(7, 800, align_at=3) as buf:
        assert not buf.readonly
        assert len(buf) == 800
        np.frombuffer(buf[5:], np.uint8)[:] = 1
        buf[:5] = b"hello"
        assert consumer.try_read() is None
    frame = consumer.read(0)
    assert (frame.tag, bytes(frame.payload)) == (7, b"hello" + b"\1" * 795)
    with pytest.raises(ValueError, match="released"):
        buf[0]


def test_claim_leaves_nothing_after_an_exception(
    producer: ringbuf.Producer, consumer: ringbuf.Consumer
) -> None:
    for _ in range(50):
        with pytest.raises(ZeroDivisionError), producer.claim(7, 900) as buf:  # noqa: PT012
            buf[:] = b"\xff" * 900
            1 / 0  # noqa: B018
    producer.write(1, b"next")
    frame = consumer.read(0)
    assert (frame.seq, bytes(frame.payload)) == (0, b"next")
    assert consumer.try_read() is None


def test_nothing_else_is_written_while_a_claim_is_open(
    producer: ringbuf.Producer, consumer: ringbuf.Consumer
) -> None:
    with producer.claim(7, 4) as buf:
        buf[:] = b"open"
        for call in (
            lambda: producer.try_write(1, b"x"),
            lambda: producer.write(1, b"x"),
            lambda: producer.write_many([(1, b"x")]),
            lambda: producer.claim(1, 1).__enter__(),
        ):
            with pytest.raises(ringbuf.FrameInUse, match="claim"):
                call()
    assert producer.try_write(1, b"x")
    assert payloads(consumer) == [b"open", b"x"]


def test_views_that_outlive_a_claim_are_refused(
    producer: ringbuf.Producer, consumer: ringbuf.Consumer
) -> None:
    with pytest.raises(ringbuf.FrameInUse) as caught, producer.claim(7, 80) as buf:
        kept = np.frombuffer(buf, np.uint8)
    assert caught.value.views >= 1
    kept[:] = 7
    with pytest.raises(ringbuf.FrameInUse), producer.claim(7, 80) as buf:
        part = buf[3:9]
    del part
    producer.write(1, b"next")
    assert payloads(consumer) == [b"next"]


def test_claim_waits_for_room_as_long_as_it_is_told(producer: ringbuf.Producer) -> None:
    fill(producer, b"x" * 100)
    started = time.monotonic()
    with pytest.raises(ringbuf.RingFull), producer.claim(1, 1000):
        pass
    with pytest.raises(ringbuf.RingFull) as caught, producer.claim(1, 1000, timeout=30 * MS):
        pass
    assert time.monotonic() - started >= 30 * MS
    assert caught.value.waited >= 30 * MS


def test_full_without_consumers_says_so(producer: ringbuf.Producer) -> None:
    fill(producer, b"x" * 100)
    with pytest.raises(ringbuf.RingFull, match="no consumer is attached") as caught:
        producer.write(1, b"x" * 100, timeout=20 * MS)
    assert isinstance(caught.value, TimeoutError)
    assert caught.value.pid is None
    assert caught.value.waited >= 20 * MS


def test_full_names_the_slowest_consumer_with_its_leases(name: str) -> None:
    with (
        ringbuf.create(name, 1 << 16) as producer,
        ringbuf.attach(name) as fast,
        ringbuf.attach(name) as slow,
    ):
        for _ in range(4):
            producer.write(1, b"x" * 9000)
        kept = [slow.read(0) for _ in range(3)]
        while producer.try_write(1, b"y" * 9000):
            pass
        while fast.try_read() is not None:
            pass
        with pytest.raises(ringbuf.RingFull) as caught:
            producer.write(1, b"z" * 18000, timeout=0)
        error = caught.value
        assert (error.slot, error.pid, error.leases, error.oldest_lease) == (slow.slot, os.getpid(), 3, 0)
        assert error.lag is not None
        assert error.lag >= 4 * 9000
        assert "3 leases since seq 0" in str(error)
        kept.clear()
        assert producer.try_write(1, b"z" * 18000)


def test_a_waiting_write_is_woken_by_a_read(producer: ringbuf.Producer, consumer: ringbuf.Consumer) -> None:
    fill(producer, b"x" * 1000)
    thread = threading.Thread(target=producer.write, args=(2, b"y" * 1500, 60))
    thread.start()
    wait_until(lambda: ringbuf.inspect(producer.name).producer.waiting, what="parked")
    # The flag goes up before its last look; what that finds is no wake-up.
    time.sleep(20 * MS)
    while (frame := consumer.read(60)).tag != 2:
        pass
    thread.join()
    assert frame.payload == b"y" * 1500
    info = ringbuf.inspect(producer.name)
    assert info.wakeups >= 1
    assert not info.producer.waiting


def test_a_waiting_write_goes_on_when_the_slow_consumer_leaves(
    producer: ringbuf.Producer, consumer: ringbuf.Consumer
) -> None:
    other = ringbuf.attach(producer.name)
    fill(producer, b"x" * 1000)
    consumer.read_many()
    thread = threading.Thread(target=producer.write, args=(2, b"y" * 1500, 60))
    thread.start()
    wait_until(lambda: ringbuf.inspect(producer.name).producer.waiting, what="parked")
    other.close()
    thread.join()
    assert consumer.read(0).payload == b"y" * 1500


def test_close_from_another_thread_ends_a_waiting_write(producer: ringbuf.Producer) -> None:
    fill(producer, b"x" * 1000)
    failures: list[BaseException] = []

    def write() -> None:
        try:
            producer.write(1, b"x" * 1000)
        except ringbuf.RingClosed as error:
            failures.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    wait_until(lambda: ringbuf.inspect(producer.name).producer.waiting, what="parked")
    producer.close()
    thread.join()
    assert str(failures[0]) == f"ring {producer.name!r} was closed by us"


def test_every_write_after_close_raises_ring_closed(name: str) -> None:
    producer = ringbuf.create(name, 4096)
    bound = producer.try_write
    producer.write(1, b"x")
    producer.close()
    producer.close()
    assert producer.closed
    for call in (
        lambda: bound(1, b"x"),
        lambda: producer.try_write(1, b"x"),
        lambda: producer.write(1, b"x"),
        lambda: producer.write_many([(1, b"x")]),
        lambda: producer.claim(1, 1).__enter__(),
    ):
        with pytest.raises(ringbuf.RingClosed):
            call()
    assert "closed" in repr(producer)


def test_counters_tell_what_happened(producer: ringbuf.Producer, consumer: ringbuf.Consumer) -> None:
    count = fill(producer, b"x" * 100)
    with pytest.raises(ringbuf.RingFull):
        producer.write(1, b"x" * 100, timeout=20 * MS)
    info = ringbuf.inspect(producer.name)
    step = layout.frame_bytes(100)
    assert (info.frames, info.bytes, info.position) == (count, count * step, count * step)
    assert info.used_bytes == info.high_water_bytes == count * step
    assert info.full_events == 1
    assert info.consumers[0].lag_frames == count
    assert info.consumers[0].lag_bytes == count * step
    consumer.read_many()
    assert producer.try_write(1, b"x" * 100)
    info = ringbuf.inspect(producer.name)
    assert info.full_s >= 20 * MS
    assert (info.frames, info.consumers[0].lag_frames) == (count + 1, 1)


def test_a_tag_that_only_equals_the_last_one_is_none(
    producer: ringbuf.Producer, consumer: ringbuf.Consumer
) -> None:
    for tag in (1, 255):
        assert producer.try_write(tag, b"same size")
        for other in (float(tag), str(tag)):
            with pytest.raises(TypeError, match="tag"):
                producer.try_write(other, b"same size")  # type: ignore[arg-type]
    for number in (0, 256, -1):
        with pytest.raises(ValueError, match=str(number)):
            producer.try_write(number, b"same size")
    assert producer.try_write(255, b"same size")
    assert [frame.tag for frame in consumer.read_many()] == [1, 255, 255]


def test_frames_like_the_last_and_almost_like_it(
    producer: ringbuf.Producer, consumer: ringbuf.Consumer
) -> None:
    # All take the same room; runs of equal ones, then another tag, size or alignment.
    kinds = [(1, 64, 0), (1, 64, 0), (1, 64, 0), (2, 64, 0), (2, 64, 0), (2, 63, 0), (1, 60, 4), (1, 60, 4)]
    for number in range(400):
        tag, size, align_at = kinds[number * 7 // 3 % len(kinds)]
        payload = bytes([number % 256]) * size
        assert producer.try_write(tag, payload, align_at)
        frame = consumer.try_read()
        assert frame is not None
        assert (frame.tag, frame.seq, bytes(frame.payload)) == (tag, number, payload)

from __future__ import annotations

import gc
import os
import random
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from support import wait_until

import ringbuf

pytestmark = pytest.mark.usefixtures("body")

BIG = 20_000
PARTS = [
    lambda frame: frame.payload,
    lambda frame: frame.payload[100:200],
    lambda frame: frame.payload.cast("i"),
    lambda frame: np.frombuffer(frame.payload, np.uint8),
    lambda frame: np.frombuffer(frame.payload, np.float32)[5:50],
    lambda frame: np.frombuffer(frame.payload, np.int32).reshape(50, 100)[3],
    lambda frame: np.asarray(frame.payload)[::2],
    lambda frame: memoryview(np.frombuffer(frame.payload, np.uint8)[7:9]),
]
IDS = ["payload", "slice", "cast", "array", "array slice", "reshape", "asarray", "memoryview of array"]


@pytest.fixture
def pair(name: str) -> Iterator[tuple[ringbuf.Producer, ringbuf.Consumer]]:
    with ringbuf.create(name, 1 << 16, slots=2) as producer, ringbuf.attach(name) as consumer:
        yield producer, consumer


def lag(name: str) -> int:
    return ringbuf.inspect(name).consumers[0].lag_bytes


def leases(name: str) -> int:
    return ringbuf.inspect(name).consumers[0].leases


def test_views_keep_their_bytes_while_others_come_and_go(
    pair: tuple[ringbuf.Producer, ringbuf.Consumer],
) -> None:
    # Whatever a body does to use the memory of a dead frame again: sizes around its bounds, views of frames
    # that are gone, more of them than it keeps memory for, dying in any order.
    producer, consumer = pair
    draw = random.Random(5)
    held: list[tuple[memoryview, bytes]] = []
    for turn in range(600):
        sizes = [
            draw.choice((2, 8, 64, 127, 128, 129, 300, 1024, 1025, 2000)) for _ in range(draw.randrange(9))
        ]
        written = [os.urandom(size) for size in sizes]
        assert producer.write_many([(1, payload) for payload in written]) == len(written)
        frames = consumer.read_many(100)
        assert [bytes(frame.payload) for frame in frames] == written
        held += [(frame.payload, payload) for frame, payload in zip(frames, written, strict=True)]
        del frames
        draw.shuffle(held)
        # Leases hold the ring's room, so none is kept for long.
        held.sort(key=lambda each: len(each[0]) > 1024)
        most = 300 if turn % 100 < 50 else 5
        while len(held) > most or (held and len(held[-1][0]) > 1024):
            view, payload = held.pop()
            assert view == payload
    for view, payload in held:
        assert view == payload


@pytest.mark.parametrize("count", [1, 63, 64, 65, 128, 129, 300])
@pytest.mark.parametrize("most", [1, 63, 64, 65, 1000])
def test_a_batch_of_any_length_is_read_in_order(
    pair: tuple[ringbuf.Producer, ringbuf.Consumer], count: int, most: int
) -> None:
    producer, consumer = pair
    producer.write_many([(1 + i % 255, i.to_bytes(4, "little")) for i in range(count)])
    read: list[int] = []
    while frames := consumer.read_many(most):
        assert len(frames) == min(most, count - len(read))
        read += [int.from_bytes(frame.payload, "little") for frame in frames]
    assert read == list(range(count))


@pytest.mark.parametrize("size", [0, 1, 2, 10, 4096, 4097, BIG])
def test_frames_of_every_size_behave_alike(
    pair: tuple[ringbuf.Producer, ringbuf.Consumer], size: int
) -> None:
    producer, consumer = pair
    payload = os.urandom(size)
    producer.write(5, payload)
    frame = consumer.read(0)
    view = frame.payload
    assert view.readonly
    assert (view.format, view.ndim, view.nbytes) == ("B", 1, size)
    assert view == payload
    assert len(frame) == size
    with pytest.raises(TypeError):
        view[0:0] = b""
    with pytest.raises(ringbuf.FrameInUse) as caught:
        frame.release()
    assert caught.value.views == 1
    assert frame.payload == payload
    del view
    frame.release()
    frame.release()
    with pytest.raises(ValueError, match="released"):
        _ = frame.payload
    assert "released" in repr(frame)
    assert len(frame) == 0


@pytest.mark.parametrize("part", PARTS, ids=IDS)
@pytest.mark.parametrize("size", [4000, BIG])
def test_anything_made_from_a_payload_keeps_its_bytes(
    pair: tuple[ringbuf.Producer, ringbuf.Consumer], size: int, part
) -> None:
    producer, consumer = pair
    payload = os.urandom(size)
    producer.write(1, payload)
    frame = consumer.read(0)
    if part is PARTS[5] and size != BIG:
        kept = np.frombuffer(frame.payload, np.int32).reshape(10, 100)[3]
    else:
        kept = part(frame)
    expected = bytes(kept)
    with pytest.raises(ringbuf.FrameInUse):
        frame.release()
    del frame
    for _ in range(20):
        while producer.try_write(2, os.urandom(3000)):
            pass
        while consumer.try_read() is not None:
            pass
    assert bytes(kept) == expected
    if size == BIG:
        assert leases(producer.name) == 1
    del kept
    assert leases(producer.name) == 0
    assert lag(producer.name) == 0
    with pytest.raises(ValueError, match=r"read-only|not writeable|readonly"):
        np.frombuffer(memoryview(payload), np.uint8)[0] = 1


def test_arrays_over_a_payload_are_read_only(pair: tuple[ringbuf.Producer, ringbuf.Consumer]) -> None:
    producer, consumer = pair
    for size in (100, BIG):
        producer.write(1, bytes(size))
        array = np.frombuffer(consumer.read(0).payload, np.uint8)
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.flags.writeable = True


def test_a_lease_ends_when_its_frame_is_collected(pair: tuple[ringbuf.Producer, ringbuf.Consumer]) -> None:
    producer, consumer = pair
    producer.write(1, bytes(BIG))
    frame = consumer.read(0)
    assert (leases(producer.name), lag(producer.name)) == (1, BIG + 16)
    cycle: list[object] = [frame]
    cycle.append(cycle)
    del frame, cycle
    gc.collect()
    assert (leases(producer.name), lag(producer.name)) == (0, 0)


def test_bytes_are_released_in_order_whatever_order_leases_end_in(
    pair: tuple[ringbuf.Producer, ringbuf.Consumer],
) -> None:
    producer, consumer = pair
    for i in range(3):
        producer.write(1, bytes([i]) * BIG)
    frames = consumer.read_many()
    step = BIG + 16
    assert lag(producer.name) == 3 * step
    frames[1].release()
    assert (leases(producer.name), lag(producer.name)) == (2, 3 * step)
    frames[0].release()
    assert (leases(producer.name), lag(producer.name)) == (1, step)
    assert ringbuf.inspect(producer.name).consumers[0].oldest_lease == 2
    assert frames[2].payload == b"\2" * BIG
    frames[2].release()
    assert (leases(producer.name), lag(producer.name)) == (0, 0)


def test_copies_read_behind_a_lease_come_free_with_it(
    pair: tuple[ringbuf.Producer, ringbuf.Consumer],
) -> None:
    producer, consumer = pair
    producer.write(1, bytes(BIG))
    for _ in range(10):
        producer.write(1, b"small")
    frames = consumer.read_many()
    assert lag(producer.name) == BIG + 16 + 10 * 24
    del frames[1:]
    assert lag(producer.name) == BIG + 16 + 10 * 24
    frames.clear()
    assert lag(producer.name) == 0


def test_with_a_frame_releases_it(pair: tuple[ringbuf.Producer, ringbuf.Consumer]) -> None:
    producer, consumer = pair
    producer.write(1, bytes(BIG))
    with consumer.read(0) as frame:
        assert sum(frame.payload) == 0
    assert leases(producer.name) == 0
    producer.write(1, bytes(BIG))
    with pytest.raises(ringbuf.FrameInUse), consumer.read(0) as frame:
        kept = frame.payload
    kept.release()


def test_an_error_in_the_block_is_the_one_that_is_raised(
    pair: tuple[ringbuf.Producer, ringbuf.Consumer],
) -> None:
    producer, consumer = pair
    producer.write(1, bytes(BIG))
    with pytest.raises(ZeroDivisionError) as caught, consumer.read(0) as frame:  # noqa: PT012
        kept = frame.payload
        raise ZeroDivisionError
    assert "still live" in caught.value.__notes__[0]
    del kept


def test_views_outlive_the_consumer_and_hold_space_and_slot(name: str) -> None:
    with ringbuf.create(name, 1 << 16, slots=1) as producer:
        consumer = ringbuf.attach(name)
        payload = os.urandom(BIG)
        producer.write(1, payload)
        view = np.frombuffer(consumer.read(0).payload, np.uint8)
        consumer.close()
        del consumer
        gc.collect()
        with pytest.raises(ringbuf.NoFreeSlot):
            ringbuf.attach(name)
        while producer.try_write(2, os.urandom(3000)):
            pass
        assert view.tobytes() == payload
        assert ringbuf.inspect(name).consumers[0].leases == 1
        del view
        assert ringbuf.inspect(name).consumers == ()
        ringbuf.attach(name).close()


def test_views_outlive_the_ring(name: str) -> None:
    producer = ringbuf.create(name, 1 << 16)
    consumer = ringbuf.attach(name)
    payload = os.urandom(BIG)
    producer.write(1, payload)
    view = consumer.read(0).payload
    producer.close()
    consumer.close()
    del producer, consumer
    gc.collect()
    with pytest.raises(ringbuf.RingNotFound):
        ringbuf.inspect(name)
    assert view == payload


def test_a_view_that_dies_wakes_a_waiting_producer(pair: tuple[ringbuf.Producer, ringbuf.Consumer]) -> None:
    producer, consumer = pair
    for _ in range(3):
        producer.write(1, bytes(BIG))
    views = [frame.payload for frame in consumer.read_many()]
    thread = threading.Thread(target=producer.write, args=(2, bytes(BIG), 60))
    thread.start()
    wait_until(lambda: ringbuf.inspect(producer.name).producer.waiting, what="parked")
    views.clear()
    thread.join()
    assert consumer.read(0).tag == 2


def test_leases_end_in_any_thread(pair: tuple[ringbuf.Producer, ringbuf.Consumer]) -> None:
    producer, consumer = pair
    kept: list[memoryview] = []
    done = threading.Event()

    def drop() -> None:
        while not done.is_set() or kept:
            if kept:
                kept.pop()

    threads = [threading.Thread(target=drop) for _ in range(3)]
    for thread in threads:
        thread.start()
    for i in range(500):
        producer.write(1 + i % 255, bytes([i % 251]) * 5000, timeout=60)
        frame = consumer.read(60)
        assert frame.payload[4999] == i % 251
        kept.append(frame.payload)
        del frame
    done.set()
    for thread in threads:
        thread.join()
    assert (leases(producer.name), lag(producer.name)) == (0, 0)


def test_a_forked_child_gives_nothing_back(pair: tuple[ringbuf.Producer, ringbuf.Consumer]) -> None:
    producer, consumer = pair
    producer.write(1, b"z" * BIG)
    frame = consumer.read(0)
    pid = os.fork()
    if not pid:
        same = frame.payload == b"z" * BIG
        del frame
        gc.collect()
        os._exit(0 if same else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert leases(producer.name) == 1
    assert frame.payload == b"z" * BIG


def test_many_leases_do_not_slow_each_other(pair: tuple[ringbuf.Producer, ringbuf.Consumer]) -> None:
    producer, consumer = pair
    started = time.monotonic()
    for _ in range(300):
        for _ in range(12):
            producer.write(1, bytes(5000), timeout=5)
        frames = consumer.read_many()
        assert len(frames) == 12
        del frames[::2], frames
    assert lag(producer.name) == 0
    assert time.monotonic() >= started


def test_poison_shows_who_looks_without_a_lease(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ringbuf.room._poisons", True)  # before the ring is made, as the environment says it
    producer, consumer = request.getfixturevalue("pair")
    for _ in range(3):
        producer.write(1, b"a" * BIG)
    first, *_ = consumer.read_many()
    whole = memoryview(consumer._seat.data)
    stolen, second = whole[16 : 16 + BIG], whole[BIG + 32 : 2 * BIG + 32]
    keeper = first.payload
    assert not producer.try_write(2, b"b" * BIG)
    assert stolen == keeper == b"a" * BIG
    del keeper, first, _
    assert producer.try_write(2, b"b" * BIG)
    assert second == b"\xdb" * BIG
    assert consumer.read(0).payload == b"b" * BIG

from __future__ import annotations

import asyncio
import os
import select
import threading
import time
from typing import Any

import pytest
import uvloop
from support import MS, wait_until

import ringbuf

pytestmark = pytest.mark.usefixtures("body")


def parked(name: str) -> bool:
    return any(consumer.parked for consumer in ringbuf.inspect(name).consumers)


def later(call: Any, seconds: float = 50 * MS) -> threading.Timer:
    timer = threading.Timer(seconds, call)
    timer.start()
    return timer


def test_try_read_is_none_when_empty(consumer: ringbuf.Consumer) -> None:
    assert consumer.try_read() is None
    assert consumer.read_many() == []


def test_read_times_out_not_before_its_time(consumer: ringbuf.Consumer) -> None:
    for timeout in (0, 30 * MS):
        started = time.monotonic()
        with pytest.raises(TimeoutError, match="no frame in ring"):
            consumer.read(timeout)
        assert time.monotonic() - started >= timeout
        started = time.monotonic()
        assert consumer.read_many(timeout=timeout) == []
        assert time.monotonic() - started >= timeout


def test_read_many_takes_at_most_what_it_is_told(
    producer: ringbuf.Producer, consumer: ringbuf.Consumer
) -> None:
    producer.write_many([(1, b"x")] * 10)
    assert [len(consumer.read_many(4)) for _ in range(4)] == [4, 4, 2, 0]
    with pytest.raises(ValueError, match="at least 1"):
        consumer.read_many(0)


@pytest.mark.parametrize("how", ["read", "read_many"])
def test_a_parked_reader_is_woken_once_for_many_frames(
    producer: ringbuf.Producer, consumer: ringbuf.Consumer, how: str
) -> None:
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.append(getattr(consumer, how)(timeout=60)))
    thread.start()
    wait_until(lambda: parked(producer.name), what="parked")
    producer.write_many([(3, b"x")] * 5)
    thread.join()
    assert len(got) == 1
    info = ringbuf.inspect(producer.name)
    assert info.rung == 1
    # 0 when the frames came between raising the flag and falling asleep.
    assert info.consumers[0].wakeups in (0, 1)
    assert not info.consumers[0].parked


def test_nobody_is_rung_while_nobody_sleeps(producer: ringbuf.Producer, consumer: ringbuf.Consumer) -> None:
    for _ in range(100):
        producer.write(1, b"x")
        consumer.read(0)
    assert ringbuf.inspect(producer.name).rung == 0


def test_repeated_timeouts_never_lose_a_wake_up(
    producer: ringbuf.Producer, consumer: ringbuf.Consumer
) -> None:
    # More parkings than there are wake generations, rung and not rung.
    for i in range(600):
        with pytest.raises(TimeoutError):
            consumer.read(0)
        if i % 3 == 0:
            timer = later(lambda: producer.write(1, b"x"), 0.0005)
            assert consumer.read(60).payload == b"x"
            timer.join()
    assert ringbuf.inspect(producer.name).consumers[0].lag_bytes == 0


def test_iteration_ends_at_the_clean_end(producer: ringbuf.Producer, consumer: ringbuf.Consumer) -> None:
    producer.write_many([(1, b"a"), (1, b"b")])
    later(producer.close)
    assert [bytes(frame.payload) for frame in consumer] == [b"a", b"b"]
    for call in (consumer.try_read, consumer.read, consumer.read_many):
        with pytest.raises(ringbuf.RingClosed, match="by the producer"):
            call()


def test_what_was_published_before_close_comes_first(
    producer: ringbuf.Producer, consumer: ringbuf.Consumer
) -> None:
    producer.write_many([(1, b"%d" % i) for i in range(20)])
    producer.close()
    assert [consumer.read(0).seq for _ in range(20)] == list(range(20))
    with pytest.raises(ringbuf.RingClosed):
        consumer.read()


def test_every_read_after_close_raises_ring_closed(
    producer: ringbuf.Producer, consumer: ringbuf.Consumer
) -> None:
    producer.write(1, b"x")
    bound = consumer.try_read
    consumer.close()
    consumer.close()
    for call in (bound, consumer.try_read, consumer.read, consumer.read_many, consumer.fileno):
        with pytest.raises(ringbuf.RingClosed, match="by us"):
            call()
    assert list(consumer) == []
    assert "closed" in repr(consumer)


def test_close_from_another_thread_ends_a_waiting_read(consumer: ringbuf.Consumer) -> None:
    timer = later(consumer.close)
    with pytest.raises(ringbuf.RingClosed, match="by us"):
        consumer.read()
    timer.join()


def test_oldest_gets_what_is_not_reclaimed_and_latest_what_follows(producer: ringbuf.Producer) -> None:
    producer.write_many([(1, b"%d" % i) for i in range(5)])
    with ringbuf.attach(producer.name) as oldest, ringbuf.attach(producer.name, start="latest") as latest:
        assert latest.try_read() is None
        producer.write(1, b"5")
        assert [frame.seq for frame in oldest.read_many()] == [0, 1, 2, 3, 4, 5]
        assert [frame.seq for frame in latest.read_many()] == [5]
    with pytest.raises(ValueError, match="'oldest' or 'latest'"):
        ringbuf.attach(producer.name, start="newest")  # type: ignore[arg-type]


def test_frames_are_held_for_whoever_comes(producer: ringbuf.Producer) -> None:
    count = 0
    while producer.try_write(1, b"x" * 100):
        count += 1
    with ringbuf.attach(producer.name) as first:
        assert len(first.read_many()) == count
        assert producer.try_write(1, b"next")
    with ringbuf.attach(producer.name) as second:
        assert [bytes(frame.payload) for frame in second.read_many()][-1] == b"next"


def test_each_consumer_gets_everything_once_and_in_order(name: str) -> None:
    total = 3000
    with ringbuf.create(name, 1024, slots=3) as producer:
        consumers = [ringbuf.attach(name) for _ in range(3)]
        seen: list[list[int]] = [[], [], []]

        def read(index: int) -> None:
            for frame in consumers[index]:
                assert frame.payload == b"%d" % frame.seq * (frame.seq % 7)
                seen[index].append(frame.seq)

        threads = [threading.Thread(target=read, args=(i,)) for i in range(3)]
        for thread in threads:
            thread.start()
        for i in range(total):
            producer.write(1 + i % 255, b"%d" % i * (i % 7), timeout=60)
        producer.close()
        for thread in threads:
            thread.join()
        assert seen == [list(range(total))] * 3
        for consumer in consumers:
            consumer.close()


def test_consumers_join_and_leave_while_frames_flow(name: str) -> None:
    stop = threading.Event()
    with ringbuf.create(name, 2048, slots=4) as producer, ringbuf.attach(name) as steady:
        failures: list[BaseException] = []

        def come_and_go() -> None:
            try:
                while not stop.is_set():
                    for start in ("oldest", "latest"):
                        with ringbuf.attach(name, start=start) as guest:
                            last = None
                            for _ in range(5):
                                frames = guest.read_many(timeout=5)
                                for frame in frames:
                                    assert last is None or frame.seq == last + 1
                                    assert frame.payload == b"%d" % frame.seq
                                    last = frame.seq
            except ringbuf.RingClosed:
                pass
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=come_and_go) for _ in range(2)]
        for thread in threads:
            thread.start()
        for i in range(4000):
            producer.write(1, b"%d" % i, timeout=60)
            assert steady.read(60).seq == i
        stop.set()
        producer.close(unlink=False)
        for thread in threads:
            thread.join()
        assert failures == []


def test_no_free_slot_says_how_many_there_are(producer: ringbuf.Producer) -> None:
    consumers = [ringbuf.attach(producer.name) for _ in range(3)]
    with pytest.raises(ringbuf.NoFreeSlot) as caught:
        ringbuf.attach(producer.name)
    assert caught.value.slots == 3
    consumers.pop().close()
    ringbuf.attach(producer.name).close()
    for consumer in consumers:
        consumer.close()


# ------------------------------------------------------------------------------------------------ event loops


def readable(consumer: ringbuf.Consumer) -> bool:
    return bool(select.select([consumer.fileno()], [], [], 0)[0])


def test_fileno_is_readable_until_a_read_found_nothing(
    producer: ringbuf.Producer, consumer: ringbuf.Consumer
) -> None:
    assert readable(consumer)
    assert consumer.try_read() is None
    assert not readable(consumer)
    for _ in range(300):
        producer.write_many([(1, b"a"), (1, b"b")])
        assert readable(consumer)
        assert consumer.try_read() is not None
        assert readable(consumer)
        assert consumer.try_read() is not None
        assert readable(consumer)
        assert consumer.try_read() is None
        assert not readable(consumer)
    producer.close()
    assert readable(consumer)
    with pytest.raises(ringbuf.RingClosed):
        consumer.try_read()


def test_fileno_is_readable_when_frames_were_there_before(
    producer: ringbuf.Producer, consumer: ringbuf.Consumer
) -> None:
    producer.write(1, b"x")
    assert readable(consumer)
    assert consumer.read_many()
    assert readable(consumer)
    assert not consumer.read_many()
    assert not readable(consumer)


@pytest.mark.parametrize(
    "factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)
def test_async_for_ends_at_the_clean_end(
    producer: ringbuf.Producer, consumer: ringbuf.Consumer, factory: Any
) -> None:
    async def feed() -> None:
        for i in range(30):
            producer.write(1, b"%d" % i)
            if i % 10 == 0:
                await asyncio.sleep(5 * MS)
        producer.close()

    async def main() -> list[bytes]:
        task = asyncio.create_task(feed())
        got = [bytes(frame.payload) async for frame in consumer]
        await task
        return got

    with asyncio.Runner(loop_factory=factory) as runner:
        assert runner.run(main()) == [b"%d" % i for i in range(30)]


def test_async_for_can_be_cancelled_and_taken_up_again(
    producer: ringbuf.Producer, consumer: ringbuf.Consumer
) -> None:
    async def first() -> int:
        async for frame in consumer:
            return frame.seq
        return -1

    async def main() -> None:
        for seq in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(first(), 20 * MS)
            producer.write(1, b"x")
            assert await first() == seq

    asyncio.run(main())


def test_async_for_lets_other_tasks_run(producer: ringbuf.Producer, consumer: ringbuf.Consumer) -> None:
    async def main() -> int:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        seen = 0
        async for _ in consumer:
            seen += 1
            if seen < 1000:
                producer.write(1, b"x")
            else:
                break
        task.cancel()
        return turns

    producer.write(1, b"x")
    assert asyncio.run(main()) >= 10


def test_many_waiting_consumers_share_one_timer(name: str) -> None:
    with ringbuf.create(name, 4096, slots=20) as producer:
        consumers = [ringbuf.attach(name) for _ in range(20)]

        async def main() -> int:
            loop = asyncio.get_running_loop()
            timers = 0
            call_later = loop.call_later

            def counting(*args: Any, **kwargs: Any) -> asyncio.TimerHandle:
                nonlocal timers
                timers += 1
                return call_later(*args, **kwargs)

            loop.call_later = counting  # type: ignore[method-assign]
            tasks = [asyncio.ensure_future(anext(consumer)) for consumer in consumers]
            for _ in range(5):
                await asyncio.sleep(0)
            waiting = timers
            producer.write(1, b"x")
            for frame in await asyncio.gather(*tasks):
                assert frame.payload == b"x"
            return waiting

        assert asyncio.run(main()) == 1
        for consumer in consumers:
            consumer.close()


def test_wake_ups_of_an_event_loop_are_counted(producer: ringbuf.Producer) -> None:
    with ringbuf.attach(producer.name) as consumer:

        async def main() -> None:
            for number in range(5):
                task = asyncio.ensure_future(anext(consumer))
                await asyncio.sleep(0.01)
                producer.write(1, bytes([number]))
                assert (await task).payload == bytes([number])

        asyncio.run(main())
        assert consumer.try_read() is None
        # The first look of all finds the descriptor readable, as it must be.
        assert 5 <= ringbuf.inspect(producer.name).consumers[0].wakeups <= 6


def test_a_read_only_process_may_not_attach(producer: ringbuf.Producer) -> None:
    assert os.stat(f"/dev/shm/ringbuf.{producer.name}").st_mode & 0o777 == 0o600


LARGE = [30_000, 32_752, 16_369, 24_000] * 6  # up to the most that fits, and never less than a quarter


def writing_large(producer: ringbuf.Producer) -> threading.Thread:
    """Writes the LARGE frames, waiting for room, and ends the ring."""

    def write() -> None:
        for number, size in enumerate(LARGE):
            producer.write(1, bytes([number]) * size, timeout=60)
        producer.close()

    thread = threading.Thread(target=write)
    thread.start()
    return thread


def test_a_loop_that_keeps_a_large_frame_does_not_hold_up_the_next(name: str) -> None:
    with ringbuf.create(name, capacity=1 << 16) as producer, ringbuf.attach(name) as consumer:
        thread = writing_large(producer)
        seen = []
        for frame in consumer:
            # Both stay until the next frame is there, which may need all of the ring.
            payload = frame.payload
            assert payload.readonly
            assert payload.tobytes() == bytes([frame.seq]) * LARGE[frame.seq]
            seen.append((frame.tag, frame.seq, len(frame)))
        thread.join()
        assert seen == [(1, number, size) for number, size in enumerate(LARGE)]
        assert len(frame) == len(payload) == LARGE[-1]
        with pytest.raises(ringbuf.FrameInUse):
            frame.release()
        payload.release()
        del payload
        frame.release()


def test_an_asynchronous_loop_that_keeps_a_large_frame_does_not_hold_up_the_next(name: str) -> None:
    async def read_all() -> list[int]:
        seen = []
        async for frame in consumer:
            payload = frame.payload
            assert payload.tobytes() == bytes([frame.seq]) * LARGE[frame.seq]
            seen.append(frame.seq)
        return seen

    with ringbuf.create(name, capacity=1 << 16) as producer, ringbuf.attach(name) as consumer:
        thread = writing_large(producer)
        assert asyncio.run(asyncio.wait_for(read_all(), 60)) == list(range(len(LARGE)))
        thread.join()


def test_iterating_hands_out_leases_up_to_a_quarter_of_the_ring(name: str, body: tuple[str, str]) -> None:
    module = {"c": "ringbuf._cops", "py": "ringbuf.frame"}[body[1]]
    with ringbuf.create(name, capacity=1 << 16) as producer, ringbuf.attach(name) as consumer:
        for size, leases in ((1 << 14, 0), ((1 << 14) - 16, 1)):
            producer.write(1, bytes(size))
            frame = next(consumer)
            assert type(frame).__module__ == module
            assert ringbuf.inspect(name).consumers[0].leases == leases
            del frame

"""Waiting for a channel's next item: in tasks of both loops, in threads, and between the two."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop
from channel_kit import done, drain, frame, ids
from support import MS, wait_until

from egress.errors import SinkClosed, SinkFull, Truncated
from egress.stream import ChannelSink, Fold, channel
from egress.stream.item import Done, Frame

channel_module = sys.modules[channel.__module__]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, Any]], Any]:
    make_loop = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def call(body: Coroutine[Any, Any, Any]) -> Any:
        with asyncio.Runner(loop_factory=make_loop) as runner:
            return runner.run(asyncio.wait_for(body, 60))

    return call


# -- waiting in a task


def test_recv_waits_for_the_next_item(run: Any) -> None:
    async def body() -> None:
        sink, source = channel()
        waiting = asyncio.ensure_future(source.recv())
        await asyncio.sleep(0)
        assert not waiting.done()
        sink.try_send(frame(1))
        assert ids(await waiting) == [1]

    run(body())


def test_async_for_ends_with_the_terminal_item(run: Any) -> None:
    async def body() -> None:
        sink, source = channel()
        for number in range(3):
            sink.try_send(frame(number))
        sink.try_send(done())
        items = [item async for item in source]
        assert [ids(item) for item in items] == [[0], [1], [2], [-1]]
        assert [item async for item in source] == []

    run(body())


def test_async_for_raises_when_the_answer_is_cut(run: Any) -> None:
    async def body() -> None:
        sink, source = channel()
        sink.try_send(frame(1))
        got = []

        async def read() -> None:
            async for item in source:
                got.append(item)

        reader = asyncio.ensure_future(read())
        await asyncio.sleep(0)
        sink.close()
        with pytest.raises(Truncated):
            await reader
        assert len(got) == 1

    run(body())


@pytest.mark.parametrize("leave", ["close", "drop"])
def test_a_waiting_task_learns_that_the_sink_left(run: Any, leave: str) -> None:
    async def body() -> None:
        sink, source = channel()
        waiting = asyncio.ensure_future(source.recv())
        await asyncio.sleep(0)
        if leave == "close":
            sink.close()
        else:
            del sink
        with pytest.raises(Truncated):
            await waiting

    run(body())


def test_a_waiting_task_learns_that_its_source_was_closed(run: Any) -> None:
    async def body() -> None:
        _sink, source = channel()
        waiting = asyncio.ensure_future(source.recv())
        await asyncio.sleep(0)
        source.close()
        with pytest.raises(SinkClosed):
            await waiting

    run(body())


def test_a_cancelled_wait_loses_nothing(run: Any) -> None:
    async def body() -> None:
        rng = random.Random(1)
        sink, source = channel(capacity=4096, max_tokens=1 << 20)
        got: list[int] = []
        for number in range(500):
            waiting = asyncio.ensure_future(source.recv())
            # Before the task starts, while it waits, or after it was woken but before it ran.
            for _ in range(rng.randrange(2)):
                await asyncio.sleep(0)
            moments = [lambda number=number: sink.try_send(frame(number)), waiting.cancel]
            rng.shuffle(moments)
            for moment in moments:
                moment()
            with contextlib.suppress(asyncio.CancelledError):
                got += ids(await waiting)
            got += [token for item in drain(source) for token in ids(item)]
        assert got == list(range(500))

    run(body())


def test_timed_out_waits_leave_nothing_behind(run: Any) -> None:
    async def body() -> None:
        sink, source = channel()
        for _ in range(200):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(source.recv(), 0)
            waiting = asyncio.ensure_future(source.recv())
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        assert not source._channel.wakers
        for _ in range(50):
            with pytest.raises(TimeoutError):
                source.recv_sync(timeout=0)
        assert not source._channel.wakers
        sink.try_send(frame(1))
        assert ids(await source.recv()) == [1]

    run(body())


def test_several_waiting_tasks_share_the_items(run: Any) -> None:
    async def body() -> None:
        sink, source = channel()
        waiting = [asyncio.ensure_future(source.recv()) for _ in range(5)]
        await asyncio.sleep(0)
        waiting[1].cancel()
        for number in range(4):
            sink.try_send(frame(number))
        got = await asyncio.gather(*waiting, return_exceptions=True)
        assert isinstance(got[1], asyncio.CancelledError)
        items = [item for item in got if not isinstance(item, BaseException)]
        assert sorted(token for item in items for token in ids(item)) == [0, 1, 2, 3]

    run(body())


def test_a_reader_that_never_waits_lets_others_run(run: Any) -> None:
    async def body() -> None:
        sink, source = channel(capacity=4096, max_tokens=1 << 20)
        for number in range(1000):
            sink.try_send(frame(number))
        sink.try_send(done())
        turns = 0

        async def heartbeat() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        beating = asyncio.ensure_future(heartbeat())
        assert len([item async for item in source]) == 1001
        assert turns >= 1001 // channel_module.YIELD_EVERY
        beating.cancel()

    run(body())


def test_a_loop_closed_under_its_reader_harms_no_sender() -> None:
    sink, source = channel()
    loop = asyncio.new_event_loop()
    waiting = loop.create_task(source.recv())
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    sender = threading.Thread(target=sink.try_send, args=(frame(1),))
    sender.start()
    sender.join()
    sink.try_send(frame(2))
    assert ids(source.try_recv()) == [1]
    waiting._log_destroy_pending = False  # type: ignore[attr-defined]


# -- waiting in a thread, and across threads


def test_recv_sync_waits_for_another_thread() -> None:
    sink, source = channel()
    threading.Timer(20 * MS, sink.try_send, (frame(1),)).start()
    assert ids(source.recv_sync(timeout=30)) == [1]


def test_recv_sync_gives_up_after_its_timeout() -> None:
    _sink, source = channel()
    before = time.monotonic()
    with pytest.raises(TimeoutError, match="no item"):
        source.recv_sync(timeout=20 * MS)
    assert time.monotonic() - before >= 20 * MS


def test_recv_sync_without_time_still_takes_what_waits() -> None:
    sink, source = channel()
    sink.try_send(frame(1))
    assert ids(source.recv_sync(timeout=0)) == [1]
    with pytest.raises(TimeoutError):
        source.recv_sync(timeout=-1)


@pytest.mark.parametrize("leave", ["close", "drop"])
def test_a_waiting_thread_learns_that_the_sink_left(leave: str) -> None:
    sink, source = channel()
    ended: list[BaseException] = []

    def read() -> None:
        try:
            source.recv_sync()
        except Truncated as error:
            ended.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    wait_until(lambda: source._channel.wakers, what="the reader waits")
    if leave == "close":
        sink.close()
    else:
        del sink
    reader.join(30)
    assert len(ended) == 1


def _send_all(sink: ChannelSink, count: int, seed: int) -> None:
    rng = random.Random(seed)
    for number in range(count):
        while True:
            try:
                sink.try_send(frame(number))
                break
            except SinkFull:
                time.sleep(0)
        if rng.random() < 0.002:
            time.sleep(0.0002)
    sink.try_send(done())


COUNT = 20_000


def test_a_thread_feeds_a_task(run: Any) -> None:
    async def body() -> None:
        sink, source = channel(capacity=8, max_tokens=64)
        sender = threading.Thread(target=_send_all, args=(sink, COUNT, 1))
        sender.start()
        fold = Fold()
        async for item in source:
            assert isinstance(item, Frame | Done)
            fold.push(item.event)
        sender.join()
        assert fold.result.token_ids.tolist() == [*range(COUNT), -1]

    run(body())


def test_a_task_feeds_a_thread(run: Any) -> None:
    sink, source = channel(capacity=8, max_tokens=64)
    fold = Fold()

    def read() -> None:
        while True:
            item = source.recv_sync(timeout=60)
            assert isinstance(item, Frame | Done)
            fold.push(item.event)
            if item.is_terminal:
                return

    async def body() -> None:
        for number in range(COUNT):
            while True:
                try:
                    sink.try_send(frame(number))
                    break
                except SinkFull:
                    await asyncio.sleep(0)
        sink.try_send(done())

    reader = threading.Thread(target=read)
    reader.start()
    run(body())
    reader.join(60)
    assert fold.result.token_ids.tolist() == [*range(COUNT), -1]


@pytest.mark.parametrize("capacity", [1, 2, 64])
def test_two_threads_lose_nothing_at_any_switch(capacity: int) -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        sink, source = channel(capacity, max_tokens=16)
        sender = threading.Thread(target=_send_all, args=(sink, COUNT, 2))
        sender.start()
        got: list[int] = []
        while True:
            item = source.try_recv() or source.recv_sync(timeout=60)
            got += ids(item)
            if item.is_terminal:
                break
        sender.join()
    finally:
        sys.setswitchinterval(interval)
    assert got == [*range(COUNT), -1]
    assert source.n_waiting_tokens == 0


def test_a_callback_is_called_once_and_only_for_what_it_has_not_seen() -> None:
    sink, source = channel()
    called: list[int] = []
    assert source.on_next(lambda: called.append(source.n_waiting))
    sink.try_send(frame(1))
    sink.try_send(frame(2))
    assert called == [1]
    assert not source.on_next(lambda: called.append(-1))
    assert len(drain(source)) == 2
    assert source.on_next(lambda: called.append(7))
    sink.try_send(done())
    assert called == [1, 7]
    assert not source.on_next(lambda: called.append(-1))
    assert len(drain(source)) == 1
    # Nothing waits, but there is something to tell.
    assert not source.on_next(lambda: called.append(-1))
    assert called == [1, 7]


def test_a_callback_taken_back_is_not_called_and_one_left_learns_of_the_end() -> None:
    sink, source = channel()
    called: list[str] = []

    def taken_back() -> None:
        called.append("taken back")

    def left() -> None:
        called.append("left")

    assert source.on_next(taken_back)
    assert source.on_next(left)
    source.forget(taken_back)
    source.forget(taken_back)
    sink.close()
    assert called == ["left"]
    assert not source.on_next(left)


def test_callbacks_across_threads_miss_nothing() -> None:
    """Between looking and leaving a waker, or in the midst of both, an item is never overlooked."""
    count = 20_000
    sink, source = channel(8, 1 << 30)

    def send() -> None:
        for number in range(count):
            sink.try_send(frame(number))
        sink.try_send(done())

    sender = threading.Thread(target=send)
    sender.start()
    got: list[int] = []
    called = threading.Semaphore(0)
    while not got or got[-1] != -1:
        for item in drain(source):
            got += ids(item)
        if got and got[-1] == -1:
            break
        if source.on_next(called.release):
            assert called.acquire(timeout=30)
    sender.join()
    assert got == [*range(count), -1]

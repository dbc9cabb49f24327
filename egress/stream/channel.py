"""The local sink and source: one request's items, inside one process, between any tasks and threads.

The bound is on items and on tokens. A frame that finds all places taken joins the newest waiting one, and so
do those behind it until somebody takes that one; they are merged only then, so that sending costs the same
however much waits, and merging is linear in what was sent. Past the bound on tokens a frame is refused.
Terminal items have their own place.

A reader that finds nothing leaves a *waker* and then looks once more; a sender queues its item and then calls
the wakers. One of the two sees the other, so nobody polls and no wake-up is lost. Wakers carry no items: an
item leaves the queue only in the step that returns it, so a cancelled or timed-out wait takes none along.

There is no lock: egress.stream.waiting says why none is needed. One would cost as much as all the rest of
`try_send` (bench/sinks.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time

from egress.errors import SinkClosed, SinkFull
from egress.stream.item import Control, Done, EgressItem, Error, Frame
from egress.stream.waiting import FILLER, Run, Waiting, wake
from egress.stream.waker import Waker, forget, waker_of
from egress.wire.event import ChunkEvent, WholeEvent

__all__ = ["ChannelSink", "ChannelSource", "channel"]

# Items that recv hands out without ever suspending before it lets the loop run others once: a reader that is
# always behind must not keep the loop to itself. Asyncio's own queue has no such bound.
YIELD_EVERY = 64

# A tuple made once: isinstance with a union makes the union each time, for half a microsecond.
_ITEMS = (Frame, Done, Control, Error)


class ChannelSink:
    """The sending end; see `channel`. Dropping it is closing it."""

    __slots__ = ("__weakref__", "_channel", "_last_run")

    def __init__(self, shared: Waiting) -> None:
        self._channel = shared
        self._last_run: Run | None = None

    def try_send(self, item: EgressItem) -> None:
        """Hand over `item`; never blocks.

        Raises:
            SinkFull: the token bound is reached; the item was not taken. Terminal items are never refused.
            SinkClosed: the source is gone, a terminal item was already sent, or this sink was closed.
        """
        channel = self._channel
        queue = channel.queue
        if type(item) is Frame and channel.is_open:
            if len(queue) < channel.easy and item.event.n_tokens <= channel.unit:
                queue.append(item)
            else:
                self._send_beyond(item)
        else:
            self._send_other(item)
        # SYNC: after the item is queued. A reader leaves its waker before it looks at the queue once more.
        if channel.wakers:
            wake(channel.wakers)

    def _send_beyond(self, item: Frame) -> None:
        """Queue a frame when a bound may be near."""
        channel = self._channel
        event = item.event
        tokens = event.n_tokens or 1
        run = self._last_run
        if run is not None and not run.is_taken:
            # Nobody else appends, and nothing was appended behind a run that waits: it is the newest.
            held = run.held + tokens
            if held > channel.max_tokens:
                held = self._weigh(tokens)[1] + tokens
            run.held = held
            run.tokens += tokens
            run.events.append(event)
            # SYNC: after the event is in; pairs with Waiting._merge. Unset: the reader will find it.
            if run.is_taken:  # set by the reader; mypy goes by the look above
                self._take_back(run, tokens)  # type: ignore[unreachable]
            return
        size = len(channel.queue)
        held = size * channel.unit + tokens
        if size == channel.capacity - 1 and held <= channel.max_tokens and FILLER not in channel.queue:
            # One in each place but the last, none of more than a unit: no need to weigh them.
            self._last_run = channel.start_run(event, tokens, held)
            return
        waiting, held = self._weigh(tokens)
        if waiting < channel.capacity - 1:
            channel.append(item, tokens)
        else:
            self._last_run = channel.start_run(event, tokens, held + tokens)

    def _weigh(self, tokens: int) -> tuple[int, int]:
        """Items and tokens that wait, if `tokens` more are within the bound."""
        channel = self._channel
        waiting, held = channel.weigh()
        if waiting and held + tokens > channel.max_tokens:
            raise SinkFull(waiting, channel.capacity, held, channel.max_tokens)
        return waiting, held

    def _take_back(self, run: Run, tokens: int) -> None:
        """Queue anew the event that joined a run just taken, unless the reader has found it there."""
        with contextlib.suppress(IndexError):
            event = run.events.pop()
            self._last_run = self._channel.start_run(event, tokens, self._channel.max_tokens)

    def _send_other(self, item: EgressItem) -> None:
        """Queue what is no plain Frame, or say why nothing can be sent."""
        channel = self._channel
        if not isinstance(item, _ITEMS):
            raise TypeError(f"a sink takes Frame, Done, Control or Error, got {_name_of(type(item))}")
        if not channel.is_open:
            raise self._why_closed()
        if isinstance(item, Frame):
            self.try_send(Frame(item.event))
            return
        if not channel.ending.acquire(blocking=False):
            raise self._why_closed()
        channel.queue.append(item)
        # SYNC: after the item is queued; pairs with Waiting.take.
        channel.has_ended = True
        channel.shut()

    def _why_closed(self) -> SinkClosed:
        channel = self._channel
        if channel.source_left:
            # A source that was dropped, not closed, leaves what waited for it to us.
            channel.queue.clear()
            return SinkClosed()
        return SinkClosed(
            "the sink was closed" if channel.sink_left else "its terminal item was already sent"
        )

    def close(self) -> None:
        """Send nothing more; without a terminal item before, the reader gets Truncated. Again is harmless."""
        channel = self._channel
        channel.sink_left = True
        channel.shut()
        wake(channel.wakers)

    @property
    def is_closed(self) -> bool:
        """Nothing can be sent any more; may say False when the reader has just left."""
        return not self._channel.is_open

    def __del__(self) -> None:
        self.close()


class ChannelSource:
    """The receiving end; see `channel`. Dropping it is closing it.

    Several tasks of one loop may wait at once; each item goes to one of them.
    """

    __slots__ = ("__weakref__", "_channel", "_unsuspended")

    def __init__(self, shared: Waiting) -> None:
        self._channel = shared
        self._unsuspended = 0

    async def recv(self) -> EgressItem:
        """Wait for the next item; cancelling the wait loses none.

        Raises:
            Truncated: the sink went away without a terminal item, and everything before that was received.
            SinkClosed: the terminal item was received before, or this source was closed.
        """
        channel = self._channel
        if self._unsuspended >= YIELD_EVERY:
            self._unsuspended = 0
            await asyncio.sleep(0)
        while (item := channel.take(tell_end=True)) is None:
            self._unsuspended = 0
            loop = asyncio.get_running_loop()
            future: asyncio.Future[None] = loop.create_future()
            waker = waker_of(loop, future)
            channel.leave(waker)
            try:
                # SYNC: after the waker is left; see try_send. What came, or ended, the next take tells.
                if not channel.queue and channel.is_open:
                    await future
            finally:
                # Whoever finished the future took the waker out; a cancelled wait leaves it.
                if future.cancelled() or not future.done():
                    forget(channel.wakers, waker)
        self._unsuspended += 1
        return item

    def recv_sync(self, timeout: float | None = None) -> EgressItem:
        """Wait for the next item in this thread, which must not be one that runs an event loop.

        Args:
            timeout: seconds; None = for ever; 0 = only look.

        Raises:
            TimeoutError: no item came in `timeout` seconds.
            Truncated, SinkClosed: as `recv`.
        """
        channel = self._channel
        deadline = None if timeout is None else time.monotonic() + timeout
        while (item := channel.take(tell_end=True)) is None:
            # Taken here, given back by whoever wakes: acquiring it again is waiting.
            gate = threading.Lock()
            gate.acquire()
            channel.leave(gate.release)
            try:
                if (item := channel.take(tell_end=True)) is not None:
                    return item
                left = -1.0 if deadline is None else max(0.0, deadline - time.monotonic())
                if not gate.acquire(timeout=min(left, threading.TIMEOUT_MAX)):
                    # An item may have come just now, after the time was over.
                    if (item := channel.take(tell_end=True)) is not None:
                        return item
                    raise TimeoutError(f"no item came in {timeout} s")
            finally:
                forget(channel.wakers, gate.release)
        return item

    def try_recv(self) -> EgressItem | None:
        """The next item, or None when nothing waits; never raises for the end, which `recv` tells."""
        queue = self._channel.queue
        if not queue:
            return None
        # The two usual kinds, without the call; nobody else takes from this end.
        entry = queue.popleft()
        kind = type(entry)
        if kind is ChunkEvent or kind is WholeEvent:
            return Frame(entry)
        if kind is Frame:
            item: EgressItem = entry
            return item
        queue.appendleft(entry)
        return self._channel.take(tell_end=False)

    def on_next(self, waker: Waker) -> bool:
        """Have `waker` called, once, when an item comes or none will come any more.

        It is called in the sender's thread, in the midst of sending: it must not raise, and leaves the taking
        to a later step. A reader that is called back need not be a task that is woken.

        Returns:
            False: there is something to tell already, so `waker` was not left behind; a sender in another
            thread may be calling it just now all the same.
        """
        channel = self._channel
        channel.leave(waker)
        # SYNC: after the waker is left; see try_send.
        if not channel.queue and channel.is_open:
            return True
        forget(channel.wakers, waker)
        return False

    def forget(self, waker: Waker) -> None:
        """Take back a waker given to `on_next`; one that was called already is no matter."""
        forget(self._channel.wakers, waker)

    def close(self) -> None:
        """Take nothing more and drop what waits; the sink's next `try_send` raises SinkClosed."""
        channel = self._channel
        channel.source_left = True
        channel.shut()
        channel.queue.clear()
        wake(channel.wakers)

    @property
    def n_waiting(self) -> int:
        """Items that a reader could take now, merged ones as one; may be too low while a sender sends."""
        return self._channel.weigh()[0]

    @property
    def n_waiting_tokens(self) -> int:
        """Tokens in the waiting frames, against `max_tokens`; as stale as n_waiting."""
        return self._channel.weigh()[1]

    def __aiter__(self) -> ChannelSource:
        return self

    async def __anext__(self) -> EgressItem:
        try:
            return await self.recv()
        except SinkClosed:
            raise StopAsyncIteration from None

    def __del__(self) -> None:
        # Nobody waits any more, and what is queued goes with the last reference to the channel.
        channel = self._channel
        channel.source_left = True
        channel.shut()


def channel(capacity: int = 64, max_tokens: int = 4096) -> tuple[ChannelSink, ChannelSource]:
    """Make one request's sink and source.

    Args:
        capacity: frames that may wait; a terminal item has a place beyond. Further frames are merged into the
            newest waiting one, losing nothing.
        max_tokens: token ids that may wait in frames, an event without ids counting as one. Past it a frame
            is refused with SinkFull. A single frame larger than that is taken when nothing else waits.

    Returns:
        The two ends. Each may be used in any task and thread, the two in different ones, but each in one
        thread at a time.

    Raises:
        ValueError: a bound below 1.

    >>> sink, source = channel(capacity=1)
    >>> sink.try_send(Frame(ChunkEvent.make("a", [1], text="he")))
    >>> sink.try_send(Frame(ChunkEvent.make("a", [2], text="llo")))
    >>> source.try_recv().event.text
    'hello'
    """
    if capacity < 1 or max_tokens < 1:
        raise ValueError(f"capacity and max_tokens must be at least 1, got {capacity} and {max_tokens}")
    shared = Waiting(capacity, max_tokens)
    return ChannelSink(shared), ChannelSource(shared)


def _name_of(kind: type) -> str:
    # Events are of two classes, of which one has a name in public.
    return "ChunkEvent" if issubclass(kind, ChunkEvent) else kind.__name__

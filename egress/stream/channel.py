"""The local sink and source: one request's items, inside one process, between any tasks and threads.

The bound is on items and on tokens. A frame that finds all places taken joins the newest waiting one; the two
are merged only when somebody takes them, so that sending costs the same however much waits, and merging is
linear in what was sent. Past the bound on tokens a frame is refused. Terminal items have their own place.

A reader that finds nothing leaves a *waker* and then looks once more; a sender queues its item and then calls
the wakers. One of the two sees the other, so nobody polls and no wake-up is lost. Wakers carry no items: an
item leaves the queue only in the step that returns it, so a cancelled or timed-out wait takes none along.

There is no lock. Each end belongs to one thread at a time, every shared word has one writer or only ever goes
one way, and the queues are deques, whose single operations are atomic. So either end may be dropped at any
moment, in any thread, by a garbage collection inside this very module: leaving is setting a flag and calling
wakers. `SYNC:` marks the places where the order of two steps carries that. A lock instead would cost as much
as all the rest of `try_send` (bench/sinks.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterable

from egress.errors import SinkClosed, SinkFull, Truncated
from egress.stream.fold import merge_events
from egress.stream.item import Control, Done, EgressItem, Error, Frame
from egress.stream.sink import EgressSink
from egress.stream.waker import Waker, forget, waker_of
from egress.wire.event import ChunkEvent

__all__ = ["ChannelSink", "ChannelSource", "channel", "send_frames"]

# Items that recv hands out without ever suspending before it lets the loop run others once: a reader that is
# always behind must not keep the loop to itself. Asyncio's own queue has no such bound.
YIELD_EVERY = 64

# A tuple made once: isinstance with a union makes the union each time, for half a microsecond.
_ITEMS = (Frame, Done, Control, Error)


class _Run:
    """The frame in the last place, and those that joined it: merged by the reader."""

    __slots__ = ("events", "is_taken")

    def __init__(self, event: ChunkEvent) -> None:
        self.events = deque((event,))
        self.is_taken = False


class _Channel:
    """What both ends share. Neither end refers to the other, so each is collected on its own."""

    __slots__ = (
        "capacity",
        "easy_until",
        "easy_width",
        "ending",
        "full_after",
        "has_ended",
        "is_open",
        "max_tokens",
        "queue",
        "sent_tokens",
        "sink_left",
        "source_left",
        "taken_tokens",
        "wakers",
    )

    def __init__(self, capacity: int, max_tokens: int) -> None:
        self.capacity = capacity
        self.max_tokens = max_tokens
        self.queue: deque[EgressItem | _Run] = deque()
        self.wakers: deque[Waker] = deque()
        # Written by the sink. Tokens of all frames so far; a frame without ids counts as one, so that there
        # are never more frames than tokens.
        self.sent_tokens = 0
        # Written by the source: tokens it took; up to which sent_tokens no bound can be near; and up to which
        # the bound on tokens holds.
        self.taken_tokens = 0
        self.easy_width = min(capacity - 1, max_tokens)
        self.easy_until = self.easy_width
        self.full_after = max_tokens
        # Go up, or down, once. is_open says that none of the other three is set.
        self.is_open = True
        self.has_ended = False
        self.sink_left = False
        self.source_left = False
        # Held for good by whoever sends the terminal item: the one step that must not happen twice.
        self.ending = threading.Lock()

    def wake(self) -> None:
        """Call every waker, once each."""
        wakers = self.wakers
        while wakers:
            try:
                waker = wakers.popleft()
            except IndexError:
                return
            waker()

    def take(self, tell_end: bool) -> EgressItem | None:
        """The next item; when nothing waits None, or if `tell_end` the reason why nothing will."""
        # SYNC: read before the queue is found empty. Both flags are set after the last item was queued, so an
        # empty queue after a set flag stays empty.
        is_over = self.has_ended or self.sink_left
        try:
            entry = self.queue.popleft()
        except IndexError:
            if tell_end and (is_over or self.source_left):
                raise self.end() from None
            return None
        if isinstance(entry, Frame):
            self.took(entry.event.n_tokens or 1)
        elif isinstance(entry, _Run):
            return self.merge(entry)
        return entry

    def merge(self, run: _Run) -> Frame:
        # SYNC: before the events are read. A sender that still sees it unset has its event in by then; one
        # that sees it set takes back what is not read. See ChannelSink.try_send.
        run.is_taken = True
        events = []
        with contextlib.suppress(IndexError):
            while True:
                events.append(run.events.popleft())
        self.took(sum([event.n_tokens or 1 for event in events]))
        return Frame(events[0] if len(events) == 1 else merge_events(events))

    def took(self, tokens: int) -> None:
        self.taken_tokens = taken = self.taken_tokens + tokens
        self.easy_until = taken + self.easy_width
        self.full_after = taken + self.max_tokens

    def end(self) -> SinkClosed | Truncated:
        """Why an empty queue stays empty."""
        if self.source_left:
            return SinkClosed()
        return SinkClosed("its terminal item was already received") if self.has_ended else Truncated()


class ChannelSink:
    """The sending end; see `channel`. Dropping it is closing it."""

    __slots__ = ("__weakref__", "_channel", "_last_run")

    def __init__(self, shared: _Channel) -> None:
        self._channel = shared
        self._last_run: _Run | None = None

    def try_send(self, item: EgressItem) -> None:
        """Hand over `item`; never blocks.

        Raises:
            SinkFull: the token bound is reached; the item was not taken. Terminal items are never refused.
            SinkClosed: the source is gone, a terminal item was already sent, or this sink was closed.
        """
        channel = self._channel
        if type(item) is Frame and channel.is_open:
            event = item.event
            tokens = channel.sent_tokens + (event.n_tokens or 1)
            if tokens <= channel.easy_until:
                channel.sent_tokens = tokens
                channel.queue.append(item)
            elif (
                tokens <= channel.full_after
                and len(channel.queue) >= channel.capacity
                and (run := self._last_run) is not None
            ):
                # Nobody else appends, so the run that took the last place is still the newest.
                channel.sent_tokens = tokens
                run.events.append(event)
                # SYNC: after the event is in; pairs with _Channel.merge. Unset: the reader will find it.
                if not run.is_taken:
                    return
                self._take_back(run)
            else:
                self._send_beyond(item, tokens)
        else:
            self._send_other(item)
        # SYNC: after the item is queued. A reader leaves its waker before it looks at the queue once more.
        if channel.wakers:
            channel.wake()

    def _take_back(self, run: _Run) -> None:
        """Queue anew the event that joined a run just taken, unless the reader has found it there."""
        with contextlib.suppress(IndexError):
            self._start_run(run.events.pop())

    def _start_run(self, event: ChunkEvent) -> None:
        self._last_run = run = _Run(event)
        self._channel.queue.append(run)

    def _send_beyond(self, item: Frame, tokens: int) -> None:
        """Queue a frame when a bound may be near; `tokens` is sent_tokens with it."""
        channel = self._channel
        waiting = len(channel.queue)
        if waiting and tokens > channel.full_after:
            held = channel.sent_tokens - channel.taken_tokens
            raise SinkFull(waiting, channel.capacity, held, channel.max_tokens)
        channel.sent_tokens = tokens
        if waiting < channel.capacity - 1:
            channel.queue.append(item)
        else:
            self._start_run(item.event)

    def _send_other(self, item: EgressItem) -> None:
        """Queue what is no plain Frame, or say why nothing can be sent."""
        channel = self._channel
        if not isinstance(item, _ITEMS):
            raise TypeError(f"a sink takes Frame, Done, Control or Error, got {type(item).__name__}")
        if not channel.is_open:
            raise self._why_closed()
        if isinstance(item, Frame):
            self.try_send(Frame(item.event))
            return
        if not channel.ending.acquire(blocking=False):
            raise self._why_closed()
        channel.queue.append(item)
        # SYNC: after the item is queued; pairs with _Channel.take.
        channel.has_ended = True
        channel.is_open = False

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
        channel.is_open = False
        channel.wake()

    @property
    def is_closed(self) -> bool:
        """Nothing can be sent any more; may say False when the reader has just left."""
        return not self._channel.is_open

    def __del__(self) -> None:
        self.close()


def send_frames(
    sinks: Iterable[EgressSink], events: Iterable[ChunkEvent]
) -> list[tuple[ChunkEvent, SinkFull | SinkClosed]]:
    """Send each sink its event as a Frame; as calling `try_send` on each, for half its cost.

    Returns:
        The events that were not taken, and why.
    """
    refused: list[tuple[ChunkEvent, SinkFull | SinkClosed]] = []
    for sink, event in zip(sinks, events, strict=True):
        # The easy path of ChannelSink.try_send, without the call.
        if type(sink) is ChannelSink:
            channel = sink._channel
            tokens = channel.sent_tokens + (event.n_tokens or 1)
            if tokens <= channel.easy_until and channel.is_open:
                channel.sent_tokens = tokens
                channel.queue.append(Frame(event))
                # SYNC: as in try_send.
                if channel.wakers:
                    channel.wake()
                continue
        try:
            sink.try_send(Frame(event))
        except (SinkFull, SinkClosed) as error:
            refused.append((event, error))
    return refused


class ChannelSource:
    """The receiving end; see `channel`. Dropping it is closing it.

    Several tasks of one loop may wait at once; each item goes to one of them.
    """

    __slots__ = ("__weakref__", "_channel", "_unsuspended")

    def __init__(self, shared: _Channel) -> None:
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
            channel.wakers.append(waker)
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
            channel.wakers.append(gate.release)
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
        channel.wakers.append(waker)
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
        self._leave()
        self._channel.queue.clear()
        self._channel.wake()

    def _leave(self) -> None:
        self._channel.source_left = True
        self._channel.is_open = False

    @property
    def n_waiting(self) -> int:
        """Items that a reader could take now, merged ones as one; may be too low while a sender sends."""
        return len(self._channel.queue)

    @property
    def n_waiting_tokens(self) -> int:
        """Tokens in the waiting frames, against `max_tokens`; as stale as n_waiting."""
        return self._channel.sent_tokens - self._channel.taken_tokens

    def __aiter__(self) -> ChannelSource:
        return self

    async def __anext__(self) -> EgressItem:
        try:
            return await self.recv()
        except SinkClosed:
            raise StopAsyncIteration from None

    def __del__(self) -> None:
        # Nobody waits any more, and what is queued goes with the last reference to the channel.
        self._leave()


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
    shared = _Channel(capacity, max_tokens)
    return ChannelSink(shared), ChannelSource(shared)

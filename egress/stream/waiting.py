"""What waits between the two ends of a local channel, and what tells a sender at a glance that there is room.

A sender looks at one number, the length of the queue: as long as it is below `easy`, a small frame may be
appended and no bound can be passed. So that this one number says everything, the queue holds *fillers* where
an entry weighs more than its place:

- a frame of more than `unit` tokens comes with as many fillers as it takes further units;
- behind a run (the frame in the last place, and those that joined it) there are enough of them that nothing
  is appended before the run is taken.

Neither side counts tokens as long as there is room. Beyond, the sender weighs what waits, at most `capacity`
entries, and whatever joins a run afterwards is only added up.

There is no lock. Each end belongs to one thread at a time: one appends, one takes; flags go one way; the
queue is a deque, whose single operations (an `extend` by a tuple is one) are atomic. So either end may be
dropped at any moment, in any thread, by a garbage collection inside this very module: leaving is setting a
flag and calling wakers. `SYNC:` marks the places where the order of two steps carries that.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from typing import Any, Final

from egress.errors import SinkClosed, Truncated
from egress.stream.fold import merge_events
from egress.stream.item import EgressItem, Frame
from egress.stream.waker import Waker
from egress.wire.event import ChunkEvent, WholeEvent

__all__ = ["FILLER", "Run", "Waiting", "wake"]

FILLER: Final = None


class Run:
    """The frame in the last place, and those that joined it: merged by the reader.

    Attributes:
        tokens: in all frames that ever joined; a frame without ids counts as one.
        held: no fewer tokens than wait in the whole channel.
    """

    __slots__ = ("events", "held", "is_taken", "tokens")

    def __init__(self, event: ChunkEvent, tokens: int, held: int) -> None:
        self.events = deque((event,))
        self.is_taken = False
        self.tokens = tokens
        self.held = held


class Group:
    """What the channels that are written to together (`egress.stream.many`) tell their writer, so that it
    need not look at each of them.

    Attributes:
        has_wakers: some of them may have been left a waker since this was unset.
        has_shut: some of them may have been shut since this was unset.
    """

    __slots__ = ("has_shut", "has_wakers")

    def __init__(self) -> None:
        self.has_wakers = False
        self.has_shut = False


class Waiting:
    """What both ends share. Neither end refers to the other, so each is collected on its own.

    Args:
        capacity, max_tokens: see `egress.channel`.

    Attributes:
        queue: Frames, terminal items, bare events that are to become Frames (`egress.stream.many`), Runs and
            fillers.
        easy: a queue shorter than this has room for a frame of up to `unit` tokens.
        wakers: of readers that found nothing.
        group: which this channel belongs to.
        is_open: says that none of the three flags behind it is set.
        ending: held for good by whoever sends the terminal item, the one step that must not happen twice.
    """

    __slots__ = (
        "capacity",
        "easy",
        "ending",
        "group",
        "has_ended",
        "is_open",
        "max_tokens",
        "queue",
        "sink_left",
        "source_left",
        "unit",
        "wakers",
    )

    def __init__(self, capacity: int, max_tokens: int) -> None:
        self.capacity = capacity
        self.max_tokens = max_tokens
        self.queue: deque[Any] = deque()
        self.wakers: deque[Waker] = deque()
        self.group: Group | None = None
        # easy places of a unit each are within both bounds, and leave the last place free.
        self.unit = max(1, max_tokens // capacity)
        self.easy = min(capacity - 1, max_tokens)
        self.is_open = True
        self.has_ended = False
        self.sink_left = False
        self.source_left = False
        self.ending = threading.Lock()

    def shut(self) -> None:
        """Take nothing any more."""
        self.is_open = False
        # SYNC: after is_open. The writer of the group unsets this before it looks who is open.
        group = self.group
        if group is not None:
            group.has_shut = True

    def leave(self, waker: Waker) -> None:
        """Have `waker` called when something is sent; then look at the queue once more."""
        self.wakers.append(waker)
        # SYNC: after the waker is left. The writer of the group, when it has queued its items, unsets this
        # before it looks for wakers; and who takes the channel into a group looks for wakers after that.
        group = self.group
        if group is not None:
            group.has_wakers = True

    def append(self, entry: Frame, tokens: int) -> None:
        """Append a frame that has a place of its own, with fillers for what it weighs beyond one unit."""
        further = min((tokens - 1) // self.unit, self.easy)
        # In front, so that a reader is never left with fillers only.
        self.queue.extend((*(FILLER,) * further, entry))

    def start_run(self, event: ChunkEvent, tokens: int, held: int) -> Run:
        """Take the last place."""
        run = Run(event, tokens, held)
        self.queue.extend((run, *(FILLER,) * self.easy))
        return run

    def take(self, tell_end: bool) -> EgressItem | None:
        """The next item; when nothing waits None, or if `tell_end` the reason why nothing will."""
        # SYNC: read before the queue is found empty. Both flags are set after the last item was queued, so an
        # empty queue after a set flag stays empty.
        is_over = not self.is_open and (self.has_ended or self.sink_left)
        queue = self.queue
        while queue:
            entry = queue.popleft()
            kind = type(entry)
            if kind is ChunkEvent or kind is WholeEvent:
                return Frame(entry)
            if kind is Run:
                return self._merge(entry)
            if entry is not FILLER:
                item: EgressItem = entry
                return item
        if tell_end and (is_over or self.source_left):
            raise self.end()
        return None

    def _merge(self, run: Run) -> Frame:
        # SYNC: before the events are read. A sender that still sees it unset has its event in by then; one
        # that sees it set takes back what is not read. See ChannelSink.try_send.
        run.is_taken = True
        events = []
        with contextlib.suppress(IndexError):
            while True:
                events.append(run.events.popleft())
        queue = self.queue
        while queue and queue[0] is FILLER:
            queue.popleft()
        return Frame(events[0] if len(events) == 1 else merge_events(events))

    def end(self) -> SinkClosed | Truncated:
        """Why an empty queue stays empty."""
        if self.source_left:
            return SinkClosed()
        return SinkClosed("its terminal item was already received") if self.has_ended else Truncated()

    def weigh(self) -> tuple[int, int]:
        """What waits now.

        Returns:
            Items, a run being one; and the tokens in Frames, one without ids counting as one.

        Cost: a step per item.
        """
        items = tokens = 0
        # A copy, made in one step: the other side may be at work.
        for entry in self.queue.copy():
            kind = type(entry)
            if entry is FILLER:
                continue
            items += 1
            if kind is ChunkEvent or kind is WholeEvent:
                tokens += entry.n_tokens or 1
            elif kind is Run:
                tokens += entry.tokens
            elif not entry.is_terminal:
                tokens += entry.event.n_tokens or 1
        return items, tokens


def wake(wakers: deque[Waker]) -> None:
    """Call every waker, once each."""
    while wakers:
        try:
            waker = wakers.popleft()
        except IndexError:
            return
        waker()

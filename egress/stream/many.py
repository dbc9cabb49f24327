"""Handing one step's events to thousands of channels at once.

What `ChannelSink.try_send` does for one frame is done here by passes over whole columns, none of which is a
loop in bytecode: the lengths of all queues, an append to each, a look at all wakers. Whatever is out of the
ordinary (a channel without room, or one that takes nothing) is left to `try_send`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import compress
from operator import attrgetter, not_
from typing import Any

from egress.errors import SinkClosed, SinkFull
from egress.stream.channel import ChannelSink
from egress.stream.item import Frame
from egress.stream.sink import EgressSink
from egress.stream.waiting import Group, Waiting, wake
from egress.stream.waker import Waker
from egress.wire.event import ChunkEvent
from egress.wire.recall import Stretches

__all__ = ["Many", "send_frames"]

_append: Callable[[deque[Any], Any], None] = deque.append
_channel_of = attrgetter("_channel")
_queue_of = attrgetter("queue")
_wakers_of = attrgetter("wakers")
_is_open_of = attrgetter("is_open")
_easy_of = attrgetter("easy")
_unit_of = attrgetter("unit")


class Many:
    """A group of different channels, written to together, and by nobody else meanwhile.

    Args:
        sinks: in the order in which events will come.
        group: what they are to be a part of, if not of a group of their own.

    Attributes:
        unit: the most tokens an event may have to be sent this way.
    """

    __slots__ = (
        "_channels",
        "_easy",
        "_group",
        "_has_closed",
        "_members",
        "_queues",
        "_room",
        "_wakers",
        "unit",
    )

    def __init__(self, sinks: Sequence[ChannelSink], group: Group | None = None) -> None:
        self._group = Group() if group is None else group
        self._channels: list[Waiting] = list(map(_channel_of, sinks))
        self._queues: list[deque[Any]] = list(map(_queue_of, self._channels))
        self._wakers: list[deque[Waker]] = list(map(_wakers_of, self._channels))
        self._members = set(map(id, self._queues))
        self._easy: int = min(map(_easy_of, self._channels), default=0)
        self.unit: int = min(map(_unit_of, self._channels), default=1)
        for channel in self._channels:
            channel.group = self._group
        # SYNC: after the channels know the group. A reader leaves its waker, and a channel is closed, before
        # either looks whether there is a group to be told.
        if any(self._wakers):
            self._group.has_wakers = True
        self._has_closed = not all(map(_is_open_of, self._channels))
        # How many frames may be sent before the queues have to be looked at.
        self._room = self._look()

    def __len__(self) -> int:
        return len(self._queues)

    @staticmethod
    def of(sinks: Sequence[EgressSink], to: Many | None = None) -> Many | None:
        """These sinks, if all are local channels and none comes twice; they can be added to `to`."""
        if set(map(type, sinks)) <= {ChannelSink}:
            many = Many(sinks, None if to is None else to._group)  # type: ignore[arg-type]
            if many.is_distinct:
                return many
        return None

    @property
    def is_distinct(self) -> bool:
        """No channel comes twice: with two events for one, the one look at its room would not do."""
        return len(self._members) == len(self._queues)

    def keep(self, stretches: Stretches) -> None:
        """Keep these only, in their order.

        Cost: a step for each of the others, who are few, and their memory moved up.
        """
        end = len(self._queues)
        for start, stop in reversed(((0, 0), *stretches)):
            if stop < end:
                self._members.difference_update(map(id, self._queues[stop:end]))
                del self._channels[stop:end], self._queues[stop:end], self._wakers[stop:end]
            end = start
        if self._has_closed:
            self._group.has_shut = True  # look whether it was those

    def add(self, others: Many) -> None:
        """Put others behind, made for this group."""
        self._channels += others._channels
        self._queues += others._queues
        self._wakers += others._wakers
        self._members |= others._members
        self._easy = min(self._easy, others._easy)
        self.unit = min(self.unit, others.unit)
        self._room = min(self._room, others._room)
        self._has_closed = self._has_closed or others._has_closed

    def without_room(self) -> list[int]:
        """The places of channels that may not take a frame without a second thought: too much waits, or they
        take nothing any more."""
        if self._room > 0 and not self._group.has_shut:
            return []
        if self._group.has_shut:
            # SYNC: before it is looked who is open; pairs with Waiting.shut.
            self._group.has_shut = False
            self._has_closed = not all(map(_is_open_of, self._channels))
        self._room = self._look()
        if self._room > 0:
            return []
        easy = self._easy
        places = [place for place, size in enumerate(map(len, self._queues)) if size >= easy]
        if self._has_closed:
            closed = compress(range(len(self._channels)), map(not_, map(_is_open_of, self._channels)))
            places = sorted({*places, *closed})
        return places

    def leave(self, places: Iterable[int]) -> None:
        """Let these go their own ways: what becomes of them is not told to the group any more."""
        for place in places:
            self._channels[place].group = None

    def send(self, events: Sequence[ChunkEvent], left_out: Iterable[int]) -> None:
        """Send each channel its event as a Frame, whether there is room or not.

        Args:
            events: one per channel, of at most `unit` tokens each; they own what they carry.
            left_out: places of the channels that get nothing, those without room among them.
        """
        queues = self._queues
        nowhere: deque[Any] = deque(maxlen=0)
        for place in left_out:
            if queues is self._queues:
                queues = queues.copy()
            queues[place] = nowhere
        self._room -= 1
        deque(map(_append, queues, events), maxlen=0)
        # SYNC: after all events are queued. A reader leaves its waker and says so before it looks at the
        # queue once more. Unset before the wakers are looked for, so that one left meanwhile is not missed.
        if self._group.has_wakers:
            self._group.has_wakers = False
            for wakers in compress(self._wakers, self._wakers):
                wake(wakers)

    def was_bypassed(self) -> None:
        """Others have sent to these channels: look before the next frame."""
        self._room = 0

    def _look(self) -> int:
        return 0 if self._has_closed else self._easy - max(map(len, self._queues), default=0)


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
            if channel.is_open and len(channel.queue) < channel.easy and event.n_tokens <= channel.unit:
                channel.queue.append(event)
                # SYNC: as in try_send.
                if channel.wakers:
                    wake(channel.wakers)
                continue
        try:
            sink.try_send(Frame(event))
        except (SinkFull, SinkClosed) as error:
            # Its traceback leads to this list, which would be a cycle, and through the callers to the ring's
            # frame: left to the garbage collection, that would stay leased in a worker with nothing to do.
            refused.append((event, error.with_traceback(None)))
    return refused

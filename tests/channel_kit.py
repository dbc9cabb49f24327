"""What the channel's tests share: numbered events, and reading what waits."""

from __future__ import annotations

from egress.stream import ChannelSource, EgressItem
from egress.stream.item import Done, Frame
from egress.wire import ChunkEvent, Stop


def event(number: int, count: int = 1) -> ChunkEvent:
    return ChunkEvent.make("a", [number] * count, text=f"{number},")


def frame(number: int, count: int = 1) -> Frame:
    return Frame(event(number, count))


def done(number: int = -1) -> Done:
    return Done(ChunkEvent.make("a", [number], Stop(), text="."))


def ids(item: EgressItem | None) -> list[int]:
    assert isinstance(item, Frame | Done)
    return item.event.token_ids.tolist()


def drain(source: ChannelSource) -> list[EgressItem]:
    items = []
    while (item := source.try_recv()) is not None:
        items.append(item)
    return items

"""Which of a worker's requests goes where."""

from __future__ import annotations

from typing import Any, Protocol, Self

from egress.stream.item import EgressItem

__all__ = ["ItemSink", "Route", "Routes"]


class ItemSink(Protocol):
    """What a route leads to: the sending end of `egress.channel`."""

    def try_send(self, item: EgressItem) -> None:
        """Queue `item`; SinkFull, SinkClosed."""


class Route:
    """One request of this worker.

    Attributes:
        rid, shard: who it is and who works on it.
        sink: where its items go.
        tokens: ids in its events so far, before trimming; 0 unless the source counts them.
    """

    __slots__ = ("rid", "shard", "sink", "tokens")

    def __init__(self, rid: str, shard: int, sink: ItemSink) -> None:
        self.rid = rid
        self.shard = shard
        self.sink = sink
        self.tokens = 0


class Routes(dict[str, Route]):
    """The requests under way, by rid.

    Attributes:
        changes: goes up whenever a route goes or is replaced, in any way but `ended`. As long as it stands,
            what was looked up before is still true.
    """

    __slots__ = ("changes",)

    def __init__(self) -> None:
        super().__init__()
        self.changes = 0

    def ended(self, rid: str) -> Route | None:
        """Take out a route whose sink takes nothing any more once this step is over: whoever looked it up
        before learns that from the sink. None: there is none."""
        return super().pop(rid, None)

    def __setitem__(self, rid: str, route: Route) -> None:
        if rid in self:
            self.changes += 1
        super().__setitem__(rid, route)

    def __delitem__(self, rid: str) -> None:
        self.changes += 1
        super().__delitem__(rid)

    def pop(self, rid: str, *default: Any) -> Any:
        """As of any dict."""
        if rid in self:
            self.changes += 1
        return super().pop(rid, *default)

    def popitem(self) -> tuple[str, Route]:
        """As of any dict."""
        self.changes += 1
        return super().popitem()

    def clear(self) -> None:
        """As of any dict."""
        self.changes += 1
        super().clear()

    def update(self, *args: Any, **kwargs: Any) -> None:
        """As of any dict."""
        self.changes += 1
        super().update(*args, **kwargs)

    def __ior__(self, other: Any) -> Self:  # type: ignore[override,misc]
        self.update(other)
        return self

"""Where a worker's events come from: the rings of all shards, read in turns, each event led to its
request's sink.

A turn takes frames from every ring that has some, one frame from each in rotation, until all are empty or the
turn's bound is reached; then the loop runs the handlers, and the next turn goes on. So neither a shard that
floods its ring nor a burst can keep the others waiting, and a handler gets to take what waits for it before
its sink counts as full. Events are detached before they are queued: a frame is given back to its ring in
the turn that read it, however long a client takes to read.

A request is known by its `Route`, from the moment it is sent until its one terminal item is queued. What
arrives for an rid without a route is late: dropped and counted.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

import msgspec

import ringbuf
from egress.errors import MalformedFrame, SinkClosed, SinkFull
from egress.stream.item import Control, Done, EgressItem, Error, Frame
from egress.wire import Batch, Failure, Result, decode
from egress.wire.requests import Hello, RequestTag, decode_request

__all__ = ["Counts", "FrameReader", "ItemSink", "RingSource", "Route", "Upstream"]

log = logging.getLogger(__name__)

MALFORMED = "internal error: malformed scheduler output frame"
MAX_KINDS_SAID = 64


class ItemSink(Protocol):
    """What a route leads to: the sending end of `egress.channel`."""

    def try_send(self, item: EgressItem) -> None:
        """Queue `item`; SinkFull, SinkClosed."""


class FrameReader(Protocol):
    """What a source asks of a ring: `ringbuf.Consumer` has it."""

    def try_read(self) -> ringbuf.Frame | None:
        """The next frame, or None when there is none now."""


class Upstream(Protocol):
    """What a source tells its owner, who does the I/O that follows."""

    def abort_upstream(self, shard: int, rids: Sequence[str], cause: str) -> None:
        """Tell the shard to forget these; nobody waits for them here any more."""

    def ended(self, route: Route, item: EgressItem) -> None:
        """The terminal item of this route was queued (or its reader had gone)."""

    def greeted(self, shard: int, hello: Hello) -> None:
        """The shard said who it is."""


class Route:
    """One request of this worker.

    Attributes:
        rid, shard: who it is and who works on it.
        sink: where its items go.
        chunks, tokens: events seen, and the ids in them before trimming.
    """

    __slots__ = ("chunks", "rid", "shard", "sink", "tokens")

    def __init__(self, rid: str, shard: int, sink: ItemSink) -> None:
        self.rid = rid
        self.shard = shard
        self.sink = sink
        self.chunks = 0
        self.tokens = 0


class Counts(msgspec.Struct):
    """What a source has seen, since it was made; only ever growing."""

    frames: int = 0
    events: int = 0
    tokens: int = 0
    late: int = 0
    malformed: int = 0
    unnamed: int = 0
    sink_full: int = 0
    sink_closed: int = 0


class RingSource:
    """The rings of all shards, merged into one fair stream of items.

    Args:
        upstream: told of aborts, ends and greetings.
        turn_frames: frames taken in one turn, from all rings together.
        turn_events: events after which a turn takes no further frame.
    """

    def __init__(self, upstream: Upstream, *, turn_frames: int = 64, turn_events: int = 4096) -> None:
        self._upstream = upstream
        self._turn_frames = turn_frames
        self._turn_events = turn_events
        self._rings: dict[int, FrameReader] = {}
        self._first = 0
        self._said: set[str] = set()
        self.routes: dict[str, Route] = {}
        self.counts = Counts()

    def attach(self, shard: int, ring: FrameReader) -> None:
        """Read this shard's frames from `ring` from now on."""
        self._rings[shard] = ring

    def detach(self, shard: int) -> None:
        """Read no more from this shard's ring."""
        self._rings.pop(shard, None)

    def turn(self) -> bool:
        """Take what is there, within the bound, and lead it on.

        Returns:
            Whether the bound was reached, so that more may wait: come again after the handlers have run.
        """
        shards = list(self._rings)
        if not shards:
            return False
        # Another ring comes first each time, or the bound would always cut off the same one.
        self._first = (self._first + 1) % len(shards)
        shards = shards[self._first :] + shards[: self._first]
        frames = self._turn_frames
        last_event = self.counts.events + self._turn_events
        while shards:
            still = []
            for shard in shards:
                frame = self._rings[shard].try_read()
                if frame is None:
                    continue
                self._take(shard, frame)
                still.append(shard)
                frames -= 1
                if frames <= 0 or self.counts.events >= last_event:
                    return True
            shards = still
        return False

    def fail(self, rids: Sequence[str], message: str, status_code: int) -> list[Route]:
        """End these requests with an error; those that have ended already are left alone."""
        error = Error(message, status_code)
        routes = [route for rid in rids if (route := self.routes.pop(rid, None)) is not None]
        for route in routes:
            self._end(route, error)
        return routes

    def fail_shard(self, shard: int, message: str, status_code: int) -> list[Route]:
        """End every request of one shard with an error."""
        return self.fail([r.rid for r in self.routes.values() if r.shard == shard], message, status_code)

    def _take(self, shard: int, frame: ringbuf.Frame) -> None:
        self.counts.frames += 1
        tag = frame.tag
        try:
            if tag == RequestTag.HELLO:
                hello = decode_request(tag, frame.payload)
                assert isinstance(hello, Hello)
                self._upstream.greeted(shard, hello)
            else:
                self._lead(shard, decode(tag, frame.payload))
        except MalformedFrame as error:
            self._reject(shard, error)

    def _lead(self, shard: int, message: Batch | Result | Failure) -> None:
        if isinstance(message, Batch):
            self._lead_batch(shard, message)
        elif (route := self.routes.pop(message.rid, None)) is None:
            self.counts.late += 1
        elif isinstance(message, Failure):
            self._end(route, Error(message.message, message.status_code))
        else:
            self._end(route, Control(bytes(message.payload)))

    def _lead_batch(self, shard: int, batch: Batch) -> None:
        routes = self.routes
        counts = self.counts
        counts.events += len(batch)
        led = 0
        full: list[Route] = []
        for event in batch.select(routes):
            route = routes.get(event.rid)
            if route is None:
                continue
            led += 1
            route.chunks += 1
            route.tokens += event.completion_tokens
            counts.tokens += event.completion_tokens
            event = event.detach()
            if event.finish_reason is not None:
                del routes[event.rid]
                self._end(route, Done(event))
                continue
            try:
                route.sink.try_send(Frame(event))
            except SinkFull:
                del routes[event.rid]
                full.append(route)
            except SinkClosed:
                counts.sink_closed += 1
                del routes[event.rid]
        counts.late += len(batch) - led
        if full:
            self._overflow(shard, full)

    def _overflow(self, shard: int, full: list[Route]) -> None:
        self.counts.sink_full += len(full)
        self._upstream.abort_upstream(shard, [route.rid for route in full], "slow_client")
        for route in full:
            self._end(route, Error("the client reads too slowly: its queue is full", 503))

    def _reject(self, shard: int, error: MalformedFrame) -> None:
        self.counts.malformed += 1
        if not error.rids:
            self.counts.unnamed += 1
        # Reasons quote sizes; past this many kinds the count alone has to do.
        if error.reason not in self._said and len(self._said) < MAX_KINDS_SAID:
            self._said.add(error.reason)
            log.error("shard %d wrote a malformed frame: %s", shard, error)
        named = [rid for rid in dict.fromkeys(error.rids) if rid in self.routes]
        if named:
            self._upstream.abort_upstream(shard, named, "malformed")
            self.fail(named, MALFORMED, 500)

    def _end(self, route: Route, item: EgressItem) -> None:
        try:
            route.sink.try_send(item)
        except SinkClosed:
            self.counts.sink_closed += 1
        self._upstream.ended(route, item)

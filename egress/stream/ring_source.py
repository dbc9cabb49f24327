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
from operator import attrgetter
from typing import Any, Protocol

import msgspec

import ringbuf
from egress.errors import MalformedFrame, SinkClosed, SinkFull
from egress.stream.channel import send_frames
from egress.stream.item import Control, Done, EgressItem, Error
from egress.wire import Batch, ChunkEvent, Failure, Result, decode
from egress.wire.requests import Hello, RequestTag, decode_request

__all__ = ["Counts", "FrameReader", "ItemSink", "RingSource", "Route", "Upstream"]

log = logging.getLogger(__name__)

MALFORMED = "internal error: malformed scheduler output frame"
MAX_KINDS_SAID = 64

_sink_of = attrgetter("sink")


class ItemSink(Protocol):
    """What a route leads to: the sending end of `egress.channel`."""

    def try_send(self, item: EgressItem) -> None:
        """Queue `item`; SinkFull, SinkClosed."""


class FrameReader(Protocol):
    """What a source asks of a ring: `ringbuf.Consumer` has it."""

    def read_many(self, max_frames: int) -> list[ringbuf.Frame]:
        """What is there, at most `max_frames`, without waiting.

        Raises:
            PeerDead: the shard died and all it wrote was read; once per life.
            RingClosed, RingCorrupt: no more can be read from this ring.
        """


class Upstream(Protocol):
    """What a source tells its owner, who does the I/O that follows."""

    def abort_upstream(self, shard: int, rids: Sequence[str], cause: str) -> None:
        """Tell the shard to forget these; nobody waits for them here any more."""

    def ended(self, route: Route, item: EgressItem) -> None:
        """The terminal item of this route was queued (or its reader had gone)."""

    def greeted(self, shard: int, hello: Hello) -> None:
        """The shard said who it is."""

    def ring_failed(self, shard: int, error: ringbuf.RingError) -> None:
        """The shard died, or its ring ended or is not to be trusted; all it wrote before was led on."""


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


class Counts(msgspec.Struct):
    """What a source has seen, since it was made; only ever growing."""

    frames: int = 0
    events: int = 0
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
        counts_tokens: whether routes are told how many tokens came; costs a step per event.
    """

    def __init__(
        self,
        upstream: Upstream,
        *,
        turn_frames: int = 64,
        turn_events: int = 4096,
        counts_tokens: bool = False,
    ) -> None:
        self._upstream = upstream
        self._turn_frames = turn_frames
        self._turn_events = turn_events
        self._counts_tokens = counts_tokens
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
                frame = self._next(shard)
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

    def _next(self, shard: int) -> ringbuf.Frame | None:
        ring = self._rings.get(shard)
        if ring is None:  # detached by what an earlier frame of this turn brought
            return None
        try:
            frames = ring.read_many(1)
        except ringbuf.RingError as error:
            self._upstream.ring_failed(shard, error)
            return None
        return frames[0] if frames else None

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
        counts = self.counts
        counts.events += len(batch)
        found: list[Any] = list(map(self.routes.get, batch.rids))
        at: list[int] | None = None
        endings = batch.endings
        if None in found:
            at = [place for place, route in enumerate(found) if route is not None]
            counts.late += len(found) - len(at)
            found = [found[place] for place in at]
            if endings:
                places = dict(zip(at, range(len(at)), strict=True))
                endings = [places[place] for place in endings if place in places]
        events = batch.own(at)
        if self._counts_tokens:
            for route, event in zip(found, events, strict=True):
                route.tokens += event.completion_tokens
        # Everything is a Frame but a few terminal events: the stretches between those go as a whole.
        full: list[Route] = []
        start = 0
        for place in endings:
            self._send(found[start:place], events[start:place], full)
            self._finish(found[place], events[place])
            start = place + 1
        self._send(found[start:] if start else found, events[start:] if start else events, full)
        if full:
            self._overflow(shard, full)

    def _send(self, routes: list[Route], events: list[ChunkEvent], full: list[Route]) -> None:
        """Send frames; routes whose sinks refuse are forgotten, those that were full are added to `full`."""
        for event, error in send_frames(map(_sink_of, routes), events):
            # Gone already if the frame names a request twice.
            route = self.routes.pop(event.rid, None)
            if route is None:
                self.counts.late += 1
            elif isinstance(error, SinkFull):
                full.append(route)
            else:
                self.counts.sink_closed += 1

    def _finish(self, route: Route, event: ChunkEvent) -> None:
        if self.routes.pop(event.rid, None) is None:
            self.counts.late += 1
        else:
            self._end(route, Done(event))

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

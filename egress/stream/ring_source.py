"""Where a worker's events come from: the rings of all shards, read in turns, each event led to its
request's sink.

A turn takes frames from every ring that has some, one frame from each in rotation, until all are empty or the
turn's bound is reached; then the loop runs the handlers, and the next turn goes on. So neither a shard that
floods its ring nor a burst can keep the others waiting, and a handler gets to take what waits for it before
its sink counts as full. Events are detached before they are queued: a frame is given back to its ring in
the turn that read it, however long a client takes to read.

A ring's frames name the same requests step after step, so each ring has a `_Lane`: what was found out about
the last frame's requests, taken over stretch by stretch as long as nothing else has changed.

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
from egress.stream.item import Control, Done, EgressItem, Error
from egress.stream.many import Many, send_frames
from egress.stream.routes import Route, Routes
from egress.wire import Batch, ChunkEvent, Failure, Result, Tag, decode
from egress.wire.recall import Recall, Stretches
from egress.wire.requests import Hello, RequestTag, decode_request

__all__ = ["Counts", "FrameReader", "RingSource", "Upstream"]

log = logging.getLogger(__name__)

MALFORMED = "internal error: malformed scheduler output frame"
MAX_KINDS_SAID = 64

_sink_of = attrgetter("sink")


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


class Counts(msgspec.Struct):
    """What a source has seen, since it was made; only ever growing."""

    frames: int = 0
    events: int = 0
    late: int = 0
    malformed: int = 0
    unnamed: int = 0
    sink_full: int = 0
    sink_closed: int = 0


class _Lane:
    """One ring, and what is known of the requests in its last frame.

    Attributes:
        ring: where the frames come from.
        recall: reads them.
        many: the channels of the requests that `recall` knows, in its order; None: not all of them have one.
        changes: of the routes, when `many` was looked up.
    """

    __slots__ = ("changes", "many", "recall", "ring")

    def __init__(self, ring: FrameReader) -> None:
        self.ring = ring
        self.recall = Recall()
        self.many: Many | None = None
        self.changes = -1


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
        self._lanes: dict[int, _Lane] = {}
        self._first = 0
        self._said: set[str] = set()
        self.routes = Routes()
        self.counts = Counts()

    def attach(self, shard: int, ring: FrameReader) -> None:
        """Read this shard's frames from `ring` from now on."""
        self._lanes[shard] = _Lane(ring)

    def detach(self, shard: int) -> None:
        """Read no more from this shard's ring."""
        self._lanes.pop(shard, None)

    def turn(self) -> bool:
        """Take what is there, within the bound, and lead it on.

        Returns:
            Whether the bound was reached, so that more may wait: come again after the handlers have run.
        """
        shards = list(self._lanes)
        if not shards:
            return False
        for lane in self._lanes.values():
            # Of no use any more, and channels that nobody else holds are not to be kept until the next step.
            if lane.changes != self.routes.changes:
                lane.many = None
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
        routes = [route for rid in rids if (route := self.routes.ended(rid)) is not None]
        for route in routes:
            self._end(route, error)
        return routes

    def fail_shard(self, shard: int, message: str, status_code: int) -> list[Route]:
        """End every request of one shard with an error."""
        return self.fail([r.rid for r in self.routes.values() if r.shard == shard], message, status_code)

    def _next(self, shard: int) -> ringbuf.Frame | None:
        lane = self._lanes.get(shard)
        if lane is None:  # detached by what an earlier frame of this turn brought
            return None
        try:
            frames = lane.ring.read_many(1)
        except ringbuf.RingError as error:
            self._upstream.ring_failed(shard, error)
            return None
        return frames[0] if frames else None

    def _take(self, shard: int, frame: ringbuf.Frame) -> None:
        self.counts.frames += 1
        tag = frame.tag
        try:
            if tag == Tag.BATCH:
                lane = self._lanes[shard]
                self._lead_batch(shard, lane, lane.recall.decode(frame.payload))
            elif tag == RequestTag.HELLO:
                hello = decode_request(tag, frame.payload)
                assert isinstance(hello, Hello)
                self._upstream.greeted(shard, hello)
            else:
                self._lead(decode(tag, frame.payload))
        except MalformedFrame as error:
            self._reject(shard, error)

    def _lead(self, message: Batch | Result | Failure) -> None:
        assert not isinstance(message, Batch)
        if (route := self.routes.ended(message.rid)) is None:
            self.counts.late += 1
        elif isinstance(message, Failure):
            self._end(route, Error(message.message, message.status_code))
        else:
            self._end(route, Control(bytes(message.payload)))

    def _lead_batch(self, shard: int, lane: _Lane, batch: Batch) -> None:
        self.counts.events += len(batch)
        endings = batch.endings
        many = self._many(lane, batch)
        lane.many, lane.changes = None, self.routes.changes
        if many is None or self._counts_tokens or batch.most_tokens > many.unit:
            self._lead_each(shard, batch, endings, is_distinct=many is not None)
            if many is not None:
                many.was_bypassed()
        else:
            self._lead_many(shard, many, batch, endings)
        if endings:
            going_on = _around(endings, len(batch))
            lane.recall.keep(going_on)
            if many is not None:
                many.keep(going_on)
        lane.many = many

    def _many(self, lane: _Lane, batch: Batch) -> Many | None:
        """The channels of this frame's requests, in its order; None if any of them has none, or not one for
        itself."""
        kept: Stretches = lane.recall.kept
        many = lane.many
        if many is None or not kept or lane.changes != self.routes.changes:
            return self._many_of(batch.rids)
        if kept[0] != (0, len(many)):
            many.keep(kept)
        if len(many) < len(batch):
            newcomers = self._many_of(batch.rids[len(many) :], many)
            if newcomers is None:
                return None
            many.add(newcomers)
            if not many.is_distinct:
                return None
        return many

    def _many_of(self, rids: Sequence[str], to: Many | None = None) -> Many | None:
        routes = list(map(self.routes.get, rids))
        return None if None in routes else Many.of(list(map(_sink_of, routes)), to)

    def _lead_many(self, shard: int, many: Many, batch: Batch, endings: Sequence[int]) -> None:
        """Lead events to their channels, all at once but for those that end or have no room."""
        events = batch.own()
        full: list[Route] = []
        no_room = many.without_room()
        if no_room:
            no_room = sorted({*no_room} - {*endings})
            # Those that have no route any more have ended, and take nothing.
            led = [(route, events[at]) for at in no_room if (route := self.routes.get(batch.rids[at]))]
            self.counts.late += len(no_room) - len(led)
            self._send([route for route, _ in led], [event for _, event in led], full)
        many.leave(endings)
        for place in endings:
            self._finish(events[place])
        many.send(events, (*endings, *no_room))
        if full:
            self._overflow(shard, full)

    def _lead_each(self, shard: int, batch: Batch, endings: Sequence[int], is_distinct: bool) -> None:
        """Lead events one by one: some may be late, or their sinks of any kind.

        Args:
            shard, batch, endings: whose frame, and where in it requests end.
            is_distinct: it is known that no request is named twice.
        """
        counts = self.counts
        found: list[Any] = list(map(self.routes.get, batch.rids))
        at: list[int] | None = None
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
        full: list[Route] = []
        is_distinct = is_distinct or len(set(found)) == len(found)
        lead = self._lead_stretches if is_distinct else self._lead_in_turn
        lead(found, events, endings, full)
        if full:
            self._overflow(shard, full)

    def _lead_stretches(
        self, found: list[Route], events: list[ChunkEvent], endings: Sequence[int], full: list[Route]
    ) -> None:
        """Everything is a Frame but a few terminal events: the stretches between those go as a whole."""
        start = 0
        for place in endings:
            self._send(found[start:place], events[start:place], full)
            self._finish(events[place])
            start = place + 1
        self._send(found[start:] if start else found, events[start:] if start else events, full)

    def _lead_in_turn(
        self, found: list[Route], events: list[ChunkEvent], endings: Sequence[int], full: list[Route]
    ) -> None:
        """Lead the events of a frame that names a request twice: where its sink has refused one, it has no
        route any more, and the next is late, though there may be room for it by then."""
        ends = {*endings}
        for place, (route, event) in enumerate(zip(found, events, strict=True)):
            if place in ends:
                self._finish(event)
            elif self.routes.get(route.rid) is route:
                self._send([route], [event], full)
            else:
                self.counts.late += 1

    def _send(self, routes: list[Route], events: list[ChunkEvent], full: list[Route]) -> None:
        """Send frames; routes whose sinks refuse are forgotten, those that were full are added to `full`."""
        for event, error in send_frames(map(_sink_of, routes), events):
            # Gone already if the frame names a request twice.
            route = self.routes.ended(event.rid)
            if route is None:
                self.counts.late += 1
            elif isinstance(error, SinkFull):
                full.append(route)
            else:
                self.counts.sink_closed += 1

    def _finish(self, event: ChunkEvent) -> None:
        route = self.routes.ended(event.rid)
        if route is None:
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


def _around(places: Sequence[int], n: int) -> Stretches:
    """The stretches of 0 to n - 1 without these places."""
    starts = [0, *[place + 1 for place in places]]
    return [(start, end) for start, end in zip(starts, [*places, n], strict=True) if start < end]

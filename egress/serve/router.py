"""The worker's `Dispatch`: from a handler's generations to the shards' rings, and from their frames back.

It makes the rids. A rid is the client's own id, if there is one, and a suffix no other request of any life
of any worker has; so no two requests ever meet in one sink, whatever ids clients send. The shard is a hash
of the rid that is the same in every process. Since the suffix is ours, it is drawn again while the hash
points to a shard that is down: a shard's restart costs the requests it had, not those that come meanwhile.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import ringbuf
from egress.errors import ValidationError
from egress.serve import logs
from egress.serve.config import MAX_RID_BYTES, Settings
from egress.serve.dispatch import Call, Generation, Overloaded, ShardDown, Stream
from egress.serve.links import Link
from egress.serve.metrics import WorkerMetrics
from egress.stream import channel
from egress.stream.item import Control as ControlItem
from egress.stream.item import Done, EgressItem, Error
from egress.stream.ring_source import RingSource
from egress.stream.routes import Route
from egress.wire.requests import Control, Generate, Hello

__all__ = ["Router"]

log = logging.getLogger(__name__)

# With one shard of two down, the odds that this many suffixes all point to it are one in 2**32.
SUFFIX_DRAWS = 32


class _Live(Route):
    """A request of this worker, with what its log line says."""

    __slots__ = ("client_rid", "prompt_tokens", "started")

    def __init__(self, rid: str, shard: int, sink: Any, client_rid: str | None, prompt_tokens: int) -> None:
        super().__init__(rid, shard, sink)
        self.client_rid = client_rid
        self.prompt_tokens = prompt_tokens
        self.started = time.monotonic()


class _Pong:
    """The sink of a ping: it notes that the shard answered."""

    __slots__ = ("_link",)

    def __init__(self, link: Link) -> None:
        self._link = link

    def try_send(self, item: EgressItem) -> None:
        """Note an answer; an error is none."""
        if isinstance(item, ControlItem):
            self._link.answered = time.monotonic()

    def close(self) -> None:
        """Nothing is kept."""


class Router:
    """Everything between the handlers of one worker and its rings; implements `Dispatch` and `Upstream`.

    Args:
        settings: the server's.
        epoch: this life of the worker; part of every rid it makes.
        links: one per shard.
        metrics: the worker's.
        detach: lets go of a link's frame ring, which is not to be read any more.
    """

    def __init__(
        self,
        settings: Settings,
        epoch: str,
        links: Sequence[Link],
        metrics: WorkerMetrics,
        detach: Callable[[Link], None],
    ) -> None:
        self._settings = settings
        self._epoch = epoch
        self._links = list(links)
        self._metrics = metrics
        self._detach = detach
        self._serial = itertools.count(1)
        self._is_draining = False
        self.source = RingSource(self, turn_frames=settings.turn_frames, counts_tokens=settings.log_requests)

    # What handlers ask for (Dispatch)

    def call(self, generations: Sequence[Generation]) -> Call:
        """Send all generations on their way, or none of them; see `Dispatch.call`."""
        if self._is_draining:
            raise Overloaded("the server is shutting down")
        self._verify_rids(generations)
        prepared = []
        for generation in generations:
            rid, link = self._draw(generation.client_rid)
            try:
                frame = link.encode(_request(generation, rid, link.epoch))
            except ValueError as error:
                raise ValidationError(f"the request cannot be sent: {error}") from error
            prepared.append((rid, link, frame, generation))
        streams: list[Stream] = []
        for rid, link, frame, generation in prepared:
            if not link.try_send(frame):
                self._release([stream.rid for stream in streams], "overloaded")
                raise Overloaded(f"request ring {link.request_ring!r} is full")
            sink, source = channel(self._settings.sink_items, self._settings.sink_tokens)
            client_rid = generation.client_rid
            self.source.routes[rid] = _Live(rid, link.shard, sink, client_rid, len(generation.input_ids))
            streams.append(Stream(rid, rid if client_rid is None else client_rid, source))
        call = Call(streams, lambda armed: self._release(armed, call.cause))
        return call

    def abort(self, client_rid: str) -> int:
        """End every live request that carries `client_rid`, at any worker; how many of them live here."""
        for link in self._links:
            if link.is_up:
                link.abort_client(client_rid)
        return sum(isinstance(r, _Live) and r.client_rid == client_rid for r in self.source.routes.values())

    async def control(self, op: str, shard: int = 0, timeout: float = 2.0) -> bytes:
        """Ask a shard and return its RESULT payload, verbatim; see `Dispatch.control`."""
        if not 0 <= shard < len(self._links):
            raise IndexError(f"shard must be in [0, {len(self._links) - 1}], got {shard}")
        link = self._links[shard]
        sink, source = channel(1, 1)
        rid = self._suffix()
        if not link.is_up:
            raise ShardDown(shard)
        if not link.ask(Control(rid=rid, op=op)):
            raise Overloaded(f"request ring {link.request_ring!r} is full")
        self.source.routes[rid] = Route(rid, shard, sink)
        try:
            item = await asyncio.wait_for(source.recv(), timeout)
        finally:
            self.source.routes.pop(rid, None)
            source.close()
        if isinstance(item, ControlItem):
            return item.payload
        if isinstance(item, Error) and item.status_code < 500:
            raise ValidationError(item.message)
        raise ShardDown(shard)

    def health(self) -> dict[str, Any]:
        """What is true now; see `Dispatch.health`."""
        now = time.monotonic()
        shards = [
            {"index": link.shard, "alive": link.is_up and self._answers(link, now), "pid": link.pid}
            for link in self._links
        ]
        is_ready = not self._is_draining and all(shard["alive"] for shard in shards)
        return {"ready": is_ready, "draining": self._is_draining, "shards": shards}

    # What the source tells (Upstream)

    def abort_upstream(self, shard: int, rids: Sequence[str], cause: str) -> None:
        """Tell a shard to forget requests of ours, and count why."""
        self._links[shard].abort(rids)
        self._metrics.aborted(cause, len(rids))

    def ended(self, route: Route, item: EgressItem) -> None:
        """Write the request's log line, where wanted."""
        if not self._settings.log_requests or not isinstance(route, _Live):
            return
        if isinstance(item, Done):
            reason = item.event.finish_reason
            outcome: dict[str, Any] = {"finish": None if reason is None else reason.to_wire().get("type")}
        elif isinstance(item, Error):
            outcome = {"status": item.status_code, "error": item.message}
        else:
            outcome = {}
        self._log_end(route, outcome)

    def greeted(self, shard: int, hello: Hello) -> None:
        """Learn which life of the shard this is; answer until it knows ours."""
        link = self._links[shard]
        if hello.epoch != link.epoch:
            if link.epoch:
                self.lost(shard, "was restarted")
            link.epoch, link.pid = hello.epoch, hello.pid
        if hello.peer == self._epoch:
            link.is_up = True
            link.answered = time.monotonic()
            return
        if link.is_up:
            # The same life of the shard, but it holds this worker for dead or its ring for broken.
            self.lost(shard, "forgot this worker")
            link.epoch = hello.epoch
        link.greet()

    def ring_failed(self, shard: int, error: ringbuf.RingError) -> None:
        """A shard's frames have come to an end: its requests do too, at once."""
        link = self._links[shard]
        if isinstance(error, ringbuf.PeerDead):
            self.lost(shard, "died")  # its successor resumes the ring, and we read on
            return
        if not isinstance(error, ringbuf.RingClosed):
            log.error("frame ring of shard %d: %s", shard, error)
        self.lost(shard, "ended" if isinstance(error, ringbuf.RingClosed) else "has a broken ring")
        self._detach(link)

    def lost(self, shard: int, what: str) -> None:
        """End the requests of a shard whose life has ended."""
        link = self._links[shard]
        link.down()
        routes = self.source.fail_shard(shard, f"shard {shard} {what}; its requests are lost", 500)
        if not routes and self._is_draining:
            return
        log.warning("shard %d %s", shard, what, extra=logs.fields(requests_failed=len(routes)))

    # Once per ping_s, and at the end

    def ping(self, now: float) -> None:
        """Ask every shard for a sign of life, one question at a time; flush what waits."""
        for link in self._links:
            link.flush()
            rid = f"ping-{link.shard}"
            if link.is_up and rid not in self.source.routes and link.ask(Control(rid=rid, op="ping")):
                self.source.routes[rid] = Route(rid, link.shard, _Pong(link))

    def drain(self) -> None:
        """Take no new requests."""
        self._is_draining = True

    def fail_all(self, message: str) -> None:
        """End what still runs: its time is over."""
        live = [route for route in self.source.routes.values() if isinstance(route, _Live)]
        for link in self._links:
            rids = [route.rid for route in live if route.shard == link.shard]
            if rids:
                self.abort_upstream(link.shard, rids, "shutdown")
        self.source.fail([route.rid for route in live], message, 503)

    @property
    def n_live(self) -> int:
        """Requests under way."""
        return sum(isinstance(route, _Live) for route in self.source.routes.values())

    def _release(self, rids: Sequence[str], cause: str) -> None:
        of_shard: dict[int, list[str]] = {}
        for rid in rids:
            route = self.source.routes.pop(rid, None)
            if route is not None:
                of_shard.setdefault(route.shard, []).append(rid)
                if self._settings.log_requests and isinstance(route, _Live):
                    self._log_end(route, {"aborted": cause})
        for shard, gone in of_shard.items():
            self.abort_upstream(shard, gone, cause)

    def _log_end(self, route: _Live, outcome: dict[str, Any]) -> None:
        seconds = time.monotonic() - route.started
        log.info(
            "request ended",
            extra=logs.fields(
                rid=route.rid,
                shard=route.shard,
                prompt_tokens=route.prompt_tokens,
                tokens=route.tokens,
                seconds=round(seconds, 4),
                **outcome,
            ),
        )

    def _verify_rids(self, generations: Sequence[Generation]) -> None:
        for generation in generations:
            rid = generation.client_rid
            if rid is None:
                continue
            try:
                size = len(rid.encode())
            except UnicodeEncodeError:
                raise ValidationError("rid must be valid unicode, got a lone surrogate", "rid") from None
            if not 1 <= size <= MAX_RID_BYTES:
                raise ValidationError(f"rid must have 1 to {MAX_RID_BYTES} bytes, got {size}", "rid")

    def _suffix(self) -> str:
        return f"{self._epoch}-{next(self._serial):x}"

    def _draw(self, client_rid: str | None) -> tuple[str, Link]:
        for _ in range(SUFFIX_DRAWS):
            rid = self._suffix() if client_rid is None else f"{client_rid}#{self._suffix()}"
            link = self._links[zlib.crc32(rid.encode()) % len(self._links)]
            if link.is_up:
                return rid, link
        raise ShardDown(link.shard)

    def _answers(self, link: Link, now: float) -> bool:
        return now - link.answered < max(2.0, 4 * self._settings.ping_s)


def _request(generation: Generation, rid: str, epoch: str) -> Generate:
    return Generate(
        rid=rid,
        epoch=epoch,
        input_ids=generation.input_ids,
        sampling=generation.sampling.to_wire(),
        client_rid=generation.client_rid,
        return_logprob=generation.return_logprob,
        logprob_start_len=generation.logprob_start_len,
        top_logprobs_num=generation.top_logprobs_num,
        token_ids_logprob=generation.token_ids_logprob,
        return_text_in_logprobs=generation.return_text_in_logprobs,
        return_hidden_states=generation.return_hidden_states,
    )

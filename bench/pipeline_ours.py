"""Ours as a transport of `pipeline_end_to_end`: the very objects of a shard and a worker, without the rest.

A shard's RingSink encodes a step and writes it into a real ring; a worker's RingSource, on a uvloop loop
woken by the ring's doorbell as in `egress.serve.worker`, decodes it and leads each event to its request's
channel.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import uvloop

import ringbuf
from bench.pipeline_steps import Step
from egress.stream import channel
from egress.stream.item import Done, EgressItem, Frame
from egress.stream.ring_sink import RingSink
from egress.stream.ring_source import RingSource
from egress.stream.routes import Route
from egress.wire.requests import Hello

# Room for a group of steps with hidden states; small enough for the warm-up to touch all of it once.
RING_BYTES = 32 << 20
FIRST = "sender"


class Sender:
    def __init__(self, name: str, queue: Any) -> None:
        self._ring = ringbuf.create(name, capacity=RING_BYTES, slots=4)
        self._sink = RingSink(
            self._ring,
            name=name,
            max_frame=RING_BYTES // 2 - 64,
            backlog_bytes=RING_BYTES,
            backlog_frames=1024,
        )

    def send(self, step: Step) -> None:
        columns = {
            "rids": step.rids,
            "finish_reasons": step.finish_reasons,
            "prompt_tokens": step.prompt_tokens,
            "token_ids": step.token_ids,
            "texts": step.texts,
        }
        for name in ("out_lp_val", "out_lp_idx", "out_top_val", "out_top_idx", "hidden"):
            if (column := getattr(step, name)) is not None:
                columns[name] = column
        failed = self._sink.send_batch(columns)
        if failed or self._sink.has_backlog:
            raise SystemExit("the ring is too small for this case")

    def close(self) -> None:
        self._ring.close()


class _Upstream:
    """Nothing may go wrong here, so whatever is told upstream ends the run."""

    def abort_upstream(self, shard: int, rids: Sequence[str], cause: str) -> None:
        raise SystemExit(f"{len(rids)} requests aborted: {cause}")

    def ended(self, route: Route, item: EgressItem) -> None:
        if type(item) is not Done:
            raise SystemExit(f"{route.rid} ended: {item}")

    def greeted(self, shard: int, hello: Hello) -> None:
        raise SystemExit("a greeting")


class Receiver:
    def __init__(self, name: str, queue: Any) -> None:
        self._loop = uvloop.new_event_loop()
        self._source = RingSource(_Upstream())
        self._ring = ringbuf.attach(name, start="oldest", timeout=10)
        self._source.attach(0, self._ring)
        self._sources: dict[str, Any] = {}
        self._is_turn_due = False
        self._target = 0
        self._reached: asyncio.Future[int] = self._loop.create_future()
        self._loop.add_reader(self._ring.fileno(), self._turn)

    def open(self) -> None:
        """Forget all requests."""
        self._source.routes.clear()
        self._sources.clear()

    def admit(self, rid: str) -> bool:
        """Make a request's channel, as the router does when it sends one off; whether it is new."""
        if rid in self._sources:
            return False
        sink, self._sources[rid] = channel()
        self._source.routes[rid] = Route(rid, 0, sink)
        return True

    def receive(self, count: int, n: int) -> int:
        """Return once `count` further steps of `n` requests are in their sinks; when (monotonic ns) they
        were."""
        self._target = self._source.counts.events + count * n
        self._reached = self._loop.create_future()
        return self._loop.run_until_complete(self._reached)

    def _turn(self) -> None:
        # As Worker._turn.
        is_cut = self._source.turn()
        if self._source.counts.events >= self._target and not self._reached.done():
            self._reached.set_result(time.monotonic_ns())
        if is_cut and not self._is_turn_due:
            self._is_turn_due = True
            self._loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._is_turn_due = False
        self._turn()

    def drain(self) -> int:
        """Take everything from every sink and look at its text, as handlers do; how many events that were."""
        taken = 0
        ended = []
        for rid, source in self._sources.items():
            take = source.try_recv
            while (item := take()) is not None:
                item.event.text  # noqa: B018
                taken += 1
                if type(item) is Done:
                    ended.append(rid)
        for rid in ended:
            del self._sources[rid]
        return taken

    def check(self, step: Step) -> str | None:
        """What is wrong with the events that wait, one per request, of this step."""
        for i, rid in enumerate(step.rids):
            item = self._sources[rid].try_recv()
            kind = Frame if step.finish_reasons[i] is None else Done
            if type(item) is not kind or self._sources[rid].try_recv() is not None:
                return f"{rid}: not exactly one {kind.__name__}"
            event = item.event
            reason = None if event.finish_reason is None else event.finish_reason.to_wire()
            got = (event.rid, reason, event.prompt_tokens, event.token_ids.tolist(), event.text)
            if got != (
                rid,
                step.finish_reasons[i],
                step.prompt_tokens[i],
                step.token_ids[i],
                step.texts[i],
            ):
                return f"{rid}: {event}"
            if event.completion_tokens != 1:
                return f"{rid}: {event.completion_tokens} completion tokens"
            for name in ("out_lp_val", "out_lp_idx", "out_top_val", "out_top_idx"):
                if (sent := getattr(step, name)) is not None and not np.array_equal(
                    getattr(event.extras, name), sent[i].reshape(-1)
                ):
                    return f"{rid}: {name}"
            if step.out_top_val is not None and list(event.extras.out_top_lens) != [
                step.out_top_val.shape[2]
            ]:
                return f"{rid}: {event.extras.out_top_lens}"
            if step.hidden is not None and (
                list(event.extras.hidden_lens) != [step.hidden.shape[2]]
                or not np.array_equal(event.extras.hidden_val, step.hidden[i].reshape(-1))
            ):
                return f"{rid}: hidden"
            if kind is Done:
                del self._sources[rid]
        return None

    def close(self) -> None:
        self._loop.remove_reader(self._ring.fileno())
        self._ring.close()
        self._loop.close()

"""What each process counts, and the one scrape that shows the whole server.

prometheus-client keeps its values in one file per process when PROMETHEUS_MULTIPROC_DIR is set before it is
imported (the supervisor sets it for its children); whichever worker answers `GET /metrics` adds the files up.
Without the variable a role keeps its values in memory and its scrape shows this process alone.

Names follow what dashboards for vLLM and SGLang look for, under the prefix `egress_`. One update of such a
file costs 2 to 5 us, so whatever happens per event is added up in plain Python numbers first (`Tally`, `Sum`)
and reaches the files when `flush` runs: once a second, before a scrape of the same process, and at the end.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

__all__ = [
    "CONTENT_TYPE",
    "FLUSH_S",
    "RingGauges",
    "ShardMetrics",
    "Sum",
    "Tally",
    "WorkerMetrics",
    "forget_process",
]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# A second is a quarter of the shortest scrape interval in common use (5 s), and makes a flush cost nothing.
FLUSH_S = 1.0

# vLLM's bounds, cut where this server's range ends: a step of the embedded engine takes well under 1 ms.
_TTFT_S = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
)
_GAP_S = (
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
)
_E2E_S = (0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 300.0)
_STEP_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)


class Sum:
    """A counter that is cheap to add to: one addition now, one file update per flush.

    Args:
        counter: where the sum goes; already labelled.
    """

    __slots__ = ("_counter", "pending")

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self.pending = 0

    def add(self, amount: int = 1) -> None:
        """Add `amount`, at least 0."""
        self.pending += amount

    def flush(self) -> None:
        """Hand what was added on."""
        if self.pending:
            pending, self.pending = self.pending, 0
            self._counter.inc(pending)


class Tally:
    """A histogram that is cheap to observe: a bisection and two additions now, file updates per flush.

    Args:
        histogram: where the observations go; already labelled.
        bounds: its buckets' upper bounds, without infinity.
    """

    __slots__ = ("_bounds", "_counts", "_histogram", "_total")

    def __init__(self, histogram: Histogram, bounds: Sequence[float]) -> None:
        self._histogram = histogram
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count `value` `times` over."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._total += value * times

    def flush(self) -> None:
        """Hand what was observed on."""
        if not any(self._counts):
            return
        counts, self._counts = self._counts, [0] * len(self._counts)
        total, self._total = self._total, 0.0
        # The library has no public way to add many observations at once; these two attributes have held a
        # histogram's values since its first release, and test_http_metrics compares them with observe().
        for bucket, count in zip(self._histogram._buckets, counts, strict=True):
            if count:
                bucket.inc(count)
        self._histogram._sum.inc(total)


class _Role:
    """What the metrics of one process have in common: a registry, buffers to flush, a scrape.

    Args:
        role, index: "shard" or "worker", and which; each life of it counts itself once.
    """

    def __init__(self, role: str, index: int) -> None:
        self._registry = CollectorRegistry()
        self._buffers: list[Sum | Tally] = []
        starts = self._counter(
            "egress_child_starts", "Times this child was started; above 1: restarted.", ["role", "index"]
        )
        starts.labels(role, str(index)).inc()

    def _counter(self, name: str, text: str, labels: Sequence[str] = ()) -> Counter:
        return Counter(name, text, labels, registry=self._registry)

    def _gauge(self, name: str, text: str, labels: Sequence[str] = ()) -> Gauge:
        return Gauge(name, text, labels, registry=self._registry, multiprocess_mode="livesum")

    def _sum(self, counter: Counter) -> Sum:
        self._buffers.append(buffer := Sum(counter))
        return buffer

    def _tally(
        self,
        name: str,
        text: str,
        bounds: Sequence[float],
        labels: Sequence[str] = (),
        values: Sequence[str] = (),
    ) -> Tally:
        histogram = Histogram(name, text, labels, registry=self._registry, buckets=bounds)
        self._buffers.append(buffer := Tally(histogram.labels(*values) if labels else histogram, bounds))
        return buffer

    def flush(self) -> None:
        """Make everything counted so far visible to a scrape by any process; about 50 us."""
        for buffer in self._buffers:
            buffer.flush()

    def scrape(self) -> bytes:
        """The metrics in Prometheus' text format: the whole server's, or this role's without a directory.

        Reads every process's files (milliseconds): keep it off an event loop.
        """
        self.flush()
        if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
            return generate_latest(self._registry)
        whole = CollectorRegistry()
        MultiProcessCollector(whole)  # type: ignore[no-untyped-call]
        return generate_latest(whole)


class RingGauges:
    """How full the rings are. Each ring is reported by one process: its producer.

    Args:
        role: the metrics of that process.
    """

    def __init__(self, role: _Role) -> None:
        self._used = role._gauge("egress_ring_used_bytes", "Bytes published and not yet reclaimed.", ["ring"])
        self._capacity = role._gauge("egress_ring_capacity_bytes", "Bytes the ring holds.", ["ring"])
        self._full = role._gauge("egress_ring_full_events", "Writes that found the ring full.", ["ring"])

    def set(self, ring: str, used_bytes: int, capacity_bytes: int, full_events: int = 0) -> None:
        """Report one ring; about 10 us, so once a second is often enough."""
        self._used.labels(ring).set(used_bytes)
        self._capacity.labels(ring).set(capacity_bytes)
        self._full.labels(ring).set(full_events)

    def forget(self, rings: Iterable[str]) -> None:
        """Report rings that are gone as empty: a file's entries can't be taken out of it."""
        for ring in rings:
            self.set(ring, 0, 0)


class WorkerMetrics(_Role):
    """What one API worker counts.

    The HTTP routes update http_*, success, failures and the three latencies; whoever routes frames to sinks
    updates frames, sinks, late chunks and aborts.

    Args:
        index: which worker this is.

    Attributes:
        calls_open: gauge, HTTP calls that wait for tokens.
        time_to_first_token, inter_token, e2e: seconds; n tokens at once: `inter_token.observe(gap / n, n)`.
        frames, frame_events: read from rings: frames, and the requests' events in them.
        late_chunks: events for requests that had already ended.
        sinks_full, sinks_closed: sinks that refused an item: reader too slow, reader gone.
        rings: this worker's request rings.
    """

    def __init__(self, index: int = 0) -> None:
        super().__init__("worker", index)
        self.calls_open = self._gauge(
            "egress_calls_open", "HTTP calls that wait for tokens, at the API workers."
        )
        self._http = self._counter("egress_http_requests", "HTTP requests answered.", ["route", "code"])
        self._success = self._counter(
            "egress_request_success", "Generations that reached their end.", ["finished_reason"]
        )
        self._failures = self._counter(
            "egress_request_failures", "Generations that ended in an error, by its status.", ["code"]
        )
        self._aborts = self._counter(
            "egress_aborts", "Requests aborted before their end, by cause.", ["cause"]
        )
        self._malformed = self._counter(
            "egress_malformed_frames", "Frames that were rejected whole.", ["names_requests"]
        )
        self.time_to_first_token = self._tally(
            "egress_time_to_first_token_seconds", "From the request's admission to its first token.", _TTFT_S
        )
        self.inter_token = self._tally(
            "egress_inter_token_latency_seconds",
            "Between a request's tokens as they reach its handler.",
            _GAP_S,
        )
        self.e2e = self._tally(
            "egress_e2e_request_latency_seconds", "From the request's admission to its last token.", _E2E_S
        )
        self.frames = self._sum(self._counter("egress_frames_read", "Frames read from the shards' rings."))
        self.frame_events = self._sum(
            self._counter("egress_frame_events_read", "Requests' events in those frames.")
        )
        self.late_chunks = self._sum(
            self._counter("egress_late_chunks", "Events for requests that had already ended; dropped.")
        )
        self.sinks_full = self._sum(
            self._counter("egress_sinks_full", "Requests ended because their client read too slowly.")
        )
        self.sinks_closed = self._sum(
            self._counter("egress_sinks_closed", "Events whose client had gone; dropped.")
        )
        self.rings = RingGauges(self)

    def answered(self, route: str, code: int) -> None:
        """Count an HTTP answer; `route` is the path of the route, never of the request."""
        self._http.labels(route, str(code)).inc()

    def succeeded(self, finished_reason: str) -> None:
        """Count a generation's end: "stop", "length", "abort", or "unknown"."""
        self._success.labels(finished_reason).inc()

    def failed(self, code: int) -> None:
        """Count a generation's end by an error of HTTP status `code`."""
        self._failures.labels(str(code)).inc()

    def aborted(self, cause: str, count: int = 1) -> None:
        """Count aborts sent upstream: "disconnect", "client", "slow_client", "malformed", "shutdown", ..."""
        if count:
            self._aborts.labels(cause).inc(count)

    def malformed(self, names_requests: bool) -> None:
        """Count a rejected frame, apart by whether any request could be named and failed for it."""
        self._malformed.labels("yes" if names_requests else "no").inc()


class ShardMetrics(_Role):
    """What one shard counts.

    Args:
        shard: its index, the label of everything here.

    Attributes:
        running: gauge, requests in the engine. requests: admitted so far.
        prompt_tokens, generation_tokens: of the requests admitted; produced by the engine.
        steps, step: engine steps, and seconds per step with detokenizing and writing.
        frames: written into rings.
        rings: this shard's frame rings.
    """

    def __init__(self, shard: int) -> None:
        super().__init__("shard", shard)
        label = str(shard)

        def counted(name: str, text: str) -> Sum:
            return self._sum(self._counter(name, text, ["shard"]).labels(label))

        self.running = self._gauge("egress_requests_running", "Requests in the engine.", ["shard"]).labels(
            label
        )
        self.requests = counted("egress_requests", "Requests admitted by the shard.")
        self.prompt_tokens = counted("egress_prompt_tokens", "Prompt tokens of the requests admitted.")
        self.generation_tokens = counted("egress_generation_tokens", "Tokens the engine produced.")
        self.steps = counted("egress_steps", "Engine steps that ran.")
        self.frames = counted("egress_frames_written", "Frames written into the workers' rings.")
        self.step = self._tally(
            "egress_step_seconds",
            "One engine step with detokenizing and writing.",
            _STEP_S,
            ["shard"],
            [label],
        )
        self._label = label
        self._ended = self._counter(
            "egress_shard_requests_ended", "Requests that left the engine, by cause.", ["shard", "cause"]
        )
        self._backlog = self._gauge(
            "egress_backlog_bytes", "Kept for a worker that does not take its frames.", ["shard", "worker"]
        )
        self.rings = RingGauges(self)

    def ended(self, cause: str, count: int = 1) -> None:
        """Count requests that left the engine: "finished", "aborted", "failed", "worker_lost", ..."""
        if count:
            self._ended.labels(self._label, cause).inc(count)

    def backlog(self, worker: int, nbytes: int) -> None:
        """Report what is kept back for `worker`, in bytes."""
        self._backlog.labels(self._label, str(worker)).set(nbytes)


def forget_process(pid: int, directory: str) -> None:
    """Take a dead process's gauges out of the scrape; what it counted stays. For the supervisor.

    Args:
        pid: of a process that has ended.
        directory: of the metrics files; "" = there are none.
    """
    if directory:
        mark_process_dead(pid, directory)  # type: ignore[no-untyped-call]

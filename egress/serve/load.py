"""Load for a running server: many streams at once, every one checked, latencies as the client sees them.

This is the client's side of `POST /generate` with nothing in between but an HTTP parser, so that what it
measures is the server and not a client library. A stream counts as whole only if it came with status 200,
carried a finish reason and ended with `[DONE]`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Sequence
from urllib.parse import urlsplit

import httptools
import msgspec

__all__ = ["Load", "Outcome", "Report", "run_load"]


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What to ask for.

    Attributes:
        url: the server's address, without a path.
        requests, concurrency: streams in all, and at once.
        max_tokens: tokens of each answer; `ignore_eos` is set, so each has exactly as many.
        prompt: the same text for all.
        api_key: sent as a bearer token.
        timeout_s: after which a stream counts as failed.
    """

    url: str = "http://127.0.0.1:8000"
    requests: int = 200
    concurrency: int = 32
    max_tokens: int = 128
    prompt: str = "Once upon a time"
    api_key: str | None = None
    timeout_s: float = 120.0


class Outcome(msgspec.Struct):
    """One stream, as its client saw it; times in seconds from sending the request."""

    tokens: int = 0
    first_s: float | None = None
    total_s: float = 0.0
    gaps_s: list[float] = []
    failure: str | None = None


class Report(msgspec.Struct):
    """All streams together; latencies in milliseconds, a gap being the time between two events of one."""

    requests: int
    failed: int
    failures: dict[str, int]
    seconds: float
    tokens: int
    tokens_per_s: float
    requests_per_s: float
    first_ms: dict[str, float]
    gap_ms: dict[str, float]
    total_ms: dict[str, float]


async def run_load(load: Load) -> Report:
    """Put `load` on a server and wait for every stream to end."""
    serial = itertools.count()
    outcomes: list[Outcome] = []

    async def client() -> None:
        while next(serial) < load.requests:
            outcomes.append(await _stream(load))

    started = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(min(load.concurrency, load.requests))))
    return _report(outcomes, time.perf_counter() - started)


async def _stream(load: Load) -> Outcome:
    outcome = Outcome()
    started = time.perf_counter()
    try:
        async with asyncio.timeout(load.timeout_s):
            await _exchange(load, outcome, started)
    except TimeoutError:
        outcome.failure = f"no end within {load.timeout_s:g} s"
    except (OSError, EOFError, ValueError, httptools.HttpParserError) as error:
        outcome.failure = f"{type(error).__name__}: {error}"
    outcome.total_s = time.perf_counter() - started
    return outcome


async def _exchange(load: Load, outcome: Outcome, started: float) -> None:
    parts = urlsplit(load.url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 80)
    try:
        writer.write(_request(load, parts.netloc))
        answer = _Answer()
        parser = httptools.HttpResponseParser(answer)
        latest = 0.0
        while not answer.is_complete:
            data = await reader.read(65536)
            if not data:
                raise EOFError("the connection ended before the answer did")
            parser.feed_data(data)
            if (events := answer.take_events()) and parser.get_status_code() == 200:
                now = time.perf_counter() - started
                if outcome.first_s is None:
                    outcome.first_s = now
                else:
                    outcome.gaps_s.append(now - latest)
                latest = now
                _count(events, outcome)
    finally:
        writer.close()
    if parser.get_status_code() != 200:
        outcome.failure = f"status {parser.get_status_code()}"
    elif outcome.failure is None and not (answer.is_done and answer.has_finished):
        outcome.failure = "the stream has no honest end"


def _request(load: Load, host: str) -> bytes:
    body = json.dumps(
        {
            "text": load.prompt,
            "stream": True,
            "sampling_params": {"max_new_tokens": load.max_tokens, "ignore_eos": True},
        }
    ).encode()
    key = f"Authorization: Bearer {load.api_key}\r\n" if load.api_key else ""
    lines = (
        f"POST /generate HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n{key}"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return lines.encode() + body


class _Answer:
    """What httptools reports, cut into server-sent events."""

    def __init__(self) -> None:
        self.is_complete = False
        self.is_done = False
        self.has_finished = False
        self._unread = b""

    def on_body(self, data: bytes) -> None:
        self._unread += data

    def on_message_complete(self) -> None:
        self.is_complete = True

    def take_events(self) -> list[dict[str, object]]:
        """The whole events that have come in since the last time."""
        *blocks, self._unread = self._unread.split(b"\n\n")
        events = []
        for block in blocks:
            data = block.removeprefix(b"data: ").removeprefix(b"data:")
            if data == b"[DONE]":
                self.is_done = True
            elif block.startswith(b"data:"):
                event = json.loads(data)
                self.has_finished |= bool(event.get("meta_info", {}).get("finish_reason"))
                events.append(event)
        return events


def _count(events: Sequence[dict[str, object]], outcome: Outcome) -> None:
    for event in events:
        meta = event.get("meta_info")
        if isinstance(meta, dict):
            outcome.tokens = meta["completion_tokens"]
        if "error" in event:
            outcome.failure = f"error event: {event['error']}"


def _report(outcomes: Sequence[Outcome], seconds: float) -> Report:
    whole = [outcome for outcome in outcomes if outcome.failure is None]
    failures: dict[str, int] = {}
    for outcome in outcomes:
        if outcome.failure is not None:
            failures[outcome.failure] = failures.get(outcome.failure, 0) + 1
    tokens = sum(outcome.tokens for outcome in whole)
    return Report(
        requests=len(outcomes),
        failed=len(outcomes) - len(whole),
        failures=failures,
        seconds=round(seconds, 3),
        tokens=tokens,
        tokens_per_s=round(tokens / seconds, 1),
        requests_per_s=round(len(whole) / seconds, 2),
        first_ms=_quantiles([o.first_s for o in whole if o.first_s is not None]),
        gap_ms=_quantiles([gap for o in whole for gap in o.gaps_s]),
        total_ms=_quantiles([o.total_s for o in whole]),
    )


def _quantiles(values_s: list[float]) -> dict[str, float]:
    if not values_s:
        return {}
    values = sorted(values_s)
    last = len(values) - 1
    return {f"p{q}": round(values[round(last * q / 100)] * 1000, 3) for q in (50, 90, 99)}

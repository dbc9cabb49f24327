"""From a call's streams to its client: whole answers, or events as they come.

An `Answer` knows how one generation is shown; this module knows when: it waits, takes whatever has come
meanwhile in one go, and decides how the exchange ends. Every generation ends exactly once, and a call that
failed in part never ends like one that succeeded: its stream closes without `[DONE]`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import Protocol

from egress.errors import Truncated
from egress.serve.dispatch import Call, Generation, Stream
from egress.serve.http import sse
from egress.serve.http.errors import Failure, failure_of, failure_of_item, failure_of_reason
from egress.serve.http.exchange import ClientGone, Exchange
from egress.serve.metrics import WorkerMetrics
from egress.stream.item import Done, EgressItem, Error, Frame
from egress.wire.event import ChunkEvent
from egress.wire.finish_reason import FinishReason, Unknown

__all__ = ["Answer", "Delivery", "Failed"]

logger = logging.getLogger(__name__)

# What a stream says when its server stops and cannot wait for its end.
_STOPPING = Failure(503, "the server is shutting down", headers=((b"retry-after", b"1"),))

# A client that does not read must not hold the server's end up.
_STOPPING_S = 1.0


class Failed(Exception):
    """A generation failed before anything of its call was sent: the whole call is that failure."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Answer(Protocol):
    """How one generation's answer is shown."""

    def push(self, event: ChunkEvent) -> None:
        """Take the next part; the last one has a finish reason."""

    def take(self) -> bytes:
        """What is new since the last call, framed as events; b"" when there is nothing to show."""

    def fail(self, failure: Failure) -> bytes:
        """The framed event that tells how this generation failed."""


class Delivery:
    """One call under way, and the exchange that waits for it.

    Args:
        exchange: whose body was read and whose answer was not begun.
        call: entered by the caller, who leaves it whatever happens here.
        answers: one per stream of the call, in its order.
        generations: what was asked, in the same order; their stream_interval is honoured here.
        metrics: where latencies and endings are counted.
    """

    __slots__ = ("_exchange", "_metrics", "_readers")

    def __init__(
        self,
        exchange: Exchange,
        call: Call,
        answers: Sequence[Answer],
        generations: Sequence[Generation],
        metrics: WorkerMetrics,
    ) -> None:
        self._exchange = exchange
        self._metrics = metrics
        self._readers = [
            _Reader(call, stream, answer, generation.sampling.stream_interval, metrics)
            for stream, answer, generation in zip(call.streams, answers, generations, strict=True)
        ]

    async def collect(self) -> None:
        """Wait until every answer is whole.

        Raises:
            Failed: the first generation that failed; the others' answers are of no use without it.
        """
        # All at once: a stream that nobody reads would fill its sink and be ended as too slow.
        with self._metrics.calls_open.track_inprogress(), _first_cause():
            if len(self._readers) == 1:
                await self._whole(self._readers[0])
            else:
                async with asyncio.TaskGroup() as group:
                    for reader in self._readers:
                        group.create_task(self._whole(reader))

    async def _whole(self, reader: _Reader) -> None:
        while await reader.more():
            pass
        if reader.failure is not None:
            raise Failed(reader.failure)

    async def stream(self, tail: Callable[[], bytes]) -> None:
        """Send events until every generation has ended, and `[DONE]` if none failed.

        Args:
            tail: gives the framed events that follow the last answer, before `[DONE]`.

        Raises:
            Failed: one failed while nothing had been sent, so that its status can still be a real one.
        """
        try:
            with self._metrics.calls_open.track_inprogress(), _first_cause():
                await self._stream(tail)
        except (Failed, ClientGone):
            raise
        except asyncio.CancelledError:
            # The client's leaving, or the server's end: only then is somebody there to be told.
            if self._exchange.started:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_STOPPING_S):
                        await self._exchange.end_events(self._readers[0].answer.fail(_STOPPING))
            raise
        except Exception as error:
            if not self._exchange.started:
                raise
            await self._exchange.end_events(self._readers[0].answer.fail(failure_of(error)))

    async def _stream(self, tail: Callable[[], bytes]) -> None:
        exchange = self._exchange
        if len(self._readers) == 1:
            # The last event, the tail and the end mark leave in one piece.
            last = await self._pump(self._readers[0], None)
        else:
            lock = asyncio.Lock()
            async with asyncio.TaskGroup() as group:
                for reader in self._readers:
                    group.create_task(self._pump(reader, lock))
            last = b""
        if all(reader.failure is None for reader in self._readers):
            last += tail() + sse.DONE
        await exchange.end_events(last)

    async def _pump(self, reader: _Reader, lock: asyncio.Lock | None) -> bytes:
        """Send one reader's events; with a lock, one among several. Returns what is left to send."""
        exchange = self._exchange
        send = exchange.send_events
        more, take = reader.more, reader.answer.take
        while await more():
            if data := take():
                if lock is None:
                    await send(data)
                else:
                    async with lock:
                        await send(data)
        if reader.failure is None:
            data = take()
        elif exchange.started:
            data = take() + reader.answer.fail(reader.failure)
        else:
            raise Failed(reader.failure)
        if lock is None:
            return data
        if data:
            async with lock:
                await send(data)
        return b""


class _Reader:
    """Reads one stream into its answer and keeps the clock on it."""

    __slots__ = (
        "_asked",
        "_call",
        "_interval",
        "_last",
        "_metrics",
        "_rid",
        "_source",
        "_untaken",
        "answer",
        "failure",
    )

    def __init__(
        self, call: Call, stream: Stream, answer: Answer, interval: int | None, metrics: WorkerMetrics
    ) -> None:
        self._call = call
        self._rid = stream.rid
        self._source = stream.source
        self._metrics = metrics
        self._interval = interval or 1
        self._untaken = 0
        self._asked = perf_counter()
        self._last = 0.0
        self.answer = answer
        self.failure: Failure | None = None

    async def more(self) -> bool:
        """Wait for something new and push all that waits; False: that was the end, see `failure`."""
        push = self.answer.push
        while True:
            try:
                item: EgressItem | None = await self._source.recv()
            except Truncated as error:
                # Stays armed: nothing said that the request has ended upstream.
                return self._failed(failure_of(error))
            tokens = 0
            while item is not None:
                if type(item) is Frame:
                    push(item.event)
                    tokens += item.event.completion_tokens
                    item = self._source.try_recv()
                elif type(item) is Done:
                    push(item.event)
                    self._observe(tokens + item.event.completion_tokens)
                    return self._ended(item.event.finish_reason)
                else:
                    # Control answers no generation: then this one's answer was never given.
                    self._call.done(self._rid)
                    told = failure_of_item(item) if isinstance(item, Error) else failure_of(Truncated())
                    return self._failed(told)
            is_first = self._last == 0.0
            self._observe(tokens)
            self._untaken += tokens
            if self._untaken >= self._interval or is_first:
                self._untaken = 0
                return True

    def _observe(self, tokens: int) -> None:
        now = perf_counter()
        if self._last == 0.0:
            self._metrics.time_to_first_token.observe(now - self._asked)
        elif tokens:
            self._metrics.inter_token.observe((now - self._last) / tokens, tokens)
        self._last = now

    def _ended(self, reason: FinishReason | None) -> bool:
        self._call.done(self._rid)
        self.failure = failure_of_reason(reason)
        if self.failure is not None:
            self._metrics.failed(self.failure.status)
        else:
            self._metrics.e2e.observe(self._last - self._asked)
            self._metrics.succeeded(_reason_label(reason))
        return False

    def _failed(self, failure: Failure) -> bool:
        self._metrics.failed(failure.status)
        self.failure = failure
        return False


def _reason_label(reason: FinishReason | None) -> str:
    """A label out of a closed set: what an unknown reason calls itself comes from outside."""
    return "unknown" if reason is None or type(reason) is Unknown else type(reason).__name__.lower()


@contextlib.contextmanager
def _first_cause() -> Iterator[None]:
    """Let the first error of a task group through as itself."""
    try:
        yield
    except BaseExceptionGroup as group:
        cause: BaseException = group
        while isinstance(cause, BaseExceptionGroup):
            cause = cause.exceptions[0]
        raise cause from None

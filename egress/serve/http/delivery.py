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

from egress.serve.dispatch import Call, Generation
from egress.serve.http import sse
from egress.serve.http.errors import Failure, failure_of
from egress.serve.http.exchange import ClientGone, Exchange
from egress.serve.http.reader import Answer, Reader
from egress.serve.metrics import WorkerMetrics

__all__ = ["Delivery", "Failed"]

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


class Delivery:
    """One call under way, and the exchange that waits for it.

    Args:
        exchange: whose body was read and whose answer was not begun.
        call: entered by the caller, who leaves it whatever happens here.
        answers: one per stream of the call, in its order.
        generations: what was asked, in the same order; their stream_interval is honoured here.
        metrics: where latencies and endings are counted.
    """

    __slots__ = ("_call", "_exchange", "_metrics", "_readers")

    def __init__(
        self,
        exchange: Exchange,
        call: Call,
        answers: Sequence[Answer],
        generations: Sequence[Generation],
        metrics: WorkerMetrics,
    ) -> None:
        self._exchange = exchange
        self._call = call
        self._metrics = metrics
        self._readers = [
            Reader(call, stream, answer, generation.sampling.stream_interval, metrics)
            for stream, answer, generation in zip(call.streams, answers, generations, strict=True)
        ]

    async def collect(self) -> None:
        """Wait until every answer is whole.

        Raises:
            Failed: the first generation that failed; the others' answers are of no use without it.
        """
        # All at once: a stream that nobody reads would fill its sink and be ended as too slow.
        with self._under_way():
            if len(self._readers) == 1:
                await self._whole(self._readers[0])
            else:
                async with asyncio.TaskGroup() as group:
                    for reader in self._readers:
                        group.create_task(self._whole(reader))

    async def _whole(self, reader: Reader) -> None:
        while await reader.more():
            await reader.pushed(None)
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
            with self._under_way():
                await self._stream(tail)
        except (Failed, ClientGone):
            raise
        except asyncio.CancelledError:
            # The client's leaving, or the server's end: only then is somebody there to be told.
            if self._exchange.started:
                with contextlib.suppress(TimeoutError, ClientGone):
                    async with asyncio.timeout(_STOPPING_S):
                        await self._exchange.end_events(self._readers[0].answer.fail(_STOPPING))
            raise
        except Exception as error:
            if not self._exchange.started:
                raise
            await self._exchange.end_events(self._readers[0].answer.fail(failure_of(error)))

    @contextlib.contextmanager
    def _under_way(self) -> Iterator[None]:
        """Count an open call, and say of one that ends badly whether its client was cut off."""
        try:
            with self._metrics.calls_open.track_inprogress(), _first_cause():
                yield
        except BaseException:
            if self._exchange.is_cut:
                self._call.cause = "stalled_client"
            raise

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

    async def _pump(self, reader: Reader, lock: asyncio.Lock | None) -> bytes:
        """Send one reader's events; with a lock, one among several. Returns what is left to send."""
        exchange = self._exchange
        send = exchange.send_events
        take = reader.answer.take
        while await reader.more():
            data = take()
            while data:
                if lock is None:
                    await send(data)
                else:
                    async with lock:
                        await send(data)
                direct = exchange.direct()
                data = b"" if direct is None else await reader.pushed(direct)
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

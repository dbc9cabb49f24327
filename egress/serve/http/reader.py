"""One stream of a call, read into its answer.

A reader is asked by its handler's task (`more`), or, while nothing is out of the ordinary, delivers by itself
(`pushed`). Both go on from where the other was.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

from egress.errors import Truncated
from egress.serve.dispatch import Call, Stream
from egress.serve.http.direct import Direct, Rounds
from egress.serve.http.errors import Failure, failure_of, failure_of_item, failure_of_reason
from egress.serve.metrics import WorkerMetrics
from egress.stream.item import Done, EgressItem, Error, Frame
from egress.wire.event import ChunkEvent
from egress.wire.finish_reason import FinishReason, Unknown

if TYPE_CHECKING:
    import asyncio

__all__ = ["Answer", "Reader"]


class Answer(Protocol):
    """How one generation's answer is shown."""

    def push(self, event: ChunkEvent) -> None:
        """Take the next part; the last one has a finish reason."""

    def take(self) -> bytes:
        """What is new since the last call, framed as events; b"" when there is nothing to show."""

    def pass_on(self, event: ChunkEvent) -> bytes:
        """`push` and then `take`, in a fraction of the time where the event is of the usual kind."""

    def fail(self, failure: Failure) -> bytes:
        """The framed event that tells how this generation failed."""


class Reader:
    """Reads one stream into its answer and keeps the clock on it.

    Args:
        call: the stream's; told when it has ended.
        stream: nobody else reads it.
        answer: what the stream's events become.
        interval: tokens that are to wait for each other before they are shown; None = 1.
        metrics: where latencies and endings are counted.

    Attributes:
        answer: as given.
        is_over: the stream has ended.
        failure: how, if badly.
    """

    __slots__ = (
        "_back",
        "_call",
        "_direct",
        "_interval",
        "_is_passing",
        "_last",
        "_metrics",
        "_rid",
        "_rounds",
        "_source",
        "_started",
        "_untaken",
        "_wake",
        "answer",
        "failure",
        "is_over",
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
        self._started = perf_counter()
        self._last = 0.0
        self._direct: Direct | None = None
        self._is_passing = False
        self._rounds: Rounds
        self._back: asyncio.Future[bytes]
        self._wake: Callable[[], None] | None = None
        self.answer = answer
        self.is_over = False
        self.failure: Failure | None = None

    async def more(self) -> bool:
        """Wait for something new and push all that waits; False: that was the end, see `failure`."""
        while not self.is_over:
            try:
                item = await self._source.recv()
            except Truncated as error:
                # Stays armed: nothing said that the request has ended upstream.
                self._failed(failure_of(error))
                break
            if self._push_all(item, perf_counter()):
                return True
        return False

    async def pushed(self, direct: Direct | None) -> bytes:
        """Push events as they come, without a step of this task, until it is needed: see then what `more`
        says.

        Args:
            direct: where to write what becomes of them; None: nowhere, the answer is taken as a whole.

        Returns:
            What the socket would not take at once, to be sent before anything else.
        """
        self._direct = direct
        self._is_passing = direct is not None and self._interval == 1
        self._rounds = rounds = Rounds.here()
        self._back = rounds.loop.create_future()
        self._wake = wake = partial(rounds.add, self)
        try:
            if not self._source.on_next(wake):
                rounds.add(self)
            return await self._back
        finally:
            self._source.forget(wake)
            self._wake = None

    def deliver(self, now: float) -> None:
        """Push what waits and write it; called by the rounds."""
        back, wake, direct = self._back, self._wake, self._direct
        if wake is None or back.done():
            return
        try:
            source = self._source
            item = source.try_recv()
            if type(item) is Frame and self._is_passing and source.on_next(wake):
                # Nothing else waits: nearly always so.
                event = item.event
                if tokens := event.completion_tokens:
                    data = self.answer.pass_on(event)
                    self._metrics.inter_token.observe((now - self._last) / tokens, tokens)
                else:
                    self.answer.push(event)
                    data = b""
                self._last = now
            elif item is None:
                # The sink was dropped, or somebody called for nothing.
                back.set_result(b"")
                return
            else:
                is_enough = self._push_all(item, now)
                data = self.answer.take() if is_enough and direct is not None else b""
                if self.is_over:
                    back.set_result(b"")
                    return
                if not source.on_next(wake):
                    self._rounds.add(self)
            if data and direct is not None and not direct.write(data):
                back.set_result(data)
        except Exception as error:
            back.set_exception(error)

    def _push_all(self, item: EgressItem | None, now: float) -> bool:
        """Push an item and whatever waits behind it; whether there is enough to be shown."""
        push, try_recv = self.answer.push, self._source.try_recv
        tokens = 0
        while item is not None:
            if type(item) is Frame:
                push(item.event)
                tokens += item.event.completion_tokens
                item = try_recv()
            elif type(item) is Done:
                push(item.event)
                self._observe(now, tokens + item.event.completion_tokens)
                self._ended(item.event.finish_reason)
                return False
            else:
                # Control answers no generation: then this one's answer was never given.
                self._call.done(self._rid)
                self._failed(failure_of_item(item) if isinstance(item, Error) else failure_of(Truncated()))
                return False
        is_first = self._last == 0.0
        self._observe(now, tokens)
        self._untaken += tokens
        if self._untaken >= self._interval or is_first:
            self._untaken = 0
            return True
        return False

    def _observe(self, now: float, tokens: int) -> None:
        if self._last == 0.0:
            self._metrics.time_to_first_token.observe(now - self._started)
        elif tokens:
            self._metrics.inter_token.observe((now - self._last) / tokens, tokens)
        self._last = now

    def _ended(self, reason: FinishReason | None) -> None:
        self._call.done(self._rid)
        self.is_over = True
        self.failure = failure_of_reason(reason)
        if self.failure is not None:
            self._metrics.failed(self.failure.status)
        else:
            self._metrics.e2e.observe(self._last - self._started)
            self._metrics.succeeded(_reason_label(reason))

    def _failed(self, failure: Failure) -> None:
        self._metrics.failed(failure.status)
        self.is_over = True
        self.failure = failure


def _reason_label(reason: FinishReason | None) -> str:
    """A label out of a closed set: what an unknown reason calls itself comes from outside."""
    return "unknown" if reason is None or type(reason) is Unknown else type(reason).__name__.lower()

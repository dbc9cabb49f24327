"""Between HTTP and the rings: what a handler asks for, and what it gets back.

Handlers know this file and no ring, no process, no wire tag. A `Dispatch` takes validated generations and
returns a `Call`: one stream of items per generation and, as a context manager, the guard that aborts upstream
whatever was still running when the handler left. The worker's own implementation is `egress.serve.worker`;
tests of the HTTP routes bring a fake.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Protocol

import msgspec

from egress.errors import EgressError
from egress.request.sampling import SamplingParams
from egress.stream.item import EgressItem

__all__ = ["Call", "Dispatch", "Generation", "ItemSource", "Overloaded", "ShardDown", "Stream"]


class Overloaded(EgressError):
    """No room for the request now: a 503 with a hint when to come back.

    Args:
        reason: what is full, with its limit.
        retry_after_s: whole seconds, at least 1.
    """

    status_code = 503

    def __init__(self, reason: str, retry_after_s: int = 1) -> None:
        super().__init__(reason, retry_after_s)
        self.reason = reason
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return self.reason


class ShardDown(EgressError):
    """The shard a request belongs to is not there; the supervisor brings it back within seconds: a 503.

    Args:
        shard: its index.
    """

    status_code = 503

    def __init__(self, shard: int) -> None:
        super().__init__(shard)
        self.shard = shard
        self.retry_after_s = 2

    def __str__(self) -> str:
        return f"shard {self.shard} is down; it is being restarted"


class Generation(msgspec.Struct, kw_only=True):
    """One request as HTTP hands it down: validated, normalized, tokenized.

    Attributes:
        input_ids: the prompt; every id below the vocabulary.
        sampling: normalized and verified.
        client_rid: the id the client gave, or None; not unique.
        return_logprob, logprob_start_len, top_logprobs_num, token_ids_logprob,
        return_hidden_states: as SGLang.
        return_text_in_logprobs: the shard decodes every logprob's id too.
    """

    input_ids: list[int]
    sampling: SamplingParams
    client_rid: str | None = None
    return_logprob: bool = False
    logprob_start_len: int = -1
    top_logprobs_num: int = 0
    token_ids_logprob: list[int] | None = None
    return_text_in_logprobs: bool = False
    return_hidden_states: bool = False


class ItemSource(Protocol):
    """The reading end of one request's channel, as `egress.channel` makes it."""

    async def recv(self) -> EgressItem:
        """The next item; Truncated when the sink went away without a terminal one."""

    def try_recv(self) -> EgressItem | None:
        """The next item, or None when nothing waits."""

    def on_next(self, waker: Callable[[], None]) -> bool:
        """Have `waker` called once, when an item comes or none will; False: there is something already."""

    def forget(self, waker: Callable[[], None]) -> None:
        """Take back a waker that was not called."""

    def close(self) -> None:
        """Take no more; whoever sends learns it."""


class Stream(msgspec.Struct, frozen=True):
    """One generation under way.

    Attributes:
        rid: its id inside the server, unique for ever.
        client_rid: the id its answer shows: the client's own where one was given, else `rid`.
        source: its items; exactly one terminal item comes last.
    """

    rid: str
    client_rid: str
    source: ItemSource


class Call:
    """The generations of one HTTP call, and the guard that ends them.

    Use it as a context manager around everything that reads the streams. Leaving it, for any reason, closes
    every source and aborts upstream every rid not yet `done`; it never blocks and never raises.

    Args:
        streams: one per generation, in the order asked.
        release: called exactly once, on leaving, with the rids still armed (often none).

    Attributes:
        cause: why leaving aborts what is armed, for logs and metrics; whoever knows better may set it.
    """

    __slots__ = ("_armed", "_release", "cause", "streams")

    def __init__(self, streams: Sequence[Stream], release: Callable[[list[str]], None]) -> None:
        self.streams = list(streams)
        self._armed = {stream.rid for stream in self.streams}
        self._release: Callable[[list[str]], None] | None = release
        self.cause = "disconnect"

    def done(self, rid: str) -> None:
        """Disarm `rid`: its terminal item was seen, there is nothing left to abort."""
        self._armed.discard(rid)

    @property
    def armed(self) -> frozenset[str]:
        """The rids that leaving now would abort."""
        return frozenset(self._armed)

    def __enter__(self) -> Call:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave: close the sources, abort what is armed. Again is harmless."""
        release, self._release = self._release, None
        if release is None:
            return
        for stream in self.streams:
            stream.source.close()
        armed = [stream.rid for stream in self.streams if stream.rid in self._armed]
        self._armed.clear()
        release(armed)


class Dispatch(Protocol):
    """What the HTTP routes are given to work with."""

    def call(self, generations: Sequence[Generation]) -> Call:
        """Send all generations on their way, or none of them.

        Raises:
            ValidationError: a client rid is too long (a 400). The same one may come twice: the choices of one
                answer share theirs, and end together when it is aborted.
            Overloaded: a request ring has no room, or the server drains (a 503).
            ShardDown: a shard that one of them belongs to is not there (a 503).
        """

    def abort(self, client_rid: str) -> int:
        """End every live request that carries `client_rid`, at any worker; how many of them live here."""

    async def control(self, op: str, shard: int = 0, timeout: float = 2.0) -> bytes:
        """Ask a shard and return its RESULT payload, verbatim.

        Raises:
            IndexError: there is no such shard.
            ShardDown: it is not there.
            TimeoutError: it did not answer in `timeout` seconds.
        """

    def health(self) -> dict[str, Any]:
        """What is true now: `{"ready": bool, "draining": bool, "shards": [{"index", "alive"}, ...]}`."""

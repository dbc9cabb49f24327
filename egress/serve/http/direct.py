"""Writing events in the round of the loop that brought them, without a step of their stream's task.

Waking a task costs a future, a closure, and a step of every coroutine from the handler down to the server's
`send`: more than all the rest of an event. Between a stream's first event and its last there is nothing a
handler has to decide, so it lends the stream to `Rounds`, which writes through `Direct`; what is out of the
ordinary gives the stream back. See `reader.Reader.pushed`.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from time import perf_counter
from typing import Any, Protocol

from starlette.types import Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

__all__ = ["Direct", "Due", "Rounds", "cycle_of", "has_left"]

# The first line of a chunk, by the chunk's size: looked up in a third of the time it takes to make one.
_SIZES = [b"%x\r\n" % size for size in range(4096)]


class Direct:
    """What uvicorn's `send` does with one more part of a chunked body, as a plain call.

    `send` is a coroutine only because it may have to wait for the socket; where it need not, it ends in
    the same write. The two may be used in turns.
    """

    __slots__ = ("_cycle", "_flow", "_write")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._flow = cycle.flow
        self._write = cycle.transport.write

    @classmethod
    def of(cls, send: Send) -> Direct | None:
        """For an answer that has begun and not ended; None where the server, or the answer, is another
        than this class knows, and everything has to go through `send`."""
        cycle = cycle_of(send)
        if cycle is None:
            return None
        is_open = cycle.response_started and not cycle.response_complete
        if not is_open or cycle.chunked_encoding is not True or cycle.scope["method"] == "HEAD":
            return None
        return cls(cycle)

    def write(self, data: bytes) -> bool:
        """Write one part of the body, not empty.

        Returns:
            False: nothing was written. The socket takes no more now, or the client has gone; `send` knows how
            to wait, and what to do.
        """
        if self._flow.write_paused or self._cycle.disconnected:
            return False
        size = len(data)
        try:
            self._write(b"".join((_SIZES[size] if size < 4096 else b"%x\r\n" % size, data, b"\r\n")))
        except RuntimeError:
            return False  # as uvloop says that the connection is closed; see has_left
        return True


def cycle_of(send: Send) -> RequestResponseCycle | None:
    """The exchange as uvicorn keeps it; None with another server."""
    cycle = getattr(send, "__self__", None)
    return cycle if type(cycle) is RequestResponseCycle else None


def has_left(send: Send) -> bool:
    """Whether the connection is closed though its server did not tell this answer.

    uvicorn tells only the newest request of a connection; that is another one where more of them were sent
    without waiting for their answers. From now on it knows.
    """
    cycle = cycle_of(send)
    if cycle is None or not cycle.transport.is_closing():
        return False
    cycle.disconnected = True
    return True


class Due(Protocol):
    """A stream lent to `Rounds`."""

    def deliver(self, now: float) -> None:
        """Write what has come; `now` is perf_counter's. Must not raise."""


class Rounds:
    """The streams of one loop that have something new: one callback per round delivers for all of them."""

    __slots__ = ("_due", "_thread", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._thread = threading.get_ident()
        self._due: list[Due] = []

    @staticmethod
    def here() -> Rounds:
        """Those of the running loop."""
        loop = asyncio.get_running_loop()
        rounds: Rounds | None = getattr(_here, "rounds", None)
        if rounds is None or rounds.loop is not loop:
            rounds = _here.rounds = Rounds(loop)
        return rounds

    def add(self, stream: Due) -> None:
        """Deliver for `stream` in the next round; from any thread, never raises."""
        if threading.get_ident() == self._thread:
            due = self._due
            due.append(stream)
            if len(due) == 1:
                self._schedule(self.loop.call_soon, self._run)
        else:
            self._schedule(self.loop.call_soon_threadsafe, self.add, stream)

    def _schedule(self, how: Callable[..., Any], *call: Any) -> None:
        # A loop that was closed under its streams delivers nothing any more.
        with contextlib.suppress(RuntimeError):
            how(*call)

    def _run(self) -> None:
        due, self._due = self._due, []
        now = perf_counter()
        for stream in due:
            stream.deliver(now)


_here = threading.local()

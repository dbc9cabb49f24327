"""Cutting off clients that do not read: uvicorn has no time-out for writing.

A client that does not read keeps its connection, its handler and the bytes that wait for it, for ever if it
likes. `Stalls` is told of a connection when its socket did not take what was written, and only then; from
there on one timer for all of them looks whether anything moves. A connection that moved nothing for long
enough is reset; that ends its handler as if the client had left.

What moves is asked of the kernel: TCP's count of acknowledged bytes. The server's own buffer says too little,
for a socket asks for more bytes only once a third of its own, megabytes, has gone: a client that reads
10 KB/s would look as if it did not read at all, for minutes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
import sys
import weakref

from starlette.types import Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from egress.serve import logs
from egress.serve.http.direct import cycle_of

__all__ = ["Stalls"]

log = logging.getLogger(__name__)

# A connection is cut at most a quarter later than it might be; each look costs a system call per connection.
_LOOKS = 4

# Where Linux' struct tcp_info has tcpi_bytes_acked, since 4.1: behind 8 bytes and 24 words, two rates.
_ACKED = slice(120, 128)

# Closing resets at once: the kernel keeps nothing for a client whose machine still answers.
_RESET = struct.pack("ii", 1, 0)


class _Stalled:
    """A connection whose socket did not take all.

    Attributes:
        acked: bytes that the client's machine had taken at the last look.
        since: loop time of the first look that found it so.
    """

    __slots__ = ("acked", "since")

    def __init__(self, acked: int, since: float) -> None:
        self.acked = acked
        self.since = since


class Stalls:
    """The connections of one loop that have bytes to be written and sockets that took none of them.

    Args:
        limit_s: seconds without any progress after which a connection is reset; 0 = never.
    """

    __slots__ = ("_cut", "_limit_s", "_stalled")

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._stalled: dict[asyncio.Transport, _Stalled] = {}
        self._cut: weakref.WeakSet[asyncio.Transport] = weakref.WeakSet()

    def before(self, send: Send) -> None:
        """Look whether `send`, about to be awaited, has to wait for its socket."""
        cycle = cycle_of(send)
        if cycle is not None and cycle.flow.write_paused:
            self._watch(cycle)

    def after(self, send: Send) -> None:
        """Look whether the end of an answer waits, once the loop has tried to write it.

        Nobody awaits that: what fits the server's buffer is written when its handler has gone.
        """
        cycle = cycle_of(send)
        if cycle is not None and self._limit_s:
            # uvloop writes at the end of a round.
            asyncio.get_running_loop().call_soon(self._watch, cycle)

    def has_cut(self, send: Send) -> bool:
        """Whether the connection was reset here."""
        cycle = cycle_of(send)
        return cycle is not None and cycle.transport in self._cut

    def _watch(self, cycle: RequestResponseCycle) -> None:
        transport = cycle.transport
        if not self._limit_s or transport in self._stalled or not transport.get_write_buffer_size():
            return
        loop = asyncio.get_running_loop()
        if not self._stalled:
            loop.call_later(self._limit_s / _LOOKS, self._look, loop)
        self._stalled[transport] = _Stalled(_acked(transport), loop.time())

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for transport, stalled in list(self._stalled.items()):
            if not transport.get_write_buffer_size():
                # All was taken, or the connection is closed.
                del self._stalled[transport]
            elif (acked := _acked(transport)) != stalled.acked:
                stalled.acked, stalled.since = acked, now
            elif now - stalled.since >= self._limit_s:
                del self._stalled[transport]
                self._reset(transport)
        if self._stalled:
            loop.call_later(self._limit_s / _LOOKS, self._look, loop)

    def _reset(self, transport: asyncio.Transport) -> None:
        self._cut.add(transport)
        peer = transport.get_extra_info("peername")
        log.info(
            "a client does not read; its connection is reset",
            extra=logs.fields(
                client=f"{peer[0]}:{peer[1]}" if peer else None,
                waiting_bytes=transport.get_write_buffer_size(),
                seconds=self._limit_s,
            ),
        )
        with contextlib.suppress(OSError):
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        transport.abort()


def _acked(transport: asyncio.Transport) -> int:
    sock = transport.get_extra_info("socket")
    try:
        info: bytes = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACKED.stop)
    except OSError:
        return 0  # closed in this round; the next look finds that nothing waits
    return int.from_bytes(info[_ACKED], sys.byteorder)

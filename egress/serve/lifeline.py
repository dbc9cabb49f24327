"""The wire between the supervisor and one child: a socket pair that the child gets as its standard input.

Lines of JSON go both ways: settings and orders down, states and answers to pings up. The socket
is a lifeline as well: each end is held by exactly one process (descriptors are closed on exec, and a child
gets only its own), so the kernel ends it with its holder. A child that reads the end of it knows that its
supervisor is gone, however that happened, and leaves. It has to be a socket rather than a pipe so that one
descriptor does both directions.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import msgspec

__all__ = ["Drain", "Failed", "Lifeline", "Lost", "Order", "Ping", "Pong", "Ready", "Report", "Start"]

# Orders and reports are short; whoever sends a longer line without an end is no supervisor of ours.
MAX_LINE_BYTES = 1 << 20


class Lost(ConnectionError):
    """The other end is gone."""


class Order(msgspec.Struct, tag_field="op", tag=str.lower):
    """What a supervisor tells a child."""


class Start(Order):
    """First line: who the child is and what the settings are (JSON of `Settings`).

    A worker that was executed has the listening socket as the inherited descriptor `listen_fd`; one that was
    forked has it from the template.
    """

    index: int
    settings: msgspec.Raw
    listen_fd: int = -1


class Ping(Order):
    """Answer with a `Pong` of the same number."""

    number: int


class Drain(Order):
    """Take nothing new and end within `seconds`; again with less hurries."""

    seconds: float


class Report(msgspec.Struct, tag_field="op", tag=str.lower):
    """What a child tells its supervisor."""


class Ready(Report):
    """It does its work from now on."""

    rings: list[str] = []


class Failed(Report):
    """It cannot start, and trying again would not help: `message` is for the user."""

    message: str


class Pong(Report):
    """It is not stuck."""

    number: int
    facts: dict[str, Any] = {}


_orders = msgspec.json.Decoder(Start | Ping | Drain)
_reports = msgspec.json.Decoder(Ready | Failed | Pong)
_encoder = msgspec.json.Encoder()


class Lifeline:
    """One end of the socket pair.

    Args:
        end: a connected stream socket; owned from now on.
        is_child: whether orders come in here (and reports go out), or the other way round.
    """

    def __init__(self, end: socket.socket, *, is_child: bool) -> None:
        end.setblocking(False)
        self._end = end
        self._decoder: msgspec.json.Decoder[Any] = _orders if is_child else _reports
        self._received = bytearray()
        self._unsent = bytearray()

    @classmethod
    def pair(cls) -> tuple[Lifeline, socket.socket]:
        """The supervisor's end, and the child's as the socket to hand to `Popen(stdin=...)` and close."""
        ours, theirs = socket.socketpair()
        return cls(ours, is_child=False), theirs

    def fileno(self) -> int:
        """For selectors: readable when a line or the end is there."""
        return self._end.fileno()

    def send(self, line: Order | Report) -> None:
        """Send without ever waiting: what the socket does not take goes out with the next `send`.

        Raises:
            Lost: the other end is gone.
        """
        self._unsent += _encoder.encode(line) + b"\n"
        try:
            while self._unsent:
                del self._unsent[: self._end.send(self._unsent)]
        except BlockingIOError:
            if len(self._unsent) > MAX_LINE_BYTES:
                raise Lost("the other end takes nothing") from None
        except OSError as error:
            raise Lost(str(error)) from error

    def receive(self) -> Iterator[Any]:
        """The lines that have arrived; none is no fault.

        Raises:
            Lost: the other end is gone, after the lines it sent.
        """
        is_ended = False
        try:
            while chunk := self._end.recv(65536):
                self._received += chunk
            is_ended = True
        except BlockingIOError:
            pass
        except OSError:
            is_ended = True
        *lines, rest = bytes(self._received).split(b"\n")
        self._received[:] = rest
        for line in lines:
            try:
                yield self._decoder.decode(line)
            except msgspec.MsgspecError as error:
                raise Lost(f"unreadable line: {error}") from error
        if is_ended or len(rest) > MAX_LINE_BYTES:
            raise Lost("the other end is gone")

    def close(self) -> None:
        """Let go of it; the other end reads its end."""
        self._end.close()

"""One HTTP exchange: read the body, answer once, or start a stream and send its events.

Handlers talk to this and to nothing of ASGI. Events go straight to the server's own `send`: no middleware and
no response object stands in between, so an event costs one dict and one await.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

import msgspec
from starlette.types import Message, Receive, Scope, Send

from egress.serve.http import sse
from egress.serve.http.direct import Direct, has_left
from egress.serve.http.errors import HttpError
from egress.serve.http.stalls import Stalls

__all__ = ["ClientGone", "Exchange", "encode"]

# A body that trickles in keeps a connection and its buffer: 4 MiB in 60 s is a 0.6 Mbit/s line.
BODY_S = 60.0

encode = msgspec.json.Encoder().encode

_START_EVENTS = {"type": "http.response.start", "status": 200, "headers": sse.HEADERS}


class ClientGone(Exception):
    """The client closed the connection before its answer was complete."""


class Exchange:
    """One request and its answer.

    Args:
        scope, receive, send: as ASGI hands them over.
        stalls: told where the client's socket takes no more.

    Attributes:
        status: the status that was answered; 0 before.
    """

    __slots__ = ("_receive", "_send", "_stalls", "scope", "status")

    def __init__(self, scope: Scope, receive: Receive, send: Send, stalls: Stalls) -> None:
        self.scope = scope
        self._receive = receive
        self._send = send
        self._stalls = stalls
        self.status = 0

    @property
    def is_cut(self) -> bool:
        """Whether the connection was reset because its client does not read."""
        return self._stalls.has_cut(self._send)

    @property
    def started(self) -> bool:
        """Whether a status was sent, so that a failure can only be told in band."""
        return self.status != 0

    def header(self, name: bytes) -> bytes | None:
        """The value of the first header of that lower-case name."""
        return next((value for key, value in self.scope["headers"] if key == name), None)

    async def read(self, limit: int) -> bytes:
        """Read the whole body, in memory, up to `limit` bytes.

        Raises:
            HttpError: 413, as soon as the length is known to be over the limit: from the header, or, where
                there is none, from the bytes read so far; 408 after BODY_S.
            ClientGone: the client left first.
        """
        declared = self.header(b"content-length") or b""
        if declared.isdigit() and (len(declared) > 20 or int(declared) > limit):
            raise _too_large(limit, f"{declared[:20].decode()} bytes")
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(BODY_S):
                while True:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise ClientGone
                    part = message.get("body", b"")
                    size += len(part)
                    if size > limit:
                        raise _too_large(limit, f"{size} bytes so far")
                    parts.append(part)
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError:
            raise HttpError(
                408, f"the body must arrive within {BODY_S:.0f} s, got {size} bytes", headers=_CLOSE
            ) from None

    async def answer(
        self,
        status: int,
        body: bytes,
        content_type: bytes = b"application/json",
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        """Send the whole answer."""
        self.status = status
        fields = [(b"content-type", content_type), (b"content-length", b"%d" % len(body)), *headers]
        start = {"type": "http.response.start", "status": status, "headers": fields}
        await self._put(start, {"type": "http.response.body", "body": body})
        self._stalls.after(self._send)

    async def send_events(self, data: bytes) -> None:
        """Send framed events; the first call commits to status 200.

        Waits while the client's socket takes no more: what is produced meanwhile waits in the request's sink,
        whose bound ends the request; and `Stalls` ends the wait.
        """
        await self._put_events({"type": "http.response.body", "body": data, "more_body": True})

    async def end_events(self, data: bytes) -> None:
        """Send the last framed events and end the answer."""
        await self._put_events({"type": "http.response.body", "body": data})
        self._stalls.after(self._send)

    async def _put_events(self, message: Message) -> None:
        if self.status:
            await self._put(message)
        else:
            self.status = 200
            await self._put(_START_EVENTS, message)

    async def _put(self, *messages: Message) -> None:
        try:
            for message in messages:
                self._stalls.before(self._send)
                await self._send(message)
        except RuntimeError:
            if has_left(self._send):
                raise ClientGone from None
            raise

    def direct(self) -> Direct | None:
        """A way to send more events of a stream under way without awaiting, where the server has one."""
        return Direct.of(self._send)

    def connected(self) -> Connected:
        """Watch for the client's leaving during an `async with`; the body must have been read."""
        return Connected(self._receive)


class Connected:
    """Cancels the block it guards when the client leaves, and then raises ClientGone from it.

    A disconnect is only ever learnt from `receive`, so one task waits there. Cancellation reaches the
    handler wherever it waits: for a token, for room in the socket, for a thread. It works as
    asyncio.timeout does, so a cancellation that came from elsewhere goes on as one.

    Attributes:
        is_gone: the client left.
    """

    __slots__ = ("_cancelling", "_receive", "_task", "_watch", "is_gone")

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.is_gone = False

    async def __aenter__(self) -> Connected:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancelling = task.cancelling()
        self._watch = asyncio.create_task(self._listen())
        return self

    async def _listen(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.is_gone = True
        self._task.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # No await here: a server says "disconnect" to whoever still listens once the answer is complete, and
        # must not be heard then.
        self._watch.cancel()
        if self.is_gone and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise ClientGone from None


# What a refused client still sends is not read as its next request.
_CLOSE = ((b"connection", b"close"),)


def _too_large(limit: int, got: str) -> HttpError:
    return HttpError(413, f"the body must have at most {limit} bytes, got {got}")

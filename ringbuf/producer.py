"""The producer: writes frames, waits for room, ends the ring.

`Producer.try_write` is the body's own function, without a wrapper. Everything else goes through a sender,
which the body calls back and which never refers to the Producer: so a handle that is dropped is closed at
once.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from ringbuf import layout
from ringbuf.claim import Claim
from ringbuf.handle import Handle
from ringbuf.layout import check_tag
from ringbuf.payload import Payload
from ringbuf.sender import Sender

__all__ = ["Producer", "TryWrite"]


class TryWrite(Protocol):
    """The type of Producer.try_write."""

    def __call__(self, tag: int, payload: Payload, align_at: int = 0) -> bool: ...


class Producer(Handle):
    """The one writer of a ring. Made by `ringbuf.create` and `ringbuf.resume`.

    One thread at a time may use it; `close` may be called from any thread, and ends a write that waits there.
    """

    __slots__ = {
        "_finalizer": None,
        "_sender": None,
        "_write_all": None,
        "try_write": """Write and publish one frame if there is room.

try_write(tag, payload, align_at=0) -> bool

Never waits. The bytes are taken when it returns; the caller may change its buffers afterwards. It does not
keep the handle open: hold on to the producer as long as you use it.

Args:
    tag: 1..255.
    payload: a buffer, or a list or tuple of buffers that are written one after the other.
    align_at: byte of the payload that is to lie on an 8-byte boundary.

Returns:
    False when the ring is full; then nothing was written.

Raises:
    FrameTooLarge: the frame could never fit.
    FrameInUse: a claim is open.
    RingClosed: this handle is closed, or another ring took the name.
    RingCorrupt: a consumer's cursor is impossible.
    UseAfterFork: in a child of the process that opened it.

Ordering: stores P_POS last; pairs with the consumers' load of it.
Cost: one copy, no allocation, no system call unless a consumer sleeps.
""",
    }

    try_write: TryWrite
    _write_all: Callable[[Sequence[tuple[int, Payload]], bool], int]

    def __init__(self, sender: Sender) -> None:
        super().__init__(sender.tenure)
        self._sender = sender
        self.try_write = sender.writer.try_write
        self._write_all = sender.writer.write_all
        self._finalizer = weakref.finalize(self, sender.close, True)

    @property
    def capacity(self) -> int:
        """Bytes for frames, headers and padding."""
        return self._sender.capacity

    @property
    def max_payload(self) -> int:
        """Most bytes one frame may carry (with align_at a multiple of 8)."""
        return layout.payload_limit(self._sender.capacity)

    @property
    def incarnation(self) -> int:
        """Which life of the ring's producer this is: 1 for its creator, one more for every resume."""
        return self._sender.incarnation

    def write(self, tag: int, payload: Payload, timeout: float | None = None, *, align_at: int = 0) -> None:
        """Write and publish one frame, waiting for room.

        Args:
            tag, payload, align_at: as for try_write.
            timeout: seconds to wait at most; None for ever.

        Raises:
            RingFull: no room within `timeout`; names the slowest consumer, or says that none is attached.
            FrameTooLarge, FrameInUse, RingClosed, RingCorrupt, UseAfterFork: as for try_write.
        """
        if not self.try_write(tag, payload, align_at):
            self._sender.write(tag, payload, timeout, align_at)

    def write_many(
        self,
        frames: Iterable[tuple[int, Payload]],
        *,
        timeout: float | None = 0.0,
        align_at: int = 0,
    ) -> int:
        """Write many frames with one publication and one wake-up.

        Args:
            frames: (tag, payload) pairs, in order.
            timeout: seconds to wait for room for the rest once the ring is full, each time with a publication
                of what went in before; None for ever.
            align_at: as for try_write, for each of them.

        Returns:
            How many were published; less than all when the ring was full.

        Raises:
            FrameTooLarge, TypeError, ValueError: one of them cannot be written; what was not yet published
                when it was met never is.
            FrameInUse, RingClosed, RingCorrupt, UseAfterFork: as for try_write.
        """
        listed = frames if isinstance(frames, (list, tuple)) else list(frames)
        done = 0
        if not align_at:
            done = self._write_all(listed, timeout == 0)
            if done < 0:
                return ~done
            if done and done == len(listed):
                return done
        return self._sender.write_many(listed, done, timeout, align_at)

    def claim(self, tag: int, nbytes: int, timeout: float | None = 0.0, *, align_at: int = 0) -> Claim:
        """Room for one frame, to be filled in place.

        Used as `with producer.claim(tag, nbytes) as buf:`, where buf is a writable memoryview of nbytes
        bytes, whose old contents are arbitrary. Leaving the block publishes the frame; an exception leaves
        nothing. Nothing else can be written meanwhile.

        Raises:
            RingFull: on entering, no room within `timeout` seconds.
            FrameInUse: on leaving, something made from buf still lives; the frame is not published.
            FrameTooLarge, RingClosed, RingCorrupt, UseAfterFork: as for try_write.
        """
        return Claim(self._sender, check_tag(tag), nbytes, timeout, align_at)

    def close(self, unlink: bool = True) -> None:
        """End the ring: consumers read what is left, then find RingClosed. Closing again does nothing.

        Args:
            unlink: also remove the name; attached consumers keep reading. False leaves the ring to late
                readers, until it is unlinked, reaped or replaced.
        """
        self._finalizer.detach()
        self._sender.close(unlink)

    def __repr__(self) -> str:
        return f"<Producer of ring {self.name!r}{', closed' if self.closed else ''}>"

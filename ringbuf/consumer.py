"""The consumer: reads frames at its own position, waits for more, tells an event loop when there are some.

`Consumer.try_read` and the iterator are the body's own, with no wrapper. What the body calls back, the watch
and the seat, never refers to the Consumer: so a handle that is dropped is closed at once, and the seat lives
on as long as a view of a frame does.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Iterator

from ringbuf import _ops
from ringbuf._hooks import is_watched
from ringbuf.doorbell import readable
from ringbuf.errors import RingClosed
from ringbuf.frame import Frame
from ringbuf.handle import Handle
from ringbuf.layout import FRAME_HEADER
from ringbuf.seat import Seat
from ringbuf.wait import AWAKE, Deadline
from ringbuf.watch import Watch

__all__ = ["Consumer"]

# `async for` lets other tasks run after so many frames in a row.
_FRAMES_A_TURN = 64
# Iterating hands out what takes more than this part of the ring as a private copy. The loop's variable keeps
# its frame while the next one is awaited, and the producer may wait for just these bytes. A quarter that is
# kept leaves room for any frame of up to three eighths with the padding before it.
_KEPT_PART = 4


def _leave(seat: Seat, watch: Watch, close: Callable[[], None]) -> None:
    if seat.leave():
        watch.close()
        close()


class Consumer(Handle):
    """One reader of a ring. Made by `ringbuf.attach`.

    One thread at a time may use it; `close` may be called from any thread, and ends a read that waits there.
    Iterating ends at the clean end of the ring and raises PeerDead like `read`. It hands out frames of more
    than a quarter of the capacity as private copies, because the loop's variable keeps its frame while the
    next one is awaited, and the producer may wait for just that room.
    """

    __slots__ = {
        "_each": None,
        "_finalizer": None,
        "_kept": None,
        "_read_many": None,
        "_seat": None,
        "_turn": None,
        "_watch": None,
        "try_read": """The next frame, or None when there is none: try_read() -> Frame | None.

Never waits, and says nothing about a producer that died. It does not keep the handle open: hold on to the
consumer as long as you use it.

Raises:
    RingClosed: everything was read, and the ring or this handle is closed.
    RingCorrupt: what the segment holds is no frame; so will every later read.
    UseAfterFork: in a child of the process that opened it.

Ordering: loads P_POS before the frame; stores C_CURSOR after it, unless the frame is a lease.
Cost: a copy of a small payload, a lease of a large one; no system call unless the producer waits for room.
""",
    }

    try_read: Callable[[], Frame | None]

    def __init__(self, seat: Seat) -> None:
        watch = Watch(seat.tenure, seat.peer, seat.own, seat.sleeper)
        reader = _ops.make_reader(
            seat.peer,
            seat.own,
            seat.words,
            seat.data,
            capacity=seat.tenure.segment.geometry.capacity,
            position=seat.position,
            seq=-1,
            idle=watch.idle,
            corrupt=seat.corrupt,
            wake_up=seat.ring_producer,
            fence=seat.waker_fence,
            is_forked=seat.is_forked,
            last_ended=seat.vacate,
        )
        watch.position = reader.position
        watch.refresh = reader.refresh
        watch.attend = reader.attend
        if not is_watched():
            watch.doze = getattr(reader, "doze", None)
            seat.keep_bell = getattr(reader, "keep_bell", None)
        seat.tenure.shut = reader.shut
        super().__init__(seat.tenure)
        self._seat = seat
        self._watch = watch
        self._turn = 0
        self._kept = seat.tenure.segment.geometry.capacity // _KEPT_PART - FRAME_HEADER
        self._read_many = reader.read_many
        self._each = reader.each
        self.try_read = reader.try_read
        self._finalizer = weakref.finalize(self, _leave, seat, watch, reader.close)

    @property
    def slot(self) -> int:
        """Which consumer slot this one has."""
        return self._seat.slot

    def read(self, timeout: float | None = None) -> Frame:
        """The next frame, waiting for it.

        Args:
            timeout: seconds to wait at most; None for ever.

        Raises:
            TimeoutError: none came in time.
            PeerDead: the producer died and everything it published was read; once per incarnation.
            RingClosed, RingCorrupt, UseAfterFork: as for try_read.
        """
        frame = self.try_read()
        if frame is not None:
            return frame
        deadline = Deadline(timeout)
        woken = self._watch.first_sleep(deadline, takes=True)
        # An identity, as for Sleeper.doze: asking isinstance in vain takes longer.
        if type(woken) is not int:
            return woken  # type: ignore[return-value]  # it is an int or a Frame
        while self._watch.wait(deadline, woken):
            frame = self.try_read()
            if frame is not None:
                return frame
            woken = AWAKE
        raise TimeoutError(f"no frame in ring {self.name!r} within {timeout} s")

    def read_many(self, max_frames: int = 1024, timeout: float | None = 0.0) -> list[Frame]:
        """What is there, at most `max_frames`, waiting for the first of them.

        Args:
            max_frames: at least 1.
            timeout: seconds to wait for the first frame; 0 looks once, None waits for ever.

        Returns:
            The frames in order; [] when none came in time.

        Raises:
            PeerDead, RingClosed, RingCorrupt, UseAfterFork: as for read, and only when nothing was read.
        """
        if max_frames < 1:
            raise ValueError(f"max_frames must be at least 1, not {max_frames}")
        frames = self._read_many(max_frames)
        if frames:
            return frames
        if timeout == 0:
            self._watch.raise_if_dead()
            return frames
        deadline = Deadline(timeout)
        woken = self._watch.first_sleep(deadline, takes=False)
        assert isinstance(woken, int)
        while self._watch.wait(deadline, woken):
            frames = self._read_many(max_frames)
            if frames:
                break
            woken = AWAKE
        return frames

    def fileno(self) -> int:
        """A descriptor for select, epoll or add_reader; it stays this consumer's.

        It is readable until a read found nothing, and again when there is something to find: a frame, the
        end, or the producer's death. So: when it is readable, read until nothing is left.

        Raises:
            RingClosed, UseAfterFork: this handle may not be used any more.
        """
        return self._watch.fileno()

    def close(self) -> None:
        """Stop reading; the slot comes free when no view of a frame is left. Closing again does nothing."""
        self._finalizer()

    def __iter__(self) -> Iterator[Frame]:
        return self._each(self, self._kept)

    def __next__(self) -> Frame:
        try:
            frame = self.read()
        except RingClosed:
            raise StopIteration from None
        return frame if len(frame) <= self._kept else _ops.private(frame)

    def __aiter__(self) -> Consumer:
        return self

    async def __anext__(self) -> Frame:
        watch = self._watch
        try:
            fd = watch.fileno()
            while True:
                frame = self.try_read()
                if frame is not None:
                    self._turn += 1
                    if self._turn >= _FRAMES_A_TURN:
                        self._turn = 0
                        await asyncio.sleep(0)
                    return frame if len(frame) <= self._kept else _ops.private(frame)
                watch.raise_if_dead()
                self._turn = 0
                await readable(fd)
        except RingClosed:
            raise StopAsyncIteration from None

    def __repr__(self) -> str:
        return f"<Consumer of ring {self.name!r} in slot {self.slot}{', closed' if self.closed else ''}>"

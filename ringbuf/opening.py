"""The three ways to a handle: create a ring, attach to it, resume it."""

from __future__ import annotations

import os
import time
from typing import Literal

from ringbuf import layout
from ringbuf._hooks import step
from ringbuf._ops import check_gil, fence
from ringbuf.consumer import Consumer
from ringbuf.doorbell import PRODUCER, OwnBell
from ringbuf.errors import ProducerAlive, RingClosed, RingCorrupt, RingNotFound
from ringbuf.layout import (
    LENGTH_BIT,
    PAGE,
    PRODUCER_PAGE,
    SHIFT_BIT,
    SHIFT_MASK,
    TAG_MASK,
    WORD,
    Geometry,
    check_name,
    frame_bytes,
)
from ringbuf.liveness import process_start
from ringbuf.mapping import Anchor, map_pages
from ringbuf.names import pauses
from ringbuf.producer import Producer
from ringbuf.seat import Seat
from ringbuf.segment import Segment, create_segment, hold_lock, open_segment
from ringbuf.sender import Sender
from ringbuf.wait import best_barrier

__all__ = ["attach", "create", "resume"]

DEFAULT_CAPACITY = 16 << 20
DEFAULT_SLOTS = 8
# Somebody who removes a dead ring holds its producer's lock for a moment.
_BUSY_S = 0.05


def create(
    name: str,
    capacity: int = DEFAULT_CAPACITY,
    slots: int = DEFAULT_SLOTS,
    *,
    mode: int = 0o600,
    replace: bool = False,
    _position: int = 0,
) -> Producer:
    """Make a ring and become its producer.

    A ring of that name whose processes are all dead is replaced, whatever its size.

    Args:
        name: 1 to 200 of A-Z a-z 0-9 . _ -, beginning with a letter or digit.
        capacity: bytes for frames, a power of two from 64 to 2**40; all of them are reserved now. One frame
            may take half.
        slots: most consumers at once, 1 to 64.
        mode: permission bits of the segment and its FIFOs, exactly, whatever the umask. A consumer needs read
            and write.
        replace: end a living ring of that name for its users (RingClosed) instead of refusing.
        _position: where the stream begins, for tests.

    Raises:
        RingExists: living processes use the name.
        RingForbidden: the name belongs to another user.
        SharedMemoryFull: /dev/shm has no room for it.
        ValueError, TypeError: an argument is out of range.
    """
    check_name(name)
    check_gil(name)
    if isinstance(mode, bool) or not isinstance(mode, int) or not 0 <= mode <= 0o777:
        raise ValueError(f"mode must be permission bits from 0 to 0o777, not {mode!r}")
    segment, fd, anchor = create_segment(
        name, capacity, slots, mode=mode, replace=replace, origin=_position, barrier=best_barrier()
    )
    try:
        return _produce(segment, fd, anchor, 0)
    finally:
        os.close(fd)


def _produce(segment: Segment, fd: int, anchor: Anchor, seq: int) -> Producer:
    try:
        fifo = OwnBell(segment.bell_path(PRODUCER))
    except FileNotFoundError:
        anchor.release()
        raise RingNotFound(segment.name, "being removed") from None
    try:
        sender = Sender(segment, fd, anchor, fifo, seq)
        # Consumers that saw a predecessor die sleep on their bells alone.
        # SYNC: store P_INCARNATION, barrier, load the wake words; pairs with Sleeper.arm.
        fence()
        sender.wake_up()
        return Producer(sender)
    except BaseException:
        fifo.close()
        anchor.release()
        raise


def attach(
    name: str,
    *,
    start: Literal["oldest", "latest"] = "oldest",
    timeout: float = 5.0,
    owner: int | None = None,
) -> Consumer:
    """Become a consumer of a ring, waiting for it to appear.

    Args:
        name: the ring.
        start: "oldest" for everything not yet reclaimed, "latest" for what is published from now on.
        timeout: seconds to wait for the ring to be there and ready.
        owner: uid the ring must belong to; None for this process's own.

    Raises:
        RingNotFound: no ready ring of that name in time; its reason says what was there.
        RingForbidden: it belongs to another user.
        NoFreeSlot: as many consumers as it has slots are attached.
        RingVersion, RingCorrupt: it is no ring this package can read.
    """
    check_name(name)
    check_gil(name)
    if start not in ("oldest", "latest"):
        raise ValueError(f"start must be 'oldest' or 'latest', not {start!r}")
    started = time.monotonic()
    for pause in pauses():
        left = max(0.0, timeout - (time.monotonic() - started))
        segment, fd = open_segment(name, left, owner)
        try:
            return Consumer(Seat(segment, fd, start == "oldest"))
        except RingNotFound:
            if time.monotonic() - started >= timeout:
                raise
        finally:
            os.close(fd)
        time.sleep(pause)
    raise AssertionError("pauses never end")


def resume(name: str, *, timeout: float = 0.0, owner: int | None = None) -> Producer:
    """Take over a ring whose producer died: attached consumers read on.

    The new producer continues where the last publication ended; what was written and not published never
    happened. The ring's incarnation goes up by one.

    Args:
        name: the ring.
        timeout: seconds to wait for the ring to be there.
        owner: uid the ring must belong to; None for this process's own.

    Raises:
        ProducerAlive: the producer lives.
        RingClosed: the ring was closed, or replaced.
        RingNotFound, RingForbidden, RingVersion, RingCorrupt: as for attach.
    """
    check_name(name)
    check_gil(name)
    segment, fd = open_segment(name, timeout, owner)
    try:
        return _produce(segment, fd, *_succeed(segment, fd))
    finally:
        os.close(fd)


def _take_producer_lock(segment: Segment) -> Anchor:
    started = time.monotonic()
    while (anchor := hold_lock(segment, PRODUCER_PAGE)) is None:
        if time.monotonic() - started > _BUSY_S:
            pid: int = segment.words(PRODUCER_PAGE, "producer")[layout.P_PID]
            raise ProducerAlive(segment.name, pid)
        time.sleep(0.001)
    return anchor


def _succeed(segment: Segment, fd: int) -> tuple[Anchor, int]:
    """Become the producer in the segment's words; its lock, and the seq of the next frame."""
    anchor = _take_producer_lock(segment)
    try:
        own = memoryview(map_pages(fd, PRODUCER_PAGE, PAGE, writable=True)).cast("Q")
        if own[layout.P_ENDED] or own[layout.P_STATE] == layout.STATE_CLOSED or not segment.still_named():
            ended = own[layout.P_ENDED]
            raise RingClosed(segment.name, layout.ended_by(ended) if ended else "the producer")
        step("resume.locked")
        data = memoryview(
            map_pages(fd, segment.geometry.data_offset, segment.geometry.data_bytes, writable=False)
        ).cast("Q")
        seq = next_seq(segment.name, segment.geometry, own, data)
        own[layout.P_WAITING] = 0
        for word in range(layout.P_RUNG_GENERATIONS, layout.P_RUNG_GENERATIONS + layout.MAX_SLOTS // WORD):
            own[word] = 0
        own[layout.P_FRAMES] = seq
        own[layout.P_PID] = os.getpid()
        own[layout.P_STARTED] = process_start(os.getpid())
        own[layout.P_SINCE_NS] = time.time_ns()
        step("resume.named")
        # SYNC: store who the producer is before P_INCARNATION; pairs with the loads of P_INCARNATION before
        # and after P_PID in Watch.raise_if_dead.
        fence()
        layout.add(own, layout.P_INCARNATION, 1)
        own[layout.P_STATE] = layout.STATE_LIVE
        step("resume.live")
    except BaseException:
        anchor.release()
        raise
    return anchor, seq


def next_seq(name: str, geometry: Geometry, own: memoryview, data: memoryview) -> int:
    """Seq of the frame to be written at P_POS, found without trusting a word that is stored beside it.

    P_FRAMES may be ahead of P_POS by a publication that never came. So the frames from P_FLOOR, which
    nobody has overwritten, are walked; if there are none, the floor was raised to P_POS and P_FLOOR_SEQ was
    stored before.

    Raises:
        RingCorrupt: the words or the frames break the layout.
    """
    capacity = geometry.capacity
    floor, published = own[layout.P_FLOOR], own[layout.P_POS]
    if not floor <= published <= floor + capacity or (floor | published) & (WORD - 1):
        raise RingCorrupt(
            name, PRODUCER_PAGE, f"floor is {floor} and position {published} at capacity {capacity}"
        )
    seq = -1
    position = floor
    while position < published:
        offset = position & (capacity - 1)
        head = data[offset // WORD]
        tag, shift, nbytes = head & TAG_MASK, head >> SHIFT_BIT & SHIFT_MASK, head >> LENGTH_BIT
        size = frame_bytes(nbytes, shift) if tag else nbytes
        if position + size > published or offset + size > capacity or size < WORD or size & (WORD - 1):
            raise RingCorrupt(name, geometry.data_offset + offset, f"frame of {size} bytes, tag {tag}")
        if tag:
            seq = data[offset // WORD + 1]
        position += size
    if seq >= 0:
        return seq + 1
    if own[layout.P_FLOOR_SEQ_POS] != published:
        raise RingCorrupt(
            name,
            PRODUCER_PAGE + layout.P_FLOOR_SEQ_POS * WORD,
            f"no frame from {floor} to {published}, and the seq there is known for "
            f"{own[layout.P_FLOOR_SEQ_POS]}",
        )
    known: int = own[layout.P_FLOOR_SEQ]
    return known

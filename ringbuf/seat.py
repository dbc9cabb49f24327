"""A consumer's slot: how it is taken, how its holder joins the ring, and how it is left."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial

from ringbuf import layout
from ringbuf._hooks import step, wrap_words
from ringbuf._ops import fence as keep_order
from ringbuf.doorbell import PRODUCER, OwnBell, consumer_party
from ringbuf.errors import NoFreeSlot, RingCorrupt, RingNotFound
from ringbuf.layout import (
    C_ATTACHMENT_BIT,
    C_CURSOR,
    C_GENERATION,
    C_RUNG,
    C_STATE,
    P_FLOOR,
    P_POS,
    P_WAITING,
    PAGE,
    PRODUCER_PAGE,
    SLOT_FREE,
    SLOT_JOINING,
    SLOT_LIVE,
    WAKE_PAGE,
    WORD,
    slot_page,
)
from ringbuf.liveness import process_start
from ringbuf.mapping import Anchor, map_pages
from ringbuf.segment import Segment, hold_lock
from ringbuf.tenure import Tenure
from ringbuf.wait import Sleeper, barrier_for, fence

__all__ = ["Seat", "take_slot"]

_GENERATIONS = 255
# While somebody removes a segment it holds every lock for a moment; all slots busy for longer is what it
# says.
_BUSY_S = 0.05


def take_slot(segment: Segment) -> tuple[int, Anchor]:
    """Take the lock of a free slot.

    Raises:
        NoFreeSlot: living processes hold them all.
        RingNotFound: the ring is being removed.
    """
    started = time.monotonic()
    while True:
        for slot in range(segment.geometry.slots):
            anchor = hold_lock(segment, slot_page(slot))
            if anchor is not None:
                return slot, anchor
        if time.monotonic() - started > _BUSY_S:
            raise NoFreeSlot(segment.name, segment.geometry.slots)
        time.sleep(0.001)


def _next_generation(own: memoryview, control: memoryview, slot: int) -> int:
    """A wake generation that the producer cannot hold for rung, whatever it is about to store there."""
    rung = control[PRODUCER_PAGE + layout.P_RUNG_GENERATIONS * WORD + slot]
    last: int = own[C_GENERATION] & 0xFF
    generation = last % _GENERATIONS + 1
    if generation == rung:
        generation = generation % _GENERATIONS + 1
    own[C_GENERATION] = generation
    return generation


class Seat:
    """One consumer's hold on the ring: its slot, its page, its first position.

    Args:
        segment: the mapped segment.
        fd: an open of it; stays the caller's to close.
        oldest: start at the oldest frame not reclaimed, else at what is published next.

    Raises:
        NoFreeSlot: every slot is taken.
        RingNotFound: the ring was removed while this joined it.
        RingCorrupt: the producer's words are impossible.
    """

    __slots__ = (
        "_wake",
        "data",
        "keep_bell",
        "name",
        "own",
        "peer",
        "position",
        "sleeper",
        "slot",
        "tenure",
        "waker_fence",
        "words",
    )

    def __init__(self, segment: Segment, fd: int, oldest: bool) -> None:
        geometry = segment.geometry
        barrier, self.waker_fence = barrier_for(segment.name, geometry.barrier)
        self.name = segment.name
        # Of a body that rings by itself, once it knows how.
        self.keep_bell: Callable[[int], None] | None = None
        self.peer = segment.words(PRODUCER_PAGE, "producer")
        self._wake = memoryview(map_pages(fd, WAKE_PAGE, PAGE, writable=True))
        self.data = map_pages(fd, geometry.data_offset, geometry.data_bytes, writable=False)
        self.words = wrap_words("data", memoryview(self.data).cast("Q"))
        self.slot, anchor = take_slot(segment)
        party = consumer_party(self.slot)
        try:
            step("attach.locked")
            page = map_pages(fd, slot_page(self.slot), PAGE, writable=True)
            self.own = wrap_words(party, memoryview(page).cast("Q"))
            fifo = OwnBell(segment.bell_path(party))
        except BaseException as error:
            anchor.release()
            if isinstance(error, FileNotFoundError):
                raise RingNotFound(segment.name, "being removed") from None
            raise
        self.tenure = Tenure(segment, anchor, fifo, party)
        try:
            self._wake[self.slot] = 0
            self.position = self._join(oldest)
            self._check_first()
            # Whoever removes a ring first makes sure that nobody is attached; this slot may have come too
            # late for that, and then nobody would ever write here.
            if not segment.still_named():
                raise RingNotFound(segment.name, "being removed")
            renew = partial(_next_generation, self.own, segment.raw, self.slot)
            self.sleeper = Sleeper(self._wake, self.slot, fifo, barrier, renew)
        except BaseException:
            self.vacate()
            raise

    # ---------------------------------------------------------------------------------------------- joining

    def _join(self, oldest: bool) -> int:
        """Become LIVE at a position whose bytes will not be overwritten; see `room` for the argument."""
        own = self.own
        attachment = (own[C_STATE] >> C_ATTACHMENT_BIT) + 1 << C_ATTACHMENT_BIT & layout.MAX_POSITION
        own[C_STATE] = attachment | SLOT_JOINING
        step("attach.joining")
        for word in range(layout.C_LEASES, layout.C_COUNTERS_END):
            if word != C_GENERATION:
                own[word] = 0
        own[layout.C_PID] = os.getpid()
        own[layout.C_STARTED] = process_start(os.getpid())
        own[layout.C_SINCE_NS] = time.time_ns()
        # SYNC: store JOINING, barrier, load P_FLOOR; pairs with Room's store of P_FLOOR, barrier, load of the
        # slots.
        fence()
        peer = self.peer
        floor = peer[P_FLOOR]
        # SYNC: load P_FLOOR before P_POS; pairs with the producer's stores of P_POS before a higher P_FLOOR.
        keep_order()
        published = peer[P_POS]
        capacity = self.tenure.segment.geometry.capacity
        if not floor <= published <= floor + capacity or (floor | published) & (WORD - 1):
            raise RingCorrupt(
                self.name, PRODUCER_PAGE, f"floor is {floor} and position {published} at capacity {capacity}"
            )
        position = floor if oldest else published
        own[layout.C_START_POS] = position
        # SYNC: store C_CURSOR before LIVE; pairs with Room's load of C_STATE before C_CURSOR.
        own[C_CURSOR] = position
        keep_order()
        own[C_STATE] = attachment | SLOT_LIVE
        step("attach.live")
        return position

    def _check_first(self) -> None:
        """Check that a frame begins at the first position: nothing before it tells which number it must have.

        Raises:
            RingCorrupt: its number is none that can be there.
        """
        geometry = self.tenure.segment.geometry
        capacity = geometry.capacity
        if self.position >= self.peer[P_POS]:
            return
        # SYNC: load P_POS before the frame and P_FRAMES; pairs with the producer's store of P_POS after them.
        keep_order()
        offset = self.position & (capacity - 1)
        if not self.words[offset // WORD] & layout.TAG_MASK:
            # Padding, and the frame behind it.
            offset = 0
        frames = self.peer[layout.P_FRAMES]
        seq = self.words[offset // WORD + 1] if offset < capacity - WORD else -1
        if not max(0, frames - capacity // layout.FRAME_HEADER) <= seq < frames:
            raise RingCorrupt(
                self.name, geometry.data_offset + offset + WORD, f"first frame has seq {seq} of {frames}"
            )

    # --------------------------------------------------------------------------------------------- releasing

    def ring_producer(self, generation: int) -> int:
        """Ring a producer that waits for room; its generation, which is then rung."""
        if generation:
            step("read.ring")
            bell = self.tenure.bell(PRODUCER)
            if bell.ring() and self.keep_bell is not None:
                self.keep_bell(bell.fileno())
            layout.add(self.own, C_RUNG, 1)
        return generation

    def released(self) -> None:
        """Ring the producer if it waits; after the cursor has moved."""
        self.ring_producer(self.peer[P_WAITING])

    def is_forked(self) -> bool:
        """Whether this is a child that inherited the seat."""
        return self.tenure.forked

    def corrupt(self, position: int, reason: str) -> RingCorrupt:
        """The error for a frame that cannot be, at `position` of the stream."""
        geometry = self.tenure.segment.geometry
        return RingCorrupt(self.name, geometry.data_offset + (position & (geometry.capacity - 1)), reason)

    # ------------------------------------------------------------------------------------------------ leaving

    def leave(self) -> bool:
        """Stop reading: no more rings are wanted here. False when that was done before."""
        if not self.tenure.close():
            return False
        step("detach.begin")
        self._wake[self.slot] = 0
        # Its body calls back here; this ends the cycle.
        self.keep_bell = None
        return True

    def vacate(self) -> None:
        """Free the slot, and tell a producer that waited for it."""
        own = self.own
        # SYNC: load the last frames' bytes before the store of FREE; pairs with Room's load of C_STATE before
        # they are overwritten.
        keep_order()
        own[C_STATE] = own[C_STATE] >> C_ATTACHMENT_BIT << C_ATTACHMENT_BIT | SLOT_FREE
        step("detach.free")
        # SYNC: store C_STATE, barrier, load P_WAITING; pairs with Sleeper.arm of a waiting producer.
        fence()
        self.released()
        self.tenure.give_back()

"""The consumer's half of a ring, below its handle: its slot, how it joins, and how it leaves."""

from __future__ import annotations

import os
import time

from ringbuf import _ops, layout
from ringbuf._hooks import step, wrap_words
from ringbuf.doorbell import PRODUCER, consumer_party, open_bell
from ringbuf.errors import NoFreeSlot, RingCorrupt, RingNotFound
from ringbuf.layout import (
    C_ATTACHMENT_BIT,
    C_CURSOR,
    C_GENERATION,
    C_NEXT_SEQ,
    C_RUNG,
    C_STATE,
    P_FLOOR,
    P_FRAMES,
    P_POS,
    P_WAITING,
    PAGE,
    PRODUCER_PAGE,
    SLOT_FREE,
    SLOT_JOINING,
    SLOT_LIVE,
    TAG_MASK,
    WAKE_PAGE,
    WORD,
    slot_page,
)
from ringbuf.lease import LeaseBook
from ringbuf.liveness import process_start
from ringbuf.mapping import Anchor, map_pages
from ringbuf.segment import Segment, hold_lock
from ringbuf.tenure import Tenure
from ringbuf.wait import Sleeper, barrier_for, fence
from ringbuf.watch import Watch

__all__ = ["Receiver", "take_slot"]

_GENERATIONS = 255
# While somebody removes a segment it holds every lock for a moment; all slots busy for longer is what it says.
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


class Receiver:
    """One consumer's slot, its body and its leases.

    Args:
        segment: the mapped segment.
        fd: an open of it; stays the caller's to close.
        oldest: start at the oldest frame not reclaimed, else at what is published next.

    Raises:
        NoFreeSlot: every slot is taken.
        RingNotFound: the ring was removed while this joined it.
        RingCorrupt: the producer's words are impossible.
    """

    __slots__ = ("_wake", "book", "name", "own", "peer", "reader", "slot", "tenure", "watch")

    def __init__(self, segment: Segment, fd: int, oldest: bool) -> None:
        geometry = segment.geometry
        sleeper_barrier, waker_fence = barrier_for(segment.name, geometry.barrier)
        self.name = segment.name
        self.slot, anchor = take_slot(segment)
        party = consumer_party(self.slot)
        try:
            step("attach.locked")
            fifo = open_bell(segment.bell_path(party))
        except FileNotFoundError:
            anchor.release()
            raise RingNotFound(segment.name, "being removed") from None
        except BaseException:
            anchor.release()
            raise
        self.tenure = Tenure(segment, anchor, fifo, party)
        try:
            page = map_pages(fd, slot_page(self.slot), PAGE, writable=True)
            self.own = wrap_words(party, memoryview(page).cast("Q"))
            self._wake = memoryview(map_pages(fd, WAKE_PAGE, PAGE, writable=True))
            self._wake[self.slot] = 0
            self.peer = segment.words(PRODUCER_PAGE, "producer")
            data = map_pages(fd, geometry.data_offset, geometry.data_bytes, writable=False)
            words = wrap_words("data", memoryview(data).cast("Q"))
            position = self._join(oldest, words)
            # Whoever removes a ring first makes sure that nobody is attached; this slot may have come too late
            # for that, and then nobody would ever write here.
            if not segment.still_named():
                raise RingNotFound(segment.name, "being removed")
        except BaseException:
            self._vacate()
            raise
        sleeper = Sleeper(self._wake, self.slot, fifo, sleeper_barrier, self._next_generation)
        self.watch = Watch(self.tenure, self.peer, self.own, sleeper)
        # The book may outlive this receiver, and needs of it only what outlives it too.
        self.book = LeaseBook(self.own, data, self._is_forked, self._released, self._vacate)
        self.reader = _ops.make_reader(
            self.peer,
            self.own,
            words,
            data,
            capacity=geometry.capacity,
            position=position,
            seq=-1,
            idle=self.watch.idle,
            lease=self.book.lease,
            corrupt=self._corrupt,
            wake_up=self.ring_producer,
            fence=waker_fence,
        )
        self.watch.position = self.book.position = self.reader.position
        self.watch.refresh = self.reader.refresh
        self.book.hold = self.reader.hold
        self.tenure.shut = self.reader.shut

    # ---------------------------------------------------------------------------------------------- joining

    def _join(self, oldest: bool, words: memoryview) -> int:
        """Become LIVE at a position whose bytes will not be overwritten; see `room` for the argument."""
        own = self.own
        attachment = (own[C_STATE] >> C_ATTACHMENT_BIT) + 1 << C_ATTACHMENT_BIT
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
        published = peer[P_POS]
        capacity = self.tenure.segment.geometry.capacity
        if not floor <= published <= floor + capacity or (floor | published) & (WORD - 1):
            raise RingCorrupt(
                self.name, PRODUCER_PAGE, f"floor is {floor} and position {published} at capacity {capacity}"
            )
        position = floor if oldest else published
        own[layout.C_START_POS] = position
        own[C_NEXT_SEQ] = own[layout.C_START_SEQ] = self._seq_at(position, published, words, capacity)
        # SYNC: store C_CURSOR before LIVE; pairs with Room's load of C_STATE before C_CURSOR.
        own[C_CURSOR] = position
        own[C_STATE] = attachment | SLOT_LIVE
        step("attach.live")
        return position

    def _seq_at(self, position: int, published: int, words: memoryview, capacity: int) -> int:
        """Seq of the frame at `position`, for the counters only: the body takes it from the frame itself."""
        if position < published:
            at = (position & (capacity - 1)) // WORD
            if not words[at] & TAG_MASK:
                at = 0
            seq: int = words[at + 1]
            return seq
        frames: int = self.peer[P_FRAMES]
        return frames

    def _next_generation(self) -> int:
        """A wake generation that the producer cannot hold for rung, whatever it is about to store there."""
        rung = self.tenure.segment.raw[PRODUCER_PAGE + layout.P_RUNG_GENERATIONS * WORD + self.slot]
        last = self.own[C_GENERATION] & 0xFF
        generation = last % _GENERATIONS + 1
        if generation == rung:
            generation = generation % _GENERATIONS + 1
        self.own[C_GENERATION] = generation
        return int(generation)

    # --------------------------------------------------------------------------------------------- releasing

    def ring_producer(self, generation: int) -> int:
        """Ring a producer that waits for room; its generation, which is then rung."""
        if generation:
            step("read.ring")
            self.tenure.bell(PRODUCER).ring()
            self.own[C_RUNG] += 1
        return generation

    def _released(self) -> None:
        self.ring_producer(self.peer[P_WAITING])

    def _is_forked(self) -> bool:
        return self.tenure.forked

    def _corrupt(self, position: int, reason: str) -> RingCorrupt:
        geometry = self.tenure.segment.geometry
        return RingCorrupt(self.name, geometry.data_offset + (position & (geometry.capacity - 1)), reason)

    # ------------------------------------------------------------------------------------------------- end

    def close(self) -> None:
        """Stop reading; the slot comes free now, or when the last lease ends."""
        if not self.tenure.close():
            return
        step("detach.begin")
        self.watch.close()
        self._wake[self.slot] = 0
        self.book.close()

    def _vacate(self) -> None:
        own = self.own
        own[C_STATE] = own[C_STATE] >> C_ATTACHMENT_BIT << C_ATTACHMENT_BIT | SLOT_FREE
        step("detach.free")
        # SYNC: store C_STATE, barrier, load P_WAITING; pairs with Sleeper.arm of a waiting producer.
        fence()
        self._released()
        self.tenure.give_back()

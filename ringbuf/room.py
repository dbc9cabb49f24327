"""Room for the producer: what consumers have released, who holds it up, who is dead, and the wait for more.

Reclaiming against joining. The producer may overwrite what lies below `reclaimed`. To move it up to R it

    1. takes R, the lowest cursor of all live consumers    3. BARRIER
    2. stores P_FLOOR = R                                  4. looks at the slots again

and a consumer that joins

    a. stores its slot as JOINING                          c. loads P_FLOOR (or P_POS) as its first position
    b. BARRIER                                             d. stores the position, then its slot as LIVE

If the producer's second look (4) sees no JOINING slot, then step a came after it, so c comes after 2 and
the newcomer starts at R or above: R may be reclaimed. If it sees one, nothing is reclaimed this time,
because the newcomer may have read the old floor. A LIVE slot below R, which joined at the old floor in
between, counts with its own cursor. So a consumer never starts on bytes that may be overwritten, and
P_FLOOR never moves back.

Cursors are other processes' words: each is loaded once, and one that lies outside what is unreleased is
corruption, reported and not believed.
"""

from __future__ import annotations

import os
import time

from ringbuf import layout
from ringbuf._hooks import is_watched, step
from ringbuf._ops import fence as keep_order
from ringbuf.doorbell import consumer_party
from ringbuf.errors import RingClosed, RingCorrupt, RingFull
from ringbuf.layout import (
    C_ATTACHMENT_BIT,
    C_CURSOR,
    C_LEASES,
    C_OLDEST_LEASE,
    C_PID,
    C_STATE,
    PAGE,
    SLOT_FREE,
    SLOT_JOINING,
    WORD,
    slot_page,
)
from ringbuf.tenure import Tenure
from ringbuf.wait import RUNG, Deadline, Sleeper, fence

__all__ = ["Room"]

_STATE_MASK = (1 << C_ATTACHMENT_BIT) - 1
_SLOT_WORDS = PAGE // WORD
# While a newcomer picks its position nobody rings; it takes microseconds unless its process is stopped.
_UNSURE_S = 0.01


# RINGBUF_DEBUG=poison overwrites bytes as soon as they are reclaimed, so that whoever still looks at them
# without a lease sees it. One more pass over the data.
_POISON = 0xDB
_poisons = os.environ.get("RINGBUF_DEBUG") == "poison"


class Room:
    """The producer's view of its consumers.

    Args:
        tenure: the producer's hold on the ring.
        own: the words of the producer page, writable.
        sleeper: the producer's parked flag.
        data: the data pages, writable, for poisoning.
    """

    __slots__ = (
        "_data",
        "_first_slot",
        "_full_since",
        "_name",
        "_seen",
        "_slots",
        "capacity",
        "control",
        "counts_full",
        "evicted",
        "grant_only",
        "joining",
        "own",
        "reclaimed",
        "sleeper",
        "tenure",
    )

    def __init__(
        self, tenure: Tenure, own: memoryview, sleeper: Sleeper, data: memoryview | None = None
    ) -> None:
        geometry = tenure.segment.geometry
        self.tenure = tenure
        self.own = own
        self.sleeper = sleeper
        self.capacity = geometry.capacity
        # The lowest it can be. A predecessor may have stored a floor and died before its second look.
        self.reclaimed: int = max(0, own[layout.P_POS] - geometry.capacity)
        self.joining = False
        self._data = data
        self._name = tenure.segment.name
        self._slots = geometry.slots
        self._first_slot = layout.SLOT_PAGES // WORD
        # For each slot its state word when it was found dead; another attachment has another word.
        self.evicted = memoryview(bytearray(geometry.slots * WORD)).cast("Q")
        # slot -> the state word under which its cursor was last found where it must be.
        self._seen: dict[int, int] = {}
        self.control = tenure.segment.control
        # Only `grant` knows these.
        self.grant_only = _poisons or is_watched()
        # Whether it is counted here how often and how long the ring is full.
        self.counts_full = True
        self._full_since = 0

    # ------------------------------------------------------------------------------------------ consumers

    def _cursors(self, published: int) -> list[tuple[int, int]]:
        """(cursor, slot) of every attached consumer, lowest first; sets `joining`.

        SYNC: loads C_STATE, then C_CURSOR; pairs with the consumer's store of its cursor before LIVE.
        """
        found = []
        self.joining = False
        control = self.control
        for slot in range(self._slots):
            base = self._first_slot + slot * _SLOT_WORDS
            word = control[base + C_STATE]
            state = word & _STATE_MASK
            if state == SLOT_FREE or self.evicted[slot] == word:
                continue
            if state == SLOT_JOINING:
                if self._is_dead(slot, word):
                    continue
                self.joining = True
                continue
            keep_order()
            cursor = control[base + C_CURSOR]
            if not self.reclaimed <= cursor <= published:
                if self._is_dead(slot, word):
                    continue
                if self._seen.get(slot) != word:
                    # Words of one who died before our time, under the lock of a newcomer who has not yet
                    # stored its own.
                    self.joining = True
                    continue
                raise RingCorrupt(
                    self._name,
                    slot_page(slot) + C_CURSOR * WORD,
                    f"cursor of slot {slot} is {cursor}, outside {self.reclaimed} to {published}",
                )
            self._seen[slot] = word
            found.append((cursor, slot))
        found.sort()
        return found

    def _is_dead(self, slot: int, word: int) -> bool:
        """Whether nobody holds the slot any more; it is then ignored until another consumer takes it."""
        alive = self.tenure.is_alive(consumer_party(slot), self.tenure.segment.probe.consumer_alive(slot))
        if not alive:
            step("room.evict")
            self.evicted[slot] = word
            layout.add(self.own, layout.P_EVICTED, 1)
        return not alive

    # --------------------------------------------------------------------------------------------- granting

    def grant(self, position: int, need: int) -> int:
        """Up to which position the producer may write, having looked at every consumer.

        Args:
            position: where the next frame would begin, published or not.
            need: bytes it needs from there.

        Returns:
            A limit; less than position + need when the ring is full.

        Raises:
            RingClosed: closed, or replaced by another ring.
            RingCorrupt: a cursor lies outside the ring.
        """
        self.tenure.check()
        own = self.own
        if ended := own[layout.P_ENDED]:
            raise RingClosed(self._name, layout.ended_by(ended))
        capacity = self.capacity
        published = own[layout.P_POS]
        cursors = self._cursors(published)
        # A dead consumer holds nothing up, and it is looked for only when somebody does.
        while cursors and cursors[0][0] + capacity < position + need:
            slot = cursors[0][1]
            if not self._is_dead(slot, self._state_word(slot)):
                break
            # Others may have died before it, unnoticed because they held nothing up; they must not count as
            # attached, or what this one left unread would be given up for them.
            for _, other in cursors[1:]:
                self._is_dead(other, self._state_word(other))
            cursors = self._cursors(published)
        if not self.joining:
            lowest = cursors[0][0] if cursors else self._left_behind(position + need - capacity, published)
            if lowest > own[layout.P_FLOOR]:
                self._raise_floor(lowest, published)
            else:
                self.reclaimed = min([own[layout.P_FLOOR], *(cursor for cursor, _ in cursors)])
        # Beside a newcomer, perhaps met only in the second look, `reclaimed` is a bound from before.
        if not self.joining and position - self.reclaimed > own[layout.P_HIGH_WATER]:
            own[layout.P_HIGH_WATER] = position - self.reclaimed
        limit = self.reclaimed + capacity
        if limit < position + need:
            if self.counts_full:
                self._note_full()
            return limit
        if self._full_since:
            layout.add(own, layout.P_FULL_NS, time.monotonic_ns() - self._full_since)
            self._full_since = 0
        # At most a quarter of the ring at once: so the high-water mark is sampled at least four times a lap.
        return min(limit, position + max(need, capacity // 4))

    def _state_word(self, slot: int) -> int:
        word: int = self.control[self._first_slot + slot * _SLOT_WORDS + C_STATE]
        return word

    def _left_behind(self, wanted: int, published: int) -> int:
        """How far all who ever read had released, now that nobody is attached and room is needed.

        What one of them left unread is held for whoever comes, until the ring is full.
        """
        if self.reclaimed >= wanted:
            return 0
        bases = [self._first_slot + slot * _SLOT_WORDS for slot in range(self._slots)]
        bases = [base for base in bases if self.control[base + C_STATE]]
        # SYNC: load C_STATE before C_CURSOR; pairs with the store of FREE after the last cursor in
        # Seat.vacate.
        keep_order()
        left = [self.control[base + C_CURSOR] for base in bases]
        lowest = min(left, default=0)
        return lowest if lowest <= published else 0

    def _raise_floor(self, floor: int, published: int) -> None:
        own = self.own
        if floor == published:
            # No frame will be left from which a successor could learn the next seq; see resume.
            own[layout.P_FLOOR_SEQ] = own[layout.P_FRAMES]
            own[layout.P_FLOOR_SEQ_POS] = floor
        step("room.floor")
        # SYNC: store P_FLOOR after P_POS, which no floor may be seen above; pairs with the loads of P_FLOOR,
        # then P_POS, in Seat.
        keep_order()
        own[layout.P_FLOOR] = floor
        # SYNC: store P_FLOOR, barrier, load the slots; pairs with a joining consumer's store of JOINING,
        # barrier, load of P_FLOOR.
        fence()
        cursors = self._cursors(published)
        if not self.joining:
            reclaimed = min([floor, *(cursor for cursor, _ in cursors)])
            if _poisons and self._data is not None:
                self._poison(self._data, self.reclaimed, reclaimed)
            self.reclaimed = reclaimed

    def _poison(self, data: memoryview, start: int, stop: int) -> None:
        mask = self.capacity - 1
        while start < stop:
            offset = start & mask
            length = min(stop - start, self.capacity - offset)
            data[offset : offset + length] = bytes([_POISON]) * length
            start += length

    def _note_full(self) -> None:
        if not self._full_since:
            self._full_since = time.monotonic_ns()
            layout.add(self.own, layout.P_FULL_EVENTS, 1)

    # ---------------------------------------------------------------------------------------------- waiting

    def wait(self, position: int, need: int, deadline: Deadline) -> int:
        """Wait until the ring has room for `need` bytes at `position`.

        Returns:
            A limit as `grant` gives it.

        Raises:
            RingFull: not before the deadline; names the slowest consumer.
        """
        sleeper = self.sleeper
        # Whether a consumer may be dead; see Watch.wait.
        doubt = False
        try:
            sleeper.arm()
            while True:
                limit = self.grant(position, need)
                if limit >= position + need:
                    return limit
                remaining = deadline.remaining()
                if not remaining:
                    raise self.full(need, deadline.waited())
                # Whoever was joining when room was looked for may have joined since, and rings nobody for it.
                unsure = self.joining
                lifelines = self._lifelines(doubt)
                unsure = unsure or self.joining
                step("room.nap")
                woken = sleeper.nap(lifelines, min(remaining, _UNSURE_S) if unsure else remaining)
                doubt = woken != RUNG
                if woken:
                    layout.add(self.own, layout.P_WAKEUPS, 1)
                    sleeper.arm()
        finally:
            sleeper.disarm()

    def _lifelines(self, doubt: bool) -> tuple[int, ...]:
        """What reports an error when a consumer dies, for every one that lives."""
        found = []
        for _, slot in self._cursors(self.own[layout.P_POS]):
            bell = self.tenure.bell(consumer_party(slot))
            fd = bell.fileno()
            if fd >= 0 and not (doubt and bell.is_cut()):
                found.append(fd)
            elif not self._is_dead(slot, self._state_word(slot)):
                # Between opening its FIFO and taking its slot, or the other way round.
                self.joining = True
        return tuple(found)

    def full(self, need: int, waited: float) -> RingFull:
        """The error that says who is in the way."""
        published = self.own[layout.P_POS]
        cursors = self._cursors(published)
        if not cursors:
            return RingFull(self._name, need, waited)
        cursor, slot = cursors[0]
        base = self._first_slot + slot * _SLOT_WORDS
        leases = self.control[base + C_LEASES]
        return RingFull(
            self._name,
            need,
            waited,
            slot=slot,
            pid=self.control[base + C_PID],
            lag=published - cursor,
            leases=leases,
            oldest_lease=self.control[base + C_OLDEST_LEASE] if leases else None,
        )

"""What a segment says about itself, as any process with read permission can see it.

Every word is loaded once, while others store; so the figures belong to slightly different moments, and are
clamped where two of them would contradict each other. Nothing here is believed enough to be followed.
"""

from __future__ import annotations

import dataclasses
import os
import struct
import sys
from typing import Any

from ringbuf import layout
from ringbuf.layout import PAGE, PRODUCER_PAGE, WORD, Geometry, slot_page
from ringbuf.liveness import is_locked

__all__ = ["ConsumerInfo", "ProducerInfo", "RingInfo", "read_info"]

_STATE_MASK = (1 << layout.C_ATTACHMENT_BIT) - 1


@dataclasses.dataclass(frozen=True, slots=True)
class ProducerInfo:
    """Who writes a ring.

    Attributes:
        pid, started: the process and its start time in clock ticks since boot, as it wrote them.
        since: Unix time in seconds at which this incarnation began.
        alive: whether it holds its lock.
        incarnation: which life of the ring's producer it is.
        waiting: whether it is parked for want of room.
    """

    pid: int
    started: int
    since: float
    alive: bool
    incarnation: int
    waiting: bool


@dataclasses.dataclass(frozen=True, slots=True)
class ConsumerInfo:
    """Who reads a ring, and how far behind.

    Attributes:
        slot: its consumer slot.
        pid, started, since: as for the producer.
        alive: whether it holds its lock; one that does not holds nothing up any more.
        joining: it has a slot and no position yet.
        position: everything below is released.
        lag_bytes, lag_frames: published and not released.
        leases: frames whose views live; oldest_lease is the seq of the first of them, None without.
        parked: it sleeps until it is rung.
        wakeups, spurious, rung: sleeps that were ended, those of them with nothing to read, and rings it
            sent.
    """

    slot: int
    pid: int
    started: int
    since: float
    alive: bool
    joining: bool
    position: int
    lag_bytes: int
    lag_frames: int
    leases: int
    oldest_lease: int | None
    parked: bool
    wakeups: int
    spurious: int
    rung: int


@dataclasses.dataclass(frozen=True, slots=True)
class RingInfo:
    """One ring, at about one moment.

    Attributes:
        name: the ring.
        state: "live", "closed" (by its producer), "ended" (by a replacement) or "dead" (its producer died).
        capacity, slots: as it was made.
        created: Unix time in seconds.
        producer, consumers: who holds it; consumers only those that are attached or died attached.
        position, floor: published up to here; the oldest a new consumer may start at.
        used_bytes: not yet released by the slowest consumer (from the floor when none is attached).
        high_water_bytes: most bytes in use when the producer looked, which it does at least four times a lap.
        frames, bytes, padding_bytes: published since the ring was made; bytes with headers, without padding.
        full_events, full_s: how often a write found the ring full, and seconds until one found room again.
        rung, skipped, wakeups: rings the producer sent, spared because sent already, and got while it waited.
        evicted: consumers it found dead.
    """

    name: str
    state: str
    capacity: int
    slots: int
    created: float
    producer: ProducerInfo
    consumers: tuple[ConsumerInfo, ...]
    position: int
    floor: int
    used_bytes: int
    high_water_bytes: int
    frames: int
    bytes: int
    padding_bytes: int
    full_events: int
    full_s: float
    rung: int
    skipped: int
    wakeups: int
    evicted: int

    @property
    def in_use(self) -> bool:
        """Whether any process holds the ring."""
        return self.producer.alive or any(consumer.alive for consumer in self.consumers)

    def to_dict(self) -> dict[str, Any]:
        """The same as plain values, for JSON."""
        return dataclasses.asdict(self)


def _page(fd: int, offset: int) -> tuple[int, ...]:
    return struct.unpack(f"={PAGE // WORD}Q", os.pread(fd, PAGE, offset))


def read_info(name: str, fd: int, geometry: Geometry) -> RingInfo:
    """Read every counter of an open, checked segment."""
    p = _page(fd, PRODUCER_PAGE)
    wake = os.pread(fd, layout.MAX_SLOTS, layout.WAKE_PAGE)
    alive = is_locked(fd, PRODUCER_PAGE)
    position, floor = p[layout.P_POS], p[layout.P_FLOOR]
    consumers = tuple(
        consumer
        for slot in range(geometry.slots)
        if (consumer := _consumer(fd, geometry, slot, p, bool(wake[slot]))) is not None
    )
    held = [consumer.position for consumer in consumers if consumer.alive and not consumer.joining]
    if p[layout.P_ENDED]:
        state = "ended"
    elif p[layout.P_STATE] == layout.STATE_CLOSED:
        state = "closed"
    else:
        state = "live" if alive else "dead"
    return RingInfo(
        name=name,
        state=state,
        capacity=geometry.capacity,
        slots=geometry.slots,
        created=geometry.created_ns / 1e9,
        producer=ProducerInfo(
            pid=p[layout.P_PID],
            started=p[layout.P_STARTED],
            since=p[layout.P_SINCE_NS] / 1e9,
            alive=alive,
            incarnation=p[layout.P_INCARNATION],
            waiting=bool(p[layout.P_WAITING]),
        ),
        consumers=consumers,
        position=position,
        floor=floor,
        used_bytes=max(0, position - min(held, default=floor)),
        high_water_bytes=p[layout.P_HIGH_WATER],
        frames=p[layout.P_FRAMES],
        bytes=max(0, position - geometry.origin - p[layout.P_PADDING]),
        padding_bytes=p[layout.P_PADDING],
        full_events=p[layout.P_FULL_EVENTS],
        full_s=p[layout.P_FULL_NS] / 1e9,
        rung=p[layout.P_RUNG],
        skipped=p[layout.P_SKIPPED],
        wakeups=p[layout.P_WAKEUPS],
        evicted=p[layout.P_EVICTED],
    )


def _word(fd: int, offset: int) -> int:
    return int.from_bytes(os.pread(fd, WORD, offset), sys.byteorder)


def _lag_frames(fd: int, geometry: Geometry, cursor: int, published: int, frames: int) -> int:
    """Frames from `cursor` on: the frame there tells its number, if it was not overwritten meanwhile."""
    if not cursor < published <= cursor + geometry.capacity:
        return 0
    at = geometry.data_offset + (cursor & (geometry.capacity - 1) & -WORD)
    if not _word(fd, at) & layout.TAG_MASK:
        # Padding, perhaps of one word at the very end: the frame behind it lies at the beginning.
        at = geometry.data_offset
    seq = _word(fd, at + WORD)
    return int(max(0, frames - seq))


def _consumer(
    fd: int, geometry: Geometry, slot: int, producer: tuple[int, ...], parked: bool
) -> ConsumerInfo | None:
    page = slot_page(slot)
    c = _page(fd, page)
    state = c[layout.C_STATE] & _STATE_MASK
    alive = is_locked(fd, page)
    if state == layout.SLOT_FREE and not alive:
        return None
    leases = c[layout.C_LEASES]
    cursor = c[layout.C_CURSOR]
    published = producer[layout.P_POS]
    return ConsumerInfo(
        slot=slot,
        pid=c[layout.C_PID],
        started=c[layout.C_STARTED],
        since=c[layout.C_SINCE_NS] / 1e9,
        alive=alive,
        joining=state != layout.SLOT_LIVE,
        position=cursor,
        lag_bytes=max(0, published - cursor),
        lag_frames=_lag_frames(fd, geometry, cursor, published, producer[layout.P_FRAMES]),
        leases=leases,
        oldest_lease=c[layout.C_OLDEST_LEASE] if leases else None,
        parked=parked,
        wakeups=c[layout.C_WAKEUPS],
        spurious=c[layout.C_SPURIOUS],
        rung=c[layout.C_RUNG],
    )

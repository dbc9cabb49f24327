"""Verifies the invariants of a segment from outside, also while it is in use."""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

from ringbuf import layout
from ringbuf.doorbell import PRODUCER, consumer_party, fifo_path
from ringbuf.errors import RingCorrupt
from ringbuf.layout import PAGE, PRODUCER_PAGE, WORD, Geometry, slot_page
from ringbuf.liveness import is_locked
from ringbuf.names import leads_to, opened, segment_path
from ringbuf.peek import Onlooker, Overtaken

__all__ = ["RingCheck", "check_ring"]

_STATE_MASK = (1 << layout.C_ATTACHMENT_BIT) - 1
# A producer that runs may overtake the walk over its frames; each try begins at the floor.
_TRIES = 100


class RingCheck(NamedTuple):
    """What was verified.

    Attributes:
        frames: walked, from the floor to the published position.
        consumers: attached and alive.
        overtaken: how often the producer overwrote what was being walked, so that the walk began again.
    """

    frames: int
    consumers: int
    overtaken: int


def check_ring(name: str, *, owner: int | None = None) -> RingCheck:
    """Verify every invariant of a ring that can be seen from outside.

    The header against the file; positions against each other; the state, position and leases of every
    consumer; every frame from the floor on, with its number; the FIFO of every party.

    Args:
        name: the ring; live, closed or dead.
        owner: uid it must belong to; None for this process's own.

    Raises:
        RingCorrupt: an invariant is broken; at which byte, and how.
        RingNotFound, RingForbidden, RingVersion: there is no such ring to check.
    """
    with opened(name, owner, os.O_RDONLY) as (fd, geometry):
        onlooker = Onlooker(name, fd, geometry)
        onlooker.bounds()
        _check_producer(name, fd, geometry)
        consumers = sum(_check_slot(name, fd, geometry, onlooker, slot) for slot in range(geometry.slots))
        frames, overtaken = _walk(name, fd, onlooker)
        _check_fifos(name, fd, geometry)
    return RingCheck(frames, consumers, overtaken)


def _page(fd: int, offset: int) -> tuple[int, ...]:
    return struct.unpack(f"={PAGE // WORD}Q", os.pread(fd, PAGE, offset))


def _word(fd: int, offset: int) -> int:
    (value,) = struct.unpack("=Q", os.pread(fd, WORD, offset))
    return int(value)


def _check_producer(name: str, fd: int, geometry: Geometry) -> None:
    p = _page(fd, PRODUCER_PAGE)

    def need(holds: bool, word: int, reason: str) -> None:
        if not holds:
            raise RingCorrupt(name, PRODUCER_PAGE + word * WORD, reason)

    need(
        p[layout.P_STATE] in (layout.STATE_LIVE, layout.STATE_CLOSED),
        layout.P_STATE,
        f"state is {p[layout.P_STATE]}",
    )
    need(p[layout.P_INCARNATION] > 0, layout.P_INCARNATION, "incarnation is 0")
    need(
        p[layout.P_FLOOR] >= geometry.origin,
        layout.P_FLOOR,
        f"floor {p[layout.P_FLOOR]} is below the origin {geometry.origin}",
    )
    need(
        p[layout.P_WAITING] <= p[layout.P_GENERATION],
        layout.P_WAITING,
        f"waits in generation {p[layout.P_WAITING]}, the last one is {p[layout.P_GENERATION]}",
    )
    need(
        p[layout.P_HIGH_WATER] <= geometry.capacity,
        layout.P_HIGH_WATER,
        f"high-water mark is {p[layout.P_HIGH_WATER]} at capacity {geometry.capacity}",
    )


def _check_slot(name: str, fd: int, geometry: Geometry, onlooker: Onlooker, slot: int) -> bool:
    """Check one consumer slot; whether somebody lives there."""
    page = slot_page(slot)
    before = onlooker.bounds().published
    c = _page(fd, page)
    alive = is_locked(fd, page)
    after = onlooker.bounds().published
    frames = _word(fd, PRODUCER_PAGE + layout.P_FRAMES * WORD)
    state = c[layout.C_STATE] & _STATE_MASK
    if state not in (layout.SLOT_FREE, layout.SLOT_JOINING, layout.SLOT_LIVE):
        raise RingCorrupt(name, page + layout.C_STATE * WORD, f"slot {slot} has state {state}")
    if state != layout.SLOT_LIVE or not alive or _word(fd, page + layout.C_STATE * WORD) != c[layout.C_STATE]:
        return alive
    cursor = c[layout.C_CURSOR]
    if cursor & (WORD - 1) or not before - geometry.capacity <= cursor <= after:
        raise RingCorrupt(
            name,
            page + layout.C_CURSOR * WORD,
            f"cursor of slot {slot} is {cursor}, published {before} to {after}, capacity {geometry.capacity}",
        )
    if cursor < c[layout.C_START_POS]:
        raise RingCorrupt(
            name,
            page + layout.C_CURSOR * WORD,
            f"cursor of slot {slot} is {cursor}, before its start {c[layout.C_START_POS]}",
        )
    if c[layout.C_LEASES] and c[layout.C_OLDEST_LEASE] >= frames:
        raise RingCorrupt(
            name,
            page + layout.C_OLDEST_LEASE * WORD,
            f"slot {slot} leases frame {c[layout.C_OLDEST_LEASE]} of {frames}",
        )
    return True


def _walk(name: str, fd: int, onlooker: Onlooker) -> tuple[int, int]:
    for overtaken in range(_TRIES):
        bounds = onlooker.bounds()
        walked, following = 0, -1
        try:
            for frame in onlooker.frames(bounds.floor, bounds.published, max_bytes=0):
                if following not in (-1, frame.seq):
                    raise RingCorrupt(
                        name,
                        PRODUCER_PAGE,
                        f"frame at {frame.position} has seq {frame.seq}, expected {following}",
                    )
                following = frame.seq + 1
                walked += 1
        except Overtaken:
            continue
        frames = _word(fd, PRODUCER_PAGE + layout.P_FRAMES * WORD)
        if following > frames:
            raise RingCorrupt(
                name,
                PRODUCER_PAGE + layout.P_FRAMES * WORD,
                f"counts {frames} frames, frame {following - 1} is published",
            )
        return walked, overtaken
    # The producer laps every walk: what could be checked of single frames was.
    return 0, _TRIES


def _check_fifos(name: str, fd: int, geometry: Geometry) -> None:
    found = os.fstat(fd)
    for party in (PRODUCER, *map(consumer_party, range(geometry.slots))):
        path = fifo_path(name, geometry.instance, party)
        # Whoever removes a ring takes its name first.
        if not os.path.exists(path) and leads_to(segment_path(name), found.st_dev, found.st_ino):
            raise RingCorrupt(name, layout.H_INSTANCE * WORD, f"FIFO {path} is missing")

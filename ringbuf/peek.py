"""Reading a ring from outside: without a slot, without a mapping, without holding anybody up.

An onlooker copies frames with pread and then asks whether they could have been overwritten meanwhile. The
producer overwrites only what lies below P_FLOOR, and P_FLOOR never moves back: so bytes at or above a floor
that is loaded after they were copied are what the producer wrote there. What it was too slow for is counted
as missed, never shown. It also reads what the dead left, with the same checks.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import NamedTuple

from ringbuf import layout
from ringbuf._ops import fence
from ringbuf.errors import RingCorrupt
from ringbuf.layout import (
    FRAME_HEADER,
    LENGTH_BIT,
    PRODUCER_PAGE,
    SHIFT_BIT,
    SHIFT_MASK,
    TAG_MASK,
    WORD,
    Geometry,
    frame_bytes,
)

__all__ = ["Bounds", "Onlooker", "Overtaken", "Sighting"]

# The words from P_POS to P_FLOOR are read at once.
_WORDS = layout.P_FLOOR + 1


class Overtaken(Exception):
    """What was looked at may have been overwritten; go on at the floor."""


class Bounds(NamedTuple):
    """What of the stream is there: positions, floor <= published."""

    floor: int
    published: int


class Sighting(NamedTuple):
    """One frame as an onlooker saw it.

    Attributes:
        position: where it begins in the stream.
        tag, seq, nbytes: as in the frame.
        size: bytes of the ring it takes.
        payload: its first bytes, as many as were asked for; a private copy.
    """

    position: int
    tag: int
    seq: int
    nbytes: int
    size: int
    payload: bytes


class Onlooker:
    """Reads frames of an open, checked segment.

    Args:
        name: the ring, for errors.
        fd: an open of it, readable; stays the caller's to close.
        geometry: its checked header.
    """

    __slots__ = ("_fd", "_geometry", "_name")

    def __init__(self, name: str, fd: int, geometry: Geometry) -> None:
        self._name = name
        self._fd = fd
        self._geometry = geometry

    def _words(self, offset: int, count: int) -> tuple[int, ...]:
        # SYNC: every load after those before it, so that the floor that is loaded last tells what was loaded
        # first; pairs with the producer's store of P_FLOOR before it overwrites.
        fence()
        data = os.pread(self._fd, count * WORD, offset)
        if len(data) < count * WORD:
            raise RingCorrupt(self._name, offset, "the segment ends here")
        return struct.unpack(f"={count}Q", data)

    def _floor(self) -> int:
        return self._words(PRODUCER_PAGE + layout.P_FLOOR * WORD, 1)[0]

    def bounds(self) -> Bounds:
        """Floor and published position at about this moment.

        Raises:
            RingCorrupt: they cannot be.
        """
        # In this order, because both only grow: the floor before is not above the position, the one after not
        # a lap behind it.
        floor = self._floor()
        published = self._words(PRODUCER_PAGE, 1)[0]
        later = self._floor()
        if not floor <= published <= later + self._geometry.capacity or (floor | published) & (WORD - 1):
            raise RingCorrupt(
                self._name,
                PRODUCER_PAGE,
                f"floor is {floor} and position {published} at capacity {self._geometry.capacity}",
            )
        return Bounds(floor, published)

    def frames(self, position: int, until: int, max_bytes: int | None = None) -> Iterator[Sighting]:
        """The frames from `position`, which one of them begins at, up to `until`.

        Args:
            position, until: of the stream, as `bounds` gives them.
            max_bytes: how much of each payload to copy; None for all of it.

        Raises:
            Overtaken: the producer may have written over the next one.
            RingCorrupt: what stands there is no frame.
        """
        while position < until:
            sighting, size = self._look(position, until, max_bytes)
            if sighting is not None:
                yield sighting
            position += size

    def _look(self, position: int, until: int, max_bytes: int | None) -> tuple[Sighting | None, int]:
        """The frame at `position`, or None for padding, and its size."""
        geometry = self._geometry
        offset = position & (geometry.capacity - 1)
        at = geometry.data_offset + offset
        head = self._words(at, 1)[0]
        tag, shift, nbytes = head & TAG_MASK, head >> SHIFT_BIT & SHIFT_MASK, head >> LENGTH_BIT
        size = frame_bytes(nbytes, shift) if tag else nbytes
        sound = WORD <= size <= min(until - position, geometry.capacity - offset) and not size & (WORD - 1)
        if tag:
            sound = sound and shift < WORD and size <= geometry.capacity // 2
        else:
            sound = sound and not shift and size == geometry.capacity - offset
        sighting = None
        if sound and tag:
            seq = self._words(at + WORD, 1)[0]
            wanted = nbytes if max_bytes is None else min(nbytes, max_bytes)
            payload = os.pread(self._fd, wanted, at + FRAME_HEADER + shift)
            sighting = Sighting(position, tag, seq, nbytes, size, payload)
        if self._floor() > position:
            raise Overtaken
        if not sound:
            raise RingCorrupt(
                self._name,
                at,
                f"{f'frame, tag {tag},' if tag else 'padding'} of {size} bytes at position {position}, "
                f"where {min(until - position, geometry.capacity - offset)} can be",
            )
        return sighting, size

    def unpublished(self, published: int, next_seq: int) -> Iterator[Sighting]:
        """What the producer wrote behind its last publication: frames that never happened.

        Only words that a commit has written are believed: each with the right number. To be asked when the
        producer is dead; a living one may be writing there.
        """
        geometry = self._geometry
        position, lap = published, 0
        while position < published + geometry.capacity // 2:
            offset = position & (geometry.capacity - 1)
            at = geometry.data_offset + offset
            head = self._words(at, 1)[0]
            tag, shift, nbytes = head & TAG_MASK, head >> SHIFT_BIT & SHIFT_MASK, head >> LENGTH_BIT
            if not tag and nbytes == geometry.capacity - offset and not shift and not lap:
                position, lap = position + nbytes, 1
                continue
            size = frame_bytes(nbytes, shift)
            if not tag or shift >= WORD or size > min(geometry.capacity // 2, geometry.capacity - offset):
                return
            if self._words(at + WORD, 1)[0] != next_seq:
                return
            payload = os.pread(self._fd, nbytes, at + FRAME_HEADER + shift)
            yield Sighting(position, tag, next_seq, nbytes, size, payload)
            position += size
            next_seq += 1

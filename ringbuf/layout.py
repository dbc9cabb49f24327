"""The byte map of a segment, and every check on it.

A segment is a run of 4 KiB pages. Each page has one writer, except the wake page, so that every process can
map writable only what it owns; what two sides write at full speed lies on cache lines of its own.

    page 0          header     written once by the creator, READY last; immutable afterwards
    page 1          producer   written by the producer (ENDED: by whoever replaces the ring)
    page 2          wake       one byte per consumer slot, written by that consumer: hints, nothing else
    page 3 + i      cursor i   written by the consumer in slot i
    page 3 + slots  data       `capacity` bytes (at least one page), written by the producer

All words are unsigned 64-bit, native byte order (BYTE_ORDER tells), at 8-byte boundaries. Positions count
bytes since position 0 of an endless stream and never wrap; position & (capacity - 1) is the offset in the
data.

A frame, at an 8-byte boundary of the data and never across its end:

    word 0    bits 0-7 tag (1..255) | bits 8-15 shift (0..7) | bits 16-63 payload bytes
    word 1    seq: number of this frame since the ring was made
    shift     unused bytes, so that byte `align_at` of the payload falls on an 8-byte boundary
    payload
    unused bytes up to the next 8-byte boundary

A padding frame is word 0 alone, with tag 0 and, as its length, the bytes from here to the end of the data.
It needs one word, so every gap at the end can be named. A frame takes at most half the capacity: then
padding and frame together always fit into an empty ring, wherever its position happens to be.

OS locks lie on the first byte of page 1 (the producer) and of page 3 + i (the consumer in slot i).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import NamedTuple

from ringbuf.errors import FrameTooLarge, RingCorrupt, RingVersion

__all__ = ["Geometry", "check_name", "frame_bytes", "payload_limit", "read_header", "shift_for"]

PAGE = 4096
WORD = 8
LINE_WORDS = 8

# ---------------------------------------------------------------------------------------------- header page

MAGIC = int.from_bytes(b"ringbuf\x00", "little")
VERSION = 1
BYTE_ORDER_MARK = 0x0102030405060708

H_MAGIC = 0
H_VERSION = 1
H_BYTE_ORDER = 2
H_SIZE = 3  # bytes of the whole segment
H_CAPACITY = 4
H_SLOTS = 5
H_DATA_OFFSET = 6
H_INSTANCE = 7  # random, not 0: tells two rings of one name apart, and names their FIFOs
H_ORIGIN = 8  # position of the first frame ever
H_CREATED_NS = 9  # Unix time
H_CREATOR_PID = 10
H_BARRIER = 11  # who pays for the store-load barrier of the sleep protocol, see below
H_READY = 12  # MAGIC once everything else is there
HEADER_WORDS = 13

BARRIER_WAKER = 1  # every waker fences between its publication and its look at the wake words
BARRIER_SLEEPER = 2  # sleepers run membarrier(2), wakers nothing

# -------------------------------------------------------------------------------------------- producer page

PRODUCER_PAGE = PAGE

P_POS = 0  # up to here frames are visible; one store publishes
P_FRAMES = 1  # seq of the next frame, stored just before P_POS
P_FLOOR = 8  # oldest position a joining consumer may start at; never moves back
P_FLOOR_SEQ = 9  # seq of the frame to be written at P_FLOOR_SEQ_POS, kept for resume
P_FLOOR_SEQ_POS = 10
P_WAITING = 16  # wake generation of a producer that waits for room, 0 when it does not
P_GENERATION = 17  # the last generation it used; goes up only, over all incarnations
P_STATE = 24
P_INCARNATION = 25
P_PID = 26
P_STARTED = 27  # start time of that process, clock ticks since boot
P_SINCE_NS = 28  # Unix time at which this incarnation began
P_ENDED = 32  # not 0: the name was taken away, see ENDERS
P_PADDING = 40  # counters, one add each
P_FULL_EVENTS = 41
P_FULL_NS = 42
P_HIGH_WATER = 43
P_RUNG = 44
P_SKIPPED = 45
P_WAKEUPS = 46
P_SPURIOUS = 47
P_EVICTED = 48
P_RUNG_GENERATIONS = 64  # one byte per slot, as on the wake page: the last generation rung there

ENDED_REPLACED = 1
ENDED_UNLINKED = 2
ENDERS = {ENDED_REPLACED: "a replacement", ENDED_UNLINKED: "whoever removed its name"}

STATE_LIVE = 1
STATE_CLOSED = 2

# ------------------------------------------------------------------------------------------------ wake page

WAKE_PAGE = 2 * PAGE

# -------------------------------------------------------------------------------------------- consumer pages

SLOT_PAGES = 3 * PAGE

C_CURSOR = 0  # everything below is released
C_STATE = 8  # attachment << 2 | slot state
C_PID = 9
C_STARTED = 10
C_SINCE_NS = 11
C_START_POS = 12
C_LEASES = 16
C_OLDEST_LEASE = 17  # seq; meaningful while C_LEASES is not 0
C_GENERATION = 18  # the last wake generation used in this slot, by whomever
C_WAKEUPS = 24
C_SPURIOUS = 25
C_RUNG = 26
C_COUNTERS_END = 27

SLOT_FREE = 0
SLOT_JOINING = 1  # picks its position: nothing may be reclaimed
SLOT_LIVE = 2
C_ATTACHMENT_BIT = 2  # of C_STATE; below it the slot state

# ---------------------------------------------------------------------------------------------------- frames

FRAME_HEADER = 16
TAG_MASK = 0xFF
SHIFT_BIT = 8
SHIFT_MASK = 0xFF
LENGTH_BIT = 16

MIN_CAPACITY = 64  # half of it holds a header and 16 bytes
MAX_CAPACITY = 1 << 40
MAX_SLOTS = 64
MAX_POSITION = (1 << 64) - 1
# 255 bytes of file name, less "ringbuf.", "~" + 16 hexadecimal digits + ".c63" and some air.
MAX_NAME = 200

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class Geometry(NamedTuple):
    """What the header page says, checked."""

    capacity: int
    slots: int
    data_offset: int
    size: int
    instance: int
    origin: int
    created_ns: int
    creator_pid: int
    barrier: int

    @property
    def data_bytes(self) -> int:
        """Bytes of the data pages: the capacity, rounded up to whole pages."""
        return self.size - self.data_offset


def check_name(name: str) -> str:
    """Return `name` if a ring may bear it.

    Raises:
        TypeError, ValueError: before any system call, with the rule and the limit.
    """
    if not isinstance(name, str):
        raise TypeError(f"ring name must be a str, not {type(name).__name__}")
    if len(name) > MAX_NAME:
        raise ValueError(f"ring name has {len(name)} characters, the limit is {MAX_NAME}")
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"ring name {name!r} must have 1 to {MAX_NAME} of the characters A-Z a-z 0-9 . _ -, "
            "and begin with a letter or digit"
        )
    return name


def plan(
    capacity: int, slots: int, *, instance: int, origin: int, created_ns: int, pid: int, barrier: int
) -> Geometry:
    """The geometry of a new ring.

    Raises:
        TypeError, ValueError: capacity is no power of two in range, slots or origin out of range.
    """
    for what, value in (("capacity", capacity), ("slots", slots), ("position", origin)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{what} must be an int, not {type(value).__name__}")
    if not MIN_CAPACITY <= capacity <= MAX_CAPACITY or capacity & (capacity - 1):
        raise ValueError(
            f"capacity must be a power of two from {MIN_CAPACITY} to {MAX_CAPACITY} bytes, not {capacity}"
        )
    if not 1 <= slots <= MAX_SLOTS:
        raise ValueError(f"slots must be 1 to {MAX_SLOTS}, not {slots}")
    if origin % WORD or not 0 <= origin <= MAX_POSITION:
        raise ValueError(f"position must be a multiple of {WORD} below 2**64, not {origin}")
    data_offset = SLOT_PAGES + slots * PAGE
    size = data_offset + -(-capacity // PAGE) * PAGE
    return Geometry(capacity, slots, data_offset, size, instance, origin, created_ns, pid, barrier)


def header_words(geometry: Geometry) -> list[int]:
    """The header page as the creator writes it, without READY."""
    words = [0] * HEADER_WORDS
    words[H_MAGIC] = MAGIC
    words[H_VERSION] = VERSION
    words[H_BYTE_ORDER] = BYTE_ORDER_MARK
    words[H_SIZE] = geometry.size
    words[H_CAPACITY] = geometry.capacity
    words[H_SLOTS] = geometry.slots
    words[H_DATA_OFFSET] = geometry.data_offset
    words[H_INSTANCE] = geometry.instance
    words[H_ORIGIN] = geometry.origin
    words[H_CREATED_NS] = geometry.created_ns
    words[H_CREATOR_PID] = geometry.creator_pid
    words[H_BARRIER] = geometry.barrier
    return words


def is_ready(words: Sequence[int]) -> bool:
    """Whether the creator has finished; any READY but 0 counts, so garbage is reported, not awaited."""
    return words[H_READY] != 0


def read_header(name: str, words: Sequence[int], file_bytes: int) -> Geometry:
    """Check a ready header page against the rules and the size of its file.

    Args:
        name: the ring, for errors.
        words: a private copy of the header page's first HEADER_WORDS words.
        file_bytes: size of the segment as the kernel tells it.

    Raises:
        RingVersion: another layout version.
        RingCorrupt: anything else that does not hold, at the byte where it stands.
    """

    def broken(word: int, reason: str) -> RingCorrupt:
        return RingCorrupt(name, word * WORD, reason)

    if words[H_MAGIC] != MAGIC:
        raise broken(H_MAGIC, f"magic is {words[H_MAGIC]:#x}, expected {MAGIC:#x}")
    if words[H_BYTE_ORDER] != BYTE_ORDER_MARK:
        raise broken(
            H_BYTE_ORDER, f"byte-order mark is {words[H_BYTE_ORDER]:#x} on a {sys.byteorder}-endian machine"
        )
    if words[H_VERSION] != VERSION:
        raise RingVersion(name, words[H_VERSION], VERSION)
    if words[H_READY] != MAGIC:
        raise broken(H_READY, f"ready word is {words[H_READY]:#x}, expected {MAGIC:#x}")
    if not words[H_INSTANCE]:
        raise broken(H_INSTANCE, "instance is 0")
    if words[H_BARRIER] not in (BARRIER_WAKER, BARRIER_SLEEPER):
        raise broken(
            H_BARRIER, f"barrier is {words[H_BARRIER]}, expected {BARRIER_WAKER} or {BARRIER_SLEEPER}"
        )
    try:
        geometry = plan(
            words[H_CAPACITY],
            words[H_SLOTS],
            instance=words[H_INSTANCE],
            origin=words[H_ORIGIN],
            created_ns=words[H_CREATED_NS],
            pid=words[H_CREATOR_PID],
            barrier=words[H_BARRIER],
        )
    except ValueError as error:
        raise broken(H_CAPACITY, str(error)) from None
    if words[H_DATA_OFFSET] != geometry.data_offset:
        raise broken(H_DATA_OFFSET, f"data offset is {words[H_DATA_OFFSET]}, expected {geometry.data_offset}")
    if words[H_SIZE] != geometry.size:
        raise broken(H_SIZE, f"size is {words[H_SIZE]}, expected {geometry.size}")
    if file_bytes != geometry.size:
        raise broken(H_SIZE, f"segment has {file_bytes} bytes, its header says {geometry.size}")
    return geometry


def add(words: memoryview, word: int, amount: int) -> None:
    """Count in a word that only the caller stores; it wraps, should it hold garbage."""
    words[word] = words[word] + amount & MAX_POSITION


def ended_by(ended: int) -> str:
    """Who ended a ring, from its word P_ENDED."""
    return ENDERS.get(ended, ENDERS[ENDED_REPLACED])


def slot_page(slot: int) -> int:
    """Byte offset of the page of consumer slot `slot`."""
    return SLOT_PAGES + slot * PAGE


def shift_for(align_at: int) -> int:
    """Unused bytes before the payload that put its byte `align_at` on an 8-byte boundary."""
    return -align_at & (WORD - 1)


def frame_bytes(nbytes: int, shift: int = 0) -> int:
    """Bytes of the ring a frame with `nbytes` of payload takes."""
    return (FRAME_HEADER + shift + nbytes + WORD - 1) & -WORD


def payload_limit(capacity: int, shift: int = 0) -> int:
    """Most payload bytes a frame may have: what half the capacity leaves beside its header."""
    return capacity // 2 - FRAME_HEADER - shift


def check_fits(name: str, nbytes: int, capacity: int, shift: int = 0) -> int:
    """Bytes of the ring the frame takes.

    Raises:
        FrameTooLarge: more than half the capacity.
    """
    step = frame_bytes(nbytes, shift)
    if step > capacity // 2:
        raise FrameTooLarge(name, nbytes, payload_limit(capacity, shift))
    return step


def check_tag(tag: int) -> int:
    """Return `tag` if it is an int from 1 to 255.

    Raises:
        TypeError, ValueError: it is not.
    """
    if not isinstance(tag, int):
        raise TypeError(f"tag must be an int, not {type(tag).__name__}")
    if not 1 <= tag <= TAG_MASK:
        raise ValueError(f"tag must be 1 to {TAG_MASK}, not {tag}")
    return int(tag)

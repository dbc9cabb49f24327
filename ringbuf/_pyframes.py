"""What a small frame is in bytes, and the quickest ways of this interpreter to write and read one.

A frame is stored as three things: word 0, word 1 (its seq) and the payload; `_Stores` says it so, and is what
runs while the testing kit records accesses. On plain memory one `struct` call does the same in half the time:
37 ns against 80 to write a frame of 64 bytes, 54 against 88 to read one (`struct` clears the bytes first,
which is why it may touch only what nobody looks at: a frame before its publication). The formats are
compiled when first wanted, and kept.

Runs of equal frames go further: one call with the format of many frames.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from functools import lru_cache
from mmap import mmap
from struct import Struct
from struct import error as StructError
from typing import Any, Protocol, TypeAlias

import numpy as np

from ringbuf.layout import FRAME_HEADER, LENGTH_BIT, SHIFT_BIT, SHIFT_MASK, TAG_MASK, WORD

__all__ = [
    "PACK_LIMIT",
    "RUN",
    "SHORTEST_RUN",
    "Pack",
    "Unpack",
    "new_packer",
    "pack_run",
    "packers",
    "plain_stores",
    "unpack_run",
    "unpacker",
]

# Payloads up to this many bytes are packed: above it clearing them first costs what the saved stores gain.
PACK_LIMIT = 1024
# Most equal frames in one call: a format costs 0.1 us a frame to compile and 96 bytes to keep.
RUN = 64
SHORTEST_RUN = 8
_ROUND_UP = FRAME_HEADER + WORD - 1
# numpy counts with signed numbers on the way.
_COUNTED = (1 << 63) - 2 * RUN
_TAG_AND_SHIFT = SHIFT_MASK << SHIFT_BIT | TAG_MASK

# (data, offset, word 0, seq, payload)
Pack: TypeAlias = Callable[[mmap, int, int, int, bytes], object]
# (data, offset) -> (word 0, seq, payload)
Unpack: TypeAlias = Callable[[mmap, int], tuple[Any, ...]]


class _BySize(Protocol):
    """What to call for a payload of so many bytes; None until `made` has made it."""

    def __getitem__(self, nbytes: int, /) -> Any: ...


_packers: list[Pack | None] = [None] * (PACK_LIMIT + 1)
_unpackers: list[Unpack | None] = [None] * (PACK_LIMIT + 1)


def new_packer(nbytes: int) -> Pack:
    """Compile and keep the packer for payloads of `nbytes`."""
    pack = _packers[nbytes] = Struct(f"=QQ{nbytes}s").pack_into
    return pack


def unpacker(nbytes: int) -> Unpack:
    """What loads a frame with `nbytes` of payload, PACK_LIMIT at most; word 0 tells whether it was one."""
    unpack = _unpackers[nbytes]
    if unpack is None:
        unpack = _unpackers[nbytes] = Struct(f"=QQ{nbytes}s").unpack_from
    return unpack


def packers(words: memoryview) -> _BySize:
    """What stores a frame, by payload bytes."""
    return _packers if isinstance(words, memoryview) else _Stores(words)


def plain_stores(words: memoryview) -> Pack:
    """What stores a frame of any size, word by word."""
    return _Stores(words)._pack


class _Stores:
    def __init__(self, words: memoryview) -> None:
        self._words = words

    def __getitem__(self, nbytes: int) -> Pack:
        return self._pack

    def _pack(self, data: mmap, offset: int, head: int, seq: int, payload: bytes) -> None:
        self._words[offset // WORD] = head
        self._words[offset // WORD + 1] = seq
        at = offset + FRAME_HEADER
        data[at : at + len(payload)] = payload


# ------ runs of frames


@lru_cache(maxsize=64)
def _run(nbytes: int, count: int) -> Struct:
    pad = -nbytes & WORD - 1
    return Struct("=" + f"16x{nbytes}s{pad}x" * count)


def _same(word: int, count: int) -> memoryview:
    """`count` words that are alike."""
    return memoryview(array("Q", [word]) * count)


def _counting(first: int, count: int) -> memoryview:
    """`count` words that count up."""
    return memoryview(np.arange(first, first + count, dtype=np.ulonglong))  # type: ignore[arg-type]


def _whole_run(most: int) -> int:
    """So many frames make the run: few counts, so that few formats are made. 0 when it does not pay."""
    return RUN if most >= RUN else 1 << most.bit_length() - 1 if most >= SHORTEST_RUN else 0


def pack_run(
    data: mmap, words: memoryview, offset: int, room: int, seq: int, frames: Sequence[tuple[int, object]]
) -> tuple[int, int]:
    """Store the first frames, if they are of one tag and size and plain bytes.

    Args:
        offset, room: where they go, and how many bytes may go there.
        seq: of the first.
        frames: (tag, payload) pairs, SHORTEST_RUN at least.

    Returns:
        How many, 0 if they are no run, and how many bytes they take together.
    """
    count = _whole_run(len(frames))
    try:
        # Most frames that are no run show it at once.
        if len(frames[0][1]) != len(frames[count - 1][1]):  # type: ignore[arg-type]
            return 0, 0
        tags, payloads = zip(*(frames if count == len(frames) else frames[:count]), strict=True)
        tag, nbytes = tags[0], len(payloads[0])
        taken = (nbytes + _ROUND_UP & -WORD) * count
        # bytes() of the tags refuses what is no int of one byte; equality alone would let 1.0 pass for 1.
        if (
            not tag
            or nbytes > PACK_LIMIT
            or taken > room
            or seq > _COUNTED
            or list(map(len, payloads)).count(nbytes) != count
            or bytes(tags).count(tag) != count
        ):
            return 0, 0
        # The payloads first: to pack them clears the words between them.
        _run(nbytes, count).pack_into(data, offset, *payloads)
    except (TypeError, ValueError, StructError):
        # Something else than bytes among them, or no pairs: whoever takes them one by one says what.
        return 0, 0
    first, end, stride = offset >> 3, offset + taken >> 3, taken // count >> 3
    words[first:end:stride] = _same(nbytes << LENGTH_BIT | tag, count)
    words[first + 1 : end : stride] = _counting(seq, count)
    return count, taken


def unpack_run(
    data: mmap, words: memoryview, offset: int, ready: int, seq: int, small: int, most: int
) -> tuple[int, int, tuple[bytes, ...]]:
    """Load the payloads of the next frames, if they are of one tag and size and small.

    Args:
        offset, ready: where the first is, and up to where frames are.
        seq: of the first.
        small: most payload bytes of each, PACK_LIMIT at most.
        most: how many are wanted.

    Returns:
        The tag of all, the bytes of the ring each takes, and their payloads: none if they are no run.
    """
    head = words[offset >> 3]
    tag = head & _TAG_AND_SHIFT
    nbytes = head >> LENGTH_BIT
    step = nbytes + _ROUND_UP & -WORD
    count = _whole_run(min(most, (ready - offset) // step))
    if not count or not 1 < nbytes <= small or not 0 < tag <= TAG_MASK or not 0 <= seq <= _COUNTED:
        return 0, 0, ()
    first, end, stride = offset >> 3, offset + step * count >> 3, step >> 3
    if words[first + stride] != head:
        return 0, 0, ()
    # Compared as buffers of one format, so that no integers are made of the words.
    if words[first:end:stride] != _same(head, count):
        return 0, 0, ()
    if words[first + 1 : end : stride] != _counting(seq, count):
        return 0, 0, ()
    return tag, step, _run(nbytes, count).unpack_from(data, offset)

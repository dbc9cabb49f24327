"""Finding a few rids among thousands by their bytes, so that most are never hashed.

Hashing a string that was just made and looking it up costs as much as making it did. Rids of one engine
nearly always have the same length, so in the frame they stand at equal distances, and the last eight bytes of
all of them are one strided column of integers: numpy hashes these, and looks them up, in a fifth of the time.
What is found that way is a superset of what is wanted; only that is then looked up as strings.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from egress.wire.columns import WIDTH

__all__ = ["sieve"]

# From here on numpy's fixed cost of about 20 us is won back (bench/batch_codec).
_FEWEST = 1024
# A class derived from these may have its own idea of what it contains.
_KINDS = (frozenset, set, dict)
_TAIL = 8
_TAILS = np.dtype("<u8")
_HEADS = np.dtype("<u2")
# Multiplicative hashing into a table of this many bits: half a thousand rids fill 1.5 % of it.
_BITS = 15
_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # 2**64 divided by the golden ratio
_SHIFT = np.uint64(64 - _BITS)

# msgpack: an array with its count in two bytes, in four; a string of up to 31 bytes, of up to 255. What is
# not among these is not sieved.
_ARRAY_16, _ARRAY_32 = 0xDC, 0xDD
_STR_5, _STR_8 = 0xA0, 0xD9


def sieve(body: Any, n: int, wanted: Any) -> list[int] | None:
    """Find the places of the rids that may be wanted.

    Args:
        body: the BATCH body of an accepted frame of `n` requests, readable and unchanged since.
        wanted: rids; any container.

    Returns:
        Places, ascending: of all rids in `wanted`, and of few others. None where nothing is gained or it
        can't be told: few requests, many wanted, rids of different lengths, shorter than eight bytes or not
        ASCII, a container that is neither a set nor a dict.
    """
    if n < _FEWEST or type(wanted) not in _KINDS or 4 * len(wanted) > n:
        return None
    at = WIDTH + (1 if body[WIDTH] & 0xF0 == 0x90 else 3)
    at += {_ARRAY_16: 3, _ARRAY_32: 5}.get(body[at], 1)
    if body[at] == _STR_8:
        length = body[at + 1]
        stride = length + 2
    else:
        length = body[at] & 0x1F
        stride = length + 1
        if body[at] & 0xE0 != _STR_5:
            return None
    if length < _TAIL or at + n * stride > len(body):
        return None
    # With the first one's head in all these places, each string ends where the next begins: all are as long.
    heads = _column(body, at, n, stride)
    if not (heads == heads[0] if stride == length + 2 else heads & 0xFF == heads[0] & 0xFF).all():
        return None
    # As it is now: another thread may change it. And a class derived from str may equal what looks otherwise.
    names = list(wanted)
    if set(map(type, names)) != {str} or set(map(len, names)) != {length}:
        return None
    joined = "".join(names)
    if not joined.isascii():
        return None
    slots = np.zeros(1 << _BITS, np.bool_)
    slots[_hashes(joined.encode(), length - _TAIL, len(names), length)] = True
    found: list[int] = slots[_hashes(body, at + stride - _TAIL, n, stride)].nonzero()[0].tolist()
    return found


def _column(body: Any, at: int, n: int, stride: int) -> npt.NDArray[np.uint16]:
    """The first two bytes of each entry, as one integer."""
    return np.ndarray((n,), _HEADS, body, at, (stride,))


def _hashes(data: Any, at: int, n: int, stride: int) -> npt.NDArray[np.int64]:
    """Hash the eight bytes at `at`, and at each stride from there."""
    tails: npt.NDArray[np.uint64] = np.ndarray((n,), _TAILS, data, at, (stride,))
    return ((tails * _FACTOR) >> _SHIFT).view(np.int64)

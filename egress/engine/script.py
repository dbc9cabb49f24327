"""What a replay engine reads from: a text's ids, repeated as long as asked, cut into the chunks of steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

__all__ = ["Script"]

# Chunks are made once and shared by all requests; a text and step width without a common divisor need
# `text * width` ids for it, so long ones are cut on demand instead (8 bytes each and the int objects).
_SHARED_IDS = 1 << 20


class Script:
    """The endless repetition of some token ids, read `width` at a time.

    Args:
        ids: at least one token.
        width: tokens per chunk.
    """

    def __init__(self, ids: Sequence[int], width: int) -> None:
        self.ids = list(ids)
        self.width = width
        self._period = len(self.ids) // math.gcd(len(self.ids), width)
        self._chunks: list[list[int]] = []
        if self._period * width <= _SHARED_IDS:
            self._chunks = np.resize(np.array(self.ids), (self._period, width)).tolist()

    def chunks(self, numbers: Sequence[int]) -> list[list[int]]:
        """The chunks of these numbers; shared lists, not to be changed."""
        chunks, period = self._chunks, self._period
        if chunks:
            return [chunks[number % period] for number in numbers]
        return [self.between(number * self.width, (number + 1) * self.width) for number in numbers]

    def between(self, begin: int, end: int) -> list[int]:
        """Tokens `begin` to `end`, counted from the start of the first repetition; an own list."""
        size = len(self.ids)
        first = begin % size
        span = self.ids[first : first + end - begin]
        while len(span) < end - begin:
            span += self.ids[: end - begin - len(span)]
        return span

    def first_of(self, wanted: Iterable[int], after: int) -> int | None:
        """Where the first token of `wanted` at or after place `after` stands; None when there is none."""
        places = np.flatnonzero(np.isin(self.ids, list(wanted)))
        if not len(places):
            return None
        size = len(self.ids)
        at = int(np.searchsorted(places, after % size))
        base = after - after % size
        return base + int(places[at]) if at < len(places) else base + size + int(places[0])

"""The admission cache: pattern -> what was admitted, in two segments, so that a flood cannot empty it.

A new entry waits on probation; one that is asked for again is moved, at the latest when its turn to leave
comes, into the protected segment (three quarters of the places). Patterns seen once therefore push out only
each other. A protected entry leaves when that segment is full and nobody asked for it since its last turn.
This is the segmented LRU of Karedla, Love and Wherry (1994), with second-chance marks instead of moves on a
hit: a mark is one idempotent store, so a hit takes no lock.
"""

from __future__ import annotations

import itertools
import threading
from typing import Generic, NamedTuple, TypeVar

__all__ = ["CacheInfo", "SegmentedCache"]

T = TypeVar("T")

_TURNS = 8
"""Entries on probation looked at to find one to drop, and so how many a miss can move up."""


class CacheInfo(NamedTuple):
    """What a cache has seen since it was made.

    Attributes:
        hits: lookups that found their entry; exact, but one under way in another thread may not show yet.
        misses: entries computed, refused ones included; exact.
        size: entries now.
        capacity: most entries there can be.
    """

    hits: int
    misses: int
    size: int
    capacity: int


class Entry(Generic[T]):
    """One cached value and whether it was asked for since its last turn."""

    __slots__ = ("used", "value")

    def __init__(self, value: T) -> None:
        self.value = value
        self.used = False


class SegmentedCache(Generic[T]):
    """A bounded map from str.

    A hit is three steps of the user's, none of which takes a lock: `entry = cache.entries[key]`,
    `entry.used = True`, `cache.count_hit()`.

    Args:
        capacity: most entries, at least 4; an entry costs its key, its value and about 200 bytes.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._protected_places = capacity * 3 // 4
        self.entries: dict[str, Entry[T]] = {}
        # Orders of leaving, oldest first; only touched under the lock. Their values mean nothing.
        self._probation: dict[str, None] = {}
        self._protected: dict[str, None] = {}
        self._lock = threading.Lock()
        self._hits = itertools.count()
        self._info_reads = 0
        self._misses = 0
        self.count_hit = self._hits.__next__

    def add(self, key: str, value: T) -> T:
        """Keep `value` under `key` and return what is kept: the first of two threads wins."""
        with self._lock:
            self._misses += 1
            entry = self.entries.get(key)
            if entry is not None:
                return entry.value
            if len(self.entries) >= self.capacity:
                self._make_room()
            self._probation[key] = None
            self.entries[key] = Entry(value)
            return value

    def count_refused(self) -> None:
        """Count a miss that leaves nothing to keep."""
        with self._lock:
            self._misses += 1

    def info(self) -> CacheInfo:
        """Counts and sizes now."""
        with self._lock:
            # Reading the counter is taking its next number; the numbers taken so are not hits.
            hits = next(self._hits) - self._info_reads
            self._info_reads += 1
            return CacheInfo(hits, self._misses, len(self.entries), self.capacity)

    def _make_room(self) -> None:
        """Drop one entry on probation: the oldest that was not asked for again; the others move up."""
        for turn in range(_TURNS):
            if not self._probation:
                self._drop_protected()
                return
            key = _oldest(self._probation)
            entry = self.entries[key]
            if not entry.used or turn == _TURNS - 1:
                del self.entries[key]
                return
            entry.used = False
            self._protected[key] = None
            if len(self._protected) > self._protected_places:
                self._drop_protected()
                return

    def _drop_protected(self) -> None:
        """Drop the oldest protected entry; one asked for since its last turn gets another."""
        key = _oldest(self._protected)
        for _ in range(len(self._protected)):
            entry = self.entries[key]
            if not entry.used:
                break
            entry.used = False
            self._protected[key] = None
            key = _oldest(self._protected)
        del self.entries[key]


def _oldest(order: dict[str, None]) -> str:
    """Take out the key that has been there longest."""
    key = next(iter(order))
    del order[key]
    return key

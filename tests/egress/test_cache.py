"""The admission cache: hits first, bounded, no lock on a hit, and a flood that leaves the hot entries."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egress.errors import ValidationError
from egress.request import admission
from egress.request.admission import CACHE_ENTRIES, RegexPattern, admission_cache_info
from egress.request.cache import SegmentedCache


def ask(cache: SegmentedCache[str], key: str) -> bool:
    """Look up as a user of the cache does; whether it was a hit."""
    entry = cache.entries.get(key)
    if entry is None:
        cache.add(key, key.upper())
        return False
    entry.used = True
    cache.count_hit()
    assert entry.value == key.upper()
    return True


def test_a_hit_returns_the_same_object_and_is_counted() -> None:
    first = RegexPattern.build("cache-me-once")
    before = admission_cache_info()
    assert all(RegexPattern.build("cache-me-once") is first for _ in range(1000))
    after = admission_cache_info()
    assert after.hits - before.hits == 1000
    assert after.misses == before.misses
    assert after.capacity == CACHE_ENTRIES == 512


def test_refused_patterns_are_counted_and_not_kept() -> None:
    before = admission_cache_info()
    for _ in range(3):
        with pytest.raises(ValidationError):
            RegexPattern.build("(never-kept")
    after = admission_cache_info()
    assert after.misses - before.misses == 3
    assert after.size == before.size


def test_reading_the_counts_does_not_change_them() -> None:
    cache: SegmentedCache[str] = SegmentedCache(8)
    ask(cache, "a")
    ask(cache, "a")
    assert [cache.info() for _ in range(5)] == [(1, 1, 1, 8)] * 5


def test_hot_entry_survives_a_flood_of_ten_thousand_without_being_asked_for_meanwhile() -> None:
    cache: SegmentedCache[str] = SegmentedCache(512)
    assert not ask(cache, "hot")
    assert ask(cache, "hot")
    for i in range(10_000):
        ask(cache, f"cold{i}")
        assert len(cache.entries) <= 512
    assert ask(cache, "hot")


def test_hot_entry_survives_a_flood_of_patterns_each_asked_for_twice() -> None:
    cache: SegmentedCache[str] = SegmentedCache(512)
    ask(cache, "hot")
    for i in range(10_000):
        assert ask(cache, "hot")
        ask(cache, f"cold{i}")
        ask(cache, f"cold{i}")
    assert ask(cache, "hot")


def test_flood_of_real_patterns_leaves_the_hot_one() -> None:
    hot = RegexPattern.build("hot-one")
    assert RegexPattern.build("hot-one") is hot
    for i in range(1500):
        RegexPattern.build(f"f{i}")
    assert admission_cache_info().size == CACHE_ENTRIES
    assert RegexPattern.build("hot-one") is hot


def test_a_hit_takes_no_lock() -> None:
    RegexPattern.build("lock-free")
    with admission._cache._lock:
        assert RegexPattern.build("lock-free").max_len == 9


def test_threads_share_one_entry_and_lose_no_hit() -> None:
    cache: SegmentedCache[str] = SegmentedCache(64)
    ask(cache, "shared")
    start = threading.Barrier(4)

    def run(name: int) -> None:
        start.wait()
        for i in range(5000):
            assert ask(cache, "shared")
            if i % 50 == 0:
                ask(cache, f"{name}-{i}")

    threads = [threading.Thread(target=run, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    info = cache.info()
    assert info.hits == 20_000
    assert info.misses == 1 + 4 * 100
    assert info.size <= 64


def test_of_two_threads_that_add_the_first_wins() -> None:
    cache: SegmentedCache[str] = SegmentedCache(8)
    assert cache.add("key", "first") == "first"
    assert cache.add("key", "second") == "first"


@given(st.integers(4, 12), st.lists(st.integers(0, 20), max_size=300))
def test_any_order_of_asking_keeps_the_books(capacity: int, asked: list[int]) -> None:
    cache: SegmentedCache[str] = SegmentedCache(capacity)
    hits = sum(ask(cache, f"k{number}") for number in asked)
    assert cache.info() == (hits, len(asked) - hits, min(len(cache.entries), capacity), capacity)
    assert sorted(cache.entries) == sorted([*cache._probation, *cache._protected])
    assert not set(cache._probation) & set(cache._protected)
    assert len(cache._protected) <= capacity * 3 // 4
    if asked:
        assert ask(cache, f"k{asked[-1]}"), "the newest is always kept"

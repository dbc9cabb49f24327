from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringbuf import layout
from ringbuf.errors import FrameTooLarge, RingCorrupt, RingVersion

PLAN = {"instance": 7, "origin": 0, "created_ns": 1, "pid": 2, "barrier": layout.BARRIER_SLEEPER}


def test_pages_follow_each_other_and_data_comes_last() -> None:
    geometry = layout.plan(8192, 3, **PLAN)
    pages = [
        0,
        layout.PRODUCER_PAGE,
        layout.WAKE_PAGE,
        *map(layout.slot_page, range(3)),
        geometry.data_offset,
    ]
    assert pages == [page * layout.PAGE for page in range(7)]
    assert geometry.size == geometry.data_offset + 8192


def test_words_written_by_different_sides_share_no_cache_line() -> None:
    assert layout.P_POS // layout.LINE_WORDS != layout.P_FLOOR // layout.LINE_WORDS
    assert layout.P_WAITING // layout.LINE_WORDS not in (0, layout.P_FLOOR // layout.LINE_WORDS)
    assert layout.P_ENDED // layout.LINE_WORDS != layout.P_STATE // layout.LINE_WORDS


def test_no_two_words_of_a_page_share_a_place() -> None:
    for prefix in ("H_", "P_", "C_"):
        places = [
            value
            for key, value in vars(layout).items()
            if key.startswith(prefix) and key not in ("C_ATTACHMENT_BIT", "C_COUNTERS_END")
        ]
        assert len(places) == len(set(places))
        assert max(places) < layout.PAGE // layout.WORD


@pytest.mark.parametrize("capacity", [0, 1, 63, 65, 96, 3000, -64, 1 << 41])
def test_capacity_must_be_a_power_of_two_in_range(capacity: int) -> None:
    with pytest.raises(ValueError, match=f"64 to {1 << 40} bytes, not {capacity}"):
        layout.plan(capacity, 1, **PLAN)


@pytest.mark.parametrize("slots", [0, -1, 65])
def test_slots_are_limited(slots: int) -> None:
    with pytest.raises(ValueError, match=f"1 to 64, not {slots}"):
        layout.plan(64, slots, **PLAN)


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 200])
def test_good_names(name: str) -> None:
    assert layout.check_name(name) == name


@pytest.mark.parametrize("name", ["", ".", "..", "/a", "a/b", "a\0b", "ä", "a b", "-a", ".a", "a~b", "a\n"])
def test_bad_names_are_refused_before_any_system_call(name: str) -> None:
    with pytest.raises(ValueError, match="must have 1 to 200"):
        layout.check_name(name)


@pytest.mark.parametrize("length", [201, 255, 256, 100_000])
def test_long_names_are_refused_with_the_limit(length: int) -> None:
    with pytest.raises(ValueError, match=f"has {length} characters, the limit is 200"):
        layout.check_name("x" * length)


@pytest.mark.parametrize("name", [None, b"a", 3])
def test_names_are_text(name: object) -> None:
    with pytest.raises(TypeError, match="must be a str"):
        layout.check_name(name)  # type: ignore[arg-type]


def header(**changes: int) -> list[int]:
    words = layout.header_words(layout.plan(4096, 2, **PLAN))
    words[layout.H_READY] = layout.MAGIC
    for word, value in changes.items():
        words[getattr(layout, word)] = value
    return words


SIZE = layout.plan(4096, 2, **PLAN).size


def test_a_written_header_reads_back() -> None:
    assert layout.read_header("r", header(), SIZE) == layout.plan(4096, 2, **PLAN)


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("H_MAGIC", 0),
        ("H_BYTE_ORDER", 0x0807060504030201),
        ("H_READY", 1),
        ("H_SIZE", SIZE + 4096),
        ("H_CAPACITY", 8192),
        ("H_CAPACITY", 5000),
        ("H_SLOTS", 3),
        ("H_SLOTS", 1 << 40),
        ("H_DATA_OFFSET", 4096),
        ("H_INSTANCE", 0),
        ("H_ORIGIN", 3),
        ("H_BARRIER", 9),
    ],
)
def test_a_wrong_header_word_is_corruption(word: str, value: int) -> None:
    with pytest.raises(RingCorrupt) as caught:
        layout.read_header("r", header(**{word: value}), SIZE)
    assert 0 <= caught.value.offset < layout.PAGE


def test_another_version_names_both() -> None:
    with pytest.raises(RingVersion) as caught:
        layout.read_header("r", header(H_VERSION=9), SIZE)
    assert (caught.value.found, caught.value.expected) == (9, layout.VERSION)
    assert "9" in str(caught.value)
    assert str(layout.VERSION) in str(caught.value)


def test_a_segment_of_another_size_than_its_header_says_is_corruption() -> None:
    with pytest.raises(RingCorrupt, match=f"has {SIZE - 4096} bytes, its header says {SIZE}"):
        layout.read_header("r", header(), SIZE - 4096)


@given(st.lists(st.integers(0, (1 << 64) - 1), min_size=layout.HEADER_WORDS, max_size=layout.HEADER_WORDS))
def test_random_headers_are_refused(words: list[int]) -> None:
    with pytest.raises((RingCorrupt, RingVersion)):
        layout.read_header("r", words, SIZE)


@given(st.integers(0, 1 << 20), st.integers(0, 100))
def test_payload_bytes_fall_where_asked(nbytes: int, align_at: int) -> None:
    shift = layout.shift_for(align_at)
    step = layout.frame_bytes(nbytes, shift)
    assert 0 <= shift < 8
    assert (layout.FRAME_HEADER + shift + align_at) % 8 == 0
    assert step % 8 == 0
    assert 0 <= step - (layout.FRAME_HEADER + shift + nbytes) < 8


@given(st.integers(6, 40), st.integers(0, 7))
def test_the_limit_is_the_largest_frame_that_fits(log: int, shift: int) -> None:
    capacity = 1 << log
    limit = layout.payload_limit(capacity, shift)
    assert layout.check_fits("r", limit, capacity, shift) <= capacity // 2
    with pytest.raises(FrameTooLarge) as caught:
        layout.check_fits("r", limit + 1 + -(limit + 1 + shift) % 8 + 1, capacity, shift)
    assert caught.value.limit == limit


@pytest.mark.parametrize("tag", [0, 256, -1])
def test_tags_are_limited(tag: int) -> None:
    with pytest.raises(ValueError, match=f"1 to 255, not {tag}"):
        layout.check_tag(tag)

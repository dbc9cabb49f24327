"""The order of loads and stores, through recorded words."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import ringbuf
from ringbuf import _ops, layout, opening, seat, wait
from ringbuf.testing import Access, Log, open_pair, recording


@pytest.fixture
def recorded() -> Iterator[tuple[Log, ringbuf.Producer, ringbuf.Consumer]]:
    with recording() as log, open_pair() as (producer, consumer):
        log.clear()
        yield log, producer, consumer


Recorded = tuple[Log, ringbuf.Producer, ringbuf.Consumer]


def test_a_frame_is_stored_before_it_is_published_and_wakes_last(recorded: Recorded) -> None:
    log, producer, _ = recorded
    producer.try_write(5, b"x" * 20)
    # The first write asks for room first; the second takes the fast path.
    log.clear()
    producer.try_write(5, b"x" * 20)
    assert log == [
        Access("data", "store", 5, 20 << layout.LENGTH_BIT | 5),
        Access("data", "store", 6, 1),
        Access("producer", "store", layout.P_FRAMES, 2),
        Access("producer", "store", layout.P_POS, 80),
        Access("wake", "load", 0, 0),
    ]


def test_many_frames_are_published_by_one_store(recorded: Recorded) -> None:
    log, producer, _ = recorded
    producer.write_many([(1, b"a"), (2, [b"b", b"c"]), (3, bytearray(b"d"))])
    published = [
        place for place, access in enumerate(log) if access[:3] == ("producer", "store", layout.P_POS)
    ]
    assert len(published) == 1
    assert max(place for place, access in enumerate(log) if access.words == "data") < published[0]


def test_nothing_is_published_by_a_claim_before_it_ends(recorded: Recorded) -> None:
    log, producer, _ = recorded
    with producer.claim(1, 8) as buf:
        buf[:] = b"12345678"
        assert not any(access.word == layout.P_POS for access in log.stores("producer"))
    assert log.stores("producer")[-1].word == layout.P_POS


def test_a_consumer_looks_at_the_position_before_a_frame_and_releases_it_after(recorded: Recorded) -> None:
    log, producer, consumer = recorded
    producer.try_write(5, b"x" * 20)
    log.clear()
    assert consumer.try_read() is not None
    looked = log.first("producer", "load", layout.P_POS)
    header = log.first("data", "load", 0)
    released = log.first("c0", "store", layout.C_CURSOR)
    waiting = log.first("producer", "load", layout.P_WAITING)
    assert looked < header < released < waiting
    assert not log.stores("data")


def test_a_lease_is_not_released_before_its_view_dies(recorded: Recorded) -> None:
    log, *_ = recorded
    with open_pair(1 << 16) as (producer, consumer):
        producer.try_write(1, b"x" * 9000)
        view = consumer.read(0).payload
        log.clear()
        assert consumer.try_read() is None
        assert not any(access.word == layout.C_CURSOR for access in log.stores("c0"))
        del view
        assert log.stores("c0")[0][2:] == (layout.C_CURSOR, 9016)


def test_joining_is_announced_before_the_floor_is_read_and_live_comes_last() -> None:
    with recording() as log, open_pair(consumers=0) as (producer,):
        producer.write(1, b"x")
        log.clear()
        with ringbuf.attach(producer.name):
            joining = log.first("c0", "store", layout.C_STATE)
            floor = log.first("producer", "load", layout.P_FLOOR)
            cursor = log.first("c0", "store", layout.C_CURSOR)
            states = [
                place for place, access in enumerate(log) if access[:3] == ("c0", "store", layout.C_STATE)
            ]
    assert log[joining].value & 3 == layout.SLOT_JOINING
    assert log[states[1]].value & 3 == layout.SLOT_LIVE
    assert joining < floor < cursor < states[1]


def test_the_floor_is_stored_before_the_second_look_at_the_slots(recorded: Recorded) -> None:
    log, producer, consumer = recorded
    while producer.try_write(1, b"x" * 500):
        pass
    consumer.read_many()
    log.clear()
    assert producer.try_write(1, b"x" * 500)
    # The slots themselves are read without words of their own; the floor comes before the frame it makes room
    # for.
    floor = log.first("producer", "store", layout.P_FLOOR)
    frame = next(place for place, access in enumerate(log) if access[:2] == ("data", "store"))
    assert floor < frame


def test_the_end_is_stored_after_the_last_publication(recorded: Recorded) -> None:
    log, producer, _ = recorded
    producer.try_write(1, b"x")
    producer.close()
    words = [access.word for access in log.stores("producer")]
    assert words.index(layout.P_STATE) > words.index(layout.P_POS)


def test_positions_are_published_by_whole_words_that_only_grow(recorded: Recorded) -> None:
    """R022: no position is ever seen that was not meant."""
    log, producer, consumer = recorded
    for size in range(200):
        while not producer.try_write(1, b"x" * size):
            consumer.read_many()
    consumer.read_many()
    for words, word in (("producer", layout.P_POS), ("c0", layout.C_CURSOR)):
        stored = [access.value for access in log if access[:3] == (words, "store", word)]
        assert stored == sorted(stored)
        assert all(value % 8 == 0 for value in stored)


def test_what_no_body_orders_is_ordered_by_fences(monkeypatch: pytest.MonkeyPatch) -> None:
    """x86-64 keeps these in order by itself, aarch64 does not: a fence stands between each two."""
    with recording() as log, open_pair(consumers=0) as (producer,):
        monkeypatch.setattr(seat, "keep_order", lambda: log.append(Access("cpu", "fence", 0, 0)))
        monkeypatch.setattr(_ops, "fence", seat.keep_order)
        producer.write(1, b"x")
        log.clear()
        ringbuf.attach(producer.name).close()
        producer.close()
    fences = [place for place, access in enumerate(log) if access.kind == "fence"]
    states = [place for place, access in enumerate(log) if access[:3] == ("c0", "store", layout.C_STATE)]
    _, live, free = states
    for first, then in [
        (log.first("producer", "load", layout.P_FLOOR), log.first("producer", "load", layout.P_POS)),
        (log.first("c0", "store", layout.C_CURSOR), live),
        (log.first("producer", "load", layout.P_POS), log.first("producer", "load", layout.P_FRAMES)),
        (live + 1, free),
        (free, log.first("producer", "store", layout.P_STATE)),
    ]:
        assert any(first < fence < then for fence in fences), (log[first], log[then])


def test_the_end_of_a_lease_is_told_behind_the_wakers_barrier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "best_barrier", lambda: layout.BARRIER_WAKER)
    with recording() as log:
        monkeypatch.setattr(wait, "fence", lambda: log.append(Access("cpu", "fence", 0, 0)))
        with open_pair(1 << 16) as (producer, consumer):
            producer.try_write(1, b"x" * 9000)
            view = consumer.read(0).payload
            log.clear()
            del view
            released = log.first("c0", "store", layout.C_CURSOR)
            looked = log.first("producer", "load", layout.P_WAITING)
            assert "fence" in {access.kind for access in log[released:looked]}

"""One step for many channels: what has room gets its event at once, everything else is left to the caller."""

from __future__ import annotations

import sys
import threading
import time

import pytest

from egress.errors import SinkClosed, SinkFull
from egress.stream import ChannelSource, channel
from egress.stream.item import Done, Error, Frame
from egress.stream.many import Many, send_frames
from egress.stream.routes import Route, Routes
from egress.wire import ChunkEvent, Stop


def event(number: int, count: int = 1) -> ChunkEvent:
    return ChunkEvent.make("a", [number] * count, text=f"{number},")


def ids(source: ChannelSource) -> list[list[int]]:
    found = []
    while (item := source.try_recv()) is not None:
        assert isinstance(item, Frame | Done)
        found.append(item.event.token_ids.tolist())
    return found


def test_every_channel_gets_its_own_event_but_those_left_out() -> None:
    ends = [channel() for _ in range(5)]
    many = Many([sink for sink, _ in ends])
    many.send([event(i) for i in range(5)], [1, 4])
    many.send([event(i + 10) for i in range(5)], ())
    assert [ids(source) for _, source in ends] == [[[0], [10]], [[11]], [[2], [12]], [[3], [13]], [[14]]]


def test_a_group_of_nobody_sends_nothing() -> None:
    many = Many([])
    assert many.without_room() == []
    many.send([], ())
    assert len(many) == 0


def test_channels_without_room_or_at_their_end_are_named() -> None:
    ends = [channel(capacity=4, max_tokens=8) for _ in range(7)]
    sinks = [sink for sink, _ in ends]
    many = Many(sinks)
    assert many.without_room() == []
    for number in range(3):
        sinks[0].try_send(Frame(event(number)))
    sinks[1].try_send(Frame(event(0, count=7)))
    sinks[2].try_send(Done(ChunkEvent.make("a", [1], Stop())))
    sinks[3].close()
    ends[4][1].close()
    ends[5] = (sinks[5], ends[6][1])  # the source dropped
    assert many.without_room() == [0, 1, 2, 3, 4, 5]
    ids(ends[0][1]), ids(ends[1][1]), ids(ends[2][1]), ends[3][1].try_recv(), ends[4][1].try_recv()
    # What was full has room again; what has ended never has.
    assert many.without_room() == [2, 3, 4, 5]
    many.send([event(9)] * 7, [2, 3, 4, 5])
    assert [ids(ends[at][1]) for at in (0, 1, 6)] == [[[9]]] * 3


def test_a_run_that_waits_leaves_no_room_until_it_is_taken() -> None:
    sink, source = channel(capacity=3, max_tokens=100)
    many = Many([sink])
    for number in range(6):
        sink.try_send(Frame(event(number)))
    many.was_bypassed()
    assert many.without_room() == [0]
    assert source.n_waiting == 3
    source.try_recv()
    source.try_recv()
    assert many.without_room() == [0]
    sink.try_send(Frame(event(6)))
    assert ids(source) == [[2, 3, 4, 5, 6]]
    assert many.without_room() == []
    assert source.on_next(lambda: None)


def test_both_ways_of_sending_mix_in_order_and_weigh_alike() -> None:
    sink, source = channel(capacity=8, max_tokens=80)
    many = Many([sink])
    for number in range(0, 6, 2):
        many.send([event(number)], ())
        sink.try_send(Frame(event(number + 1)))
    assert (source.n_waiting, source.n_waiting_tokens) == (6, 6)
    assert ids(source) == [[number] for number in range(6)]


def test_a_group_is_full_when_its_fullest_channel_is() -> None:
    ends = [channel(capacity=6, max_tokens=60) for _ in range(3)]
    many = Many([sink for sink, _ in ends])
    for number in range(5):
        assert many.without_room() == []
        many.send([event(number)] * 3, [0] if number else [])
    assert many.without_room() == [1, 2]
    ids(ends[1][1])
    assert many.without_room() == [2]
    ids(ends[2][1])
    assert many.without_room() == []


def test_a_channel_that_goes_its_own_way_is_not_told_of() -> None:
    ends = [channel() for _ in range(3)]
    many = Many([sink for sink, _ in ends])
    assert many.without_room() == []
    many.leave([1])
    ends[1][0].try_send(Done(ChunkEvent.make("a", [1], Stop())))
    many.send([event(1)] * 3, [1])
    many.keep([(0, 1), (2, 3)])
    assert many.without_room() == []
    ends[2][1].close()
    assert many.without_room() == [1]


def test_readers_in_threads_miss_nothing_at_any_switch() -> None:
    """Wakers left, and channels closed, while a group is written to."""
    size, steps, leaving = 6, 4000, 1500
    ends = [channel(capacity=8, max_tokens=64) for _ in range(size)]
    got: list[list[int]] = [[] for _ in range(size)]

    def read(at: int) -> None:
        source = ends[at][1]
        while True:
            item = source.recv_sync(timeout=60)
            assert isinstance(item, Frame | Done)
            got[at] += item.event.token_ids.tolist()
            if item.is_terminal:
                return
            if at == 0 and len(got[at]) >= leaving:
                source.close()
                return

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    readers = [threading.Thread(target=read, args=(at,)) for at in range(size)]
    try:
        for reader in readers:
            reader.start()
        many = Many([sink for sink, _ in ends])
        closed_at = None
        for number in range(steps):
            no_room = many.without_room()
            many.send([event(number)] * size, no_room)
            for at in no_room:
                while True:
                    try:
                        ends[at][0].try_send(Frame(event(number)))
                        break
                    except SinkFull:
                        time.sleep(0)
                    except SinkClosed:
                        assert at == 0
                        closed_at = closed_at or number
                        break
        for sink, _ in ends[1:]:
            sink.try_send(Done(ChunkEvent.make("a", [-1], Stop())))
        for reader in readers:
            reader.join(60)
            assert not reader.is_alive()
    finally:
        sys.setswitchinterval(interval)
    assert all(ids == [*range(steps), -1] for ids in got[1:])
    assert got[0] == list(range(len(got[0])))
    assert closed_at is not None


def test_waiting_readers_are_told() -> None:
    ends = [channel() for _ in range(3)]
    many = Many([sink for sink, _ in ends])
    told: list[int] = []
    for at in (0, 2):
        assert ends[at][1].on_next(lambda at=at: told.append(at))
    many.send([event(i) for i in range(3)], ())
    assert told == [0, 2]


def test_groups_are_kept_in_part_and_grow() -> None:
    ends = [channel() for _ in range(6)]
    sinks = [sink for sink, _ in ends]
    many = Many(sinks[:4])
    many.keep([(0, 1), (2, 4)])
    more = Many.of(sinks[4:], many)
    assert more is not None
    many.add(more)
    assert many.is_distinct
    assert len(many) == 5
    many.send([event(i) for i in range(5)], ())
    assert [ids(source) for _, source in ends] == [[[0]], [], [[1]], [[2]], [[3]], [[4]]]
    many.add(Many([sinks[1]]))
    assert many.is_distinct
    many.add(Many([sinks[0]]))
    assert not many.is_distinct


def test_the_smallest_bounds_count_for_all() -> None:
    small, large = channel(capacity=2, max_tokens=6), channel()
    many = Many([large[0]])
    assert many.unit == 64
    many.add(Many([small[0]]))
    assert many.unit == 3
    many.send([event(1), event(2)], ())
    assert many.without_room() == [0, 1]


def test_only_different_channels_make_a_group() -> None:
    class Other:
        def try_send(self, item: object) -> None:
            """Take it."""

        def close(self) -> None:
            """Nothing to close."""

    sink, _source = channel()
    other, _source_2 = channel()
    assert Many.of([sink, other]) is not None
    assert Many.of([sink, sink]) is None
    assert Many.of([sink, Other()]) is None


def test_send_frames_says_who_refused_and_why() -> None:
    ends = [channel(capacity=1, max_tokens=2) for _ in range(3)]
    ends[1][1].close()
    events = [event(i) for i in range(3)]
    refused = send_frames([sink for sink, _ in ends], events)
    assert [(at, type(error)) for at, error in refused] == [(events[1], SinkClosed)]
    assert ids(ends[2][1]) == [[2]]


@pytest.mark.parametrize(
    "change",
    [
        lambda routes: routes.pop("a"),
        lambda routes: routes.pop("a", None),
        lambda routes: routes.popitem(),
        lambda routes: routes.__delitem__("a"),
        lambda routes: routes.clear(),
        lambda routes: routes.__setitem__("a", Route("a", 0, channel()[0])),
        lambda routes: routes.update(a=Route("a", 0, channel()[0])),
        lambda routes: routes.__ior__({"a": Route("a", 0, channel()[0])}),
    ],
)
def test_routes_say_when_something_went(change) -> None:  # type: ignore[no-untyped-def]
    routes = Routes()
    routes["a"] = Route("a", 0, channel()[0])
    before = routes.changes
    routes["b"] = Route("b", 0, channel()[0])
    routes.pop("c", None)
    assert routes.ended("b") is not None
    assert routes.ended("b") is None
    assert routes.changes == before
    change(routes)
    assert routes.changes > before


def test_an_error_still_reaches_a_channel_without_room() -> None:
    sink, source = channel(capacity=1, max_tokens=1)
    many = Many([sink])
    assert many.without_room() == [0]
    sink.try_send(Error("m"))
    assert isinstance(source.try_recv(), Error)
    assert source.try_recv() is None

"""The local channel: its bounds, merging, the one terminal item, and ends that vanish."""

from __future__ import annotations

import gc
import threading
import weakref
from collections import deque

import pytest
from channel_kit import done, drain, event, frame, ids
from hypothesis import given
from hypothesis import strategies as st

from egress.errors import SinkClosed, SinkFull, Truncated
from egress.stream import ChannelSink, EgressItem, channel
from egress.stream.item import Control, Done, Error, Frame
from egress.testing import check_sink
from egress.wire import ChunkEvent

# -- bounds and merging


@pytest.mark.parametrize("bounds", [(), (1, 1), (1, 4096), (64, 1), (3, 7)], ids=repr)
def test_the_channel_keeps_what_every_sink_promises(bounds: tuple[int, ...]) -> None:
    check_sink(lambda: channel(*bounds))


def test_items_come_out_as_they_went_in() -> None:
    sink, source = channel()
    sent: list[EgressItem] = [frame(1), frame(2), done(3)]
    for item in sent:
        sink.try_send(item)
    assert all(got is item for got, item in zip(drain(source), sent, strict=True))
    assert source.try_recv() is None


def test_a_frame_that_finds_no_place_joins_the_newest() -> None:
    sink, source = channel(capacity=2, max_tokens=100)
    for number in range(5):
        sink.try_send(frame(number))
    assert source.n_waiting == 2
    sink.try_send(done())
    first, rest, last = drain(source)
    assert ids(first) == [0]
    assert ids(rest) == [1, 2, 3, 4]
    assert isinstance(rest, Frame)
    assert rest.event.text == "1,2,3,4,"
    assert isinstance(last, Done)


def test_a_terminal_item_has_a_place_when_everything_is_full() -> None:
    for terminal in (done(), Error("slow", 503), Control(b"x")):
        sink, source = channel(capacity=1, max_tokens=1)
        sink.try_send(frame(1))
        with pytest.raises(SinkFull):
            sink.try_send(frame(2))
        sink.try_send(terminal)
        assert [ids(source.try_recv()), source.try_recv()] == [[1], terminal]


def test_full_says_what_waits_and_takes_nothing() -> None:
    sink, source = channel(capacity=2, max_tokens=5)
    for number in range(5):
        sink.try_send(frame(number))
    with pytest.raises(SinkFull) as refused:
        sink.try_send(frame(5))
    assert (refused.value.items, refused.value.max_items) == (2, 2)
    assert (refused.value.tokens, refused.value.max_tokens) == (5, 5)
    assert [ids(item) for item in drain(source)] == [[0], [1, 2, 3, 4]]
    sink.try_send(frame(6))
    assert ids(source.try_recv()) == [6]


def test_the_token_bound_holds_however_few_frames_wait() -> None:
    sink, source = channel(capacity=64, max_tokens=10)
    sink.try_send(frame(1, count=6))
    with pytest.raises(SinkFull):
        sink.try_send(frame(2, count=5))
    sink.try_send(frame(3, count=4))
    assert source.n_waiting_tokens == 10


def test_a_frame_larger_than_the_bound_passes_alone() -> None:
    sink, source = channel(capacity=4, max_tokens=10)
    sink.try_send(frame(1, count=50))
    with pytest.raises(SinkFull):
        sink.try_send(frame(2))
    assert len(ids(source.try_recv())) == 50
    sink.try_send(frame(3))
    assert ids(source.try_recv()) == [3]


def test_frames_without_ids_do_not_pile_up_either() -> None:
    sink, source = channel(capacity=2, max_tokens=8)
    for _ in range(8):
        sink.try_send(Frame(ChunkEvent.make("a", text="x")))
    with pytest.raises(SinkFull):
        sink.try_send(Frame(ChunkEvent.make("a", text="x")))
    assert "".join(item.event.text for item in drain(source)) == "x" * 8


@pytest.mark.parametrize("bounds", [(0, 1), (1, 0), (-1, 5)])
def test_bounds_below_one_are_refused(bounds: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        channel(*bounds)


def test_only_items_are_taken() -> None:
    sink, source = channel()
    with pytest.raises(TypeError, match="ChunkEvent"):
        sink.try_send(event(1))  # type: ignore[arg-type]
    assert source.try_recv() is None


def test_a_kind_of_frame_is_a_frame() -> None:
    class Marked(Frame, frozen=True):
        pass

    sink, source = channel(capacity=2)
    for number in range(3):
        sink.try_send(Marked(event(number)))
    assert [ids(item) for item in drain(source)] == [[0], [1, 2]]


@given(
    capacity=st.integers(1, 4),
    max_tokens=st.integers(1, 12),
    steps=st.lists(st.one_of(st.integers(0, 5), st.just("recv")), max_size=60),
)
def test_any_order_of_sends_and_receives_loses_nothing(
    capacity: int, max_tokens: int, steps: list[int | str]
) -> None:
    sink, source = channel(capacity, max_tokens)
    sent: list[int] = []
    got: list[int] = []
    counts: deque[int] = deque()
    for number, step in enumerate(steps):
        if step == "recv":
            item = source.try_recv()
            assert (item is None) == (not counts)
            if item is not None:
                assert isinstance(item, Frame)
                got += [int(text) for text in item.event.text.split(",") if text]
                for _ in item.event.text.split(",")[1:]:
                    counts.popleft()
        else:
            assert isinstance(step, int)
            weight = step or 1
            fits = not counts or sum(counts) + weight <= max_tokens
            try:
                sink.try_send(frame(number, count=step))
            except SinkFull:
                assert not fits
            else:
                assert fits
                sent.append(number)
                counts.append(weight)
        assert source.n_waiting <= capacity
        assert source.n_waiting_tokens == sum(counts)
    sink.try_send(done())
    *rest, last = drain(source)
    for item in rest:
        assert isinstance(item, Frame)
        got += [int(text) for text in item.event.text.split(",") if text]
    assert got == sent
    assert isinstance(last, Done)


@pytest.mark.parametrize("taken_before_the_event", [False, True])
def test_a_reader_that_takes_the_newest_frame_during_a_merge(taken_before_the_event: bool) -> None:
    sink, source = channel(capacity=1)
    sink.try_send(frame(1))
    (run,) = source._channel.queue
    seen: list[EgressItem | None] = []

    class Racing(deque[ChunkEvent]):
        """Lets the reader in just before, or just after, the sender appends."""

        def append(self, item: ChunkEvent) -> None:
            if taken_before_the_event:
                seen.append(source.try_recv())
            super().append(item)
            if not taken_before_the_event:
                seen.append(source.try_recv())

    run.events = Racing(run.events)
    sink.try_send(frame(2))
    rest = drain(source)
    if taken_before_the_event:
        assert [ids(item) for item in (*seen, *rest)] == [[1], [2]]
    else:
        assert [ids(item) for item in (*seen, *rest)] == [[1, 2]]
    assert source.n_waiting_tokens == 0


# -- the end


def test_exactly_one_terminal_item() -> None:
    sink, source = channel()
    sink.try_send(done())
    assert sink.is_closed
    for item in (frame(1), done(), Error("m"), Control(b"")):
        with pytest.raises(SinkClosed, match="already sent"):
            sink.try_send(item)
    assert len(drain(source)) == 1


def test_racing_threads_send_one_terminal_item() -> None:
    def send(sink: ChannelSink, barrier: threading.Barrier, refused: list[SinkClosed]) -> None:
        barrier.wait()
        try:
            sink.try_send(Error("m"))
        except SinkClosed as error:
            refused.append(error)

    for _ in range(50):
        sink, source = channel()
        refused: list[SinkClosed] = []
        barrier = threading.Barrier(3)
        threads = [threading.Thread(target=send, args=(sink, barrier, refused)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(refused) == 2
        assert len(drain(source)) == 1


def test_receiving_past_the_terminal_item_does_not_wait() -> None:
    sink, source = channel()
    sink.try_send(done())
    assert isinstance(source.recv_sync(), Done)
    with pytest.raises(SinkClosed, match="already received"):
        source.recv_sync()
    sink.close()
    with pytest.raises(SinkClosed, match="already received"):
        source.recv_sync()


def test_a_closed_sink_truncates_after_what_was_sent() -> None:
    sink, source = channel()
    sink.try_send(frame(1))
    sink.close()
    sink.close()
    with pytest.raises(SinkClosed, match="sink was closed"):
        sink.try_send(done())
    assert ids(source.recv_sync()) == [1]
    assert source.try_recv() is None
    for _ in range(2):
        with pytest.raises(Truncated):
            source.recv_sync()


def test_a_dropped_sink_truncates() -> None:
    sink, source = channel()
    sink.try_send(frame(1))
    del sink
    assert ids(source.recv_sync()) == [1]
    with pytest.raises(Truncated):
        source.recv_sync()


def test_a_sink_dropped_after_its_terminal_item_does_not_truncate() -> None:
    sink, source = channel()
    sink.try_send(done())
    del sink
    assert isinstance(source.recv_sync(), Done)


def test_a_closed_source_is_closed_and_not_full() -> None:
    sink, source = channel(capacity=1, max_tokens=1)
    sink.try_send(frame(1))
    source.close()
    source.close()
    for item in (frame(2), done()):
        with pytest.raises(SinkClosed, match="source was closed"):
            sink.try_send(item)
    with pytest.raises(SinkClosed):
        source.recv_sync()
    assert source.try_recv() is None


def test_a_dropped_source_closes_the_sink_and_frees_what_waited() -> None:
    sink, source = channel()
    array = ChunkEvent.make("a", [1]).token_ids.copy()
    gone = weakref.ref(array)
    sink.try_send(Frame(ChunkEvent.make("a", array)))
    del array, source
    assert gone() is not None
    with pytest.raises(SinkClosed):
        sink.try_send(frame(2))
    assert gone() is None


def test_both_ends_in_a_cycle_are_collected() -> None:
    class Handler:
        pass

    handler = Handler()
    handler.ends = channel()  # type: ignore[attr-defined]
    handler.self = handler  # type: ignore[attr-defined]
    gone = weakref.ref(handler.ends[0])  # type: ignore[attr-defined]
    del handler
    gc.collect()
    assert gone() is None

"""The worker's end: fair turns, one ending per request, and nothing that pins a ring."""

from __future__ import annotations

import gc
import logging

import pytest
from source_kit import Ring, Upstream

import ringbuf
from egress.errors import SinkClosed, SinkFull
from egress.stream import channel
from egress.stream.item import Control, Done, Error, Frame
from egress.stream.ring_source import MALFORMED, RingSource
from egress.stream.routes import Route
from egress.wire import Stop, Tag, encode_batch, encode_error, encode_result
from egress.wire.requests import Hello, encode_request


class ListSink:
    """Takes a number of frames, then is full; notes the order against what upstream was told."""

    def __init__(self, room=10**9, said=None):
        self.room, self.items, self.said, self.is_closed = room, [], said, False

    def try_send(self, item):
        if self.is_closed:
            raise SinkClosed
        if not item.is_terminal:
            if self.room <= 0:
                raise SinkFull(1, 1, 1, 1)
            self.room -= 1
        self.items.append(item)
        if self.said is not None:
            self.said.append(("item", type(item).__name__))


def batch(*rids, ids=(7,), reason=None, **more):
    n = len(rids)
    return encode_batch(
        rids=list(rids),
        finish_reasons=[reason] * n,
        prompt_tokens=[3] * n,
        token_ids=[list(ids)] * n,
        texts=[f"<{rid}>" for rid in rids],
        **more,
    )


@pytest.fixture
def upstream():
    return Upstream()


@pytest.fixture
def source(upstream):
    return RingSource(upstream)


def open_route(source, rid, shard=0, sink=None):
    sink = ListSink() if sink is None else sink
    source.routes[rid] = Route(rid, shard, sink)
    return sink


def test_each_request_gets_its_own_events_and_one_end(source, upstream):
    ring = Ring()
    source.attach(0, ring)
    a, b = open_route(source, "a"), open_route(source, "b")
    ring.write(Tag.BATCH, batch("a", "b"))
    ring.write(Tag.BATCH, batch("b", ids=(8, 9), reason=Stop(matched=9)))
    ring.write(Tag.BATCH, batch("b", "a"))
    assert source.turn() is False
    assert [item.event.text for item in a.items] == ["<a>", "<a>"]
    assert [type(item) for item in b.items] == [Frame, Done]
    assert b.items[1].event.token_ids.tolist() == [8, 9]
    assert list(source.routes) == ["a"]
    assert upstream.said == [("ended", "b", "Done")]
    assert source.counts.late == 1
    assert source.counts.frames == 3


def test_a_waiting_event_does_not_pin_its_frame(source):
    ring = Ring()
    source.attach(0, ring)
    sink = open_route(source, "a")
    extras = {"out_lp_val": [[-0.5]], "out_lp_idx": [[7]], "hidden": [[[1.0, 2.0]]]}
    leases = [ring.write(Tag.BATCH, batch("a", **extras)), ring.write(Tag.BATCH, batch("a", "x"))]
    source.turn()
    gc.collect()
    assert [lease() for lease in leases] == [None, None]
    first = sink.items[0].event
    assert first.token_ids.tolist() == [7]
    assert first.extras.out_lp_val.tolist() == [-0.5]
    assert first.extras.hidden_val.tolist() == [1.0, 2.0]


def test_a_flood_from_one_shard_does_not_keep_the_others_waiting(upstream):
    source = RingSource(upstream, turn_frames=6)
    rings = [Ring(), Ring(), Ring()]
    sinks = []
    for shard, ring in enumerate(rings):
        source.attach(shard, ring)
        sinks.append(open_route(source, f"r{shard}", shard))
    for _ in range(100):
        rings[0].write(Tag.BATCH, batch("r0"))
    for shard in (1, 2):
        for _ in range(2):
            rings[shard].write(Tag.BATCH, batch(f"r{shard}"))
    assert source.turn() is True
    assert [len(sink.items) for sink in sinks] == [2, 2, 2]
    turns = 1
    while source.turn():
        turns += 1
    assert turns == 17
    assert len(sinks[0].items) == 100


def test_a_turn_is_bounded_in_events_too(upstream):
    source = RingSource(upstream, turn_events=10)
    ring = Ring()
    source.attach(0, ring)
    names = [f"r{i}" for i in range(8)]
    sinks = [open_route(source, name) for name in names]
    for _ in range(4):
        ring.write(Tag.BATCH, batch(*names))
    assert source.turn() is True
    assert [len(sink.items) for sink in sinks] == [2] * 8
    assert source.turn() is True
    assert source.turn() is False


def test_a_slow_client_is_aborted_upstream_first_then_told(source, upstream):
    ring = Ring()
    source.attach(3, ring)
    open_route(source, "slow", 3, ListSink(room=1, said=upstream.said))
    other = open_route(source, "other", 3)
    for _ in range(4):
        ring.write(Tag.BATCH, batch("slow", "other"))
    source.turn()
    assert upstream.said == [
        ("item", "Frame"),
        ("abort", 3, ["slow"], "slow_client"),
        ("item", "Error"),
        ("ended", "slow", "Error"),
    ]
    assert len(other.items) == 4
    assert source.counts.sink_full == 1
    assert source.counts.late == 2


@pytest.mark.parametrize("between", [[], [("b", [9], Stop())], [("late", [9], None)], [("a", [9], Stop())]])
@pytest.mark.parametrize("counts_tokens", [False, True])
def test_a_request_named_twice_gets_nothing_after_a_refusal_but_its_end(upstream, between, counts_tokens):
    source = RingSource(upstream, counts_tokens=counts_tokens)
    source.attach(0, ring := Ring())
    sinks, readers = zip(*[channel(max_tokens=20) for _ in "abc"], strict=True)
    for rid, sink in zip("abc", sinks, strict=True):
        source.routes[rid] = Route(rid, 0, sink)
    ring.write(Tag.BATCH, batch("a", ids=range(18)))
    rows = [("c", [1], None), ("a", [2] * 5, None), *between, ("a", [3], None), ("c", [4], None)]
    rids, ids, reasons = (list(column) for column in zip(*rows, strict=True))
    ring.write(
        Tag.BATCH,
        encode_batch(rids=rids, finish_reasons=reasons, prompt_tokens=[3] * len(rids), token_ids=ids),
    )
    source.turn()
    items = [list(iter(reader.try_recv, None)) for reader in readers]
    assert [item.event.token_ids.tolist() for item in items[0][:-1]] == [list(range(18))]
    assert items[0][-1] == Error("the client reads too slowly: its queue is full", 503)
    assert [ids for item in items[2] for ids in item.event.token_ids.tolist()] == [1, 4]
    assert upstream.said.count(("ended", "a", "Error")) == 1
    assert [said for said in upstream.said if said[0] == "abort"] == [("abort", 0, ["a"], "slow_client")]
    assert source.counts.sink_full == 1
    assert source.counts.late == 1 + len([rid for rid, _, _ in between if rid != "b"])


def test_a_burst_is_merged_not_refused(source, upstream):
    ring = Ring()
    source.attach(0, ring)
    sink, reader = channel(capacity=4, max_tokens=1000)
    source.routes["a"] = Route("a", 0, sink)
    for i in range(60):
        ring.write(Tag.BATCH, batch("a", ids=(i,)))
    source.turn()
    ids = []
    while (item := reader.try_recv()) is not None:
        ids += item.event.token_ids.tolist()
    assert ids == list(range(60))
    assert upstream.said == []


def test_a_client_that_left_is_forgotten_without_an_abort(source, upstream):
    ring = Ring()
    source.attach(0, ring)
    sink = open_route(source, "a")
    sink.is_closed = True
    ring.write(Tag.BATCH, batch("a"))
    source.turn()
    assert source.routes == {}
    assert upstream.said == []
    assert source.counts.sink_closed == 1


def test_errors_and_results_end_their_request(source, upstream):
    ring = Ring()
    source.attach(0, ring)
    a, b = open_route(source, "a"), open_route(source, "b")
    ring.write(Tag.ERROR, encode_error("a", "no room", 503))
    ring.write(Tag.RESULT, encode_result("b", b"{}"))
    ring.write(Tag.ERROR, encode_error("a", "again"))
    source.turn()
    assert a.items == [Error("no room", 503)]
    assert b.items == [Control(b"{}")]
    assert source.counts.late == 1
    assert source.routes == {}


def test_a_malformed_frame_fails_whom_it_names_and_nobody_else(source, upstream, caplog):
    ring = Ring()
    source.attach(1, ring)
    sinks = {rid: open_route(source, rid, 1) for rid in ("a", "b", "c")}
    body = b"".join(batch("a", "b", "gone"))
    ring.write(Tag.BATCH, body[:-4])
    ring.write(Tag.BATCH, batch("c"))
    with caplog.at_level(logging.ERROR):
        source.turn()
    assert sinks["a"].items == sinks["b"].items == [Error(MALFORMED, 500)]
    assert [type(item) for item in sinks["c"].items] == [Frame]
    assert upstream.said[0] == ("abort", 1, ["a", "b"], "malformed")
    assert source.counts.malformed == 1
    assert source.counts.unnamed == 0
    assert list(source.routes) == ["c"]
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("tag", "body"), [(2, b""), (2, b"\xff\xff\xff\xff"), (9, b"x"), (1, b"\xc1"), (3, b""), (20, b"")]
)
def test_a_malformed_frame_that_names_nobody_is_counted_apart_and_logged_once(
    source, upstream, caplog, tag, body
):
    ring = Ring()
    source.attach(0, ring)
    sink = open_route(source, "a")
    ring.write(tag, body)
    ring.write(tag, body)
    ring.write(Tag.BATCH, batch("a"))
    with caplog.at_level(logging.ERROR):
        source.turn()
    assert source.counts.malformed == source.counts.unnamed == 2
    assert len(caplog.records) == 1
    assert len(sink.items) == 1
    assert upstream.said == []


def test_a_greeting_is_passed_on(source, upstream):
    ring = Ring()
    source.attach(2, ring)
    ring.write(*encode_request(Hello(epoch="e")))
    source.turn()
    assert upstream.said == [("hello", 2, "e")]


def test_a_lost_shard_fails_its_requests_only(source, upstream):
    mine, other = open_route(source, "a", 0), open_route(source, "b", 1)
    source.fail_shard(0, "shard 0 died", 500)
    assert mine.items == [Error("shard 0 died", 500)]
    assert other.items == []
    assert list(source.routes) == ["b"]


def test_a_detached_ring_is_not_read(source):
    ring = Ring()
    source.attach(0, ring)
    source.detach(0)
    source.detach(0)
    ring.write(Tag.BATCH, batch("a"))
    assert source.turn() is False
    assert len(ring.waiting) == 1


def test_a_dead_shard_is_told_once_after_all_it_wrote_and_the_others_go_on(source, upstream):
    dead, alive = Ring(ringbuf.PeerDead("r", 1, 0.0, 1)), Ring()
    source.attach(0, dead)
    source.attach(1, alive)
    a, b = open_route(source, "a"), open_route(source, "b", shard=1)
    dead.write(Tag.BATCH, batch("a"))
    alive.write(Tag.BATCH, batch("b"))
    assert source.turn() is False
    assert source.turn() is False
    assert upstream.said == [("failed", 0, "PeerDead")]
    assert len(a.items) == len(b.items) == 1


@pytest.mark.parametrize("n", [2, 20])
@pytest.mark.parametrize("how", ["full", "closed"])
def test_what_a_sink_refuses_does_not_pin_its_frame(source, how, n):
    """Nothing may be left to the garbage collection: with its rings full a worker has nothing to do, so that
    none comes, and they stay full."""
    ring = Ring()
    source.attach(0, ring)
    rids = [f"r{i}" for i in range(n)]
    ends = {rid: channel(2, 2) for rid in rids}
    for rid, (sink, _) in ends.items():
        open_route(source, rid, sink=sink)
    gc.collect()
    gc.disable()
    try:
        for step in range(4):
            if how == "closed" and step == 2:
                ends["r1"][1].close()
            lease = ring.write(Tag.BATCH, batch(*rids))
            source.turn()
            assert lease() is None
    finally:
        gc.enable()
    assert (source.counts.sink_full, source.counts.sink_closed) == ((n, 0) if how == "full" else (n - 1, 1))

"""Steps of a running batch: many requests, and what was found out about them is taken over."""

from __future__ import annotations

import gc
import random
import weakref

import pytest
from source_kit import Ring, Upstream

from egress.stream import channel
from egress.stream.item import Done, Error, Frame
from egress.stream.ring_source import RingSource
from egress.stream.routes import Route
from egress.wire import Stop, Tag, encode_batch, encode_error


@pytest.fixture
def upstream():
    return Upstream()


@pytest.fixture
def source(upstream):
    return RingSource(upstream)


class Engine:
    """Requests that come, go and are aborted, and what each of them should have got."""

    def __init__(self, source, rng, shard=0):
        self.source, self.rng, self.ring, self.shard = source, rng, Ring(), shard
        self.running, self.readers, self.sent = [], {}, {}
        source.attach(shard, self.ring)

    def admit(self, count, **bounds):
        for _ in range(count):
            rid = f"s{self.shard}-{len(self.readers)}"
            sink, self.readers[rid] = channel(**bounds)
            self.source.routes[rid] = Route(rid, self.shard, sink)
            self.running.append(rid)
            self.sent[rid] = []

    def step(self, ending=(), count=1):
        """One frame; what the still routed will have got by it."""
        ids = [[self.rng.randrange(1000)] * count for _ in self.running]
        reasons = [Stop() if rid in ending else None for rid in self.running]
        for rid, tokens in zip(self.running, ids, strict=True):
            if rid in self.source.routes:
                self.sent[rid] += tokens
        self.ring.write(
            Tag.BATCH,
            encode_batch(
                self.running, reasons, [len(rid) for rid in self.running], ids, texts=["x"] * len(ids)
            ),
        )
        self.running = [rid for rid in self.running if rid not in ending]
        self.source.turn()

    def got(self, rid):
        """(ids, the terminal item) of a request, as far as they wait."""
        ids, last = [], None
        while (item := self.readers[rid].try_recv()) is not None:
            assert last is None
            if isinstance(item, Frame | Done):
                assert item.event.rid == rid
                assert item.event.prompt_tokens == len(rid)
                ids += item.event.token_ids.tolist()
            last = item if item.is_terminal else None
        return ids, last


@pytest.mark.parametrize("seed", range(8))
def test_whoever_comes_and_goes_each_gets_its_own(source, upstream, seed):
    rng = random.Random(seed)
    engines = [Engine(source, rng, shard) for shard in range(2)]
    taken = {}
    gone = set()
    for engine in engines:
        engine.admit(rng.choice([3, 20, 400]))
    for _ in range(40):
        for engine in engines:
            engine.admit(rng.choice([0, 0, 1, 5]))
            ending = {rid for rid in engine.running if rng.random() < 0.02}
            if rng.random() < 0.3 and engine.running:
                # A client leaves; its rows come on for a while, as long as the shard knows nothing of it.
                rid = rng.choice(engine.running)
                gone.add(rid)
                if rng.random() < 0.5:
                    engine.readers[rid].close()
                if rng.random() < 0.7:
                    source.routes.pop(rid, None)
            if rng.random() < 0.2 and gone & set(engine.running):
                engine.running = [rid for rid in engine.running if rid not in gone]
            engine.step(ending, rng.choice([1, 1, 1, 1, 3, 70]))
            for rid in engine.readers:
                if rng.random() < 0.3:
                    ids, last = engine.got(rid)
                    taken.setdefault(rid, []).extend(ids)
                    assert last is None or rid not in engine.running
    for engine in engines:
        for rid in engine.readers:
            ids = [*taken.get(rid, []), *engine.got(rid)[0]]
            assert ids == engine.sent[rid] or rid in gone
            assert ids == engine.sent[rid][: len(ids)]
    assert source.counts.late > 0
    assert source.counts.sink_full == 0
    assert all(said[0] == "ended" for said in upstream.said)


def test_a_slow_client_among_many_is_merged_then_fails_alone(source, upstream):
    engine = Engine(source, random.Random(0))
    engine.admit(30, capacity=4, max_tokens=20)
    slow = engine.running[7]
    for step in range(24):
        engine.step()
        for rid in engine.running:
            if rid != slow:
                ids, last = engine.got(rid)
                assert len(ids) == 1
                assert last is None
        if step == 19:
            assert engine.readers[slow].n_waiting == 4
            assert engine.readers[slow].n_waiting_tokens == 20
    ids, last = engine.got(slow)
    assert ids == engine.sent[slow][:20]
    assert last == Error("the client reads too slowly: its queue is full", 503)
    assert upstream.said == [("abort", 0, [slow], "slow_client"), ("ended", slow, "Error")]
    assert source.counts.late == 3


@pytest.mark.parametrize("size", [20, 200])
def test_a_request_named_twice_among_many_ends_once(source, upstream, size):
    engine = Engine(source, random.Random(0))
    engine.admit(size)
    engine.step()
    engine.running.append("s0-3")
    engine.step()
    assert len(engine.got("s0-3")[0]) == 3
    engine.step(ending={"s0-3"})
    _, last = engine.got("s0-3")
    assert isinstance(last, Done)
    assert source.counts.late == 1
    engine.step()
    assert engine.got("s0-4")[0] == engine.sent["s0-4"]


def test_an_error_frame_between_steps_ends_one_of_many(source, upstream):
    engine = Engine(source, random.Random(0))
    engine.admit(20)
    engine.step()
    engine.ring.write(Tag.ERROR, encode_error("s0-5", "undecodable"))
    # Its row may come on in a frame that was under way.
    engine.step()
    engine.running.remove("s0-5")
    engine.step()
    ids, last = engine.got("s0-5")
    assert last == Error("undecodable", 500)
    assert len(ids) == 1
    assert source.counts.late + source.counts.sink_closed == 1
    assert len(engine.got("s0-6")[0]) == 3


def test_a_channel_given_up_is_not_kept_for_the_next_step(source):
    engine = Engine(source, random.Random(0))
    engine.admit(20)
    engine.step()
    gone = weakref.ref(engine.readers["s0-3"])
    queued = weakref.ref(engine.readers["s0-3"]._channel.queue)
    source.routes.pop("s0-3")
    del engine.readers["s0-3"]
    source.turn()
    assert gone() is None
    assert queued() is None


def test_a_large_frame_is_not_pinned_by_what_is_remembered_of_it(source):
    engine = Engine(source, random.Random(0))
    engine.admit(200)
    leases = []
    write = engine.ring.write
    engine.ring.write = lambda tag, body: leases.append(write(tag, body))
    engine.step()
    engine.step(ending={"s0-7", "s0-8"})
    engine.admit(3)
    engine.step()
    gc.collect()
    assert [lease() for lease in leases] == [None] * 3
    assert engine.got("s0-5")[0] == engine.sent["s0-5"]


def test_a_newcomer_nobody_waits_for_is_late_and_the_others_get_theirs(source):
    engine = Engine(source, random.Random(0))
    engine.admit(200)
    engine.step()
    engine.running.append("unknown")
    engine.step(ending={"s0-9"})
    engine.step()
    assert source.counts.late == 2
    engine.running.remove("unknown")
    engine.admit(1)
    engine.step()
    for rid in engine.readers:
        assert engine.got(rid)[0] == engine.sent[rid]


def test_tokens_are_counted_where_they_are_asked_for(upstream):
    source = RingSource(upstream, counts_tokens=True)
    engine = Engine(source, random.Random(0))
    engine.admit(200)
    engine.step()
    engine.step(ending={"s0-9"}, count=3)
    assert {route.tokens for route in source.routes.values()} == {4}
    assert len(source.routes) == 199
    assert engine.got("s0-9")[0] == engine.sent["s0-9"]

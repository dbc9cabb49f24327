"""The worker's dispatch over real rings, with the shard's end in the test's hands."""

from __future__ import annotations

import asyncio
import json

import msgspec
import pytest
from support import unique_name

from egress.errors import ValidationError
from egress.request import SamplingParams
from egress.serve.config import MAX_RID_BYTES, Settings
from egress.serve.dispatch import Generation, Overloaded, ShardDown
from egress.serve.links import Link
from egress.serve.metrics import WorkerMetrics
from egress.serve.peers import Peer
from egress.serve.router import Router
from egress.stream.item import Done, Error
from egress.wire import Length
from egress.wire.requests import Abort, AbortClient, Control, Generate, Hello, decode_request


class Shard:
    """The shard's end of both rings."""

    def __init__(self, settings, index):
        self.epoch = f"life-of-{index}"
        self.peer = Peer(settings, index, 0, self.epoch)
        self.peer.greet()

    def take(self):
        """Every request that waits, greetings answered and left out as a shard does."""
        requests = []
        if not self.peer.is_attached:
            self.peer.attach()
        for frame in self.peer.read(1000):
            with frame:
                request = decode_request(frame.tag, frame.payload)
            if isinstance(request, Hello):
                is_new = request.epoch != self.peer.epoch
                self.peer.epoch = request.epoch
                if is_new or request.peer != self.epoch:
                    self.peer.greet()
            else:
                requests.append(request)
        return requests

    def answer(self, *rids, reason=None):
        n = len(rids)
        self.peer.sink.send_batch(
            {
                "rids": list(rids),
                "finish_reasons": [reason] * n,
                "prompt_tokens": [1] * n,
                "token_ids": [[5]] * n,
                "texts": ["t"] * n,
                "completion_tokens": [1] * n,
            }
        )

    def close(self):
        self.peer.detach()
        self.peer.producer.close(unlink=True)


class World:
    """One worker and its shards, stepped by hand."""

    def __init__(self, shards=2, ring_bytes=1 << 16):
        self.settings = msgspec.structs.replace(
            Settings(), instance=unique_name("router"), shards=shards, ring_bytes=ring_bytes
        )
        self.shards = [Shard(self.settings, index) for index in range(shards)]
        self.links = [Link(self.settings, index, 0, "worker-life") for index in range(shards)]
        self.detached = []
        self.router = Router(self.settings, "worker-life", self.links, WorkerMetrics(0), self.detached.append)
        for link in self.links:
            assert link.attach()
            self.router.source.attach(link.shard, link.frames)

    def greet(self):
        for _ in range(3):
            for shard in self.shards:
                assert shard.take() == []
            self.router.source.turn()

    def close(self):
        for link in self.links:
            link.close()
        for shard in self.shards:
            shard.close()


@pytest.fixture
def world():
    world = World()
    world.greet()
    yield world
    world.close()


@pytest.fixture
def single():
    world = World(shards=1)
    world.greet()
    yield world
    world.close()


def generation(client_rid=None, ids=(1, 2)):
    sampling = SamplingParams.parse({})
    sampling.normalize()
    return Generation(input_ids=list(ids), sampling=sampling, client_rid=client_rid)


def fill(router, calls, generations):
    for _ in range(100_000):
        calls.append(router.call(generations))


def test_nothing_is_sent_before_the_shard_has_answered_the_greeting():
    world = World()
    try:
        assert not world.router.health()["ready"]
        with pytest.raises(ShardDown):
            world.router.call([generation()])
        world.greet()
        assert world.router.health()["ready"]
        world.router.call([generation()]).close()
    finally:
        world.close()


def test_requests_go_to_the_shard_their_rid_hashes_to_and_answers_come_back(world):
    call = world.router.call([generation() for _ in range(40)])
    seen = {}
    for index, shard in enumerate(world.shards):
        for request in shard.take():
            assert isinstance(request, Generate)
            assert request.epoch == shard.epoch
            seen[request.rid] = index
            shard.answer(request.rid, reason=Length(length=1))
    assert set(seen) == {stream.rid for stream in call.streams}
    assert set(seen.values()) == {0, 1}
    while world.router.source.turn():
        pass
    for stream in call.streams:
        item = stream.source.try_recv()
        assert isinstance(item, Done)
        assert item.event.rid == stream.rid == stream.client_rid
        call.done(stream.rid)
    call.close()
    assert [shard.take() for shard in world.shards] == [[], []]
    assert world.router.source.routes == {}


def test_leaving_a_call_aborts_what_is_armed_once(single):
    with single.router.call([generation(), generation()]) as call:
        first, second = (stream.rid for stream in call.streams)
        single.shards[0].take()
        single.shards[0].answer(first, reason=Length(length=1))
        single.router.source.turn()
        call.done(first)
    call.close()
    assert single.shards[0].take() == [Abort(rids=[second])]
    assert single.router.source.routes == {}


def test_the_same_client_rid_twice_never_meets_in_one_sink(single):
    calls = [single.router.call([generation("mine")]) for _ in range(2)]
    rids = [call.streams[0].rid for call in calls]
    assert len(set(rids)) == 2
    assert [call.streams[0].client_rid for call in calls] == ["mine", "mine"]
    single.shards[0].take()
    single.shards[0].answer(rids[1])
    single.router.source.turn()
    assert calls[0].streams[0].source.try_recv() is None
    assert calls[1].streams[0].source.try_recv().event.rid == rids[1]
    for call in calls:
        call.close()


def test_aborting_a_client_rid_asks_every_shard(world):
    call = world.router.call([generation("mine"), generation("other")])
    assert world.router.abort("mine") == 1
    assert world.router.abort("unknown") == 0
    for shard in world.shards:
        requests = [r for r in shard.take() if isinstance(r, AbortClient)]
        assert requests == [AbortClient(client_rid="mine"), AbortClient(client_rid="unknown")]
    call.close()


def test_a_full_request_ring_is_a_503_and_nothing_of_the_call_runs(single):
    calls = []
    with pytest.raises(Overloaded, match="is full"):
        fill(single.router, calls, [generation(ids=range(500)), generation(ids=range(500))])
    live = {stream.rid for call in calls for stream in call.streams}
    assert set(single.router.source.routes) == live
    running = set()
    while requests := single.shards[0].take():
        for request in requests:
            if isinstance(request, Generate):
                running.add(request.rid)
            else:
                running.difference_update(request.rids)
        for link in single.links:
            link.flush()
    assert running == live
    for call in calls:
        call.close()


def test_aborts_wait_for_room_and_are_never_lost(single):
    calls = []
    with pytest.raises(Overloaded):
        fill(single.router, calls, [generation()])
    for call in calls:
        call.close()
    generated, aborted = set(), set()
    for _ in range(100):
        for request in single.shards[0].take():
            if isinstance(request, Generate):
                generated.add(request.rid)
            elif isinstance(request, Abort):
                aborted.update(request.rids)
        single.router.ping(0.0)
        single.router.source.routes.clear()
    assert generated == aborted
    assert len(generated) == len(calls)


def test_a_request_larger_than_a_frame_is_a_400_with_both_sizes(single):
    with pytest.raises(ValidationError, match=rf"{single.settings.max_frame_bytes}"):
        single.router.call([generation(), generation(ids=range(20_000))])
    assert single.shards[0].take() == []


@pytest.mark.parametrize("rid", ["", "\ud800", "x" * (MAX_RID_BYTES + 1), "é" * MAX_RID_BYTES])
def test_an_impossible_client_rid_is_a_400(single, rid):
    with pytest.raises(ValidationError) as caught:
        single.router.call([generation(rid)])
    assert caught.value.field == "rid"
    assert single.shards[0].take() == []


@pytest.mark.parametrize("rid", ["#", "a#b#", "\u2028", "\0", " x ", "\U0001f600" * 128])
def test_any_other_client_rid_is_kept_as_it_is(single, rid):
    call = single.router.call([generation(rid)])
    assert call.streams[0].client_rid == rid
    (request,) = single.shards[0].take()
    assert request.client_rid == rid
    call.close()


def test_a_shard_that_forgot_this_worker_fails_its_requests_and_is_greeted_again(single):
    call = single.router.call([generation()])
    shard = single.shards[0]
    shard.take()
    shard.peer.epoch = ""
    shard.peer.greet()
    single.router.source.turn()
    item = call.streams[0].source.try_recv()
    assert isinstance(item, Error)
    assert item.status_code == 500
    assert "shard 0" in item.message
    with pytest.raises(ShardDown):
        single.router.call([generation()])
    single.greet()
    single.router.call([generation()]).close()


def test_a_restarted_shard_fails_the_old_requests_only(single):
    call = single.router.call([generation()])
    shard = single.shards[0]
    shard.take()
    shard.epoch = shard.peer._shard_epoch = "second-life"
    shard.peer.epoch = ""
    shard.peer.greet()
    single.router.source.turn()
    assert call.streams[0].source.try_recv().status_code == 500
    single.greet()
    again = single.router.call([generation()])
    assert [r.epoch for r in shard.take() if isinstance(r, Generate)] == ["second-life"]
    single.router.source.turn()
    assert again.streams[0].source.try_recv() is None
    again.close()


def test_requests_avoid_a_shard_that_is_down(world):
    world.router.lost(0, "died")
    call = world.router.call([generation() for _ in range(50)])
    assert world.shards[0].take() == []
    assert len(world.shards[1].take()) == 50
    call.close()
    assert not world.router.health()["ready"]
    assert [shard["alive"] for shard in world.router.health()["shards"]] == [False, True]


def test_a_draining_worker_takes_nothing_new_and_ends_what_runs(single):
    call = single.router.call([generation()])
    single.router.drain()
    with pytest.raises(Overloaded, match="shutting down"):
        single.router.call([generation()])
    single.router.fail_all("time is over")
    assert call.streams[0].source.try_recv() == Error("time is over", 503)
    assert [type(request) for request in single.shards[0].take()] == [Generate, Abort]


def test_control_asks_and_gives_the_answer_verbatim(single):
    async def ask():
        asking = asyncio.create_task(single.router.control("server_info"))
        await asyncio.sleep(0)
        (question,) = single.shards[0].take()
        assert isinstance(question, Control)
        single.shards[0].peer.sink.send_result(question.rid, b'{"a": 1}')
        single.router.source.turn()
        return await asking

    assert json.loads(asyncio.run(ask())) == {"a": 1}
    assert single.router.source.routes == {}


def test_control_without_an_answer_times_out_and_forgets(single):
    with pytest.raises(TimeoutError):
        asyncio.run(single.router.control("server_info", timeout=0.01))
    assert single.router.source.routes == {}
    with pytest.raises(IndexError):
        asyncio.run(single.router.control("server_info", shard=1))


def test_a_shard_that_answers_no_pings_is_not_ready(single):
    single.links[0].answered -= 1000
    assert not single.router.health()["ready"]
    single.router.ping(0.0)
    single.router.ping(0.0)
    questions = single.shards[0].take()
    assert len(questions) == 1
    single.shards[0].peer.sink.send_result(questions[0].rid, b"{}")
    single.router.source.turn()
    assert single.router.health()["ready"]

"""A worker as its shard sees it: greetings, and nothing taken twice."""

from __future__ import annotations

import os

import msgspec
import pytest
from support import unique_name

import ringbuf
from egress.serve.config import Settings, request_ring
from egress.serve.links import Link
from egress.serve.peers import Peer, open_producer
from egress.wire.requests import Abort, Generate, Hello, decode_request, encode_request

GENERATE = Generate(rid="r", epoch="shard-life", input_ids=[1], sampling=[])


@pytest.fixture
def settings():
    return msgspec.structs.replace(Settings(), instance=unique_name("peer"), ring_bytes=1 << 16)


@pytest.fixture
def peer(settings):
    peer = Peer(settings, 0, 0, "shard-life")
    yield peer
    peer.detach()
    peer.producer.close(unlink=True)


def requests_of(peer):
    requests = []
    for frame in peer.read(100):
        with frame:
            requests.append(decode_request(frame.tag, frame.payload))
    return requests


def test_what_a_worker_wrote_before_its_shard_was_there_is_read(settings, peer):
    assert not peer.attach()
    link = Link(settings, 0, 0, "worker-life")
    try:
        assert link.attach()
        assert peer.attach()
        assert requests_of(peer) == [Hello(epoch="worker-life", peer="", pid=os.getpid())]
    finally:
        link.close()


def test_a_ring_attached_again_gives_no_request_twice(settings, peer):
    with open_producer(request_ring(settings.instance, 0, 0), settings.ring_bytes) as producer:
        assert peer.attach()
        producer.write(*encode_request(GENERATE))
        assert requests_of(peer) == [GENERATE]
        peer.detach()
        assert peer.attach()
        assert requests_of(peer) == []
        producer.write(*encode_request(Abort(rids=["r"])))
        assert requests_of(peer) == [Abort(rids=["r"])]


def test_a_closed_ring_attached_again_gives_no_request_twice(settings, peer):
    name = request_ring(settings.instance, 0, 0)
    producer = open_producer(name, settings.ring_bytes)
    assert peer.attach()
    producer.write(*encode_request(GENERATE))
    assert requests_of(peer) == [GENERATE]
    producer.close(unlink=False)
    try:
        for _ in range(2):
            with pytest.raises(ringbuf.RingClosed):
                requests_of(peer)
            peer.detach()
            assert peer.attach()
    finally:
        ringbuf.unlink(name)


def test_a_ring_attached_again_is_greeted_so_that_its_worker_says_who_it_is(settings, peer):
    link = Link(settings, 0, 0, "worker-life")
    try:
        assert link.attach()
        assert peer.attach()
        assert link.frames.try_read() is None
        peer.detach()
        assert peer.attach()
        with link.frames.read(timeout=5) as frame:
            hello = decode_request(frame.tag, frame.payload)
        assert (hello.epoch, hello.peer) == ("shard-life", "")
    finally:
        link.close()


def test_a_successor_takes_the_ring_over(settings):
    name = unique_name("takeover")
    first = open_producer(name, 1 << 16)
    with pytest.raises(ringbuf.ProducerAlive):
        open_producer(name, 1 << 16)
    first.close(unlink=False)
    with open_producer(name, 1 << 16) as second:
        assert second.try_write(16, b"x")

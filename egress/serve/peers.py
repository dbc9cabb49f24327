"""One worker as a shard sees it: the ring its requests come from, the sink its frames go to, who it is now.

A worker that was replaced takes its request ring over; its greeting carries a new epoch, and everything its
predecessor asked for is to be forgotten. A shard answers a greeting with its own, which names the worker's
epoch: only then does the worker send requests, and each of them names the shard's epoch. What is older than
that, on either ring, belongs to a life that has ended and is dropped.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import Literal

import ringbuf
from egress.serve.config import Settings, frame_ring, request_ring
from egress.stream.ring_sink import RingSink
from egress.wire.requests import Hello, encode_request

__all__ = ["Peer", "open_producer"]

log = logging.getLogger(__name__)

# The one reader, its successor while the dead one has not been noticed, and a look from outside.
SLOTS = 4


def open_producer(name: str, capacity: int) -> ringbuf.Producer:
    """The ring `name` to write into: a predecessor's taken over where there is one, else a new one.

    Args:
        capacity: bytes; a predecessor's ring of another capacity is replaced.

    Raises:
        ringbuf.ProducerAlive: another process writes it now.
        ringbuf.SharedMemoryFull: /dev/shm has no room for it.
    """
    try:
        producer = ringbuf.resume(name)
    except ringbuf.RingNotFound:
        return ringbuf.create(name, capacity=capacity, slots=SLOTS)
    except (ringbuf.RingCorrupt, ringbuf.RingVersion, ringbuf.RingClosed) as error:
        log.warning("ring %s cannot be taken over (%s); it is replaced", name, error)
        return ringbuf.create(name, capacity=capacity, slots=SLOTS, replace=True)
    return producer


class Peer:
    """One worker.

    Args:
        settings: names and sizes.
        shard, index: which shard we are, which worker it is.
        epoch: this life of the shard.
    """

    def __init__(self, settings: Settings, shard: int, index: int, epoch: str) -> None:
        self.index = index
        self.epoch = ""
        self._shard_epoch = epoch
        self._request_ring = request_ring(settings.instance, shard, index)
        self.frame_ring = frame_ring(settings.instance, shard, index)
        self.producer = open_producer(self.frame_ring, settings.ring_bytes)
        self.requests: ringbuf.Consumer | None = None
        self._was_attached = False
        self.sink = RingSink(
            self.producer,
            name=self.frame_ring,
            max_frame=settings.max_frame_bytes,
            backlog_bytes=settings.backlog_bytes,
            backlog_frames=settings.backlog_frames,
        )

    def attach(self) -> bool:
        """Attach to the worker's request ring if it is there by now; whether it is attached.

        The first time everything in it counts: a worker greets before its shard is there. Later on it is
            the ring
        that was let go of, with requests in it that were taken then; what is worth hearing follows our
        greeting.
        """
        if self.requests is None:
            start: Literal["oldest", "latest"] = "latest" if self._was_attached else "oldest"
            try:
                self.requests = ringbuf.attach(self._request_ring, start=start, timeout=0.0)
            except ringbuf.RingNotFound:
                return False
            except ringbuf.RingError as error:
                log.error("request ring of worker %d: %s", self.index, error)
                return False
            if self._was_attached:
                self.greet()
            self._was_attached = True
        return True

    @property
    def is_attached(self) -> bool:
        """Whether there is a request ring to read."""
        return self.requests is not None

    def fileno(self) -> int:
        """Of the request ring, for epoll."""
        assert self.requests is not None
        return self.requests.fileno()

    def detach(self) -> None:
        """Let go of the request ring: it ended, or is not to be trusted; `attach` may find a new one."""
        if self.requests is not None:
            self.requests.close()
            self.requests = None

    def read(self, most: int) -> Iterator[ringbuf.Frame]:
        """Up to `most` of the frames that wait.

        Raises:
            ringbuf.RingClosed: the worker has closed its ring, for good.
            ringbuf.PeerDead: the worker is dead; once, after all it wrote was read.
            ringbuf.RingCorrupt: the ring's words contradict each other.
        """
        assert self.requests is not None
        left = most
        while left > 0 and (frames := self.requests.read_many(left)):
            left -= len(frames)
            yield from frames

    def greet(self) -> None:
        """Say who we are, and which life of the worker we know."""
        tag, body = encode_request(Hello(epoch=self._shard_epoch, peer=self.epoch, pid=os.getpid()))
        self.sink.send(tag, body)

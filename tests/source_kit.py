"""What the tests of the worker's end share: rings of fake frames, and an owner that notes what it is told."""

from __future__ import annotations

import weakref
from collections import deque

import numpy as np


class RingFrame:
    """A frame whose bytes change when it is given back, as a ring's do."""

    def __init__(self, tag, body):
        self.tag = int(tag)
        self._array = np.frombuffer(bytearray(body), np.uint8)
        self.payload = memoryview(self._array).toreadonly()
        self.leases = weakref.ref(self._array)


class Ring:
    """Frames to be read, and what is raised once they are."""

    def __init__(self, error=None):
        self.waiting = deque()
        self.error = error

    def write(self, tag, body):
        self.waiting.append(RingFrame(tag, body if isinstance(body, bytes) else b"".join(body)))
        return self.waiting[-1].leases

    def read_many(self, max_frames):
        if self.waiting:
            return [self.waiting.popleft() for _ in range(min(max_frames, len(self.waiting)))]
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        return []


class Upstream:
    def __init__(self):
        self.said = []

    def abort_upstream(self, shard, rids, cause):
        self.said.append(("abort", shard, list(rids), cause))

    def ended(self, route, item):
        self.said.append(("ended", route.rid, type(item).__name__))

    def greeted(self, shard, hello):
        self.said.append(("hello", shard, hello.epoch))

    def ring_failed(self, shard, error):
        self.said.append(("failed", shard, type(error).__name__))

"""vLLM's shared-memory MessageQueue rebuilt small: chunks with a flag byte per reader, pickled objects.

Mirrors vllm/distributed/device_communicators/shm_broadcast.py: a ring of fixed chunks; per chunk one written
flag and one flag per reader; the writer waits until every reader has set its flag, readers poll and yield;
objects travel as pickle protocol 5. No object here is larger than a chunk, so the ZeroMQ detour is not
needed.
"""

from __future__ import annotations

import os
import pickle
import threading
import time
from typing import Any

from bench.harness import SharedFile

MODES = {"one", "view"}
FIRST = "producer"
CHUNKS = 10
_fence_lock = threading.Lock()


def _fence() -> None:
    with _fence_lock:
        pass


class MessageQueue:
    """One end of the queue; `reader` None is the writer, else the reader's number."""

    def __init__(self, name: str, chunk_bytes: int, readers: int, reader: int | None) -> None:
        self.chunk, self.readers, self.reader = chunk_bytes, readers, reader
        self.flags = 1 + readers
        total = CHUNKS * (chunk_bytes + self.flags)
        self.shm = SharedFile(name, total, create=reader is None)
        self.index = 0

    def _metadata(self) -> Any:
        start = CHUNKS * self.chunk + self.index * self.flags
        return self.shm.buf[start : start + self.flags]

    def enqueue(self, item: object) -> None:
        data = pickle.dumps(item, protocol=5)
        with self._metadata() as flags:
            while True:
                _fence()
                if not flags[0] or sum(flags[1:]) == self.readers:
                    break
                os.sched_yield()
            flags[0] = 0
            start = self.index * self.chunk
            self.shm.buf[start : start + 8] = len(data).to_bytes(8, "little")
            self.shm.buf[start + 8 : start + 8 + len(data)] = data
            for i in range(1, self.flags):
                flags[i] = 0
            flags[0] = 1
            _fence()
        self.index = (self.index + 1) % CHUNKS

    def dequeue(self) -> Any:
        assert self.reader is not None
        with self._metadata() as flags:
            while True:
                _fence()
                if flags[0] and not flags[1 + self.reader]:
                    break
                os.sched_yield()
            start = self.index * self.chunk
            size = int.from_bytes(self.shm.buf[start : start + 8], "little")
            item = pickle.loads(self.shm.buf[start + 8 : start + 8 + size])
            flags[1 + self.reader] = 1
            _fence()
        self.index = (self.index + 1) % CHUNKS
        return item

    def close(self) -> None:
        self.shm.close()


class Producer:
    def __init__(self, name: str, size: int, mode: str, readers: int = 1) -> None:
        self.queue = MessageQueue(name, size + 1024, readers, None)

    def run(self, payloads: list[bytes], count: int, check: bool) -> None:
        for i in range(count):
            self.queue.enqueue(payloads[i % len(payloads)])

    def close(self) -> None:
        self.queue.close()


class Consumer:
    def __init__(self, name: str, size: int, mode: str, readers: int = 1, reader: int = 0) -> None:
        self.queue = MessageQueue(name, size + 1024, readers, reader)

    def run(self, payloads: list[bytes], count: int, check: bool) -> float:
        dequeue = self.queue.dequeue
        started = 0.0
        for i in range(count):
            item = dequeue()
            if check and item != payloads[i % len(payloads)]:
                raise SystemExit(f"frame {i} is not what was sent")
            if not i:
                started = time.perf_counter()
        return time.perf_counter() - started

    def close(self) -> None:
        self.queue.close()

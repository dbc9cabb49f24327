"""vLLM's shared-memory MessageQueue, its local path rebuilt with the same steps.

Mirrors vllm/distributed/device_communicators/shm_broadcast.py: a ring of fixed chunks; per chunk one written
flag and one flag per reader; the writer waits until every reader has set its flag, readers poll and yield;
every access to flags and data is a context manager of its own, with a lock taken as fence; objects travel as
pickle protocol 5, with their large buffers beside the stream, counted and measured in big-endian fields. No
object here is larger than a chunk, so the ZeroMQ detour is not needed, and nobody waits long enough for the
warnings.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import threading
import time
from collections.abc import Iterator
from typing import Any

from bench.harness import SharedFile

MODES = {"one", "view"}
FIRST = "producer"
CHUNKS = 10
IN_BAND_BYTES = 1 << 20
WARNING_S = 60.0
_COUNT_AT, _BUFFERS_AT, _SIZE = 1, 3, 4
_fence_lock = threading.Lock()


def _fence() -> None:
    with _fence_lock:
        pass


class _Spin:
    """What a reader does between two looks."""

    def record_activity(self) -> None:
        pass

    def spin(self) -> None:
        os.sched_yield()


class MessageQueue:
    """One end of the queue; `reader` None is the writer, else the reader's number."""

    def __init__(self, name: str, chunk_bytes: int, readers: int, reader: int | None) -> None:
        self.chunk, self.readers, self.reader = chunk_bytes, readers, reader
        self.flags = 1 + readers
        total = CHUNKS * (chunk_bytes + self.flags)
        self.shm = SharedFile(name, total, create=reader is None)
        self.index = 0
        self.spin = _Spin()

    @contextlib.contextmanager
    def _metadata(self) -> Iterator[Any]:
        start = CHUNKS * self.chunk + self.index * self.flags
        with self.shm.buf[start : start + self.flags] as flags:
            yield flags

    @contextlib.contextmanager
    def _data(self) -> Iterator[Any]:
        start = self.index * self.chunk
        with self.shm.buf[start : start + self.chunk] as data:
            yield data

    def _has_waited(self, started: float, timeout: float | None) -> None:
        elapsed = time.monotonic() - started
        if timeout is not None and elapsed > timeout:
            raise TimeoutError
        if elapsed > WARNING_S:
            raise SystemExit("the other end of the queue is gone")

    @contextlib.contextmanager
    def _acquire_write(self, timeout: float | None) -> Iterator[Any]:
        started = time.monotonic()
        while True:
            with self._metadata() as flags:
                _fence()
                read_count = sum(flags[1:])
                if flags[0] and read_count != self.readers:
                    os.sched_yield()
                    self._has_waited(started, timeout)
                    continue
                flags[0] = 0
                with self._data() as data:
                    yield data
                for i in range(1, self.readers + 1):
                    flags[i] = 0
                flags[0] = 1
                _fence()
                self.index = (self.index + 1) % CHUNKS
                break

    @contextlib.contextmanager
    def _acquire_read(self, timeout: float | None) -> Iterator[Any]:
        assert self.reader is not None
        started = time.monotonic()
        while True:
            with self._metadata() as flags:
                _fence()
                if not flags[0] or flags[self.reader + 1]:
                    self.spin.spin()
                    self._has_waited(started, timeout)
                    continue
                with self._data() as data:
                    yield data
                flags[self.reader + 1] = 1
                _fence()
                self.index = (self.index + 1) % CHUNKS
                self.spin.record_activity()
                break

    def enqueue(self, item: object, timeout: float | None = None) -> None:
        buffers: list[Any] = [b""]

        def beside(buffer: pickle.PickleBuffer) -> bool:
            raw = buffer.raw()
            if len(raw) < IN_BAND_BYTES:
                return True
            buffers.append(raw)
            return False

        buffers[0] = pickle.dumps(item, protocol=5, buffer_callback=beside)
        with self._acquire_write(timeout) as data:
            data[0] = 0
            data[_COUNT_AT:_BUFFERS_AT] = len(buffers).to_bytes(_BUFFERS_AT - _COUNT_AT, "big")
            at = _BUFFERS_AT
            for buffer in buffers:
                size = len(buffer)
                data[at : at + _SIZE] = size.to_bytes(_SIZE, "big")
                at += _SIZE
                data[at : at + size] = buffer
                at += size

    def dequeue(self, timeout: float | None = None) -> Any:
        with self._acquire_read(timeout) as data:
            if data[0]:
                raise SystemExit("an object did not fit its chunk")
            count = int.from_bytes(data[_COUNT_AT:_BUFFERS_AT], "big")
            at = _BUFFERS_AT
            buffers = []
            for _ in range(count):
                size = int.from_bytes(data[at : at + _SIZE], "big")
                at += _SIZE
                buffers.append(data[at : at + size])
                at += size
            item = pickle.loads(buffers[0], buffers=buffers[1:])
            # The views must be gone before the chunk's is.
            buffers.clear()
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

"""ringbuf as a transport of the benchmarks: one call per frame, batched, as views, or waiting for each other.

Mode "wait" is "many" for more parties than cores: who finds nothing to do parks instead of spinning.
"""

from __future__ import annotations

import time
from itertools import islice

import ringbuf
from bench.rivals import looping

MODES = {"one", "many", "view", "wait"}
FIRST = "producer"
BATCH = 64
CAPACITY = 1 << 20


def capacity_for(size: int) -> int:
    """Room for at least 8 frames of this size."""
    capacity = CAPACITY
    while capacity < 8 * size:
        capacity *= 2
    return capacity


class Producer:
    def __init__(self, name: str, size: int, mode: str) -> None:
        self.mode = mode
        self.ring = ringbuf.create(name, capacity=capacity_for(size), slots=8)

    def run(self, payloads: list[bytes], count: int, check: bool) -> None:
        if self.mode in ("many", "wait"):
            self._run_many(payloads, count, 10.0 if self.mode == "wait" else 0.0)
            return
        try_write, done, n = self.ring.try_write, 0, len(payloads)
        while done < count:
            for payload in payloads[: min(n, count - done)]:
                while not try_write(1, payload):
                    pass
            done += n

    def _run_many(self, payloads: list[bytes], count: int, timeout: float) -> None:
        write_many, done, n = self.ring.write_many, 0, len(payloads)
        pairs = [(1, payload) for payload in payloads]
        frames = [pairs[i % n] for i in range(n * BATCH)]
        batches = [frames[i : i + BATCH] for i in range(0, len(frames), BATCH)]
        while done < count:
            for batch in batches:
                rest = batch[: count - done]
                done += len(rest)
                while rest:
                    written = write_many(rest, timeout=timeout)
                    if written == len(rest):
                        break
                    rest = rest[written:]
                if done >= count:
                    break

    def close(self) -> None:
        self.ring.close()


class Consumer:
    def __init__(self, name: str, size: int, mode: str) -> None:
        self.mode = mode
        self.ring = ringbuf.attach(name, start="oldest", timeout=10)

    def run(self, payloads: list[bytes], count: int, check: bool) -> float:
        if check:
            return self._check(payloads, count)
        if self.mode in ("many", "wait"):
            return self._run_many(count, 10.0 if self.mode == "wait" else 0.0)
        if self.mode == "one":
            return self._run_one(count)
        try_read, got = self.ring.try_read, 1
        while try_read() is None:
            pass
        started = time.perf_counter()
        while got < count:
            if (frame := try_read()) is not None:
                view = frame.payload
                view[0], view[-1]
                del view
                frame.release()
                got += 1
        return time.perf_counter() - started

    def _run_one(self, count: int) -> float:
        if ringbuf.__impl__ == "python":
            # There a step of the iterator costs more than a call of try_read, in C less.
            return looping.receive_each(self.ring.try_read, count)
        self.ring.read()
        started = time.perf_counter()
        for _ in islice(self.ring, count - 1):
            pass
        return time.perf_counter() - started

    def _run_many(self, count: int, timeout: float) -> float:
        read_many, got = self.ring.read_many, 0
        while not (frames := read_many(BATCH, timeout)):
            pass
        started = time.perf_counter()
        got = len(frames)
        while got < count:
            got += len(read_many(BATCH, timeout))
        return time.perf_counter() - started

    def _check(self, payloads: list[bytes], count: int) -> float:
        started = time.perf_counter()
        for i in range(count):
            frame = self.ring.read(timeout=10)
            if frame.tag != 1 or frame.payload != payloads[i % len(payloads)]:
                raise SystemExit(f"frame {i} is not what was written")
            del frame
        return time.perf_counter() - started

    def close(self) -> None:
        self.ring.close()

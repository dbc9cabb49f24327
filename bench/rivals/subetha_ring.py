"""subetha-ipc's single-producer ring (slots of 64 bytes), one call per item and push_many/pop_many."""

from __future__ import annotations

import contextlib
import os

import subetha

from bench.rivals import looping

MODES = {"one", "many"}
FIRST = "producer"
BATCH = 64
SLOTS = 1 << 14


class Producer:
    def __init__(self, name: str, size: int, mode: str) -> None:
        self.mode, self.path = mode, f"/dev/shm/{name}"
        self.ring = subetha.SpscRing(self.path, SLOTS)

    def run(self, payloads: list[bytes], count: int, check: bool) -> None:
        if self.mode == "many":
            looping.send_batches(self.ring.push_many, payloads, count, BATCH)
        else:
            looping.send_each(self.ring.push, payloads, count)

    def close(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)


class Consumer:
    def __init__(self, name: str, size: int, mode: str) -> None:
        self.mode = mode
        self.ring = subetha.SpscRing.open(f"/dev/shm/{name}", SLOTS)

    def run(self, payloads: list[bytes], count: int, check: bool) -> float:
        pop, pop_many = self.ring.pop, self.ring.pop_many
        if self.mode == "many":
            if check:
                return looping.check_batches(lambda: pop_many(BATCH), payloads, count)
            return looping.receive_batches(lambda: pop_many(BATCH), count)
        return looping.check_each(pop, payloads, count) if check else looping.receive_each(pop, count)

    def close(self) -> None:
        pass

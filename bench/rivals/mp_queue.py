"""multiprocessing.Queue between two processes, without a manager.

A Queue can only be inherited, so the producer is the parent that measures nothing and the consumer its child:
the pair runs inside one peer (`Consumer`), and the `Producer` peer only waits.
"""

from __future__ import annotations

import multiprocessing
import time
from typing import Any

from bench.harness import pin

MODES = {"one", "view"}
FIRST = "producer"


def _feed(queue: Any, payloads: list[bytes], count: int) -> None:
    pin(0)
    for i in range(count):
        queue.put(payloads[i % len(payloads)])
    queue.close()
    queue.join_thread()


class Producer:
    def __init__(self, name: str, size: int, mode: str) -> None:
        pass

    def run(self, payloads: list[bytes], count: int, check: bool) -> None:
        pass

    def close(self) -> None:
        pass


class Consumer:
    def __init__(self, name: str, size: int, mode: str) -> None:
        self.queue = multiprocessing.get_context("spawn").Queue(maxsize=4096 if size <= 4096 else 16)

    def run(self, payloads: list[bytes], count: int, check: bool) -> float:
        context = multiprocessing.get_context("spawn")
        feeder = context.Process(target=_feed, args=(self.queue, payloads, count))
        feeder.start()
        get = self.queue.get
        first = get()
        started = time.perf_counter()
        if check:
            for i in range(1, count):
                if get() != payloads[i % len(payloads)] or first != payloads[0]:
                    raise SystemExit(f"frame {i} is not what was sent")
        else:
            for _ in range(count - 1):
                get()
        elapsed = time.perf_counter() - started
        feeder.join()
        return elapsed

    def close(self) -> None:
        self.queue.close()

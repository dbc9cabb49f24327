"""ringbuf read by `try_read` in a loop, as the rivals are, instead of by `for frame in consumer`."""

from __future__ import annotations

from bench import ours
from bench.ours import Producer
from bench.rivals import looping

__all__ = ["FIRST", "MODES", "Consumer", "Producer"]

MODES = {"one"}
FIRST = ours.FIRST


class Consumer(ours.Consumer):
    def _run_one(self, count: int) -> float:
        return looping.receive_each(self.ring.try_read, count)

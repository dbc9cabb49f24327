"""cloudtoid-interprocess: a shared-memory byte queue; its receiver always copies."""

from __future__ import annotations

from cloudtoid_interprocess import Publisher, Subscriber

from bench.rivals import looping

MODES = {"one", "many", "view"}
FIRST = "consumer"
BATCH = 64


def _capacity(size: int) -> int:
    return max(1 << 20, 8 * size)


class Producer:
    def __init__(self, name: str, size: int, mode: str) -> None:
        self.mode = mode
        self.queue = Publisher(name, _capacity(size), "/dev/shm")

    def run(self, payloads: list[bytes], count: int, check: bool) -> None:
        if self.mode == "many":
            looping.send_batches(self.queue.try_send_batch, payloads, count, BATCH)
        else:
            looping.send_each(self.queue.try_send, payloads, count)

    def close(self) -> None:
        self.queue.close()


class Consumer:
    def __init__(self, name: str, size: int, mode: str) -> None:
        self.queue = Subscriber(name, _capacity(size), "/dev/shm")

    def run(self, payloads: list[bytes], count: int, check: bool) -> float:
        receive = self.queue.try_receive
        return looping.check_each(receive, payloads, count) if check else looping.receive_each(receive, count)

    def close(self) -> None:
        self.queue.close()

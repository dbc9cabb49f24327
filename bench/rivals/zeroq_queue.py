"""zeroq: a queue of fixed-size elements in shared memory; put and get wait inside."""

from __future__ import annotations

from zeroq import Queue

from bench.rivals import looping

MODES = {"one", "view"}
FIRST = "producer"


class Producer:
    def __init__(self, name: str, size: int, mode: str) -> None:
        self.queue = Queue(name=name, element_size=size, capacity=8192 if size <= 4096 else 8, create=True)

    def run(self, payloads: list[bytes], count: int, check: bool) -> None:
        put = self.queue.put
        looping.send_each(lambda payload: put(payload) is None, payloads, count)

    def close(self) -> None:
        pass


class Consumer:
    def __init__(self, name: str, size: int, mode: str) -> None:
        self.queue = Queue(name=name, create=False)

    def run(self, payloads: list[bytes], count: int, check: bool) -> float:
        get = self.queue.get
        return looping.check_each(get, payloads, count) if check else looping.receive_each(get, count)

    def close(self) -> None:
        pass

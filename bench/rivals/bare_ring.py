"""A ring in pure Python with nothing on: the prototype that the Python body is measured against.

One producer, one consumer, both spinning. No leases, counters, liveness, recovery, validation, second
consumer or waiting: what is left is the arithmetic, the copy and the stores. It uses what paid off when the
cost of each step was measured: closures over private state, items of memoryviews for words, mmap slices for
bytes, offsets below 2**30, the other side's position kept until it does not suffice. A batch is one record:
a column of lengths and the payloads joined.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.harness import SharedFile
from bench.rivals import looping

MODES = {"one", "many"}
FIRST = "producer"
BATCH = 64
CAPACITY = 1 << 20
PAGE = 4096
PAD = 0xFFFF_FFFF


class _End:
    def __init__(self, name: str, size: int, mode: str, create: bool) -> None:
        self.mode = mode
        self.shm = SharedFile(name, PAGE + CAPACITY, create)
        self.positions = self.shm.buf.cast("Q")  # item 0 the producer's position, item 64 the consumer's

    def close(self) -> None:
        self.positions.release()
        self.shm.close()


def make_send(shm: SharedFile, positions: Any) -> Callable[[bytes], bool]:
    """try_send(payload) -> bool, of one producer."""
    data, lengths = shm.map, shm.buf.cast("I")
    position, offset, free = 0, PAGE, CAPACITY
    end_of_data = PAGE + CAPACITY

    def try_send(payload: bytes) -> bool:
        nonlocal position, offset, free
        nbytes = len(payload)
        step = nbytes + 15 & -8
        if step > free or offset + step > end_of_data:
            free = CAPACITY - (position - positions[64])
            gap = end_of_data - offset
            if gap < step:
                if gap + step > free:
                    return False
                if gap:
                    lengths[offset >> 2] = PAD
                position += gap
                free -= gap
                offset = PAGE
            elif step > free:
                return False
        at = offset >> 2
        lengths[at] = nbytes
        lengths[at + 1] = 1
        at = offset + 8
        data[at : at + nbytes] = payload
        offset += step
        position += step
        free -= step
        positions[0] = position
        return True

    return try_send


def make_receive(shm: SharedFile, positions: Any) -> Callable[[], tuple[int, bytes] | None]:
    """try_receive() -> (tag, bytes) or None, of one consumer."""
    data, lengths = shm.map, shm.buf.cast("I")
    position, offset, ready = 0, PAGE, 0
    end_of_data = PAGE + CAPACITY

    def try_receive() -> tuple[int, bytes] | None:
        nonlocal position, offset, ready
        if position == ready:
            ready = positions[0]
            if position == ready:
                return None
        if offset == end_of_data:
            offset = PAGE
        at = offset >> 2
        nbytes = lengths[at]
        if nbytes == PAD:
            position += end_of_data - offset
            offset = PAGE
            at = offset >> 2
            nbytes = lengths[at]
        tag = lengths[at + 1]
        at = offset + 8
        payload = data[at : at + nbytes]
        step = nbytes + 15 & -8
        offset += step
        position += step
        positions[64] = position
        return tag, payload

    return try_receive


class Producer(_End):
    def __init__(self, name: str, size: int, mode: str) -> None:
        super().__init__(name, size, mode, create=True)

    def run(self, payloads: list[bytes], count: int, check: bool) -> None:
        send = make_send(self.shm, self.positions)
        if self.mode == "one":
            looping.send_each(send, payloads, count)
            return

        def send_many(frames: list[bytes]) -> int:
            joined = b"".join(frames)
            column = b"".join([len(frame).to_bytes(4, "little") for frame in frames])
            return len(frames) if send(len(frames).to_bytes(4, "little") + column + joined) else 0

        looping.send_batches(send_many, payloads, count, BATCH)


class Consumer(_End):
    def __init__(self, name: str, size: int, mode: str) -> None:
        super().__init__(name, size, mode, create=False)

    def run(self, payloads: list[bytes], count: int, check: bool) -> float:
        receive = make_receive(self.shm, self.positions)
        if self.mode == "one":
            if check:
                return looping.check_each(lambda: (receive() or (0, None))[1], payloads, count)
            return looping.receive_each(receive, count)

        def receive_many() -> list[bytes]:
            got = receive()
            if got is None:
                return []
            record = memoryview(got[1])
            frames = int.from_bytes(record[:4], "little")
            at = 4 + 4 * frames
            taken, whole = [], got[1]
            for nbytes in record[4:at].cast("I").tolist():
                taken.append(whole[at : at + nbytes])
                at += nbytes
            return taken

        if check:
            return looping.check_batches(receive_many, payloads, count)
        return looping.receive_batches(receive_many, count)

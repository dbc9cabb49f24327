"""The loop that most rivals share: one send or receive per frame, spinning while the answer is 'not now'."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import repeat


def send_each(try_send: Callable[[bytes], object], payloads: list[bytes], count: int) -> None:
    """Send `count` frames, cycling the payloads; `try_send` answers something false when full."""
    done, n = 0, len(payloads)
    while done < count:
        for payload in payloads[: min(n, count - done)]:
            while not try_send(payload):
                pass
        done += n


def receive_each(try_receive: Callable[[], object], count: int) -> float:
    """Receive `count` frames; seconds from the first to the last. `try_receive` answers None when empty."""
    while try_receive() is None:
        pass
    started = time.perf_counter()
    # Counted without arithmetic in Python, which would cost as much as a fast ring's whole read.
    for _ in repeat(None, count - 1):
        while try_receive() is None:
            pass
    return time.perf_counter() - started


def check_each(
    try_receive: Callable[[], bytes | memoryview | None], payloads: list[bytes], count: int
) -> float:
    """Receive `count` frames and compare each with what was sent."""
    started = time.perf_counter()
    for i in range(count):
        while (frame := try_receive()) is None:
            pass
        if bytes(frame) != payloads[i % len(payloads)]:
            raise SystemExit(f"frame {i} is not what was sent")
    return time.perf_counter() - started


def send_batches(
    send_many: Callable[[list[bytes]], int], payloads: list[bytes], count: int, batch: int
) -> None:
    """Send `count` frames in lists of `batch`; `send_many` answers how many it took."""
    n = len(payloads)
    frames = [payloads[i % n] for i in range(n * batch)]
    batches = [frames[i : i + batch] for i in range(0, len(frames), batch)]
    done = 0
    while done < count:
        for whole in batches:
            rest = whole[: count - done]
            done += len(rest)
            while rest:
                rest = rest[send_many(rest) :]
            if done >= count:
                return


def receive_batches(receive_many: Callable[[], list[bytes]], count: int) -> float:
    """Receive `count` frames in lists; seconds from the first list to the last."""
    while not (frames := receive_many()):
        pass
    got = len(frames)
    started = time.perf_counter()
    while got < count:
        got += len(receive_many())
    return time.perf_counter() - started


def check_batches(receive_many: Callable[[], list[bytes]], payloads: list[bytes], count: int) -> float:
    """Receive `count` frames in lists and compare each with what was sent."""
    started = time.perf_counter()
    i = 0
    while i < count:
        for frame in receive_many():
            if bytes(frame) != payloads[i % len(payloads)]:
                raise SystemExit(f"frame {i} is not what was sent")
            i += 1
    return time.perf_counter() - started

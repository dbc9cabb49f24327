"""What does handing over one item cost, and how long does a waiting reader sleep on?

Cost rows: `try_send` into a channel with room, into a full one (merging), of the terminal item; taking items
and merged ones back; one asyncio item there and back; a channel made and dropped. Best and median of all
rounds, in ns per call, the loop around the call included (its own row: an empty method). Goal: `try_send`
at most 300 ns. `asyncio.Queue.put_nowait` and `queue.SimpleQueue.put` stand beside it, and a bare lock, which
is what a simpler channel would pay on top.

Wake rows: from `try_send` in one thread to the reader running in another, every 2 ms, in us.

    python -m bench.sinks [--smoke] [--rounds N]

It would lie if the reader were never behind (the full rows) or always was (the wake rows).
"""

from __future__ import annotations

import argparse
import asyncio
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import uvloop

from bench import harness
from egress.stream import ChannelSink, ChannelSource, channel
from egress.stream.item import Done, EgressItem, Frame
from egress.testing import check_sink
from egress.wire import ChunkEvent, Stop

GOAL_NS = 300
FRAME = Frame(ChunkEvent.make("r", [7], text="word"))
DONE = Done(ChunkEvent.make("r", [7], Stop(), text="word"))


class Nothing:
    def try_send(self, item: EgressItem) -> None:
        """Do nothing, as a method with one argument does it."""


def clock(call: Callable[[Any], Any], argument: Any, count: int) -> float:
    start = time.perf_counter_ns()
    for _ in range(count):
        call(argument)
    return (time.perf_counter_ns() - start) / count


def send(count: int, capacity: int) -> float:
    sink, _source = channel(capacity, max_tokens=count + 1)
    return clock(sink.try_send, FRAME, count)


def send_and_take(count: int) -> float:
    """64 sent, 64 taken, as a reader that keeps up sees them."""
    sink, source = channel()
    try_send, try_recv = sink.try_send, source.try_recv
    start = time.perf_counter_ns()
    for _ in range(count // 64):
        for _ in range(64):
            try_send(FRAME)
        while try_recv() is not None:
            pass
    return (time.perf_counter_ns() - start) / (count // 64 * 64)


def send_last(count: int) -> float:
    ends = [channel() for _ in range(count)]
    start = time.perf_counter_ns()
    for sink, _ in ends:
        sink.try_send(DONE)
    return (time.perf_counter_ns() - start) / count


def take(count: int, capacity: int) -> float:
    sink, source = channel(capacity, max_tokens=count + 1)
    for _ in range(count):
        sink.try_send(FRAME)
    start, tokens = time.perf_counter_ns(), 0
    while (item := source.try_recv()) is not None:
        tokens += item.event.n_tokens if isinstance(item, Frame) else 0
    elapsed = time.perf_counter_ns() - start
    assert tokens == count
    return elapsed / count


def there_and_back(count: int) -> float:
    async def body() -> float:
        sink, source = channel()

        async def read() -> None:
            async for _ in source:
                pass

        reader = asyncio.ensure_future(read())
        start = time.perf_counter_ns()
        for _ in range(count):
            sink.try_send(FRAME)
            await asyncio.sleep(0)
        sink.try_send(DONE)
        await reader
        return (time.perf_counter_ns() - start) / count

    return asyncio.run(body())


def make(count: int) -> float:
    return clock(lambda _: channel(), None, count)


def bare_lock(count: int) -> float:
    lock = threading.Lock()

    def locked(_: Any) -> None:
        with lock:
            pass

    return clock(locked, None, count)


COSTS: dict[str, Callable[[int], float]] = {
    "empty method": lambda count: clock(Nothing().try_send, FRAME, count),
    "try_send": lambda count: send(count, count + 1),
    "try_send, 64 sent then 64 taken: both": send_and_take,
    "try_send into a full channel": lambda count: send(count, 1),
    "try_send of the terminal item": send_last,
    "try_recv": lambda count: take(count, count + 1),
    "try_recv of one merged frame, per event": lambda count: take(count, 1),
    "asyncio: sent, woken, received": there_and_back,
    "channel made and dropped": make,
    "asyncio.Queue.put_nowait": lambda count: clock(asyncio.Queue().put_nowait, FRAME, count),
    "queue.SimpleQueue.put": lambda count: clock(queue.SimpleQueue().put, FRAME, count),
    "a function that takes a bare lock": bare_lock,
}


def feed(sink: ChannelSink, stamps: list[int], count: int) -> None:
    for _ in range(count):
        time.sleep(0.002)
        stamps.append(time.perf_counter_ns())
        sink.try_send(FRAME)
    sink.try_send(DONE)


def wake_of_a_task(count: int, make_loop: Callable[[], asyncio.AbstractEventLoop]) -> list[float]:
    async def body(source: ChannelSource) -> list[float]:
        return [(time.perf_counter_ns() - stamps[at]) / 1e3 async for at in numbered(source) if at < count]

    async def numbered(source: ChannelSource) -> Any:
        at = 0
        async for _ in source:
            yield at
            at += 1

    sink, source = channel()
    stamps: list[int] = []
    feeder = threading.Thread(target=feed, args=(sink, stamps, count))
    with asyncio.Runner(loop_factory=make_loop) as runner:
        feeder.start()
        latencies = runner.run(body(source))
    feeder.join()
    return latencies


def wake_of_a_thread(count: int) -> list[float]:
    sink, source = channel()
    stamps: list[int] = []
    feeder = threading.Thread(target=feed, args=(sink, stamps, count))
    feeder.start()
    latencies = []
    for at in range(count):
        source.recv_sync(timeout=10)
        latencies.append((time.perf_counter_ns() - stamps[at]) / 1e3)
    feeder.join()
    return latencies


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--smoke", action="store_true", help="tiny counts: does it run at all")
    parser.add_argument("--rounds", type=int, default=60)
    args = parser.parse_args()
    rounds, count, wakes = (2, 128, 5) if args.smoke else (args.rounds, 2048, 500)
    check_sink(channel)

    samples: dict[str, list[float]] = {name: [] for name in COSTS}
    for _ in range(rounds):
        for name, cost in COSTS.items():
            samples[name].append(cost(count))
    best = {name: round(min(values)) for name, values in samples.items()}
    table = [
        (name, best[name], round(harness.median(values)), f"<= {GOAL_NS}" if name == "try_send" else "")
        for name, values in samples.items()
    ]
    print(harness.table(("call", "ns, best", "ns, median", "goal"), table))

    waits = {
        "thread": wake_of_a_thread(wakes),
        "asyncio task": wake_of_a_task(wakes, asyncio.new_event_loop),
        "uvloop task": wake_of_a_task(wakes, uvloop.new_event_loop),
    }
    wake_us = {
        name: {q: round(harness.percentile(values, q), 1) for q in (50, 99)} for name, values in waits.items()
    }
    print(
        harness.table(("woken", "p50 us", "p99 us"), [(name, us[50], us[99]) for name, us in wake_us.items()])
    )
    harness.emit("sinks", {"smoke": args.smoke, "best_ns": best, "wake_us": wake_us, "goal_ns": GOAL_NS})


if __name__ == "__main__":
    main()

"""Two threads at either end of channels of every small size, switching as often as they can: nothing is lost.

    python tests/stress/stress_channel.py [--seed N] [--seconds S]

Each round draws the bounds, how the reader waits (look, thread, task), how each side dawdles, and whether
the sink ends with Done, closes, or is dropped. What was accepted must arrive, in order, then the right end.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import threading
import time

from egress.errors import SinkFull, Truncated
from egress.stream import ChannelSink, ChannelSource, channel
from egress.stream.item import Done, Frame
from egress.wire import ChunkEvent, Stop

ENDS = ("done", "close", "drop")
READERS = ("look", "thread", "task")


def send(holder: list[ChannelSink], count: int, end: str, rng: random.Random, accepted: list[int]) -> None:
    sink = holder.pop()
    pause = rng.choice([0.0, 0.001, 0.01])
    for number in range(count):
        while True:
            try:
                sink.try_send(Frame(ChunkEvent.make("a", [number] * rng.randrange(3), text=f"{number},")))
                accepted.append(number)
                break
            except SinkFull:
                time.sleep(0)
        if rng.random() < pause:
            time.sleep(0.0001)
    if end == "done":
        sink.try_send(Done(ChunkEvent.make("a", [], Stop())))
    elif end == "close":
        sink.close()


async def read_in_a_task(source: ChannelSource, got: list[str], rng: random.Random) -> str:
    while True:
        waiting = asyncio.ensure_future(source.recv())
        if rng.random() < 0.1:
            await asyncio.sleep(0)
            waiting.cancel()
        try:
            item = await waiting
        except asyncio.CancelledError:
            continue
        except Truncated:
            return "truncated"
        assert isinstance(item, Frame | Done)
        got.append(item.event.text)
        if item.is_terminal:
            return "done"


def read_in_a_thread(source: ChannelSource, got: list[str], look: bool, rng: random.Random) -> str:
    while True:
        try:
            item = (source.try_recv() if look else None) or source.recv_sync(
                timeout=rng.choice([0, 0.0001, 30])
            )
        except TimeoutError:
            continue
        except Truncated:
            return "truncated"
        assert isinstance(item, Frame | Done)
        got.append(item.event.text)
        if item.is_terminal:
            return "done"


def one_round(rng: random.Random) -> int:
    capacity, count = rng.choice([1, 1, 2, 3, 64]), rng.choice([1, 10, 1000])
    end, reader = rng.choice(ENDS), rng.choice(READERS)
    sink, source = channel(capacity, max_tokens=rng.choice([1, 4, 64, 4096]))
    accepted: list[int] = []
    got: list[str] = []
    holder = [sink]
    del sink
    seed = rng.getrandbits(64)
    sender = threading.Thread(target=send, args=(holder, count, end, random.Random(seed), accepted))
    sender.start()
    if reader == "task":
        ended = asyncio.run(asyncio.wait_for(read_in_a_task(source, got, rng), 60))
    else:
        ended = read_in_a_thread(source, got, reader == "look", rng)
    sender.join()
    assert "".join(got) == "".join(f"{number}," for number in accepted), "lost, doubled or out of order"
    assert ended == ("done" if end == "done" else "truncated"), f"{ended} after {end}"
    assert source.n_waiting_tokens == 0
    assert not source._channel.wakers
    return count


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=30)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    sys.setswitchinterval(1e-6)
    deadline, rounds, items = time.monotonic() + args.seconds, 0, 0
    while time.monotonic() < deadline:
        try:
            items += one_round(rng)
        except BaseException:
            print(f"seed {args.seed}, round {rounds}", file=sys.stderr)
            raise
        rounds += 1
    print(f"seed {args.seed}: {rounds} channels, {items} frames, nothing lost")


if __name__ == "__main__":
    main()

"""Cost grows with bytes, not with history: rates across capacities, and across rings open in one process.

Unit: frames/s of 64 B and of 64 KiB views for capacities 1 MiB to 256 MiB; ns per write and read with 1 to
500 rings, both ends of each, open in one process under a descriptor limit of 1,024.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import time

import ringbuf
from bench import harness

CAPACITIES_MIB = (1, 4, 16, 64, 256)
# Each with both ends in this process, and every end keeps one descriptor.
OPEN_RINGS = (1, 10, 100, 500)


def across_capacities(capacity: int, size: int, count: int) -> float:
    """Frames per second of one write and one read in turn, over a ring of `capacity` bytes."""
    name = f"bench{os.getpid()}-{os.urandom(3).hex()}"
    payload = bytes(size)
    with ringbuf.create(name, capacity=capacity, slots=1) as producer, ringbuf.attach(name) as consumer:
        try_write, try_read = producer.try_write, consumer.try_read
        started = time.perf_counter()
        for _ in range(count):
            try_write(1, payload)
            frame = try_read()
            assert frame is not None
            frame.release()
        elapsed = time.perf_counter() - started
        assert ringbuf.inspect(name).frames == count
        return count / elapsed


def across_rings(n: int, rounds: int) -> float:
    """ns per write plus read, one frame through each of n open rings in turn."""
    stem = f"bench{os.getpid()}-{os.urandom(3).hex()}"
    pairs: list[tuple[ringbuf.Producer, ringbuf.Consumer]] = []
    with contextlib.ExitStack() as opened:
        for i in range(n):
            name = f"{stem}-{i}"
            producer = opened.enter_context(ringbuf.create(name, capacity=1 << 14, slots=1))
            pairs.append((producer, opened.enter_context(ringbuf.attach(name))))
        got = 0
        started = time.perf_counter()
        for _ in range(rounds):
            for producer, consumer in pairs:
                producer.try_write(1, b"x" * 8)
                got += consumer.try_read() is not None
        elapsed = time.perf_counter() - started
        assert got == rounds * n
        return elapsed / got * 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--smoke", action="store_true")
    args = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    rounds = 1 if args.smoke else args.rounds
    results: dict[str, dict[str, float]] = {}
    for label, size, count in (("64 B", 64, 200_000), ("64 KiB", 1 << 16, 20_000)):
        count = 200 if args.smoke else count
        cases = {
            f"{mib} MiB": lambda c=mib << 20, s=size, n=count: across_capacities(c, s, n)
            for mib in CAPACITIES_MIB
        }
        results[label] = {k: harness.median(v) for k, v in harness.interleave(cases, rounds).items()}
        print(f"\n{label} frames/s by capacity, one process ({ringbuf.__impl__})")
        print(
            harness.table(["capacity", "frames/s"], [(k, harness.rate(v)) for k, v in results[label].items()])
        )
    cases = {
        f"{n} rings": lambda n=n: across_rings(n, 2 if args.smoke else max(10, 20_000 // n))
        for n in OPEN_RINGS
    }
    results["open rings"] = {k: harness.median(v) for k, v in harness.interleave(cases, rounds).items()}
    print("\nns per write and read with n rings open, limit 1,024 descriptors")
    print(harness.table(["open", "ns"], [(k, f"{v:.0f}") for k, v in results["open rings"].items()]))
    harness.emit("ring_scaling", {"smoke": args.smoke, "impl": ringbuf.__impl__, "results": results})


if __name__ == "__main__":
    main()

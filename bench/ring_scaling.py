"""Cost grows with bytes, not with history: rates across capacities, and across rings open in one process.

Unit: frames/s of 64 B and of 64 KiB views for capacities 1 MiB to 256 MiB, on rings written all over before;
ns per read with 1 to 1,000 rings attached in one process under a descriptor limit of 1,024, their producers
in another. What would make it lie: a cache that holds one capacity and not the next. So bare copies through
as much memory are measured in the same rounds, and 64 KiB frames, which are little else, are held against
them.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import resource
import time
from functools import partial
from multiprocessing.connection import Connection

import ringbuf
from bench import harness

CAPACITIES_MIB = (1, 4, 16, 64, 256)
# Every end keeps one descriptor, and an interpreter a few more.
OPEN_RINGS = (1, 10, 100, 1000)
FRAMES_WAITING = 8


def across_capacities(capacity: int, size: int, count: int) -> float:
    """Frames per second of one write and one read in turn, over a ring of `capacity` bytes."""
    name = f"bench{os.getpid()}-{os.urandom(3).hex()}"
    payload = bytes(size)
    with ringbuf.create(name, capacity=capacity, slots=1) as producer, ringbuf.attach(name) as consumer:
        try_write, try_read = producer.try_write, consumer.try_read
        # Once around with large frames: what is measured is no first touch of a page.
        large = bytes(1 << 16)
        laps = capacity // len(large) + 1
        for _ in range(laps):
            try_write(1, large)
            try_read()
        started = time.perf_counter()
        for _ in range(count):
            try_write(1, payload)
            frame = try_read()
            assert frame is not None
            frame.release()
        elapsed = time.perf_counter() - started
        assert ringbuf.inspect(name).frames == count + laps
        return count / elapsed


def bare_copies(capacity: int, size: int, count: int) -> float:
    """Copies per second of `size` bytes through `capacity` bytes of shared memory, with no ring."""
    shared = harness.SharedFile(f"bench{os.getpid()}-{os.urandom(3).hex()}", capacity, create=True)
    payload, view, at = bytes(size), shared.buf, 0
    for start in range(0, capacity, 4096):
        view[start] = 1
    started = time.perf_counter()
    for _ in range(count):
        if at + size > capacity:
            at = 0
        view[at : at + size] = payload
        at += size
    elapsed = time.perf_counter() - started
    del view
    shared.close()
    return count / elapsed


def write_all(stem: str, n: int, link: Connection) -> None:
    """The producing process: n rings, and FRAMES_WAITING frames into each whenever asked."""
    with contextlib.ExitStack() as opened:
        producers = [
            opened.enter_context(ringbuf.create(f"{stem}-{i}", capacity=1 << 14, slots=1)) for i in range(n)
        ]
        link.send(n)
        while link.recv():
            for producer in producers:
                for _ in range(FRAMES_WAITING):
                    assert producer.try_write(1, b"x" * 8)
            link.send(n)


def across_rings(n: int, rounds: int) -> float:
    """ns per read, FRAMES_WAITING frames out of each of n attached rings in turn, as a worker drains them."""
    stem = f"bench{os.getpid()}-{os.urandom(3).hex()}"
    context = multiprocessing.get_context("fork")
    link, theirs = context.Pipe()
    writer = context.Process(target=write_all, args=(stem, n, theirs), daemon=True)
    writer.start()
    spent = got = 0
    try:
        with contextlib.ExitStack() as opened:
            link.recv()
            reads = [opened.enter_context(ringbuf.attach(f"{stem}-{i}")).try_read for i in range(n)]
            for _ in range(rounds + 1):
                link.send(True)
                link.recv()
                started = time.perf_counter_ns()
                found = 0
                for try_read in reads:
                    while try_read() is not None:
                        found += 1
                elapsed = time.perf_counter_ns() - started
                assert found == n * FRAMES_WAITING
                # The first round touches each mapping for the first time.
                if got:
                    spent += elapsed
                got += found
            link.send(False)
        return spent / (got - n * FRAMES_WAITING)
    finally:
        writer.join(20)
        writer.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--smoke", action="store_true")
    args = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    rounds = 1 if args.smoke else args.rounds
    results: dict[str, dict[str, float]] = {}
    samples: dict[str, dict[str, list[float]]] = {}
    for label, size, count in (("64 B", 64, 200_000), ("64 KiB", 1 << 16, 20_000)):
        count = 200 if args.smoke else count
        cases = {}
        for mib in CAPACITIES_MIB:
            cases[f"{mib} MiB"] = partial(across_capacities, mib << 20, size, count)
            cases[f"bare {mib} MiB"] = partial(bare_copies, mib << 20, size, count)
        measured = harness.interleave(cases, rounds)
        bare = f"{label}, bare copies"
        samples[label] = {k: v for k, v in measured.items() if not k.startswith("bare")}
        samples[bare] = {k[5:]: v for k, v in measured.items() if k.startswith("bare")}
        for kind in (label, bare):
            results[kind] = {k: harness.median(v) for k, v in samples[kind].items()}
        print(f"\n{label} frames/s by capacity, one process ({ringbuf.__impl__})")
        rows = [(k, harness.rate(v), harness.rate(results[bare][k])) for k, v in results[label].items()]
        print(harness.table(["capacity", "frames/s", "bare copies/s"], rows))
    cases = {
        f"{n} rings": partial(across_rings, n, 2 if args.smoke else max(4, 4_000 // n)) for n in OPEN_RINGS
    }
    samples["open rings"] = harness.interleave(cases, rounds)
    results["open rings"] = {k: harness.median(v) for k, v in samples["open rings"].items()}
    print("\nns per read with n rings attached, limit 1,024 descriptors")
    print(harness.table(["open", "ns"], [(k, f"{v:.0f}") for k, v in results["open rings"].items()]))
    harness.emit(
        "ring_scaling",
        {"smoke": args.smoke, "impl": ringbuf.__impl__, "results": results, "rounds": samples},
    )


if __name__ == "__main__":
    main()

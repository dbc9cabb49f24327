"""What one read costs by payload size and body: a private copy up to COPY_LIMIT, a lease above it.

Unit: ns per read, with a view of the payload taken and dropped. A view costs the same whatever it shows; the
limit is well placed when the step from the last copied size to the first leased one is small. Each body runs
in processes of its own, in turns.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from typing import Any

import ringbuf
from bench import harness
from ringbuf._ops import COPY_LIMIT

SIZES = (64, 256, 512, 1024, 1032, 2048, 4096, 8192, 8200, 1 << 14, 1 << 16)
BODIES = ("c", "python")
# Beyond one lap of the largest batch, and small enough that the whole of it stays mapped and touched.
CAPACITY = 1 << 22


def read_cost(size: int, count: int) -> float:
    """ns to read one frame of `size` bytes, take its payload and drop both; the writes are not counted."""
    name = f"bench{os.getpid()}-{os.urandom(3).hex()}"
    payloads = harness.payloads_for(size)
    batch = 16
    spent = 0
    with ringbuf.create(name, capacity=CAPACITY, slots=1) as producer, ringbuf.attach(name) as consumer:
        for payload in payloads:
            producer.write(1, payload)
            assert consumer.read(timeout=1.0).payload == payload
        try_read = consumer.try_read
        for _ in range(count // batch):
            assert producer.write_many([(1, payloads[0])] * batch) == batch
            started = time.perf_counter_ns()
            for _ in range(batch):
                frame = try_read()
                frame.payload  # type: ignore[union-attr]  # noqa: B018 - the view is what a reader takes
                del frame
            spent += time.perf_counter_ns() - started
    return spent / (count // batch * batch)


def in_body(impl: str, count: int) -> dict[str, Any]:
    """What one process with that body of the ring measured; raises RuntimeError where it does not run."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.frame_read", "--peer", str(count)],
        cwd=harness.ROOT,
        env={**os.environ, "RINGBUF_IMPL": impl},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the {impl} body does not run here")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--smoke", action="store_true", help="tiny counts: does it run at all")
    parser.add_argument("--peer", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peer:
        harness.pin(1)
        ns = {size: read_cost(size, args.peer) for size in SIZES}
        print(json.dumps({"copy_limit": COPY_LIMIT, "ns": ns}))
        return
    rounds, count = (1, 64) if args.smoke else (args.rounds, 4000)
    samples: dict[str, dict[str, list[float]]] = {}
    limits: dict[str, int] = {}
    for _ in range(rounds):
        for impl in BODIES:
            try:
                answer = in_body(impl, count)
            except RuntimeError as error:
                print(f"left out: {error}")
                continue
            limits[impl] = answer["copy_limit"]
            for size, ns in answer["ns"].items():
                samples.setdefault(impl, {}).setdefault(size, []).append(ns)
    cost = {
        impl: {size: harness.median(ns) for size, ns in by_size.items()} for impl, by_size in samples.items()
    }
    print("ns per read, the payload as a copy or as a view (lease)")
    rows = [
        (
            size,
            *(
                f"{ns[str(size)]:.0f}, {'copy' if size <= limits[impl] else 'view'}"
                for impl, ns in cost.items()
            ),
        )
        for size in SIZES
    ]
    print(harness.table(["payload bytes", *cost], rows))
    harness.emit("frame_read", {"smoke": args.smoke, "copy_limit": limits, "ns": cost, "rounds": samples})


if __name__ == "__main__":
    main()

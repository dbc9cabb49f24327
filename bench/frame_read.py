"""What one read costs by payload size: a private copy up to COPY_LIMIT, a lease above it.

Unit: ns per read, with a view of the payload taken and dropped. The limit is well placed when the step from
the last copied size to the first leased one is small. Either body: RINGBUF_IMPL=c or python.
"""

from __future__ import annotations

import argparse
import os
import time

import ringbuf
from bench import harness
from ringbuf._ops import COPY_LIMIT

SIZES = (64, 256, 512, 1016, 1024, 1032, 2048, 4088, 4096, 4104, 8192, 16384)


def read_cost(size: int, count: int) -> float:
    """ns to read one frame of `size` bytes, take its payload and drop both; the writes are not counted."""
    name = f"bench{os.getpid()}-{os.urandom(3).hex()}"
    payloads = harness.payloads_for(size)
    batch = 16
    spent = 0
    with ringbuf.create(name, capacity=1 << 20, slots=1) as producer, ringbuf.attach(name) as consumer:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--smoke", action="store_true", help="tiny counts: does it run at all")
    args = parser.parse_args()
    rounds, count = (1, 64) if args.smoke else (args.rounds, 8000)
    cases = {str(size): lambda size=size: read_cost(size, count) for size in SIZES}
    cost = {int(size): harness.median(values) for size, values in harness.interleave(cases, rounds).items()}
    print(f"ns per read, body {ringbuf.__impl__}, copies up to {COPY_LIMIT} bytes")
    rows = [(size, "copy" if size <= COPY_LIMIT else "lease", f"{ns:.0f}") for size, ns in cost.items()]
    print(harness.table(["payload bytes", "handed out as", "ns"], rows))
    harness.emit(
        "frame_read",
        {"smoke": args.smoke, "impl": ringbuf.__impl__, "copy_limit": COPY_LIMIT, "ns": cost},
    )


if __name__ == "__main__":
    main()

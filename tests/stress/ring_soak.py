"""Gigabytes through a small ring with checksums: nothing lost, memory and descriptors flat.

A producer process writes numbered frames of every size, most of them large, each with its checksum; this
process reads them as leases and copies, checks each, and looks at the memory, mappings and descriptors of
both from time to time: after the first look nothing may grow. --seconds bounds it; a minute is some ten GiB.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import struct
import sys
import time
import zlib

import ringbuf
from tests.stress._kit import arguments, hold, spawn

CAPACITY = 1 << 20
HEAD = struct.Struct("=QII")
# What the allocator may keep or give back between two looks.
SLACK_KIB = 8192


def write_all(name: str, seed: int, seconds: float) -> None:
    rng = random.Random(seed)
    with ringbuf.create(name, CAPACITY, 2) as producer:
        limit = producer.max_payload - HEAD.size
        bodies = [rng.randbytes(size) for size in (0, 1, 7, 100, 4000, 5000, 70_000, 200_000, limit, limit)]
        checksums = [zlib.crc32(body) for body in bodies]
        deadline = time.monotonic() + seconds
        for number in itertools.count():
            which = rng.randrange(len(bodies))
            head = HEAD.pack(number, which, checksums[which])
            producer.write(1 + which, [head, bodies[which]], timeout=60, align_at=HEAD.size)
            if not number % 64 and time.monotonic() > deadline:
                return


def footprint(pid: int) -> tuple[int, int, int]:
    """Private memory in KiB, mappings, descriptors."""
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
        private = sum(int(line.split()[1]) for line in file if line.startswith(("Private_", "Swap:")))
    with open(f"/proc/{pid}/maps", encoding="ascii") as file:
        maps = sum(1 for _ in file)
    return private, maps, len(os.listdir(f"/proc/{pid}/fd"))


def main() -> None:
    args = arguments(__doc__)
    name = f"soak-{os.getpid()}"
    child = spawn(lambda: write_all(name, args.seed, args.seconds))
    pids = {"reader": os.getpid(), "writer": child.pid}
    first: dict[str, tuple[int, int, int]] = {}
    last: dict[str, tuple[int, int, int]] = {}
    nbytes = number = 0
    started = look_at = time.monotonic()
    settled = started + min(3.0, args.seconds / 4)
    with ringbuf.attach(name, timeout=30) as consumer:
        for frame in consumer:
            payload = frame.payload
            seq, which, checksum = HEAD.unpack_from(payload)
            hold((seq, frame.seq, frame.tag) == (number, number, 1 + which), f"frame {number} is {seq}")
            hold(zlib.crc32(payload[HEAD.size :]) == checksum, f"frame {number} is torn")
            nbytes += len(payload)
            # A frame of half the ring must be gone before the next one of that size can come; enumerate()
            # would keep it.
            del payload, frame
            number += 1
            now = time.monotonic()
            if now > look_at:
                look_at = now + 1.0
                if now > settled and child.poll() is None:
                    # The writer may end in the middle of this.
                    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
                        last = {who: footprint(pid) for who, pid in pids.items()}
                        first = first or last
    hold(child.wait() == 0, "the writer failed")
    for who, (private, maps, descriptors) in last.items():
        before = first[who]
        hold(private < before[0] + SLACK_KIB, f"{who}: {before[0]} KiB became {private}")
        hold(maps <= before[1] + 2, f"{who}: {before[1]} mappings became {maps}")
        hold(descriptors <= before[2] + 1, f"{who}: {before[2]} descriptors became {descriptors}")
    seconds = time.monotonic() - started
    print(
        f"seed {args.seed}: {nbytes / 2**30:.2f} GiB in {number} frames through {CAPACITY >> 20} MiB in "
        f"{seconds:.0f} s ({ringbuf.__impl__} body), all checked; "
        + ", ".join(
            f"{who} {first[who][0]} -> {last[who][0]} KiB, {first[who][1]} -> {last[who][1]} mappings, "
            f"{first[who][2]} -> {last[who][2]} descriptors"
            for who in last
        )
    )


if __name__ == "__main__":
    sys.exit(main())

"""Frames and bytes per second against payload size, from one producer process to one consumer process.

Unit: frames/s, median of interleaved rounds; every pair of processes first compares what it received, then is
measured. One call per frame; below 4 KiB as each transport reads one frame, from there on as a view where it
has views. What would make it lie: both processes on one core, or a size that only one side's cache holds.
"""

from __future__ import annotations

import argparse
import importlib
from functools import partial

from bench import harness
from bench.plots import size_name
from bench.ring_one_to_one_throughput import chosen_transports, frames_per_s

SIZES = (0, 64, 256, 1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20)
VIEWS_FROM = 1 << 12
TRANSPORTS = "ringbuf c,ringbuf python,iceoryx2,cloudtoid,pyzmq ipc,os.pipe"
# What has no frame of no bytes: a pipe has no frames, iceoryx2's loans start at one byte.
NEVER_EMPTY = frozenset({"os.pipe", "iceoryx2"})
# About a tenth of a second of the fastest: frames where calls limit it, bytes where memory does.
MOST_FRAMES, MOST_BYTES = 400_000, 1_200_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--smoke", action="store_true", help="tiny counts, one round: does it run at all")
    parser.add_argument("--only", default="", help="comma-separated transports")
    args = parser.parse_args()
    chosen = chosen_transports(args.only or TRANSPORTS)
    cases = {}
    for size in SIZES:
        mode = "view" if size >= VIEWS_FROM else "one"
        for name, (module, env, share) in chosen.items():
            if (not size and name in NEVER_EMPTY) or mode not in importlib.import_module(module).MODES:
                continue
            frames = min(MOST_FRAMES, MOST_BYTES // max(1, size)) * share
            count = 128 if args.smoke else max(128, int(frames) // 64 * 64)
            case = partial(frames_per_s, module, env, size=size, mode=mode, count=count)
            cases[f"{name}|{size}"] = partial(case, check=False, checked=128, timeout_s=30)
    results: dict[str, dict[str, float]] = {name: {} for name in chosen}
    for label, values in harness.interleave(cases, 1 if args.smoke else args.rounds).items():
        name, size = label.split("|")
        results[name][size] = harness.median(values)
    rows = [
        (
            size_name(size),
            *(harness.rate(of[str(size)]) if str(size) in of else "-" for of in results.values()),
        )
        for size in SIZES
    ]
    print("frames/s")
    print(harness.table(["payload", *results], rows))
    harness.emit("ring_throughput_by_size", {"smoke": args.smoke, "only": args.only, "frames_per_s": results})


if __name__ == "__main__":
    main()

"""Frames per second from one producer process to one consumer process, against every rival that installs.

Unit: frames/s, median of interleaved rounds; each transport is checked frame by frame before it is measured.
What would make it lie: both processes on one core, a payload cached by the rival, a batch counted as a frame.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

from bench import harness

CASES = {  # name -> (size, mode, frames per round)
    "64 B, one call": (64, "one", 2_000_000),
    "64 B, batched": (64, "many", 6_000_000),
    "64 KiB, view": (1 << 16, "view", 60_000),
    "1 MiB, view": (1 << 20, "view", 4_000),
}
TRANSPORTS = {
    "ringbuf c": ("bench.ours", {"RINGBUF_IMPL": "c"}, 1.0),
    "ringbuf c, polled": ("bench.ours_polled", {"RINGBUF_IMPL": "c"}, 1.0),
    "ringbuf python": ("bench.ours", {"RINGBUF_IMPL": "python"}, 0.3),
    "bare python": ("bench.rivals.bare_ring", {}, 0.3),
    "subetha": ("bench.rivals.subetha_ring", {}, 0.5),
    "iceoryx2": ("bench.rivals.iceoryx", {}, 0.2),
    "cloudtoid": ("bench.rivals.cloudtoid", {}, 0.3),
    "zeroq": ("bench.rivals.zeroq_queue", {}, 0.3),
    "pyzmq ipc": ("bench.rivals.zeromq", {}, 0.05),
    "os.pipe": ("bench.rivals.os_pipe", {}, 0.15),
    "mp.Queue": ("bench.rivals.mp_queue", {}, 0.03),
    "vLLM's design": ("bench.rivals.vllm_queue", {}, 0.01),
    "plain C": ("bench.plain_c", {}, 4.0),
}


# The limit and the floor are measured beside the rivals, and are none.
NOT_RIVALS = frozenset({"ringbuf c", "ringbuf c, polled", "ringbuf python", "bare python", "plain C"})


def chosen_transports(only: str = "") -> dict[str, tuple[str, dict[str, str], float]]:
    """The transports of these comma-separated names, or all; what does not import is said and left out."""
    chosen = {}
    for name, (module, env, share) in TRANSPORTS.items():
        if only and name not in only.split(","):
            continue
        if why := harness.available(module):
            print(f"left out: {name} ({why})")
            continue
        chosen[name] = (module, env, share)
    return chosen


def frames_per_s(module: str, env: dict[str, str], **args: Any) -> float:
    """One run of one transport; `args` as `harness.run_peers` hands them to both ends."""
    first = importlib.import_module(module).FIRST
    roles = ("consumer", "producer") if first == "consumer" else ("producer", "consumer")
    answer = harness.run_peers(module, roles, args, env)
    return float(args["count"] / answer["consumer_s"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--smoke", action="store_true", help="tiny counts, one round: does it run at all")
    parser.add_argument("--only", default="", help="comma-separated transports")
    args = parser.parse_args()
    chosen = chosen_transports(args.only)
    results: dict[str, dict[str, float]] = {}
    rounds: dict[str, dict[str, list[float]]] = {}
    for case, (size, mode, frames) in CASES.items():
        runs: dict[str, Callable[[], float]] = {}
        for name, (module, env, share) in chosen.items():
            if mode not in importlib.import_module(module).MODES:
                continue
            count = max(64, int(frames * share) // 64 * 64)
            count = min(count, 640) if args.smoke else count
            one = partial(frames_per_s, module, env, size=size, mode=mode)
            try:
                one(count=min(count, 640), check=True)
            except RuntimeError as error:
                print(f"left out of {case}: {name} ({error})")
                continue
            runs[name] = partial(one, count=count, check=False)
        rounds[case] = harness.interleave(runs, 1 if args.smoke else args.rounds)
        results[case] = {name: harness.median(values) for name, values in rounds[case].items()}
        ours = rounds[case].get("ringbuf c") or rounds[case].get("ringbuf python")
        print(f"\n{case}")
        bare, body = rounds[case].get("bare python"), rounds[case].get("ringbuf python")
        if bare and body:
            print(f"the Python body is {harness.ratio(body, bare):.2f}x of a ring in Python with nothing on")
        print(
            harness.table(
                ["transport", "frames/s", "ringbuf is"],
                [
                    (n, harness.rate(v), f"{harness.ratio(ours, rounds[case][n]):.2f}x" if ours else "")
                    for n, v in sorted(results[case].items(), key=lambda r: -r[1])
                ],
            )
        )
    harness.emit(
        "ring_one_to_one_throughput",
        {"smoke": args.smoke, "only": args.only, "frames_per_s": results, "rounds": rounds},
    )


if __name__ == "__main__":
    main()

"""Frames per second from one producer process to one consumer process, against every rival that installs.

Unit: frames/s, median of interleaved rounds; each transport is checked frame by frame before it is measured.
What would make it lie: both processes on one core, a payload cached by the rival, a batch counted as a frame.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from bench import harness

CASES = {  # name -> (size, mode, frames per round)
    "64 B, one call": (64, "one", 2_000_000),
    "64 B, batched": (64, "many", 6_000_000),
    "64 KiB, view": (1 << 16, "view", 60_000),
    "1 MiB, view": (1 << 20, "view", 4_000),
}
TRANSPORTS = {
    "ringbuf c": ("bench.ours", {"RINGBUF_IMPL": "c"}, 1.0),
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--smoke", action="store_true", help="tiny counts, one round: does it run at all")
    parser.add_argument("--only", default="", help="comma-separated transports")
    args = parser.parse_args()
    chosen = {name: t for name, t in TRANSPORTS.items() if not args.only or name in args.only.split(",")}
    missing = {name: why for name, (module, _, _) in chosen.items() if (why := harness.available(module))}
    for name, why in missing.items():
        print(f"left out: {name} ({why})")
    results: dict[str, dict[str, float]] = {}
    for case, (size, mode, frames) in CASES.items():
        runs: dict[str, Callable[[], float]] = {}
        for name, (module, env, share) in chosen.items():
            if name in missing or mode not in __import__(module, fromlist=["MODES"]).MODES:
                continue
            count = max(64, int(frames * share) // 64 * 64)
            count = min(count, 640) if args.smoke else count
            roles = ("producer", "consumer")
            if __import__(module, fromlist=["FIRST"]).FIRST == "consumer":
                roles = ("consumer", "producer")

            def run(
                module: str = module,
                env: dict[str, str] = env,
                count: int = count,
                check: bool = False,
                roles: tuple[str, ...] = roles,
                size: int = size,
                mode: str = mode,
            ) -> float:
                answer = harness.run_peers(
                    module, roles, {"size": size, "mode": mode, "count": count, "check": check}, env
                )
                return count / answer["consumer_s"]

            try:
                run(count=min(count, 640), check=True)
            except RuntimeError as error:
                print(f"left out of {case}: {name} ({error})")
                continue
            runs[name] = run
        samples = harness.interleave(runs, 1 if args.smoke else args.rounds)
        results[case] = {name: harness.median(values) for name, values in samples.items()}
        reference = results[case].get("ringbuf c") or results[case].get("ringbuf python") or 1.0
        print(f"\n{case}")
        bare, body = results[case].get("bare python"), results[case].get("ringbuf python")
        if bare and body:
            print(f"the Python body is {body / bare:.2f}x of a ring in Python with nothing on")
        print(
            harness.table(
                ["transport", "frames/s", "ringbuf is"],
                [
                    (n, harness.rate(v), f"{reference / v:.2f}x")
                    for n, v in sorted(results[case].items(), key=lambda r: -r[1])
                ],
            )
        )
    harness.emit("ring_one_to_one_throughput", {"smoke": args.smoke, "frames_per_s": results})


if __name__ == "__main__":
    main()

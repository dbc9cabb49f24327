"""What each of four consumers of one ring gets per second, against vLLM's design with four readers.

Unit: frames/s per consumer, 64 B, median of interleaved rounds. With two cores five processes share them, so
the ratio is what counts.
"""

from __future__ import annotations

import argparse

from bench import harness

READERS = 4
CASES = {
    "ringbuf c": ("bench.ours", {"RINGBUF_IMPL": "c"}, 300_000, "wait"),
    "ringbuf python": ("bench.ours", {"RINGBUF_IMPL": "python"}, 100_000, "wait"),
    "vLLM's design": ("bench.rivals.vllm_queue", {}, 3_000, "one"),
}


def run(module: str, env: dict[str, str], count: int, mode: str, check: bool) -> float:
    """Frames per second of the slowest consumer."""
    roles = ("producer", *(f"consumer{i}" for i in range(READERS)))
    args = {"size": 64, "mode": mode, "count": count, "check": check, "readers": READERS}
    answer = harness.run_peers(module, roles, args, env)
    return count / max(answer[f"consumer{i}_s"] for i in range(READERS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--smoke", action="store_true")
    args = parser.parse_args()
    cases = {}
    for name, (module, env, count, mode) in CASES.items():
        frames = 640 if args.smoke else count // 64 * 64
        try:
            run(module, env, 640, mode, check=True)
        except RuntimeError as error:
            print(f"left out: {name} ({error})")
            continue
        cases[name] = lambda m=module, e=env, n=frames, k=mode: run(m, e, n, k, check=False)
    samples = harness.interleave(cases, 1 if args.smoke else args.rounds)
    results = {name: harness.median(values) for name, values in samples.items()}
    rival = results.get("vLLM's design", 1.0)
    rows = [(name, harness.rate(value), f"{value / rival:.1f}x") for name, value in results.items()]
    print(harness.table(["transport", "frames/s per consumer", "to vLLM's design"], rows))
    harness.emit(
        "ring_one_to_many_throughput",
        {"smoke": args.smoke, "readers": READERS, "frames_per_s": results, "rounds": samples},
    )


if __name__ == "__main__":
    main()

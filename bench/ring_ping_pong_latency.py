"""Round trip of 64 B between two processes, spinning and blocking, and the wake-up of a blocked consumer.

Unit: microseconds, p50 and p99 over all rounds. What would make it lie: both ends on one core (then a
spinning end waits for the scheduler), a clock that differs between cores (CLOCK_MONOTONIC does not).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from typing import Any

from bench import harness
from bench.links import LINKS, SIDES

MODES = {  # name -> (kind, gap between frames in s, frames per round)
    "round trip, spinning": ("spin", 0.0, 20_000),
    "round trip, blocking": ("block", 0.0, 5_000),
    "wake-up every 5 ms, blocking": ("block", 0.005, 200),
}


def measure(name: str, kind: str, gap_s: float, count: int, impl: str | None) -> list[int]:
    """Nanoseconds per frame of one round over the named link."""
    env = {**os.environ, **({"RINGBUF_IMPL": impl} if impl else {})}
    shared = f"bench{os.getpid()}-{os.urandom(3).hex()}"
    peers = []
    try:
        for core, side in enumerate(SIDES):
            args = {"name": shared, "core": core, "kind": kind, "gap_s": gap_s, "count": count}
            peers.append(
                subprocess.Popen(
                    [sys.executable, "-m", "bench.latency_peer", name, side, json.dumps(args)],
                    cwd=harness.ROOT,
                    env=env,
                    text=True,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                )
            )
        for peer in peers:
            assert peer.stdout is not None
            if peer.stdout.readline().strip() != "ready":
                raise RuntimeError(f"{name} did not come up")
        for peer in peers:
            assert peer.stdin is not None
            peer.stdin.write("go\n")
            peer.stdin.flush()
        samples: list[int] = []
        for peer in peers:
            assert peer.stdout is not None
            samples += json.loads(peer.stdout.readline() or '{"samples": []}').get("samples", [])
        for peer in peers:
            peer.communicate("done\n", timeout=20)
        if len(samples) != count:
            raise RuntimeError(f"{name}: {len(samples)} of {count} frames arrived")
        return samples
    finally:
        for peer in peers:
            if peer.poll() is None:
                peer.kill()
                peer.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    results: dict[str, dict[str, dict[str, Any]]] = {}
    for mode, (kind, gap_s, frames) in MODES.items():
        count = 50 if args.smoke else frames
        samples: dict[str, list[list[int]]] = {}
        for _ in range(1 if args.smoke else args.rounds):
            for name, link in LINKS.items():
                if kind not in link.KINDS or (args.only and name not in args.only.split(",")):
                    continue
                for impl in ("c", "python") if name == "ringbuf" else (None,):
                    label = f"{name} {impl}" if impl else name
                    try:
                        samples.setdefault(label, []).append(measure(name, kind, gap_s, count, impl))
                    except (RuntimeError, subprocess.TimeoutExpired, ValueError) as error:
                        print(f"  left out: {label} ({error})", file=sys.stderr)
        results[mode] = {label: harness.spread_us(rounds) for label, rounds in samples.items() if rounds}
        print(f"\n{mode}")
        rows = sorted(results[mode].items(), key=lambda row: row[1]["p50_us"])
        print(
            harness.table(
                ["link", "p50 us", "p99 us"],
                [(n, f"{v['p50_us']:.1f}", f"{v['p99_us']:.1f}") for n, v in rows],
            )
        )
    harness.emit("ring_ping_pong_latency", {"smoke": args.smoke, "only": args.only, "latency": results})


if __name__ == "__main__":
    main()

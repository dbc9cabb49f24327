"""Run every benchmark program, one after the other, and render the report: `python -m bench.all`."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

from bench import harness

PROGRAMS = (
    "ring_one_to_one_throughput",
    "ring_throughput_by_size",
    "ring_one_to_many_throughput",
    "ring_ping_pong_latency",
    "ring_asyncio_wakeup",
    "ring_scaling",
    "ring_idle_cpu",
    "frame_read",
    "batch_codec",
    "admission_cost",
    "request_cost",
    "sinks",
    "detok_step",
    "engine_step",
    "pipeline_end_to_end",
    "http_events",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="tiny counts: does everything run")
    parser.add_argument("--only", default="", help="comma-separated programs")
    args = parser.parse_args()
    chosen = args.only.split(",") if args.only else PROGRAMS
    failed = []
    for program in chosen:
        print(f"\n== {program}", flush=True)
        command = [sys.executable, "-m", f"bench.{program}", *(["--smoke"] if args.smoke else [])]
        started = time.monotonic()
        if subprocess.run(command, cwd=harness.ROOT, check=False).returncode:
            failed.append(program)
        print(f"-- {program}: {time.monotonic() - started:.0f} s", flush=True)
    report = subprocess.run([sys.executable, "-m", "bench.report"], cwd=harness.ROOT, check=False)
    if failed or report.returncode:
        print(f"failed: {', '.join(failed) or 'report'}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""From an engine's step in one process to an event in every request's sink in another.

One sender and one receiver process per transport, pinned to a core each; rounds of all transports in turns.
Before a case is measured, one step is compared with what was sent, value by value, in every sink.

    python -m bench.pipeline_end_to_end [--smoke] [--rounds N] [--only TRANSPORT,...]

tokens/s and CPU per token (both processes together): medians over groups of steps sent back to back. The
columns "taken" are the same with the handlers' side inside the clock: every event is taken out of its sink
again, so that nothing can look cheap by being left to the reader. Latency: one step at a time, both asleep
before it; the first ones of a turn are left out for all transports, because they find the caches full of what
the others did meanwhile, which a server that steps every few milliseconds never does. It would lie if one
transport's sinks were drained inside the clock and another's were not, or if the sender's work (lists made of
arrays, encoding) were left out.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from bench import harness
from bench.pipeline_peer import OURS, SGLANG, TRANSPORTS, Order, Pair

# (kind, requests, steps per group): a group stays below the 64 items a sink holds.
CASES = (
    ("plain", 256, 48),
    ("plain", 1024, 24),
    ("plain", 4096, 8),
    ("churn", 4096, 8),
    ("logprobs", 4096, 6),
    ("hidden", 256, 4),
)
LATENCY = ("plain", 1024)
# Steps of a turn that are not counted: the second one is still a tenth slower than the fourth.
WARMING = 3
GOALS = {
    "plain 4096: tokens/s": 4.0,
    "plain 4096: CPU per token": 4.0,
    "logprobs 4096: tokens/s": 8.0,
    "hidden 256: tokens/s": 20.0,
    "latency p99, 1024": 3.0,
}


def measure(
    pairs: dict[str, Pair], kind: str, n: int, steps: int, rounds: int, warm_up: int
) -> dict[str, dict[str, float]]:
    """tokens/s and CPU ns per token of every transport that carries this kind."""
    groups: dict[tuple[str, bool], list[Any]] = {}
    taking_part = [name for name in pairs if kind in TRANSPORTS[name][3]]
    for name in taking_part:
        pairs[name].case(kind, n)
        pairs[name].run(Order(groups=warm_up, steps=steps))
    for _ in range(rounds):
        for name in taking_part:
            for takes in (False, True):
                order = Order(groups=2, steps=steps, takes=takes)
                groups.setdefault((name, takes), []).extend(pairs[name].run(order))
    tokens = steps * n
    found: dict[str, dict[str, float]] = {}
    for (name, takes), measured in groups.items():
        taken = "taken_" if takes else ""
        found.setdefault(name, {}).update(
            {
                f"{taken}tokens_per_s": tokens / harness.median(group.seconds for group in measured),
                f"{taken}cpu_ns_per_token": harness.median(group.cpu_s for group in measured) / tokens * 1e9,
            }
        )
    return found


def latency(
    pairs: dict[str, Pair], kind: str, n: int, rounds: int, steps: int
) -> dict[str, dict[str, float]]:
    """Microseconds from a step in the sender's hand to the last event in its sink."""
    samples: dict[str, list[float]] = {}
    taking_part = [name for name in pairs if kind in TRANSPORTS[name][3]]
    for name in taking_part:
        pairs[name].case(kind, n)
        # As before the other cases: until all of a ring has been used.
        pairs[name].run(Order(groups=1 if steps < 50 else 28, steps=24))
    for _ in range(rounds):
        for name in taking_part:
            measured = pairs[name].run(Order(groups=WARMING + steps, steps=1, gap_s=0.001))
            samples.setdefault(name, []).extend(group.seconds * 1e6 for group in measured[WARMING:])
    return {
        name: {"p50_us": harness.percentile(us, 50), "p99_us": harness.percentile(us, 99)}
        for name, us in samples.items()
    }


def report(case: str, found: dict[str, dict[str, float]]) -> None:
    """Print one case, everything as a multiple of ours."""
    ours = found.get(OURS)
    rows = []
    for name, values in found.items():
        row = [name]
        for key, value in values.items():
            better = "" if ours is None else value / ours[key] if "_per_s" not in key else ours[key] / value
            row += [
                harness.rate(value) if "_per_s" in key else f"{value:.0f}",
                f"{better:.2f}x" if better else "",
            ]
        rows.append(row)
    header = [case]
    for key in next(iter(found.values())):
        header += [key, "ours better"]
    print(harness.table(header, rows), "\n", flush=True)


def goals(results: dict[str, Any]) -> dict[str, dict[str, float]]:
    """The goals of issue 6, point 7, each as a ratio to ZeroMQ + pickle."""
    found = {}
    for goal, wanted in GOALS.items():
        case = goal.split(":")[0].removeprefix("latency p99, 1024") or "latency"
        values = results.get(case)
        if values is None or OURS not in values or SGLANG not in values:
            continue
        ours, theirs = values[OURS], values[SGLANG]
        if "tokens/s" in goal:
            ratio = ours["tokens_per_s"] / theirs["tokens_per_s"]
        elif "CPU" in goal:
            ratio = theirs["cpu_ns_per_token"] / ours["cpu_ns_per_token"]
        else:
            ratio = theirs["p99_us"] / ours["p99_us"]
        found[goal] = {"ratio": round(ratio, 2), "goal": wanted}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--smoke", action="store_true", help="tiny counts: does it run, is it right")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="comma-separated transports")
    parser.add_argument("--cases", default="", help="comma-separated, as plain-4096; latency is one, too")
    args = parser.parse_args()
    cases = [(kind, n, 2) for kind, n, _ in CASES] if args.smoke else list(CASES)
    rounds, latency_rounds, latency_steps = (1, 1, 5) if args.smoke else (args.rounds, args.rounds * 3, 50)
    chosen = args.cases.split(",") if args.cases else [f"{kind}-{n}" for kind, n, _ in cases] + ["latency"]
    names = args.only.split(",") if args.only else list(TRANSPORTS)
    pairs: dict[str, Pair] = {}
    results: dict[str, Any] = {}
    try:
        for at, name in enumerate(names):
            try:
                pairs[name] = Pair(name, f"pipeline{os.getpid()}-{at}")
            except RuntimeError as error:
                print(f"{name} is left out: {error}", file=sys.stderr)
        for kind, n, steps in cases:
            if f"{kind}-{n}" in chosen:
                # Until rings, heaps and buffers have been used all over, as in a server that has run a while.
                warm_up = 2 if args.smoke else 3 if kind == "hidden" else 16
                results[f"{kind} {n}"] = measure(pairs, kind, n, steps, rounds, warm_up)
                report(f"{kind}, {n} requests", results[f"{kind} {n}"])
        if "latency" in chosen:
            results["latency"] = latency(pairs, *LATENCY, latency_rounds, latency_steps)
            report(f"latency of one step, {LATENCY[1]} requests", results["latency"])
    finally:
        for pair in pairs.values():
            pair.close()
    reached = goals(results)
    print(
        harness.table(("goal", "reached", "wanted"), [(k, v["ratio"], v["goal"]) for k, v in reached.items()])
    )
    harness.emit(
        "pipeline_end_to_end",
        {"smoke": args.smoke, "only": args.only + args.cases, "cases": results, "goals": reached},
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

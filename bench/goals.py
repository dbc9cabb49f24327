"""The goals of issues 4 to 6, each with its wanted value, and what the newest full runs say about them.

A row is a `Goal`; its `measure` finds one number in the JSON line of one program. Ratios are medians of the
rounds' own ratios where a program keeps its rounds. What a run lacks is "not measured", never a guess.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bench import harness
from bench.ring_one_to_one_throughput import NOT_RIVALS

Run = Mapping[str, Any]
Measure = Callable[[Run], float]

# "Level", "no slower": medians of rounds differ by this much between two runs of the same program.
LEVEL = 0.1
# "The same", "flat within noise": as issue 4 has it, noise is 20-40 %.
FLAT = 0.4

MET, WITHIN_NOISE, MISSED, NOT_MEASURED = "met", "met, within noise", "missed", "not measured"


@dataclass(frozen=True)
class Goal:
    """One goal: what is wanted of which number of which program.

    `noise`: the share by which a goal of being level may be missed and still count as met.
    """

    issue: str
    what: str
    program: str
    sign: str
    wanted: float
    unit: str
    measure: Measure
    noise: float = 0.0


@dataclass(frozen=True)
class Outcome:
    """A goal held against a run; `value` is None where nothing was measured."""

    goal: Goal
    value: float | None
    verdict: str


def figure(value: float, unit: str) -> str:
    """A number as the table shows it, 0.352x or 85 ns: to the digit that decides the goal."""
    digits = f"{value:.3f}" if value < 2 else f"{value:.3g}"
    return f"{digits}x" if unit == "x" else f"{value:.2g} {unit}" if unit == "%" else f"{digits} {unit}"


def paired(run: Run, case: str, ours: str, theirs: str) -> float:
    """Ours over theirs in one case of a throughput program."""
    rounds = run["rounds"][case]
    return harness.ratio(rounds[ours], rounds[theirs])


def over(case: str, theirs: str, ours: str = "ringbuf c") -> Measure:
    """Our rate over one other's."""
    return lambda run: paired(run, case, ours, theirs)


def fastest_rival(run: Run, case: str) -> str:
    """The rival with the greatest median; neither the limit, nor the floor, nor ours."""
    rates = run["frames_per_s"][case]
    return str(max((name for name in rates if name not in NOT_RIVALS), key=rates.__getitem__))


def over_fastest(case: str) -> Measure:
    """Our over the fastest rival."""
    return lambda run: paired(run, case, "ringbuf c", fastest_rival(run, case))


def readers_over(theirs: str) -> Measure:
    """Our rate per consumer over another's, four of them."""
    return lambda run: harness.ratio(run["rounds"]["ringbuf c"], run["rounds"][theirs])


def view_cost(body: str) -> Measure:
    """What reading 64 KiB costs over 64 B; over its least view in the Python body, which copies far more."""

    def measure(run: Run) -> float:
        rounds = run["rounds"][body]
        least = "64" if body == "c" else min((s for s in rounds if int(s) > run["copy_limit"][body]), key=int)
        return harness.ratio(rounds["65536"], rounds[least])

    return measure


def best_rival(modes: Mapping[str, Any]) -> str:
    """The link with the least p50 that is not ours."""
    others = (name for name in modes if not name.startswith("ringbuf"))
    return str(min(others, key=lambda name: modes[name]["p50_us"]))


def slower_than_best(mode: str) -> Measure:
    """Our p50 over the best rival."""

    def measure(run: Run) -> float:
        links = run["latency"][mode]
        best = links[best_rival(links)]
        return harness.ratio(links["ringbuf c"]["rounds_p50_us"], best["rounds_p50_us"])

    return measure


def slower_than_eventfd(loop: str, how: str) -> Measure:
    """Our p50 over a bare eventfd under the same loop, read the same way."""

    def measure(run: Run) -> float:
        ours, floor = (run["latency"][f"{loop}: {who}"] for who in (f"ringbuf, {how} c", f"eventfd, {how}"))
        return harness.ratio(ours["rounds_p50_us"], floor["rounds_p50_us"])

    return measure


def idle(body: str) -> Measure:
    """Per cent of a core of the costlier parked side."""
    return lambda run: max(share for side, share in run["percent"].items() if side.endswith(body))


def across_capacities(run: Run) -> float:
    """How much slower than at 1 MiB the slowest capacity is, 64 B."""
    rounds = run["rounds"]["64 B"]
    return max(harness.ratio(rounds["1 MiB"], rounds[capacity]) for capacity in rounds)


def across_capacities_to_copies(run: Run) -> float:
    """The same for 64 KiB, each capacity against bare copies through as much memory."""
    ring, bare = run["rounds"]["64 KiB"], run["rounds"]["64 KiB, bare copies"]
    shares = {capacity: harness.ratio(ring[capacity], bare[capacity]) for capacity in ring}
    return max(shares["1 MiB"] / share for share in shares.values())


def across_rings(run: Run) -> float:
    """What a read costs with 1,000 rings attached over one with a single ring."""
    rounds = run["rounds"]["open rings"]
    return harness.ratio(rounds["1000 rings"], rounds["1 rings"])


def codec(row: str, n: int) -> Measure:
    """A row of the codec over decoding by hand."""
    return lambda run: float(run["ratios"][str(n)][row])


def extras_by_bytes(run: Run) -> float:
    """What a hundred times the bytes of extras cost, for as many requests that have them."""
    cases = run["extras_us"]
    wide = next(case for case in cases if case.endswith("width 2000"))
    return float(cases[wide] / cases[wide.replace("2000", "20")])


def last_hop(key: str) -> Measure:
    """A ratio to ZeroMQ and pickle, as pipeline_end_to_end computes it."""
    return lambda run: float(run["goals"][key]["ratio"])


def detok_on_top(run: Run) -> float:
    """us per token of push_batch on top of the tokenizer's own decode, the worst vocabulary."""
    return max(float(costs["push_batch: on top"]) for costs in run["ns_per_token"].values()) / 1e3


ONE, MANY, VIEW, LARGE = "64 B, one call", "64 B, batched", "64 KiB, view", "1 MiB, view"
THROUGHPUT, PIPELINE = "ring_one_to_one_throughput", "pipeline_end_to_end"
ROUND_TRIP, WAKE_UP, SCALING = "ring_ping_pong_latency", "ring_asyncio_wakeup", "ring_scaling"
LEAST, MOST = ">=", "<="

GOALS: tuple[Goal, ...] = (
    Goal("4.1", f"{ONE}: over the fastest rival", THROUGHPUT, LEAST, 2.5, "x", over_fastest(ONE)),
    Goal("4.1", f"{ONE}: over pyzmq", THROUGHPUT, LEAST, 10, "x", over(ONE, "pyzmq ipc")),
    Goal("4.1", f"{ONE}: over mp.Queue", THROUGHPUT, LEAST, 40, "x", over(ONE, "mp.Queue")),
    Goal("4.1", f"{ONE}: over vLLM's design", THROUGHPUT, LEAST, 100, "x", over(ONE, "vLLM's design")),
    Goal("4.1", f"{MANY}: over the fastest rival", THROUGHPUT, LEAST, 3, "x", over_fastest(MANY)),
    Goal(
        "4.1", "Python body, one call: over pyzmq", THROUGHPUT, LEAST, 2, "x",
        over(ONE, "pyzmq ipc", "ringbuf python"),
    ),
    Goal(
        "4.1", "Python body, one call: over a bare ring in Python", THROUGHPUT, LEAST, 0.8, "x",
        over(ONE, "bare python", "ringbuf python"),
    ),
    Goal("4.2", f"{VIEW}: over iceoryx2", THROUGHPUT, LEAST, 1.2, "x", over(VIEW, "iceoryx2")),
    Goal("4.2", f"{LARGE}: level with iceoryx2", THROUGHPUT, LEAST, 1, "x", over(LARGE, "iceoryx2"), LEVEL),
    Goal("4.2", f"{VIEW}: over plain C", THROUGHPUT, LEAST, 0.85, "x", over(VIEW, "plain C")),
    Goal("4.2", f"{LARGE}: over plain C", THROUGHPUT, LEAST, 0.85, "x", over(LARGE, "plain C")),
    Goal("4.2", "C body: reading 64 KiB over reading 64 B", "frame_read", MOST, 1, "x", view_cost("c"), FLAT),
    Goal(
        "4.2", "Python body: a view of 64 KiB over the least one", "frame_read", MOST, 1, "x",
        view_cost("python"), FLAT,
    ),
    *(
        Goal("4.3", f"{mode}: p50 over the best rival", ROUND_TRIP, MOST, 1.1, "x", slower_than_best(mode))
        for mode in ("round trip, spinning", "round trip, blocking", "wake-up every 5 ms, blocking")
    ),
    *(
        Goal(
            "4.3", f"{loop}, {how}: p50 over a bare eventfd", WAKE_UP, MOST, 1, "x",
            slower_than_eventfd(loop, how), LEVEL,
        )
        for loop in ("asyncio", "uvloop")
        for how in ("callback", "task")
    ),
    Goal("4.3", "parked side, C body: of a core", "ring_idle_cpu", MOST, 0.01, "%", idle("c")),
    Goal("4.3", "parked side, Python body: of a core", "ring_idle_cpu", MOST, 0.01, "%", idle("python")),
    Goal(
        "4.4", "four consumers, each: over vLLM's design", "ring_one_to_many_throughput", LEAST, 10, "x",
        readers_over("vLLM's design"),
    ),
    Goal("4.5", "64 B: 1 MiB over the slowest capacity", SCALING, MOST, 1, "x", across_capacities, FLAT),
    Goal(
        "4.5", "64 KiB: the same, each over bare copies", SCALING, MOST, 1, "x", across_capacities_to_copies,
        FLAT,
    ),
    Goal("4.5", "a read with 1,000 rings open over one ring", SCALING, MOST, 1, "x", across_rings, FLAT),
    *(
        Goal("5.1", f"{row}, N = {n}: over by hand", "batch_codec", MOST, wanted, "x", codec(row, n), noise)
        for row, n, wanted, noise in (
            ("decode, touch", 4096, 0.45, 0.0),
            ("decode, touch, token_ids", 4096, 0.9, 0.0),
            ("decode, select 1 in 8", 4096, 0.35, 0.0),
            ("encode", 4096, 0.3, 0.0),
            ("decode, touch", 1, 1.0, LEVEL),
        )
    ),
    Goal(
        "5.1", "token column as one view, any N", "batch_codec", MOST, 5, "us",
        lambda run: max(run["token_ids_us"].values()),
    ),
    Goal("5.1", "extras: 100 times the bytes", "batch_codec", MOST, 1, "x", extras_by_bytes, FLAT),
    Goal(
        "5.3", "parse and admit a typical request", "request_cost", MOST, 15, "us",
        lambda run: float(run["best_us"]["typical"]),
    ),
    Goal("5.4", "admission, cache hit", "admission_cost", MOST, 150, "ns", lambda run: float(run["hit_ns"])),
    Goal("5.5", "try_send", "sinks", MOST, 300, "ns", lambda run: float(run["best_ns"]["try_send"])),
    Goal("6.1", "detokenizing on top of own decode, per token", "detok_step", MOST, 1, "us", detok_on_top),
    *(
        Goal("6.7", what, PIPELINE, LEAST, wanted, "x", last_hop(key))
        for what, key, wanted in (
            ("plain 4,096: tokens/s over ZeroMQ + pickle's", "plain 4096: tokens/s", 4),
            ("plain 4,096: ZeroMQ + pickle's CPU per token over ours", "plain 4096: CPU per token", 4),
            ("top-5 logprobs: tokens/s over ZeroMQ + pickle's", "logprobs 4096: tokens/s", 8),
            ("hidden states: tokens/s over ZeroMQ + pickle's", "hidden 256: tokens/s", 20),
            ("step of 1,024: ZeroMQ + pickle's p99 over ours", "latency p99, 1024", 3),
        )
    ),
    Goal(
        "6.7", "HTTP events/s over a bare handler", "http_events", LEAST, 0.8, "x",
        lambda run: min(float(route["ratio"]) for route in run["routes"].values()),
    ),
)  # fmt: skip


def judge(goal: Goal, run: Run | None) -> Outcome:
    """Hold one goal against the newest full run of its program, if there is one that has its number."""
    try:
        value = goal.measure(run) if run is not None else None
    except (KeyError, StopIteration, ValueError, ZeroDivisionError, statistics.StatisticsError):
        # A rival that is not installed, a case that was left out.
        value = None
    if value is None:
        return Outcome(goal, None, NOT_MEASURED)
    # As much above what is wanted as below, whichever is better: 1.1x at most, 1 / 1.1 at least.
    slack = 1 + goal.noise
    if goal.sign == LEAST:
        met, near = value >= goal.wanted, value >= goal.wanted / slack
    else:
        met, near = value <= goal.wanted, value <= goal.wanted * slack
    return Outcome(goal, value, MET if met else WITHIN_NOISE if near else MISSED)


def outcomes(runs: Mapping[str, Run]) -> list[Outcome]:
    """Every goal held against the newest full run of its program."""
    return [judge(goal, runs.get(goal.program)) for goal in GOALS]


HEADER = ("goal", "", "wanted", "newest full run", "")


def rows(found: list[Outcome]) -> list[tuple[str, str, str, str, str]]:
    """The goals table, one row each: issue and point, what, wanted, measured, verdict."""
    return [
        (
            one.goal.issue,
            one.goal.what,
            f"{one.goal.sign} {one.goal.wanted:g}{'x' if one.goal.unit == 'x' else f' {one.goal.unit}'}",
            "-" if one.value is None else figure(one.value, one.goal.unit),
            one.verdict,
        )
        for one in found
    ]

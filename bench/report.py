"""Render the newest full run of every program into one self-contained HTML report, and print its goals.

    python -m bench.report [--results DIR]

Reads DIR/*.jsonl (bench/results), writes DIR/report.html: the goals, the table that README quotes, plots as
inline SVG, and every line it was made from. Smoke runs, and runs of a part of a program, are passed over.
"""

from __future__ import annotations

import argparse
import html
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import goals, harness, plots
from bench.ring_one_to_one_throughput import CASES

Run = Mapping[str, Any]
Runs = Mapping[str, Run]

TITLE = "ringbuf and egress: benchmarks"
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
color: #1c2733 }
table { border-collapse: collapse; margin: .6rem 0 1.4rem } td, th { padding: .25rem .8rem; text-align: left;
border-bottom: 1px solid #dde3ea } td.n { text-align: right; font-variant-numeric: tabular-nums }
svg { width: 100%; height: auto; margin: .8rem 0 } .meta { color: #5a6b7c } h2 { margin-top: 2.4rem }
tr.ours td { font-weight: 600 } .met { color: #1d7a46 } .missed { color: #b3261e; font-weight: 600 }
.unknown { color: #7d8b99 } pre { overflow: auto; font-size: 12px }
"""


def newest(results: Path) -> dict[str, dict[str, Any]]:
    """The last full run of each program: a line that says it was no smoke run, nor of a chosen part."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(results.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            run = json.loads(line)
            if run.get("smoke") is False and not run.get("only"):
                found[run["program"]] = run
    return found


def rows(
    header: Sequence[str], body: Sequence[Sequence[str]], classes: Mapping[str, str] | None = None
) -> str:
    """An HTML table; cells after the first stand right, and those with a class are coloured by it."""
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
    lines = []
    for row in body:
        ours = ' class="ours"' if plots.is_ours(row[0]) else ""
        cells = []
        for i, cell in enumerate(row):
            named = (classes or {}).get(cell, "n" if i and not classes else "")
            cells.append(f"<td{f' class={named}' if named else ''}>{html.escape(cell)}</td>")
        lines.append(f"<tr{ours}>{''.join(cells)}</tr>")
    return f"<table><tr>{head}</tr>{''.join(lines)}</table>"


def goals_table(runs: Runs) -> str:
    """Every goal, its wanted value, what the newest full run has, and whether it is met."""
    classes = {
        goals.MET: "met",
        goals.WITHIN_NOISE: "met",
        goals.MISSED: "missed",
        goals.NOT_MEASURED: "unknown",
    }
    return rows(goals.HEADER, goals.rows(goals.outcomes(runs)), classes)


def _quoted_throughput(run: Run) -> list[tuple[str, str, str, str]]:
    found = []
    for case, rates in run["frames_per_s"].items():
        rival, ours = goals.fastest_rival(run, case), rates["ringbuf c"]
        size = CASES[case][0] if case in CASES else 0
        rate = f"{harness.rate(ours)} frames/s" + (f" ({ours * size / 1e9:.1f} GB/s)" if size > 4096 else "")
        ratio = goals.paired(run, case, "ringbuf c", rival)
        found.append((case, rate, f"{rival} {harness.rate(rates[rival])}", f"{ratio:.1f}x the frames"))
    return found


def _quoted_readers(run: Run) -> list[tuple[str, str, str, str]]:
    rates, rival = run["frames_per_s"], "vLLM's design"
    ratio = goals.readers_over(rival)(run)
    ours = f"{harness.rate(rates['ringbuf c'])} frames/s"
    return [
        ("four consumers, each", ours, f"{rival} {harness.rate(rates[rival])}", f"{ratio:.0f}x the frames")
    ]


def _quoted_latency(run: Run) -> list[tuple[str, str, str, str]]:
    found = []
    for mode, links in run["latency"].items():
        rival, ratio = goals.best_rival(links), goals.slower_than_best(mode)(run)
        ours, theirs = links["ringbuf c"]["p50_us"], links[rival]["p50_us"]
        found.append((f"{mode}, p50", f"{ours:.1f} us", f"{rival} {theirs:.1f} us", f"{ratio:.2f}x the time"))
    return found


def _quoted_codec(run: Run) -> list[tuple[str, str, str, str]]:
    ratios = run["ratios"]["4096"]
    return [
        (f"{row}, 4,096 requests", "", "by hand", f"{ratios[row]:.2f}x the time")
        for row in ("decode, touch", "encode")
    ]


def _quoted_last_hop(run: Run) -> list[tuple[str, str, str, str]]:
    found = []
    for case, values in run["cases"].items():
        if "tokens_per_s" in values.get("ringbuf + egress", {}) and "ZeroMQ + pickle" in values:
            ours, theirs = (values[name]["tokens_per_s"] for name in ("ringbuf + egress", "ZeroMQ + pickle"))
            rival = f"ZeroMQ + pickle {harness.rate(theirs)}"
            found.append(
                (
                    f"last hop, {case}",
                    f"{harness.rate(ours)} tokens/s",
                    rival,
                    f"{ours / theirs:.1f}x the tokens",
                )
            )
    return found


def _quoted_http(run: Run) -> list[tuple[str, str, str, str]]:
    return [
        (
            f"HTTP, {route}",
            f"{harness.rate(values['egress worker']['events_per_s'])} events/s",
            f"a bare handler {harness.rate(values['bare, paced']['events_per_s'])}",
            f"{values['ratio']:.2f}x the events",
        )
        for route, values in run["routes"].items()
    ]


QUOTED: dict[str, Callable[[Run], list[tuple[str, str, str, str]]]] = {
    goals.THROUGHPUT: _quoted_throughput,
    "ring_one_to_many_throughput": _quoted_readers,
    goals.ROUND_TRIP: _quoted_latency,
    "batch_codec": _quoted_codec,
    goals.PIPELINE: _quoted_last_hop,
    "http_events": _quoted_http,
}
QUOTED_HEADER = ("", "ours", "best rival in the same run", "ratio, median of rounds")


def quoted(runs: Runs) -> list[tuple[str, str, str, str]]:
    """The rows that README quotes, of whatever was measured."""
    found: list[tuple[str, str, str, str]] = []
    for program, of in QUOTED.items():
        try:
            found += of(runs[program]) if program in runs else []
        except (KeyError, ValueError):
            # Without our C body or without any rival there is nothing to quote.
            continue
    return found


def throughput(run: Run) -> str:
    parts = []
    for case, values in run["frames_per_s"].items():
        rounds = run["rounds"][case]
        ours = rounds.get("ringbuf c") or rounds.get("ringbuf python")
        table = rows(
            ["transport", "frames/s", "ringbuf is"],
            [
                [name, harness.rate(value), f"{harness.ratio(ours, rounds[name]):.2f}x" if ours else ""]
                for name, value in sorted(values.items(), key=lambda item: -item[1])
            ],
        )
        parts.append(plots.bars(f"{case}: frames/s", values, "frames/s") + table)
    return "".join(parts)


def by_size(run: Run) -> str:
    frames = {name: [(float(s), v) for s, v in of.items()] for name, of in run["frames_per_s"].items()}
    # Frames of no bytes move none; a logarithmic axis has them one step below the least size.
    shown = {name: [(max(16.0, s), v) for s, v in points] for name, points in frames.items()}
    carried = {name: [(s, s * v / 1e9) for s, v in points if s] for name, points in frames.items()}
    sizes = sorted({s for points in frames.values() for s, _ in points})
    ticks = [(max(16.0, s), plots.size_name(s)) for s in sizes]
    return plots.lines(
        "Frames per second by payload size, one producer and one consumer process",
        shown,
        "payload",
        "frames/s",
        ticks,
    ) + plots.lines("The same in bytes", carried, "payload", "GB/s", [t for t in ticks if t[1] != "0 B"])


def latency(run: Run) -> str:
    modes = run["latency"]
    if all("p50_us" in value for value in modes.values()):
        split: dict[str, dict[str, Any]] = {}
        for label, value in modes.items():
            loop, waiter = label.split(": ")
            split.setdefault(f"one frame every 5 ms to a sleeping {loop} loop", {})[waiter] = value
        modes = split
    parts = []
    for mode, values in modes.items():
        table = rows(
            ["link", "p50 us", "p99 us"],
            [
                [name, f"{value['p50_us']:.1f}", f"{value['p99_us']:.1f}"]
                for name, value in sorted(values.items(), key=lambda item: item[1]["p50_us"])
            ],
        )
        curves = {name: value["percentiles_us"] for name, value in values.items()}
        parts.append(plots.percentiles(f"Latency: {mode}", curves) + table)
    return "".join(parts)


def frame_cost(run: Run) -> str:
    series = {f"ringbuf {body}": [(float(s), ns) for s, ns in of.items()] for body, of in run["ns"].items()}
    ticks = [(float(s), plots.size_name(s)) for s in (64, 256, 1024, 4096, 1 << 14, 1 << 16)]
    limits = "; ".join(
        f"{body}: copies up to {plots.size_name(limit)}, views above"
        for body, limit in run["copy_limit"].items()
    )
    plot = plots.lines("What one read costs, by payload and body", series, "payload", "ns per read", ticks)
    return f"{plot}<p>{html.escape(limits)}.</p>"


def scaling(run: Run) -> str:
    results = run["results"]
    rates = {
        (f"ringbuf, {label}" if "bare" not in label else label): [
            (float(capacity.split()[0]) * (1 << 20), rate) for capacity, rate in of.items()
        ]
        for label, of in results.items()
        if label != "open rings"
    }
    opened = [(float(n.split()[0]), ns) for n, ns in results["open rings"].items()]
    return plots.lines(
        "Frames per second by capacity, one process", rates, "capacity", "frames/s"
    ) + plots.lines(
        "What a read costs, by rings attached in one process",
        {"ringbuf": opened},
        "rings",
        "ns per read",
        [(n, f"{n:g}") for n, _ in opened],
    )


RENDERERS: dict[str, Callable[[Run], str]] = {
    "ring_throughput_by_size": by_size,
    "ring_one_to_one_throughput": throughput,
    "ring_one_to_many_throughput": lambda run: plots.bars(
        "Frames per second of each of four consumers", run["frames_per_s"], "frames/s"
    ),
    "ring_ping_pong_latency": latency,
    "ring_asyncio_wakeup": latency,
    "frame_read": frame_cost,
    "ring_scaling": scaling,
}


def section(program: str, run: Run) -> str:
    """One program: where and when it ran, its plots, and its line."""
    meta = " · ".join(f"{key} {value}" for key, value in run["machine"].items())
    shown = {key: value for key, value in run.items() if key not in ("machine", "program", "smoke", "rounds")}
    line = html.escape(json.dumps(shown, indent=1, ensure_ascii=False))
    try:
        drawn = RENDERERS[program](run) if program in RENDERERS else ""
    except (KeyError, AttributeError):
        # A line kept from before its program had everything that is drawn now.
        drawn = ""
    # What is drawn is folded away; what is not is all there is to read.
    is_open = "" if drawn else " open"
    return (
        f'<h2>{html.escape(program)}</h2><p class="meta">{html.escape(meta)}</p>{drawn}'
        f"<details{is_open}><summary>figures</summary><pre>{line}</pre></details>"
    )


def page(runs: Runs) -> str:
    """The report: HTML that refers to nothing outside itself."""
    ordered = [*(name for name in RENDERERS if name in runs), *sorted(set(runs) - set(RENDERERS))]
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{TITLE}</title><style>{STYLE}</style>"
        f"<h1>{TITLE}</h1><h2>Goals</h2>{goals_table(runs)}"
        f"<h2>Against the best rival</h2>{rows(QUOTED_HEADER, quoted(runs))}"
        f"{''.join(section(name, runs[name]) for name in ordered)}</html>"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=harness.RESULTS, help="where the JSON lines are")
    results: Path = parser.parse_args().results
    runs = newest(results)
    path = results / "report.html"
    path.write_text(page(runs), encoding="utf-8")
    print(harness.table(QUOTED_HEADER, quoted(runs)), "\n")
    print(harness.table(goals.HEADER, goals.rows(goals.outcomes(runs))))
    print(f"wrote {path}")


if __name__ == "__main__":
    main()

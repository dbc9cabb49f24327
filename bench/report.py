"""Render the newest JSON line of every program into one self-contained HTML report.

Reads bench/results/*.jsonl, writes bench/results/report.html: machine, ratio tables, plots as inline SVG.
"""

from __future__ import annotations

import html
import io
import json
from collections.abc import Mapping
from typing import Any

import matplotlib as mpl

from bench import harness

# The backend is chosen before pyplot is imported.
mpl.use("svg")
from matplotlib import pyplot as plt

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
color: #1c2733 }
table { border-collapse: collapse; margin: .6rem 0 1.4rem } td, th { padding: .25rem .8rem; text-align: left;
border-bottom: 1px solid #dde3ea } td.n { text-align: right; font-variant-numeric: tabular-nums }
svg { max-width: 100%; height: auto } .meta { color: #5a6b7c }
h2 { margin-top: 2.4rem } tr.ours td { font-weight: 600 }
"""


def newest() -> dict[str, dict[str, Any]]:
    """The last full run of each program, falling back to a smoke run where there is no other."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(harness.RESULTS.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            run = json.loads(line)
            known = found.get(run["program"])
            if known is None or known.get("smoke", False) or not run.get("smoke", False):
                found[run["program"]] = run
    return found


def bars(title: str, values: Mapping[str, float], unit: str, log: bool = True) -> str:
    """A horizontal bar chart as inline SVG, ours in the darker colour."""
    ordered = sorted(values.items(), key=lambda item: item[1])
    figure, axes = plt.subplots(figsize=(8, 0.38 * len(ordered) + 1.1))
    colours = [
        "#1f5f8b" if "ringbuf" in name or name.startswith("egress") else "#b9c6d2" for name, _ in ordered
    ]
    axes.barh([name for name, _ in ordered], [value for _, value in ordered], color=colours)
    if log:
        axes.set_xscale("log")
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_xlabel(unit)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    out = io.StringIO()
    figure.savefig(out, format="svg")
    plt.close(figure)
    return out.getvalue()[out.getvalue().index("<svg") :]


def rows(header: list[str], body: list[list[str]]) -> str:
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
    lines = []
    for row in body:
        ours = ' class="ours"' if row[0].startswith(("ringbuf", "egress")) else ""
        cells = "".join(
            f"<td{' class=n' if i else ''}>{html.escape(cell)}</td>" for i, cell in enumerate(row)
        )
        lines.append(f"<tr{ours}>{cells}</tr>")
    return f"<table><tr>{head}</tr>{''.join(lines)}</table>"


def throughput(run: dict[str, Any]) -> str:
    parts = []
    for case, values in run["frames_per_s"].items():
        reference = values.get("ringbuf c") or values.get("ringbuf python") or max(values.values())
        ordered = sorted(values.items(), key=lambda item: -item[1])
        table = rows(
            ["transport", "frames/s", "ringbuf is"],
            [[name, harness.rate(value), f"{reference / value:.2f}x"] for name, value in ordered],
        )
        parts.append(bars(case, values, "frames/s") + table)
    return "".join(parts)


def latency(run: dict[str, Any]) -> str:
    modes = run["latency"]
    if all("p50_us" in value for value in modes.values()):
        modes = {"one frame every 5 ms": modes}
    parts = []
    for mode, values in modes.items():
        ordered = sorted(values.items(), key=lambda item: item[1]["p50_us"])
        table = rows(
            ["link", "p50 us", "p99 us"],
            [[name, f"{value['p50_us']:.1f}", f"{value['p99_us']:.1f}"] for name, value in ordered],
        )
        parts.append(bars(mode, {name: value["p50_us"] for name, value in values.items()}, "p50, us") + table)
    return "".join(parts)


def anything(run: dict[str, Any]) -> str:
    shown = {key: value for key, value in run.items() if key not in ("machine", "program", "smoke")}
    return f"<pre>{html.escape(json.dumps(shown, indent=1, ensure_ascii=False))}</pre>"


RENDERERS = {
    "ring_one_to_one_throughput": throughput,
    "ring_ping_pong_latency": latency,
    "ring_asyncio_wakeup": latency,
}


def main() -> None:
    sections = []
    for program, run in newest().items():
        machine = run["machine"]
        meta = " · ".join(f"{key} {value}" for key, value in machine.items())
        smoke = " · smoke run: the figures mean nothing" if run.get("smoke") else ""
        body = RENDERERS.get(program, anything)(run)
        sections.append(
            f'<h2>{html.escape(program)}</h2><p class="meta">{html.escape(meta + smoke)}</p>{body}'
        )
    title = "ringbuf and egress: benchmarks"
    page = f"<!doctype html><meta charset=utf-8><title>{title}</title><style>{STYLE}</style>"
    page += f"<h1>{title}</h1>{''.join(sections)}"
    path = harness.RESULTS / "report.html"
    path.write_text(page, encoding="utf-8")
    print(f"wrote {path.relative_to(harness.ROOT)}")


if __name__ == "__main__":
    main()

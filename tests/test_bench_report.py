"""The benchmark report, made of lines nobody measured."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support import ROOT, SLOWNESS

from bench import goals, harness, plots, report
from bench.all import PROGRAMS
from bench.ring_one_to_one_throughput import CASES

CURVE = {f"{q:g}": 1.0 + q / 10 for q in harness.PERCENTILES}
MACHINE = {"date": "2026-01-01 00:00 UTC", "cpu": "<cpu> & co", "cores": 2, "load": 0.1}


def throughput(**ours: float) -> dict[str, Any]:
    """One line in which rivals carry 100 frames/s each, and ours what is given, in every case."""
    rates = {"ringbuf c": 300.0, "ringbuf python": 90.0, "bare python": 100.0, "plain C": 900.0}
    rates |= dict.fromkeys(("pyzmq ipc", "iceoryx2", "vLLM's design"), 100.0)
    rates |= {name.replace("_", " "): rate for name, rate in ours.items()}
    return {
        "frames_per_s": {case: rates for case in CASES},
        "rounds": {case: {name: [rate] * 3 for name, rate in rates.items()} for case in CASES},
    }


def latency(p50_us: float) -> dict[str, Any]:
    return {"p50_us": p50_us, "p99_us": 9.0, "percentiles_us": CURVE, "rounds_p50_us": [p50_us] * 3}


LINES: dict[str, dict[str, Any]] = {
    "ring_one_to_one_throughput": throughput(),
    "ring_throughput_by_size": {
        "frames_per_s": {"ringbuf c": {"0": 9e6, "64": 7e6, "1048576": 2e4}, "pyzmq ipc": {"64": 5e5}}
    },
    "ring_ping_pong_latency": {
        "latency": {"round trip, spinning": {"ringbuf c": latency(1.0), "cloudtoid": latency(1.0)}}
    },
    "ring_asyncio_wakeup": {
        "latency": {
            "asyncio: ringbuf, callback c": latency(105.0),
            "asyncio: eventfd, callback": latency(100.0),
            "uvloop: ringbuf, callback c": latency(150.0),
            "uvloop: eventfd, callback": latency(100.0),
        }
    },
    "frame_read": {
        "copy_limit": {"c": 1024},
        "ns": {"c": {"64": 100.0, "65536": 101.0}},
        "rounds": {"c": {"64": [100.0], "65536": [101.0]}},
    },
    "sinks": {"best_ns": {"try_send": 85}},
}


def keep(results: Path, program: str, line: Mapping[str, Any], **fields: Any) -> None:
    """Append a line as `harness.emit` does."""
    with open(results / f"{program}.jsonl", "a", encoding="utf-8") as kept:
        kept.write(
            json.dumps({"program": program, "machine": MACHINE, "smoke": False, **line, **fields}) + "\n"
        )


@pytest.fixture
def results(tmp_path: Path) -> Path:
    for program, line in LINES.items():
        keep(tmp_path, program, line)
    return tmp_path


def verdicts(results: Path) -> dict[str, str]:
    """Verdict by goal."""
    return {one.goal.what: one.verdict for one in goals.outcomes(report.newest(results))}


def test_a_goal_is_met_within_noise_missed_or_not_measured(results: Path) -> None:
    found = verdicts(results)
    assert found["64 B, one call: over the fastest rival"] == goals.MET
    assert found["64 B, one call: over pyzmq"] == goals.MISSED
    assert found["64 B, one call: over mp.Queue"] == goals.NOT_MEASURED
    assert found["Python body, one call: over a bare ring in Python"] == goals.MET
    assert found["Python body, one call: over pyzmq"] == goals.MISSED
    assert found["asyncio, callback: p50 over a bare eventfd"] == goals.WITHIN_NOISE
    assert found["uvloop, callback: p50 over a bare eventfd"] == goals.MISSED
    assert found["C body: reading 64 KiB over reading 64 B"] == goals.WITHIN_NOISE
    assert found["try_send"] == goals.MET
    assert found["admission, cache hit"] == goals.NOT_MEASURED


def test_without_any_run_nothing_is_measured(tmp_path: Path) -> None:
    found = verdicts(tmp_path)
    assert set(found.values()) == {goals.NOT_MEASURED}
    assert len(found) == len(goals.GOALS)
    assert "not measured" in report.page({})


def test_every_goal_is_of_a_program_that_runs() -> None:
    assert {goal.program for goal in goals.GOALS} <= set(PROGRAMS)
    assert set(report.RENDERERS) | set(report.QUOTED) <= set(PROGRAMS)


@pytest.mark.parametrize("fields", [{"smoke": True}, {"only": "ringbuf c"}, {"smoke": None}])
def test_only_full_runs_count(results: Path, fields: dict[str, Any]) -> None:
    before = verdicts(results)
    keep(results, "ring_one_to_one_throughput", throughput(ringbuf_c=9e9), **fields)
    keep(results, "request_cost", {"best_us": {"typical": 1.0}}, **fields)
    assert verdicts(results) == before
    assert "request_cost" not in report.page(report.newest(results))


def test_the_newest_full_run_counts(results: Path) -> None:
    keep(results, "ring_one_to_one_throughput", throughput(ringbuf_c=5000.0))
    assert verdicts(results)["64 B, one call: over pyzmq"] == goals.MET


def test_a_ratio_is_the_median_of_the_rounds() -> None:
    # A slow minute halves both sides of one round; medians of each side would answer 2.
    assert harness.ratio([10.0, 40.0, 20.0], [5.0, 10.0, 4.0]) == 4.0
    assert harness.ratio([10.0, 40.0, 20.0], [5.0, 5.0]) == 4.0


def test_the_page_refers_to_nothing_outside(results: Path) -> None:
    page = report.page(report.newest(results))
    assert not re.findall(r"https?:|//|\bsrc=|\bhref=|url\(|@import|<script|<link|<iframe", page)
    assert "&lt;cpu&gt; &amp; co" in page
    # Two by size, four cases, one mode, two loops, one plot of frame_read.
    assert page.count("<svg") == page.count("</svg>") == 10


def test_a_line_of_an_older_form_is_shown_and_not_drawn(tmp_path: Path) -> None:
    keep(tmp_path, "ring_one_to_one_throughput", {"frames_per_s": {"64 B, one call": {"ringbuf c": 1.0}}})
    keep(tmp_path, "frame_read", {"copy_limit": 1024, "ns": {"64": 1.0}})
    page = report.page(report.newest(tmp_path))
    assert "<svg" not in page
    assert page.count("<details open>") == 2


def test_the_command_writes_the_page_and_prints_the_goals(results: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench.report", "--results", str(results)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60 * SLOWNESS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"\| 4\.1 +\| 64 B, one call: over pyzmq +\| >= 10x +\| 3x +\| missed", done.stdout)
    # The table that README quotes: the fastest rival, and neither the limit nor a ring with nothing on.
    assert re.search(
        r"\| 64 B, one call +\| 300 frames/s +\| pyzmq ipc 100 +\| 3\.0x the frames", done.stdout
    )
    assert "<!doctype html>" in (results / "report.html").read_text(encoding="utf-8")


LIAR = """
from bench.ours import Consumer, Producer as Honest

class Producer(Honest):
    def run(self, payloads, count, check):
        super().run(payloads[::-1], count, check)
"""


def test_peers_compare_before_they_are_measured(tmp_path: Path) -> None:
    (tmp_path / "liar.py").write_text(LIAR, encoding="utf-8")
    args = {"size": 64, "mode": "one", "count": 128, "check": False, "checked": 64, "timeout_s": 60}
    roles, env = ("producer", "consumer"), {"PYTHONPATH": str(tmp_path)}
    assert harness.run_peers("bench.ours", roles, args, env)["consumer_s"] > 0
    with pytest.raises(RuntimeError, match="not what was sent"):
        harness.run_peers("liar", roles, args, env)
    # Neither leaves a ring behind, also where one side had to be ended.
    assert not list(Path("/dev/shm").glob(f"ringbuf.bench{os.getpid()}-*"))


def test_lines_and_bars_of_nothing_say_so() -> None:
    assert "not measured" in plots.lines("t", {"a": [(1.0, 0.0)]}, "x", "y")
    assert "not measured" in plots.bars("t", {}, "x")
    assert "<svg" in plots.lines("t", {"a": [(64.0, 5.0)]}, "x", "y")

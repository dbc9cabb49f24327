"""Metrics: cheap additions that end up as the library's own would, across processes."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from support import spawn_python

from egress.serve.metrics import ShardMetrics, Sum, Tally, WorkerMetrics


def test_a_tally_flushes_into_what_observe_gives() -> None:
    bounds = (0.1, 0.5, 1.0)
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    histogram = Histogram("h", "x", registry=ours, buckets=bounds)
    plain = Histogram("h", "x", registry=theirs, buckets=bounds)
    tally = Tally(histogram, bounds)
    rng = random.Random(5)
    for value in (0.0, 0.1, 0.5, 1.0, 7.0, *(rng.random() for _ in range(200))):
        times = rng.randint(1, 4)
        tally.observe(value, times)
        for _ in range(times):
            plain.observe(value)
        if rng.random() < 0.1:
            tally.flush()
    tally.flush()
    tally.flush()

    def lines(registry: CollectorRegistry) -> list[str]:
        text = generate_latest(registry).decode()
        return [line for line in text.splitlines() if "_created" not in line and "_sum" not in line]

    assert lines(ours) == lines(theirs)
    assert ours.get_sample_value("h_sum") == pytest.approx(theirs.get_sample_value("h_sum"))


def test_a_sum_flushes_once() -> None:
    registry = CollectorRegistry()
    total = Sum(Counter("c", "x", registry=registry))
    total.add(3)
    assert registry.get_sample_value("c_total") == 0
    total.flush()
    total.flush()
    assert registry.get_sample_value("c_total") == 3


def test_every_role_scrapes_itself_without_a_directory() -> None:
    assert "PROMETHEUS_MULTIPROC_DIR" not in os.environ
    shard = ShardMetrics(3)
    shard.generation_tokens.add(7)
    shard.running.set(2)
    shard.ended("aborted", 2)
    shard.backlog(1, 512)
    shard.rings.set("i.s3.w0", 10, 100, 4)
    text = shard.scrape().decode()
    for line in (
        'egress_generation_tokens_total{shard="3"} 7.0',
        'egress_requests_running{shard="3"} 2.0',
        'egress_shard_requests_ended_total{cause="aborted",shard="3"} 2.0',
        'egress_backlog_bytes{shard="3",worker="1"} 512.0',
        'egress_ring_used_bytes{ring="i.s3.w0"} 10.0',
        'egress_ring_capacity_bytes{ring="i.s3.w0"} 100.0',
        'egress_ring_full_events{ring="i.s3.w0"} 4.0',
    ):
        assert line in text.splitlines()
    assert 'egress_child_starts_total{index="3",role="shard"} 1.0' in text.splitlines()


def test_worker_counts_by_cause() -> None:
    worker = WorkerMetrics()
    worker.aborted("disconnect", 3)
    worker.aborted("disconnect", 0)
    worker.malformed(True)
    worker.malformed(False)
    worker.late_chunks.add(2)
    lines = worker.scrape().decode().splitlines()
    assert 'egress_aborts_total{cause="disconnect"} 3.0' in lines
    assert 'egress_malformed_frames_total{names_requests="yes"} 1.0' in lines
    assert 'egress_malformed_frames_total{names_requests="no"} 1.0' in lines
    assert "egress_late_chunks_total 2.0" in lines


CHILD = """
import sys
from egress.serve import metrics
role = metrics.ShardMetrics(int(sys.argv[1])) if sys.argv[1] != "w" else metrics.WorkerMetrics()
if sys.argv[1] == "w":
    role.inter_token.observe(0.02, 5)
    role.rings.set("i.w0.s0", 3, 64)
else:
    role.generation_tokens.add(10)
    role.running.set(4)
role.flush()
print("flushed", flush=True)
sys.stdin.readline()
"""

SCRAPE = """
import os, sys
from egress.serve import metrics
for pid in sys.argv[1:]:
    metrics.forget_process(int(pid), os.environ["PROMETHEUS_MULTIPROC_DIR"])
sys.stdout.write(metrics.WorkerMetrics().scrape().decode())
"""


def test_one_scrape_shows_every_process_and_forgets_the_dead(tmp_path: Path) -> None:
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    children = [spawn_python(CHILD, which, stdin=-1, env=environment) for which in ("0", "1", "w", "w")]
    try:
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == "flushed\n"
        text, _ = spawn_python(SCRAPE, env=environment).communicate(timeout=60)
        lines = text.splitlines()
        assert 'egress_generation_tokens_total{shard="0"} 10.0' in lines
        assert 'egress_generation_tokens_total{shard="1"} 10.0' in lines
        assert 'egress_requests_running{shard="0"} 4.0' in lines
        assert "egress_inter_token_latency_seconds_count 10.0" in lines
        assert 'egress_ring_used_bytes{ring="i.w0.s0"} 6.0' in lines
    finally:
        for child in children:
            child.communicate("\n", timeout=60)
    text, _ = spawn_python(SCRAPE, *(str(child.pid) for child in children), env=environment).communicate(
        timeout=60
    )
    lines = text.splitlines()
    assert 'egress_generation_tokens_total{shard="0"} 10.0' in lines
    assert not any(line.startswith(("egress_requests_running{", "egress_ring_used_bytes{")) for line in lines)

"""`egress bench` as a user runs it, on a running server and on none."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from server_kit import Server, free_port
from support import ROOT, SLOWNESS

pytestmark = pytest.mark.slow


def bench(url: str, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "egress",
        "bench",
        "--url",
        url,
        "--requests",
        "12",
        "--concurrency",
        "4",
    ]
    return subprocess.run(
        [*command, *flags], cwd=ROOT, capture_output=True, text=True, timeout=60 * SLOWNESS, check=False
    )


def test_it_measures_a_running_server(tmp_path: Path) -> None:
    with Server("--api-key", "k", runtime=tmp_path, shards=1, workers=1) as server:
        server.wait_ready()
        done = bench(server.url, "--max-tokens", "20", "--api-key", "k", "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        report = json.loads(done.stdout)
        assert (report["requests"], report["failed"], report["tokens"]) == (12, 0, 240)
        assert report["first_ms"]["p50"] <= report["total_ms"]["p99"]
        shown = bench(server.url, "--max-tokens", "5", "--prompt", "海", "--api-key", "k")
        assert shown.returncode == 0, shown.stdout + shown.stderr
        lines = {line.split()[0]: line.split()[1:] for line in shown.stdout.splitlines()}
        assert lines["tokens"] == ["60"]
        assert lines["first_ms"][0] == "p50"
        refused = bench(server.url)
        assert refused.returncode == 1
        assert "status 401" in refused.stdout


def test_without_a_server_it_says_so_and_fails() -> None:
    done = bench(f"http://127.0.0.1:{free_port()}")
    assert done.returncode == 1
    assert "failed          12" in done.stdout
    assert "Traceback" not in done.stderr

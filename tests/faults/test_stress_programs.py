"""Short runs of the stress programs; `make stress` has the long ones."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from support import ROOT


def run(program: str, seconds: float, *, seed: int = 1) -> str:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.stress",
            "--only",
            program,
            "--seconds",
            str(seconds),
            "--seed",
            str(seed),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def count(what: str, line: str) -> int:
    found = re.search(rf"(\d+) {what}", line)
    assert found is not None, line
    return int(found[1])


@pytest.mark.slow
def test_kills_at_random_lose_nothing() -> None:
    """R013, R014, R022: also between reserve and commit, since a kill may fall anywhere."""
    line = run("ring_kills", 8)
    assert count("kills", line) > 2
    assert count("receptions", line) > 10


@pytest.mark.slow
def test_a_kill_and_a_stop_at_each_named_step_are_recovered_from() -> None:
    line = run("ring_steps", 1)
    assert "skipped" in line or count("faults", line) >= 2 * count("steps", line)


@pytest.mark.slow
def test_random_damage_ends_in_a_documented_error_or_a_right_answer() -> None:
    """R047."""
    assert count("corruptions", run("ring_corruption", 4)) > 100


@pytest.mark.slow
def test_a_soak_leaves_memory_and_descriptors_flat() -> None:
    """R018, R021: numbered frames with checksums, many laps, often full."""
    assert "all checked" in run("ring_soak", 4)


def test_a_failing_program_fails_the_run() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.stress", "--only", "nothing"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "ring_kills" in done.stderr

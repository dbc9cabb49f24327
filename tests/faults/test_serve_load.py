"""The short forms of the server's stress programs; `make stress` runs the long ones."""

from __future__ import annotations

import subprocess
import sys

import pytest
from support import ROOT, SLOWNESS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(230)]


@pytest.mark.parametrize(
    ("program", "flags"),
    [
        ("serve_streams", ["--streams", "300", "--tokens", "60"]),
        ("serve_chaos", ["--requests", "300", "--at-once", "60"]),
        ("serve_kills", ["--kills", "3", "--per-life", "2"]),
        ("serve_soak", ["--seconds", "6"]),
    ],
)
def test_the_short_form_of(program: str, flags: list[str]) -> None:
    command = [sys.executable, "-m", f"tests.stress.{program}", "--seed", "7", *flags]
    ended = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=200 * SLOWNESS, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr[-8000:]
    assert ended.stdout, "it counted nothing"

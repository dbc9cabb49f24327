"""The coverage-guided fuzz program: its targets judge, and it runs, or says why it does not."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT

from tests.fuzz import guided


@pytest.mark.parametrize("name", guided.MAX_BYTES)
def test_a_target_judges_its_first_corpus_and_noise(name: str) -> None:
    judge, seeds = guided.target(name)
    assert len(seeds) > 100
    for data in [*seeds[:100], b"", b"\xff" * 9]:
        judge(data)


def run(*flags: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.fuzz.guided", "--seconds", "1", *flags]
    env = {**os.environ, **environment}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)


def test_without_atheris_it_says_so(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as u\nfind = u.find_spec\n"
        "u.find_spec = lambda name, *more: None if name == 'atheris' else find(name, *more)\n"
    )
    done = run(PYTHONPATH=str(tmp_path))
    assert done.returncode == 0
    assert "skipped, atheris is not installed" in done.stdout


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="atheris is not installed")
def test_with_atheris_it_counts_what_it_tried() -> None:
    done = run("--target", "frames")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "guided frames: " in done.stdout
    assert "no finding" in done.stdout

"""The table of field reports is whole, and names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

from support import ROOT

TABLE = (Path(__file__).parent / "FIELD_REPORTS.md").read_text(encoding="utf-8")


def test_every_report_has_a_row() -> None:
    numbers = [int(number) for number in re.findall(r"^\| R(\d+) \|", TABLE, re.MULTILINE)]
    assert numbers == [*range(65, 92), *range(104, 109)]


def test_every_named_test_exists() -> None:
    sources = {path.name: path.read_text(encoding="utf-8") for path in ROOT.glob("tests/**/*.py")}
    for file in re.findall(r"(test_\w+\.py)", TABLE):
        assert file in sources
    whole = "".join(sources.values())
    for name in re.findall(r"::(test_\w+)`", TABLE):
        assert f"def {name}(" in whole, name
    for start in re.findall(r"`(test_r\w+_)\.\.\.`", TABLE):
        assert f"def {start}" in sources["test_reported_faults.py"], start
    for program in re.findall(r"`stress/(\w\w+)`", TABLE):
        assert (ROOT / "tests" / "stress" / f"{program}.py").exists(), program

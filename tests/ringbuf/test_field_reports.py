"""The table of field reports is whole, and names tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from support import ROOT

TABLE = (Path(__file__).parent / "FIELD_REPORTS.md").read_text(encoding="utf-8")
ROWS = [line.split("|")[1:4] for line in TABLE.splitlines() if line.startswith("| R0")]


def test_every_report_has_a_row_with_a_trial_or_a_reason() -> None:
    assert [row[0].strip() for row in ROWS] == [f"R{number:03}" for number in range(1, 51)]
    assert all(row[2].strip() for row in ROWS)


def test_every_named_test_exists() -> None:
    sources = {path.name: path.read_text(encoding="utf-8") for path in ROOT.glob("tests/**/*.py")}
    for _, _, trial in ROWS:
        file = ""
        for reference in re.findall(r"`([^`]+)`", trial):
            found = re.fullmatch(
                r"(?:tests/\w+/)?(test_\w+\.py)?(?:::)?(?:\.\.\.)?(\w*?)(?:_?\.\.\.)?", reference
            )
            if found is None or not (found[1] or "::" in reference):
                continue
            file = found[1] or file
            assert file in sources, reference
            assert found[2] in sources[file], reference
        for program in re.findall(r"stress/(\w+)", trial):
            assert f"{program}.py" in sources


def test_nothing_decodes_code_from_a_segment() -> None:
    """R049: no pickle, no marshal, no eval anywhere in the package."""
    for path in (ROOT / "ringbuf").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
                assert not {"pickle", "marshal", "shelve", "dill"} & set(names), path
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec"), path

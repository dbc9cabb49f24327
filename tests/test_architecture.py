"""ARCHITECTURE.md shows the byte map that the code has."""

from __future__ import annotations

import ast

from support import ROOT


def test_the_byte_map_is_that_of_layout() -> None:
    source = (ROOT / "ringbuf" / "layout.py").read_text(encoding="utf-8")
    doc = ast.get_docstring(ast.parse(source)) or ""
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    shown = page.split("<!-- byte map -->")[1].split("<!-- end of byte map -->")[0]
    assert shown.strip() == doc.split("\n", 2)[2].strip()

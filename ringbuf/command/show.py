"""How the command prints: tables with rich where it is installed, plain ones where not, and JSON."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import Any

try:
    import rich.box
    import rich.console
    import rich.table
    import rich.text
except ImportError:  # rich is an extra
    HAS_RICH = False
else:
    HAS_RICH = True

__all__ = ["Table", "amount", "clear_screen", "duration", "print_json"]

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclasses.dataclass
class Table:
    """Rows under headings; a heading that ends with ">" is right-aligned."""

    headings: Sequence[str]
    rows: list[Sequence[str]] = dataclasses.field(default_factory=list)

    def print(self) -> None:
        """Print it: with rich on a terminal, else plain, so that it can be cut and searched."""
        if HAS_RICH and sys.stdout.isatty():
            table = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
            for heading in self.headings:
                table.add_column(
                    heading.rstrip(">"), justify="right" if heading.endswith(">") else "left", no_wrap=True
                )
            for row in self.rows:
                table.add_row(*map(rich.text.Text, row))
            rich.console.Console().print(table)
            return
        print("\n".join(self.lines()))

    def lines(self) -> list[str]:
        """It as plain lines."""
        titles = [heading.rstrip(">") for heading in self.headings]
        widths = [max(map(len, column)) for column in zip(titles, *self.rows, strict=True)]
        lines = []
        for row in (titles, *self.rows):
            cells = [
                cell.rjust(width) if heading.endswith(">") else cell.ljust(width)
                for cell, width, heading in zip(row, widths, self.headings, strict=True)
            ]
            lines.append("  ".join(cells).rstrip())
        return lines


def amount(nbytes: float) -> str:
    """Bytes for people."""
    for unit in _UNITS[:-1]:
        if nbytes < 1024:
            return f"{nbytes:.0f} {unit}" if unit == "B" or nbytes == int(nbytes) else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} {_UNITS[-1]}"


def duration(seconds: float) -> str:
    """A time span for people."""
    seconds = max(0, int(seconds))
    days, rest = divmod(seconds, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, seconds = divmod(rest, 60)
    if days:
        return f"{days}d {hours}h"
    if hours:
        return f"{hours}h {minutes}m"
    return f"{minutes}m {seconds}s" if minutes else f"{seconds}s"


def print_json(value: Any, *, indent: int | None = 2) -> None:
    """One JSON document, flushed; with `indent` None on one line."""
    print(json.dumps(value, indent=indent), flush=True)


def clear_screen() -> None:
    """Begin at the top of a cleared terminal; nothing where stdout is none."""
    if sys.stdout.isatty():
        print("\x1b[H\x1b[2J", end="")

"""Find a part of a pattern's tree in the text that the client wrote.

CPython's tree has no places, and its parser rewrites: `foo|far` becomes `f(?:oo|ar)`, `a|b` becomes `[ab]`,
`x{1,}` becomes `x+`. So the text is cut into its items here, and the run of items sought whose tree is spelt
like the part's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from egress.request.admission_tree import Nodes, parse, spell

__all__ = ["quote"]

# Each level of groups is read once more; deeper ones are not worth the time.
_MAX_DEPTH = 16

_ATOM = re.compile(
    r"\\(?:x..|u.{4}|U.{8}|N\{[^}]*\}|[0-9]{1,3}|.)|\[\^?\]?(?:\\.|[^]\\])*\]"
    r"|\(\?(?:\#[^)]*|P=\w+|[aiLmsux]+)\)|[^()|]",
    re.DOTALL,
)
_OPENING = re.compile(r"\((?:\?(?:P<\w+>|\(\w+\)|<[=!]|[aiLmsux-]*:|[=!>]))?")
_REPEAT = re.compile(r"(?:[*+?]|\{(?:[0-9]+(?:,[0-9]*)?|,[0-9]*)\})[?+]?")

_Span = tuple[int, int]


def quote(pattern: str, part: Nodes) -> str | None:
    """The client's own text for `part`, a part of what CPython made of `pattern`.

    Returns:
        The first run of items that means the same, spelt as in `pattern`; None where there is none, since the
        part only came to be by rewriting, or lies too deep.
    """
    wanted = spell(part)
    for run in _runs(pattern):
        words = [_respelt(pattern[start:end]) for start, end in run]
        for first in range(len(run)):
            said = ""
            for word, (_, end) in zip(words[first:], run[first:], strict=True):
                said += word
                if said == wanted:
                    return pattern[run[first][0] : end]
                if not wanted.startswith(said):
                    break
    return None


def _respelt(text: str) -> str:
    try:
        return spell(parse(text)[0])
    except (re.error, OverflowError, RecursionError, ValueError, Warning):
        return text  # such as a reference to a group that stands elsewhere


def _runs(pattern: str) -> Iterator[list[_Span]]:
    """The alternatives of every group as runs of items, the inner ones first; then all inside as one item."""
    outer: list[tuple[int, int, list[_Span]]] = []
    run: list[_Span] = []
    place = inside = 0
    while place < len(pattern):
        if (atom := _ATOM.match(pattern, place)) is not None:
            start, place = atom.span()
        elif (opening := _OPENING.match(pattern, place)) is not None:
            if len(outer) == _MAX_DEPTH:
                return
            outer.append((place, inside, run))
            place = inside = opening.end()
            run = []
            continue
        elif pattern[place] == "|" or not outer:
            yield run
            run = []
            place += 1
            continue
        else:
            yield run
            yield [(inside, place)]
            start, inside, run = outer.pop()
            place += 1
        if (repeat := _REPEAT.match(pattern, place)) is not None:
            place = repeat.end()
        run.append((start, place))
    yield run
    yield [(0, len(pattern))]

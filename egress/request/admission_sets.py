"""Which character sets of a pattern can match the same character: a sound over-approximation.

Every set becomes one int, a mask over cells; two sets overlap when their masks share a bit. ASCII has a cell
per character and is exact. Above it the code points are cut where any range of the pattern begins or ends,
and each piece into the four kinds no category can tell further apart: space, decimal digit, other word
character, anything else. A short piece holds the kinds it really has; a long one is taken to hold all four.
Under IGNORECASE a set that is not negated is widened to what folds into it (all of non-ASCII as soon as it
has any), a negated one is left as it is spelt, which is wider too: an overlap may be seen that is none, never
the other way round.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Hashable, Iterable
from typing import Any

from egress.request.admission_tree import Nodes, op, parts_of

__all__ = ["ANYTHING", "folding_work", "masks_of", "set_of"]

_FIRST = 128
_LAST = 0x10FFFF
_LONG_PIECE = 64
"""Code points of a piece whose kinds are looked up one by one; longer ones are taken to have all four."""

_SPACE, _DIGIT, _WORD, _OTHER = range(4)


def _kind(code: int) -> int:
    char = chr(code)
    if char.isspace():
        return _SPACE
    if char.isdecimal():
        return _DIGIT
    return _WORD if char.isalnum() or char == "_" else _OTHER


def _ascii_mask(codes: Iterable[int]) -> int:
    return sum(1 << code for code in codes)


_ASCII = (1 << _FIRST) - 1
_ASCII_KIND = [_ascii_mask(c for c in range(_FIRST) if _kind(c) == kind) for kind in range(4)]
# Under (?a) \s is these six; the four separators \x1c-\x1f are spaces in Unicode only.
_ASCII_SPACE = _ascii_mask(b" \t\n\r\f\v")
_DIGIT_ASCII, _WORD_ASCII = _ASCII_KIND[_DIGIT], _ASCII_KIND[_DIGIT] | _ASCII_KIND[_WORD]

# category -> (whether it is the complement, its kinds, its ASCII mask with and without the flag ASCII)
_CATEGORIES: dict[Any, tuple[bool, frozenset[int], int, int]] = {}
for _yes, _no, _kinds, _flagged, _plain in (
    (op.CATEGORY_DIGIT, op.CATEGORY_NOT_DIGIT, {_DIGIT}, _DIGIT_ASCII, _DIGIT_ASCII),
    (op.CATEGORY_WORD, op.CATEGORY_NOT_WORD, {_DIGIT, _WORD}, _WORD_ASCII, _WORD_ASCII),
    (op.CATEGORY_SPACE, op.CATEGORY_NOT_SPACE, {_SPACE}, _ASCII_SPACE, _ASCII_KIND[_SPACE]),
):
    _CATEGORIES[_yes] = (False, frozenset(_kinds), _flagged, _plain)
    _CATEGORIES[_no] = (True, frozenset(_kinds), _flagged, _plain)

# The characters above ASCII that fold to an ASCII letter, and the letters they fold to.
_FOLDS_TO_ASCII = (0x130, 0x131, 0x17F, 0x212A)
_FOLDED_LETTERS = _ascii_mask(b"iIsSkK")
_LETTERS = _ascii_mask(range(65, 91)) | _ascii_mask(range(97, 123))


def set_of(kind: Any, value: Any, flags: int) -> Hashable:
    """One single-character node as a value that `masks_of` takes; equal for equal sets."""
    if kind is op.ANY:
        return (True, 0 if flags & re.DOTALL else 1 << 10, 0, ())
    if kind is op.LITERAL or kind is op.NOT_LITERAL:
        items, negated = [(op.LITERAL, value)], kind is op.NOT_LITERAL
    else:
        negated = bool(value) and value[0][0] is op.NEGATE
        items = value[1:] if negated else value
    ascii_mask, kinds, ranges = 0, 0, []
    for what, item in items:
        if what is op.CATEGORY:
            complement, chosen, flagged, plain = _CATEGORIES[item]
            only_ascii = bool(flags & re.ASCII)
            part = flagged if only_ascii else plain
            above = 0 if only_ascii else _ascii_mask(chosen)
            ascii_mask |= _ASCII ^ part if complement else part
            kinds |= 15 ^ above if complement else above
            continue
        low, high = (item, item) if what is op.LITERAL else item
        if low < _FIRST:
            ascii_mask |= (1 << min(high + 1, _FIRST)) - (1 << low)
        if high >= _FIRST:
            ranges.append((max(low, _FIRST), high))
    if flags & re.IGNORECASE and not negated:
        above_ascii = bool(ranges or kinds)
        letters = ascii_mask & _LETTERS
        ascii_mask |= (letters & _ascii_mask(range(65, 91))) << 32 | (
            letters & _ascii_mask(range(97, 123))
        ) >> 32
        if above_ascii:
            ascii_mask, kinds = ascii_mask | _FOLDED_LETTERS, 15
        elif ascii_mask & _FOLDED_LETTERS:
            ranges = [(code, code) for code in _FOLDS_TO_ASCII]
    return (negated, ascii_mask, kinds, tuple(sorted(ranges)))


ANYTHING: Hashable = (True, 0, 0, ())
"""The set of every character."""


def masks_of(specs: Iterable[Any]) -> dict[Hashable, int]:
    """The cells of each set; two sets that can match one character share a bit."""
    distinct = list(dict.fromkeys(specs))
    cuts = {_FIRST, _LAST + 1}
    for _, _, _, ranges in distinct:
        for low, high in ranges:
            cuts.update((low, high + 1))
    points = sorted(cuts)
    cells = [(start, kind) for start, stop in itertools.pairwise(points) for kind in _kinds_of(start, stop)]
    masks: dict[Hashable, int] = {}
    for spec in distinct:
        negated, mask, kinds, ranges = spec
        for bit, (start, kind) in enumerate(cells, _FIRST):
            if kinds >> kind & 1 or any(low <= start <= high for low, high in ranges):
                mask |= 1 << bit
        masks[spec] = mask ^ (1 << _FIRST + len(cells)) - 1 if negated else mask
    return masks


def _kinds_of(start: int, stop: int) -> Iterable[int]:
    return range(4) if stop - start > _LONG_PIECE else {_kind(code) for code in range(start, stop)}


def folding_work(nodes: Nodes, flags: int) -> int:
    """Code points that compiling folds one by one: those of the ranges under IGNORECASE."""
    work = 0
    for kind, value in nodes:
        if kind is op.IN and flags & re.IGNORECASE:
            work += sum(item[1] - item[0] + 1 for what, item in value if what is op.RANGE)
        for part, inner in parts_of(kind, value, flags):
            work += folding_work(part, inner)
    return work

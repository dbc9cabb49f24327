"""CPython's own parse tree of a pattern: reading it, its character sets, its bound, its spelling.

This is the one place that knows where the interpreter keeps its regex parser (`re._parser` and
`re._constants` since 3.11; private, so every use of them is here) and how its tree is shaped: a sequence of
`(opcode, argument)` pairs. It decides nothing about cost.
"""

from __future__ import annotations

import importlib
import re
import threading
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

__all__ = [
    "REPEATS",
    "UNBOUNDED",
    "Nodes",
    "groups_of",
    "is_anchored",
    "is_single",
    "longest",
    "op",
    "parse",
    "parts_of",
    "spell",
]

_parser: Any = importlib.import_module("re._parser")
op: Any = importlib.import_module("re._constants")
"""The parser's opcodes: op.LITERAL, op.MAX_REPEAT and so on."""

Nodes = Sequence[tuple[Any, Any]]
"""A sequence of the tree: opcodes with their arguments, one after another."""

UNBOUNDED = 1 << 30
"""The bound of a pattern whose matches have no longest one; the wire's word for it."""

REPEATS = (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT)
_SINGLE = (op.LITERAL, op.NOT_LITERAL, op.ANY, op.IN)

# The parser warns about a set whose meaning a later Python will change, and (3.11) about a group number spelt
# in a way a later one refuses. Only a pattern with one of these can be such; all others are parsed without
# touching the process-wide warning filters.
_WARNED = re.compile(r"\[.*(?:\[|--|&&|~~|\|\|)|\(\?(?:\(|P=)", re.DOTALL)
_WARNINGS = r"possible (?:nested set|set )|bad character in group name"
_warnings_lock = threading.Lock()


def parse(pattern: str) -> tuple[Nodes, int]:
    """Read `pattern` and return its tree and its flags.

    Raises:
        re.error, OverflowError, RecursionError, ValueError, Warning: CPython will not have it, or warns that
            it will mean something else one day.
    """
    if _WARNED.search(pattern) is None:
        tree = _parser.parse(pattern, 0)
    else:
        with _warnings_lock, warnings.catch_warnings():
            warnings.filterwarnings("error", _WARNINGS)
            tree = _parser.parse(pattern, 0)
    return tree, int(tree.state.flags)


def is_single(nodes: Nodes) -> bool:
    """Whether the sequence is one character set: what CPython repeats in a tight loop."""
    if len(nodes) != 1:
        return False
    kind, value = nodes[0]
    if kind is op.SUBPATTERN:
        return value[0] is None and is_single(value[3])
    return kind in _SINGLE


def groups_of(nodes: Nodes, flags: int) -> dict[int, tuple[Nodes, int]]:
    """Every capturing group by its number: its sequence, and the flags it stands under."""
    found: dict[int, tuple[Nodes, int]] = {}
    todo: list[tuple[Nodes, int]] = [(nodes, flags)]
    while todo:
        sequence, flags = todo.pop()
        for kind, value in sequence:
            if kind is op.SUBPATTERN and value[0] is not None:
                found[value[0]] = (value[3], (flags | value[1]) & ~value[2])
            todo.extend(parts_of(kind, value, flags))
    return found


def parts_of(kind: Any, value: Any, flags: int) -> list[tuple[Nodes, int]]:
    """The sequences directly inside one node, with their flags."""
    if kind is op.SUBPATTERN:
        return [(value[3], (flags | value[1]) & ~value[2])]
    if kind in REPEATS:
        return [(value[2], flags)]
    if kind is op.BRANCH:
        return [(part, flags) for part in value[1]]
    if kind is op.ATOMIC_GROUP:
        return [(value, flags)]
    if kind in (op.ASSERT, op.ASSERT_NOT):
        return [(value[1], flags)]
    if kind is op.GROUPREF_EXISTS:
        return [(part, flags) for part in value[1:] if part is not None]
    return []


def longest(nodes: Nodes, groups: dict[int, tuple[Nodes, int]], known: dict[int, int] | None = None) -> int:
    """Characters of the longest match, UNBOUNDED at most; look-around counts nothing.

    `known` keeps the answer per group, so that references to groups of references stay linear.

    Case folding does not change it: `re` folds one character to one character, so `(?i)ß` never matches "ss".
    """
    total = 0
    known = {} if known is None else known
    for kind, value in nodes:
        if kind in _SINGLE:
            total += 1
        elif kind in REPEATS:
            inner = longest(value[2], groups, known)
            if inner:
                total += UNBOUNDED if value[1] == op.MAXREPEAT else inner * int(value[1])
        elif kind is op.GROUPREF:
            if value not in known:
                known[value] = longest(groups[value][0], groups, known)
            total += known[value]
        elif kind not in (op.ASSERT, op.ASSERT_NOT):
            total += max((longest(part, groups, known) for part, _ in parts_of(kind, value, 0)), default=0)
        if total >= UNBOUNDED:
            return UNBOUNDED
    return total


def is_anchored(nodes: Nodes, flags: int) -> bool:
    """Whether a match can only begin where the text begins."""
    for kind, value in nodes:
        if kind is op.AT:
            if value is op.AT_BEGINNING_STRING or (value is op.AT_BEGINNING and not flags & re.MULTILINE):
                return True
            continue
        if kind in (op.ASSERT, op.ASSERT_NOT):
            continue
        if kind in (op.SUBPATTERN, op.ATOMIC_GROUP, op.BRANCH) or (kind in REPEATS and value[0] > 0):
            return all(is_anchored(part, inner) for part, inner in parts_of(kind, value, flags))
        return False
    return False


# --- spelling -------------------------------------------------------------------------------------------

_AT = {
    op.AT_BEGINNING: "^", op.AT_BEGINNING_STRING: "\\A", op.AT_BOUNDARY: "\\b",
    op.AT_NON_BOUNDARY: "\\B", op.AT_END: "$", op.AT_END_STRING: "\\Z",
}  # fmt: skip
_CATEGORY = {
    op.CATEGORY_DIGIT: "\\d", op.CATEGORY_NOT_DIGIT: "\\D", op.CATEGORY_SPACE: "\\s",
    op.CATEGORY_NOT_SPACE: "\\S", op.CATEGORY_WORD: "\\w", op.CATEGORY_NOT_WORD: "\\W",
}  # fmt: skip


def spell(nodes: Nodes) -> str:
    """The sequence as a pattern again: the same meaning, though not always the client's own spelling."""
    return "".join(_spell(kind, value) for kind, value in nodes)


def _spell(kind: Any, value: Any) -> str:
    if kind is op.LITERAL:
        return _char(value, ".^$*+?{}[]\\|()")
    if kind is op.NOT_LITERAL:
        return f"[^{_char(value, _SET_SPECIAL)}]"
    if kind is op.ANY:
        return "."
    if kind is op.IN:
        return _spell_set(value)
    if kind is op.AT:
        return _AT[value]
    if kind in REPEATS:
        return _spell_repeat(kind, *value)
    if kind is op.BRANCH:
        return f"(?:{'|'.join(map(spell, value[1]))})"
    if kind is op.SUBPATTERN:
        return _spell_group(*value)
    if kind is op.ATOMIC_GROUP:
        return f"(?>{spell(value)})"
    if kind in (op.ASSERT, op.ASSERT_NOT):
        sign = "=" if kind is op.ASSERT else "!"
        return f"(?{'<' if value[0] < 0 else ''}{sign}{spell(value[1])})"
    if kind is op.GROUPREF:
        return f"\\{value}"
    if kind is op.GROUPREF_EXISTS:
        no = "" if value[2] is None else "|" + spell(value[2])
        return f"(?({value[0]}){spell(value[1])}{no})"
    return "(?!)"


_SET_SPECIAL = "\\]^-["


def _char(code: int, special: str) -> str:
    char = chr(code)
    if char in special:
        return "\\" + char
    return char if char.isprintable() else char.encode("unicode_escape").decode("ascii")


def _spell_set(items: Iterable[tuple[Any, Any]]) -> str:
    parts = []
    for kind, value in items:
        if kind is op.NEGATE:
            parts.append("^")
        elif kind is op.LITERAL:
            parts.append(_char(value, _SET_SPECIAL))
        elif kind is op.RANGE:
            parts.append(f"{_char(value[0], _SET_SPECIAL)}-{_char(value[1], _SET_SPECIAL)}")
        else:
            parts.append(_CATEGORY[value])
    return parts[0] if len(parts) == 1 and parts[0] in _CATEGORY.values() else f"[{''.join(parts)}]"


def _spell_repeat(kind: Any, low: int, high: int, body: Nodes) -> str:
    inner = spell(body)
    if not (
        is_single(body) or (len(body) == 1 and body[0][0] in (op.SUBPATTERN, op.BRANCH, op.ATOMIC_GROUP))
    ):
        inner = f"(?:{inner})"
    unbounded = high == op.MAXREPEAT
    if (low, high) == (0, 1):
        count = "?"
    elif unbounded and low < 2:
        count = "*+"[low]
    elif low == high:
        count = f"{{{low}}}"
    else:
        count = f"{{{low},{'' if unbounded else high}}}"
    return inner + count + {op.MAX_REPEAT: "", op.MIN_REPEAT: "?"}.get(kind, "+")


def _spell_group(group: int | None, add: int, remove: int, body: Nodes) -> str:
    if group is not None:
        return f"({spell(body)})"
    on = "".join(letter for letter, flag in _FLAGS if add & flag)
    off = "".join(letter for letter, flag in _FLAGS if remove & flag)
    return f"(?{on}{'-' + off if off else ''}:{spell(body)})"


_FLAGS = [
    ("a", re.ASCII),
    ("i", re.IGNORECASE),
    ("m", re.MULTILINE),
    ("s", re.DOTALL),
    ("u", re.UNICODE),
    ("x", re.VERBOSE),
]

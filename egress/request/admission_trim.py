"""Take off the end of a pattern what cannot fail: once it is reached the search is over.

A backtracker pays for ambiguity only when something fails afterwards. An optional or repeated part at the
very end cannot: it matches what it can and the search succeeds. So `\\$\\d+` costs what `\\$\\d` does, and
`\\s*\\n\\s*` what `\\s*\\n` does. What a trailing loop repeats is still tried, at most once from every place:
a body that is more than one character is returned to be weighed as a pattern of its own.
"""

from __future__ import annotations

from typing import Any

from egress.request.admission_tree import REPEATS, Nodes, is_single, op

__all__ = ["trim"]


def trim(nodes: Nodes, flags: int) -> list[tuple[Nodes, int]]:
    """Split a whole pattern into the sequences to weigh, each with its flags: itself first, trimmed."""
    bodies: list[tuple[Nodes, int]] = []
    kept = _trim(list(nodes), flags, bodies)
    parts = [(kept, flags)]
    for body, body_flags in bodies:
        parts.extend(trim(body, body_flags))
    return parts


def _trim(nodes: list[tuple[Any, Any]], flags: int, bodies: list[tuple[Nodes, int]]) -> Nodes:
    while nodes:
        kind, value = nodes.pop()
        if kind in REPEATS:
            low, high, body = value
            if high != low and not is_single(body):
                bodies.append((body, flags))
            if low == 0:
                continue
            # Only the last required copy ends the pattern; the ones before it stay as they are.
            if low > 1:
                nodes.append((kind, (low - 1, low - 1, body)))
            inner = _trim(list(body), flags, bodies)
            if low == 1 and not inner:
                continue
            return [*nodes, (kind, (1, 1, inner))]
        if kind is op.SUBPATTERN:
            group, add, remove, body = value
            inner = _trim(list(body), (flags | add) & ~remove, bodies)
            if not inner:
                continue
            return [*nodes, (kind, (group, add, remove, inner))]
        if kind is op.ATOMIC_GROUP:
            inner = _trim(list(value), flags, bodies)
            if not inner:
                continue
            return [*nodes, (kind, inner)]
        if kind is op.BRANCH:
            parts = [_trim(list(part), flags, bodies) for part in value[1]]
            return [*nodes, (kind, (None, parts))]
        return [*nodes, (kind, value)]
    return nodes

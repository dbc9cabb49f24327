"""Name the part of a refused pattern that is at fault, and say why in the client's terms.

The part is the smallest one that is over the limit by itself: down through groups and repeats as long as one
item alone is over, then the shortest run of neighbours that is over together.
"""

from __future__ import annotations

import contextlib

from egress.request.admission_automaton import PLAIN, Automaton, Meter, OverBudget, TooManyWays
from egress.request.admission_quote import quote
from egress.request.admission_tree import REPEATS, Nodes, is_anchored, op, parts_of
from egress.request.admission_walk import MAX_TAIL, Walk, walk
from egress.request.values import quoted

__all__ = ["blame"]

_BUDGET = 30_000
"""Counted steps for naming the part; what is found when they run out is named."""

_FEW_PATHS = 16
"""Paths up to which a part is called dear rather than ambiguous."""

_Groups = dict[int, tuple[Nodes, int]]


class _Search:
    def __init__(self, groups: _Groups, limit: int) -> None:
        self.groups = groups
        self.limit = limit
        self.meter = Meter(_BUDGET)
        self.walk: Walk | None = None

    def is_over(self, nodes: Nodes, flags: int) -> bool:
        """Whether this part alone, with something after it that fails, is over the limit."""
        try:
            automaton = Automaton(nodes, flags, self.groups, self.meter)
            starts = "first" if is_anchored(nodes, flags) else "each"
            found = walk(automaton, starts=starts, limit=self.limit, meter=self.meter)
        except TooManyWays:
            self.walk = None
            return True
        if found.cost <= self.limit:
            return False
        self.walk = found
        return True

    def smallest(self, nodes: Nodes, flags: int) -> tuple[Nodes, Walk | None]:
        """The smallest part of an over-limit sequence, and what its walk found."""
        best, walked = nodes, self.walk
        try:
            for item in nodes:
                if len(nodes) > 1 and not self.is_over([item], flags):
                    continue
                best, walked = [item], self.walk
                for part, inner in parts_of(*item, flags):
                    if self.is_over(part, inner):
                        return self.smallest(part, inner)
                return best, walked
            for step in (slice(None, -1), slice(1, None)):
                while len(best) > 1 and self.is_over(best[step], flags):
                    best, walked = best[step], self.walk
        except OverBudget:
            pass
        return best, walked


def blame(pattern: str, nodes: Nodes, flags: int, groups: _Groups, limit: int) -> str:
    """One clause that names the part at fault and the reason, for a pattern over `limit`."""
    search = _Search(groups, limit)
    with contextlib.suppress(OverBudget):
        # A pattern may be over the limit only as a whole, each of its parts alone being cheap.
        search.is_over(nodes, flags)
    part, walked = search.smallest(nodes, flags)
    text = quote(pattern, part)
    return f"{'a part of it' if text is None else quoted(text)} {_reason(part, walked)}"


def _reason(part: Nodes, walked: Walk | None) -> str:
    if walked is None:
        return "can match the same text in more ways than can be tried"
    if walked.n_paths <= _FEW_PATHS:
        times = walked.cost / (PLAIN * MAX_TAIL * MAX_TAIL / 2)
        return (
            f"is too dear to search for: {times:.1f} times the plainest quadratic loop "
            f"over {MAX_TAIL} characters or more"
        )
    if len(part) == 1 and part[0][0] in REPEATS:
        cause = "its iterations can divide the same text between them in many ways"
    elif len(part) == 1 and part[0][0] is op.BRANCH:
        cause = "its alternatives can match the same text"
    else:
        cause = "its parts can divide the same text between them in many ways"
    return f"is slower than quadratic: {cause}, up to {walked.n_paths:,} for {walked.n_characters} characters"

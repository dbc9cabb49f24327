"""A pattern as a position automaton that counts: how many ways, and at what price, a backtracker can go on.

Glushkov's construction with multiplicities. A state is one character of the pattern after repeats are
written out; an edge carries the number of different ways to get from one character to the next without
consuming anything (skipped optionals, alternatives that are the same); a state's cost is what the matcher
does there before it consumes again: every alternative it tries, every loop it leaves or re-enters.

Everything a backtracker may skip is counted as done, so counts are never too small: atomic groups and
possessive repeats as if they could be re-entered, look-ahead as a branch that is always walked and always
passes, anchors and word boundaries as always passing, a back-reference as a second copy of its group, both
sides of a conditional, the optimisations of `re` as absent. What `re` guarantees is used: an iteration that
consumed nothing is never followed by another (the zero-width guard of its loops).
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any

from egress.request.admission_sets import ANYTHING, masks_of, set_of
from egress.request.admission_tree import REPEATS, Nodes, is_single, op

__all__ = ["PLAIN", "Automaton", "Meter", "OverBudget", "TooManyWays"]

# Prices in units of which the plainest quadratic loop, `\n+$`, takes 15 per character and start. Measured as
# multiples of that loop over 1,024 characters (bench/admission_cost.py prints them); rounded up.
PLAIN = 15
_VISIT = 2
_LITERAL = 3
_SET = 8
_SET_ITEM = 4  # a set with a category or beyond the BMP is a list that is walked
_WORD = 35  # four look-ups in the Unicode tables before "no", or "yes" to an underscore
_WORD_FOUND = 12
_DIGIT = 14
_SPACE = 6
_FOLDED_LITERAL = 12
_FOLDED_SET = 36
_FOLDED_CATEGORY = 8
_REPEAT_ENTER = 25
_REPEAT_AGAIN = 10
_LAZY_ENTER = 45
_LAZY_AGAIN = 18
_LOOP_ENTER = 62
_LOOP_AGAIN = 42
_BRANCH = 12
_ALTERNATIVE = 12  # on top, for as many as one character can lead into
_GROUP = 28
_ANCHOR = 4
_BOUNDARY = 65  # two word look-ups that both say no
_LOOK = 18
_REFERENCE = 10

_CATEGORY_PRICE = {
    op.CATEGORY_WORD: _WORD, op.CATEGORY_NOT_WORD: _WORD, op.CATEGORY_DIGIT: _DIGIT,
    op.CATEGORY_NOT_DIGIT: _DIGIT, op.CATEGORY_SPACE: _SPACE, op.CATEGORY_NOT_SPACE: _SPACE,
}  # fmt: skip

_MAX_WAYS = 1 << 40
"""Ways between two characters beyond which a pattern is over any limit."""


class OverBudget(Exception):
    """The verdict would take more counted steps than it may."""


class TooManyWays(Exception):
    """Between two characters there are more ways than any search may try."""


class Meter:
    """Counted steps of one verdict; a step is about 0.15 us.

    Args:
        steps: how many may be spent before OverBudget.
    """

    __slots__ = ("left",)

    def __init__(self, steps: int) -> None:
        self.left = steps

    def spend(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise OverBudget


class Fragment:
    """A part under construction: its first and last states with the ways to reach and leave them.

    `empty` is the number of ways to match nothing, `entry` the price of trying the part once.
    """

    __slots__ = ("empty", "entry", "first", "last")

    def __init__(self, first: dict[int, int], last: dict[int, int], empty: int, entry: int) -> None:
        self.first = first
        self.last = last
        self.empty = empty
        self.entry = entry


def _nothing(entry: int = 0) -> Fragment:
    return Fragment({}, {}, 1, entry)


class Automaton:
    """The states of one sequence. State 0 is the start, before any character.

    Args:
        nodes: the sequence.
        flags: the flags it stands under.
        groups: capturing groups of the whole pattern, for back-references.
        meter: pays for every state and edge.

    Attributes:
        follow: per state, next state -> ways.
        cost: per state, the price of being there once.
        mask: per state, the cells of the character it consumes (0 for the start).
    """

    def __init__(self, nodes: Nodes, flags: int, groups: dict[int, tuple[Nodes, int]], meter: Meter) -> None:
        self._groups = groups
        self._meter = meter
        self._specs: list[Hashable] = [ANYTHING]
        self._open_references: set[int] = set()
        self.follow: list[dict[int, int]] = [{}]
        self.cost: list[int] = [0]
        start = Fragment({}, {0: 1}, 0, 0)
        self._then(start, self._sequence(nodes, flags))
        masks = masks_of(self._specs)
        self.mask = [masks[spec] for spec in self._specs]

    def _sequence(self, nodes: Nodes, flags: int) -> Fragment:
        whole = _nothing()
        for kind, value in nodes:
            whole = self._then(whole, self._node(kind, value, flags))
        return whole

    def _then(self, left: Fragment, right: Fragment) -> Fragment:
        """Left, then right; both are used up."""
        self._link(left.last, right)
        first, last = left.first, right.last
        if left.empty:
            for state, ways in right.first.items():
                first[state] = first.get(state, 0) + ways * left.empty
        if right.empty:
            for state, ways in left.last.items():
                last[state] = last.get(state, 0) + ways * right.empty
        self._meter.spend(4 + len(right.first) + len(left.last))
        entry = left.entry + left.empty * right.entry
        if entry > _MAX_WAYS:
            raise TooManyWays
        return Fragment(first, last, left.empty * right.empty, entry)

    def _link(self, last: dict[int, int], right: Fragment, extra: int = 0) -> None:
        """Let every state of `last` go on into `right`, at the price of trying it."""
        self._meter.spend(len(last) * (1 + len(right.first)))
        for state, ways in last.items():
            self.cost[state] += ways * (right.entry + extra)
            follow = self.follow[state]
            for successor, more in right.first.items():
                follow[successor] = follow.get(successor, 0) + ways * more

    def _node(self, kind: Any, value: Any, flags: int) -> Fragment:
        if kind in REPEATS:
            return self._repeat(kind, value, flags)
        if kind is op.BRANCH:
            return self._branch(value[1], flags)
        if kind is op.SUBPATTERN:
            group, add, remove, body = value
            part = self._sequence(body, (flags | add) & ~remove)
            part.entry += 0 if group is None else _GROUP
            return part
        if kind is op.ATOMIC_GROUP:
            part = self._sequence(value, flags)
            part.entry += _LOOK
            return part
        if kind is op.AT:
            edge = value in (op.AT_BOUNDARY, op.AT_NON_BOUNDARY)
            return _nothing(_BOUNDARY if edge else _ANCHOR)
        if kind in (op.ASSERT, op.ASSERT_NOT):
            return self._look(value[0], value[1], flags)
        if kind is op.GROUPREF:
            return self._reference(value, flags)
        if kind is op.GROUPREF_EXISTS:
            return self._branch([value[1], value[2] or []], flags)
        if kind is op.FAILURE:
            return Fragment({}, {}, 0, 1)
        return self._character(kind, value, flags)

    def _character(self, kind: Any, value: Any, flags: int) -> Fragment:
        self._meter.spend(8)
        state = len(self.cost)
        self.cost.append(_VISIT)
        self.follow.append({})
        self._specs.append(set_of(kind, value, flags))
        folds = flags & re.IGNORECASE
        if kind is not op.IN:
            entry = _FOLDED_LITERAL if folds and kind is not op.ANY else _LITERAL
        elif len(value) == 1 and value[0][0] is op.CATEGORY:
            entry = _SET + _listed(value, flags) + (_FOLDED_CATEGORY if folds else 0)
        else:
            entry = (_FOLDED_SET if folds else _SET) + _listed(value, flags)
        return Fragment({state: 1}, {state: 1}, 0, entry)

    def _branch(self, parts: Any, flags: int) -> Fragment:
        whole = Fragment({}, {}, 0, _BRANCH)
        entered: dict[Any, int] = {}
        for nodes in parts:
            part = self._sequence(nodes, flags)
            # An alternative that begins with a literal is only entered at that literal.
            begin = nodes[0] if nodes and nodes[0][0] is op.LITERAL else None
            entered[begin] = entered.get(begin, 0) + 1
            whole.first.update(part.first)
            whole.last.update(part.last)
            whole.empty += part.empty
            whole.entry += part.entry
        always = entered.pop(None, 0)
        whole.entry += _ALTERNATIVE * (always + max(entered.values(), default=0))
        return whole

    def _repeat(self, kind: Any, value: Any, flags: int) -> Fragment:
        low, high, body = int(value[0]), value[1], value[2]
        simple = is_single(body)
        enter = (_LAZY_ENTER if kind is op.MIN_REPEAT else _REPEAT_ENTER) if simple else _LOOP_ENTER
        again = (_LAZY_AGAIN if kind is op.MIN_REPEAT else _REPEAT_AGAIN) if simple else _LOOP_AGAIN
        if high == op.MAXREPEAT:
            rest = self._star(self._sequence(body, flags), again, simple)
        else:
            rest = self._optional(body, flags, int(high) - low, again)
        # The required copies, last first; a body that may be empty is run all the same.
        for _ in range(low):
            self._meter.spend(4)
            copy = self._sequence(body, flags)
            copy.entry += 0 if simple else _LOOP_AGAIN
            rest = self._then(copy, rest)
        rest.entry += enter
        return rest

    def _star(self, body: Fragment, again: int, simple: bool) -> Fragment:
        """Any number of iterations; after one, another or the exit, perhaps by way of an empty one."""
        # A loop over one set counts its characters once; none is tried again on the way back.
        tried = body.entry - (_WORD - _WORD_FOUND if simple and body.entry > _WORD else 0)
        self._link(body.last, Fragment(body.first, {}, 0, tried), again)
        exits = 1 + body.empty
        last = {state: ways * exits for state, ways in body.last.items()}
        return Fragment(body.first, last, exits, body.entry)

    def _optional(self, body: Nodes, flags: int, count: int, again: int) -> Fragment:
        """At most `count` iterations, each one only after the one before it, as `re` nests them."""
        rest = _nothing()
        for _ in range(count):
            self._meter.spend(4)
            copy = self._sequence(body, flags)
            empty, entry = copy.empty, copy.entry
            copy.empty = 0
            for state in copy.last:  # going on and giving up are both a jump from here
                self.cost[state] += again
            rest = self._then(copy, rest)
            rest.empty, rest.entry = 1 + empty, entry
        return rest

    def _look(self, direction: int, nodes: Nodes, flags: int) -> Fragment:
        part = self._sequence(nodes, flags)
        if direction < 0:
            # What a look-behind reads is already past: its states would be walked out of step with the text.
            # Its whole walk is charged at once instead, from every state it can be tried in.
            return _nothing(_LOOK + self._walk_all(part))
        return Fragment(part.first, {}, 1, _LOOK + part.entry)

    def _walk_all(self, part: Fragment) -> int:
        """The price of every path through a part without loops."""
        total, active = part.entry, part.first
        while active:
            self._meter.spend(len(active))
            following: dict[int, int] = {}
            for state, ways in active.items():
                total += ways * self.cost[state]
                for successor, more in self.follow[state].items():
                    following[successor] = following.get(successor, 0) + ways * more
            active = following
            if total > _MAX_WAYS:
                raise TooManyWays
        return total

    def _reference(self, group: int, flags: int) -> Fragment:
        nodes, inner = self._groups[group]
        if group in self._open_references:
            raise OverBudget
        self._open_references.add(group)
        part = self._sequence(nodes, flags | inner)
        self._open_references.discard(group)
        part.empty = max(part.empty, 1) if not part.first else part.empty
        part.entry += _REFERENCE
        return part


def _listed(items: Any, flags: int) -> int:
    """What walking a set item by item costs on top; nothing where CPython makes it a bit map."""
    price = 0
    for kind, value in items:
        if kind is op.CATEGORY:
            price += _CATEGORY_PRICE[value] if not flags & re.ASCII else _SPACE
        elif kind is not op.NEGATE and (value if kind is op.LITERAL else value[1]) > 0xFFFF:
            price += _SET_ITEM
    return price + _SET_ITEM * (len(items) - 1) if price else 0

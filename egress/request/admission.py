"""Which stop regexes may run: a pattern in, a bound or a refusal that names the part at fault out.

Stop regexes run in CPython's `re` at every decode step with the interpreter lock held, so the slowest search
of an admitted pattern is everybody's pause. The rule is about that search and nothing else: over every text
of 1,024 characters (all a matcher ever hands over), under unanchored search, it may cost at most LIMIT times
the plainest quadratic loop. The cost is bounded from CPython's own parse tree by counting the paths of a
backtracker that never stops early (`admission_automaton`, `admission_walk`); spelling decides nothing.

What that means for patterns, decided here and held by the tests:

* Two loops in a row are fine over disjoint sets and refused over sets that share a character, when something
  that can fail follows: the search is cubic. What follows the last thing that can fail costs nothing, since
  the search is over there: `\\s*\\n\\s*` is quadratic, `\\s*\\n\\s*END` is refused.
* Flags, groups, look-around, atomic groups, possessive repeats, conditionals and back-references are admitted
  when their cost is; the bound is the longest match, with a group's bound for each reference to it. Atomic
  and possessive parts are weighed as if they backtracked, case folding by sets that overlap more often.
* `re` folds case one character to one, so the bound holds and is exact with and without IGNORECASE.
* A pattern that can match nothing but the empty text is refused, the empty pattern included: a match of zero
  width never stops a generation. One that can also match more is admitted.
* A pattern CPython only takes with a warning (`[[]`) is refused: it will change its meaning.
"""

from __future__ import annotations

import re
from typing import NoReturn

from egress.errors import ValidationError
from egress.request.admission_automaton import PLAIN, Automaton, Meter, OverBudget, TooManyWays
from egress.request.admission_blame import blame
from egress.request.admission_sets import folding_work
from egress.request.admission_tree import UNBOUNDED, Nodes, groups_of, is_anchored, longest, parse
from egress.request.admission_trim import trim
from egress.request.admission_walk import MAX_TAIL, walk
from egress.request.cache import CacheInfo, SegmentedCache
from egress.request.values import quoted

__all__ = [
    "CACHE_ENTRIES",
    "LIMIT",
    "MAX_PATTERN_BYTES",
    "MAX_TAIL",
    "UNBOUNDED",
    "RegexPattern",
    "admission_cache_info",
]

MAX_PATTERN_BYTES = 256
"""UTF-8 bytes of a pattern, as in SGLang's server."""

LIMIT = 7
"""Times the plainest quadratic loop over MAX_TAIL characters: 28 ms where that takes 4."""

_LIMIT_COST = LIMIT * PLAIN * MAX_TAIL * MAX_TAIL // 2

_BUDGET = 60_000
"""Counted steps of one verdict; bench/admission_cost.py shows the dearest verdicts near 50 ms."""

_MAX_FOLDED = 1 << 14
"""Code points under IGNORECASE that compiling folds one by one, at about 0.3 us each."""

CACHE_ENTRIES = 512
"""As in CPython's own `re`."""

_cache: SegmentedCache[RegexPattern] = SegmentedCache(CACHE_ENTRIES)
_entries = _cache.entries
_count_hit = _cache.count_hit


class RegexPattern:
    """An admitted stop regex.

    Attributes:
        pattern: as the client wrote it; `re.compile` takes it.
        max_len: characters of the longest possible match; 2^30 = unbounded.

    >>> RegexPattern.build(r"END(ING)?")
    RegexPattern(pattern='END(ING)?', max_len=6)
    >>> RegexPattern.build(r"x(a+)+b")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    egress.errors.ValidationError: stop_regex 'x(a+)+b' is refused: ...
    """

    __slots__ = ("max_len", "pattern")

    def __init__(self, pattern: str, max_len: int) -> None:
        self.pattern = pattern
        self.max_len = max_len

    def __repr__(self) -> str:
        return f"RegexPattern(pattern={self.pattern!r}, max_len={self.max_len})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RegexPattern):
            return NotImplemented
        return self.pattern == other.pattern and self.max_len == other.max_len

    def __hash__(self) -> int:
        return hash((self.pattern, self.max_len))

    @staticmethod
    def build(pattern: str) -> RegexPattern:
        """Admit `pattern`, or say why not.

        Args:
            pattern: what the client sent; at most 256 bytes of UTF-8.

        Returns:
            The admitted pattern, the same object for equal patterns while the cache keeps it.

        Raises:
            ValidationError: field "stop_regex"; not a str, too long, not a CPython regex, able to match only
                the empty text, or too slow; the text names the part at fault. Nothing else is ever raised.

        Cost: at most 150 ns and no lock when cached, else within a counted budget of about 50 ms; refused
        patterns are not cached.
        """
        try:
            entry = _entries[pattern]
        except KeyError:
            pass
        except TypeError:
            _refuse(f"stop_regex must be a string, got {type(pattern).__name__}")
        else:
            entry.used = True
            _count_hit()
            return entry.value
        try:
            admitted = RegexPattern(pattern, _admit(pattern))
        except ValidationError:
            _cache.count_refused()
            raise
        return _cache.add(pattern, admitted)


def admission_cache_info() -> CacheInfo:
    """Hits, misses, size and capacity of the admission cache of this process.

    Misses count refused patterns too. Hits are exact; one under way in another thread may not show yet.
    """
    return _cache.info()


def _refuse(message: str) -> NoReturn:
    raise ValidationError(message, "stop_regex")


def _admit(pattern: str) -> int:
    """The bound of `pattern`; ValidationError when it may not run."""
    if not isinstance(pattern, str):
        _refuse(f"stop_regex must be a string, got {type(pattern).__name__}")
    n_bytes = len(pattern.encode("utf-8", "surrogatepass"))
    if n_bytes > MAX_PATTERN_BYTES:
        _refuse(f"stop_regex pattern is {n_bytes} bytes, over the {MAX_PATTERN_BYTES}-byte limit")
    if not pattern.isascii() and any("\ud800" <= char <= "\udfff" for char in pattern):
        _refuse(f"stop_regex {quoted(pattern)} is invalid: it holds a lone surrogate")
    shown = quoted(pattern)
    try:
        nodes, flags = parse(pattern)
        groups = groups_of(nodes, flags)
        max_len = longest(nodes, groups)
        if folding_work(nodes, flags) > _MAX_FOLDED:
            _refuse(f"stop_regex {shown} is refused: its character sets are too wide to fold case in")
        re.compile(pattern)
    except (re.error, OverflowError, ValueError, Warning) as error:
        if isinstance(error, ValidationError):
            raise
        _refuse(f"stop_regex {shown} is invalid: {error}")
    except (RecursionError, MemoryError):
        _refuse(f"stop_regex {shown} is invalid: it is nested too deeply")
    if max_len == 0:
        _refuse(
            f"stop_regex {shown} is refused: it can match only the empty text, which never stops a generation"
        )
    try:
        _refuse_if_dear(pattern, nodes, flags, groups)
    except RecursionError:
        _refuse(f"stop_regex {shown} is refused: it is nested too deeply")
    return max_len


def weigh(pattern: str) -> float:
    """Bound the worst search of a valid pattern, in times the plainest quadratic loop; for benchmarks.

    Args:
        pattern: one that CPython takes; others raise what CPython raises.

    Returns:
        The bound; exact enough to compare up to LIMIT, anything above it beyond.

    Raises:
        OverBudget, TooManyWays: it is far over any limit.
    """
    nodes, flags = parse(pattern)
    return _weigh(nodes, flags, groups_of(nodes, flags)) * LIMIT / _LIMIT_COST


def _weigh(nodes: Nodes, flags: int, groups: dict[int, tuple[Nodes, int]]) -> int:
    """The price of the worst search, and of that of anything repeated behind the pattern's end."""
    meter = Meter(_BUDGET)
    cost = 0
    for part, part_flags in trim(nodes, flags):
        automaton = Automaton(part, part_flags, groups, meter)
        starts = "first" if is_anchored(part, part_flags) else "each"
        found = walk(automaton, starts=starts, limit=_LIMIT_COST, meter=meter)
        if found.cost > _LIMIT_COST and starts == "each":
            found = walk(automaton, starts="all", limit=_LIMIT_COST, meter=meter)
        cost += found.cost
        if cost > _LIMIT_COST:
            break
    return cost


def _refuse_if_dear(pattern: str, nodes: Nodes, flags: int, groups: dict[int, tuple[Nodes, int]]) -> None:
    reason = ""
    try:
        if _weigh(nodes, flags, groups) <= _LIMIT_COST:
            return
    except TooManyWays:
        pass
    except OverBudget:
        reason = f"it cannot be weighed within {_BUDGET} steps; "
    reason += blame(pattern, nodes, flags, groups, _LIMIT_COST)
    _refuse(f"stop_regex {quoted(pattern)} is refused: {reason}")

"""The most a failing search can cost, over every text: an upper bound, walked one character at a time.

Which states can be active together is a question about pairs: two states are *rivals* when one text leads to
both. Among states that are no rivals at most one is active, whatever the text; so the predecessors of a state
are split into crowds without rivals, each crowd brings at most its largest member, and the sum over crowds
bounds the number of paths into the state. Stepping that bound n times gives the paths of the worst text of n
characters without looking for it. Ambiguity shows by itself: one way per text stays 1 for ever, a loop beside
a rival loop grows like n, a loop whose iterations are rivals of themselves doubles.

Two walks share the code. From *one start*, summed over all starts, is quick. From *every start at once* is
exact where starts exclude each other (`<[^<]*>` can begin only where no other attempt is under way).
"""

from __future__ import annotations

from collections.abc import Iterable

from egress.request.admission_automaton import Automaton, Meter

__all__ = ["MAX_TAIL", "Walk", "walk"]

MAX_TAIL = 1024
"""Characters of tail a search is ever given; 4,096 would take the plainest quadratic loop 64 ms."""


_STRIDE = 64
"""Characters over which the price of going on is averaged, once the paths have stopped growing."""


class Walk:
    """What a walk found.

    Attributes:
        cost: price of the worst search, or of as much of it as was walked before the limit.
        n_characters, n_paths: the length at which the walk ended, and the paths active there.
    """

    __slots__ = ("cost", "n_characters", "n_paths")

    def __init__(self, cost: int, n_characters: int, n_paths: int) -> None:
        self.cost = cost
        self.n_characters = n_characters
        self.n_paths = n_paths


def walk(automaton: Automaton, *, starts: str, limit: int, meter: Meter, n_max: int = MAX_TAIL) -> Walk:
    """Bound the cost of the worst search over `n_max` characters; ends early past `limit`.

    Args:
        automaton: what is searched.
        starts: "first" (anchored), "each" (one start, multiplied) or "all" (every start at once).
        limit: price at which the answer is known.
        meter: pays for every step.

    Raises:
        OverBudget: the meter ran out.
    """
    follow = automaton.follow
    if starts == "all":
        follow = [{0: 1, **follow[0]}, *follow[1:]]
    rivals = _rivals(follow, automaton.mask, meter)
    edges, crowd_of = _edges(follow, rivals, meter)
    bill = _Bill(automaton.cost, crowd_of, _sources(follow, crowd_of, meter))
    entries = automaton.cost[0] * (n_max + 1)
    owed, n, active = 0, 0, {0: 1}  # owed: what starts with fewer characters left than n may cost
    while n < n_max:
        n += 1
        meter.spend(2 + 2 * len(active))
        best: dict[tuple[int, int], int] = {}
        for state, paths in active.items():
            for successor, ways, crowd in edges[state]:
                key = (successor, crowd)
                if best.get(key, 0) < paths * ways:
                    best[key] = paths * ways
        meter.spend(len(best))
        following: dict[int, int] = {}
        for (state, _), paths in best.items():
            following[state] = following.get(state, 0) + paths
        unchanged, active = following == active, following
        bill.add(active)
        owed += bill.total
        if entries + (owed if starts == "each" else bill.total) > limit:
            break
        if unchanged or not active:
            meter.spend(_STRIDE * 2 * len(active))
            strides = bill.strides(active)
            left = n_max - n
            whole, rest = divmod(left, _STRIDE)
            if starts == "each":
                owed += left * bill.total + sum(strides[:-1]) * whole + sum(strides[: rest + 1])
                owed += strides[-1] * (_STRIDE * whole * (whole - 1) // 2 + whole * (rest + 1))
            bill.total += whole * strides[-1] + strides[rest]
            break
    return Walk(entries + (owed if starts == "each" else bill.total), n, sum(active.values()))


class _Bill:
    """What the dearest text of n characters costs, crowd by crowd.

    Of a crowd one state at most is active, and which can be active next depends on which is now: its bill is
    the dearest walk through its states, not the dearest state at every step.
    """

    def __init__(self, cost: list[int], crowd_of: list[int], sources: list[list[int]]) -> None:
        self._cost = cost
        self._crowd_of = crowd_of
        self._sources = sources
        self._n_crowds = 1 + max(crowd_of)
        # Per state, the dearest walk that ends in it; per crowd, the dearest that ends anywhere or nowhere.
        self._ending: dict[int, int] = {}
        self._dearest = [0] * self._n_crowds
        self.total = 0

    def add(self, active: dict[int, int]) -> None:
        """Charge one more character, at which `active` bounds the paths per state."""
        ending: dict[int, int] = {}
        dearest = list(self._dearest)
        for state, paths in active.items():
            if state:
                crowd = self._crowd_of[state]
                before = 0
                for source in self._sources[state]:
                    spent = self._dearest[crowd] if source < 0 else self._ending.get(source, 0)
                    before = max(before, spent)
                ending[state] = before + paths * self._cost[state]
                dearest[crowd] = max(dearest[crowd], ending[state])
        self._ending, self._dearest = ending, dearest
        self.total = sum(dearest)

    def strides(self, active: dict[int, int]) -> list[int]:
        """What 0, 1, .. _STRIDE more characters can add at most, from wherever a walk may be."""
        walked = _Bill(self._cost, self._crowd_of, self._sources)
        added = [0]
        for _ in range(_STRIDE):
            walked.add(active)
            added.append(walked.total)
        return added


def _sources(follow: list[dict[int, int]], crowd_of: list[int], meter: Meter) -> list[list[int]]:
    """Per state, the states of its crowd that may be active just before it; -1 for none of them or any."""
    sources: list[list[int]] = [[] for _ in follow]
    for state, successors in enumerate(follow):
        meter.spend(1 + len(successors))
        for successor in successors:
            if state and crowd_of[state] == crowd_of[successor]:
                sources[successor].append(state)
            elif state or 0 in follow[0]:
                # Reached from outside the crowd, while none of it or any rival of that outsider is active.
                sources[successor].append(-1)
    return sources


def _rivals(follow: list[dict[int, int]], mask: list[int], meter: Meter) -> list[set[int]]:
    """Per state, the other states that some text reaches together with it."""
    rivals: list[set[int]] = [set() for _ in follow]
    seen_alone = {0}
    todo: list[tuple[int, int]] = [(0, 0)]
    mask = [-1, *mask[1:]]
    while todo:
        left, right = todo.pop()
        after_left, after_right = follow[left], follow[right]
        meter.spend(1 + len(after_left) * len(after_right) // 2)
        for p in after_left:
            for q in after_right:
                if p == q:
                    if p not in seen_alone:
                        seen_alone.add(p)
                        todo.append((p, p))
                elif q not in rivals[p] and mask[p] & mask[q]:
                    rivals[p].add(q)
                    rivals[q].add(p)
                    todo.append((p, q))
    return rivals


def _edges(
    follow: list[dict[int, int]], rivals: list[set[int]], meter: Meter
) -> tuple[list[list[tuple[int, int, int]]], list[int]]:
    """Per state its (successor, ways, its crowd among the successor's predecessors); its crowd overall."""
    predecessors: list[list[int]] = [[] for _ in follow]
    for state, successors in enumerate(follow):
        meter.spend(1 + len(successors))
        for successor in successors:
            predecessors[successor].append(state)
    edges: list[list[tuple[int, int, int]]] = [[] for _ in follow]
    for successor, states in enumerate(predecessors):
        for state, crowd in _crowds(states, rivals, meter):
            edges[state].append((successor, follow[state][successor], crowd))
    crowd_of = [0] * len(follow)
    for state, crowd in _crowds(range(1, len(follow)), rivals, meter):
        crowd_of[state] = crowd
    return edges, crowd_of


def _crowds(states: Iterable[int], rivals: list[set[int]], meter: Meter) -> Iterable[tuple[int, int]]:
    """Each state with the number of its crowd: the first one without a rival of it."""
    crowds: list[set[int]] = []
    for state in states:
        own = rivals[state]
        meter.spend(1 + len(crowds))
        for number, crowd in enumerate(crowds):
            if own.isdisjoint(crowd):
                crowd.add(state)
                yield state, number
                break
        else:
            crowds.append({state})
            yield state, len(crowds) - 1

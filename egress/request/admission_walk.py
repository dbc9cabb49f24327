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


class Walk:
    """What a walk found.

    Attributes:
        cost: price of the worst search, or of as much of it as was walked before the limit.
        n_characters, n_paths: the length at which the walk ended, and the paths active there.
        peak: the most paths at any length.
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
    follow, cost = automaton.follow, automaton.cost
    together = starts == "all"
    if together:
        follow = [{0: 1, **follow[0]}, *follow[1:]]
    edges, crowd_of = _edges(follow, _rivals(follow, automaton.mask, meter), meter)
    total = cost[0] * (n_max + 1)
    active = {0: 1}
    n_paths = 1
    for n in range(1, n_max + 1):
        meter.spend(2 + 3 * len(active))
        best: dict[tuple[int, int], int] = {}
        for state, paths in active.items():
            for successor, ways, crowd in edges[state]:
                key = (successor, crowd)
                if best.get(key, 0) < paths * ways:
                    best[key] = paths * ways
        meter.spend(len(best) * 2)
        following: dict[int, int] = {}
        for (state, _), paths in best.items():
            following[state] = following.get(state, 0) + paths
        if not following:
            break
        unchanged, active = following == active, following
        dearest: dict[int, int] = {}
        for state, paths in active.items():
            if state and paths * cost[state] > dearest.get(crowd_of[state], 0):
                dearest[crowd_of[state]] = paths * cost[state]
        price = sum(dearest.values())
        total += price * (n_max + 1 - n) if starts == "each" else price
        n_paths = sum(active.values())
        if total > limit:
            break
        if unchanged:
            left = n_max - n
            total += price * (left * (left + 1) // 2 if starts == "each" else left)
            break
    return Walk(total, n, n_paths)


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

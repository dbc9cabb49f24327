"""A distribution over a whole vocabulary in a few hundred numbers: single tokens, and classes of equals.

Tokens that share a logit need not be listed: a class is a logit and how many tokens have it. Penalties,
biases and masks single tokens out of their classes (`Distribution.single_out`), so every operation stays
exact over the whole vocabulary at a cost that does not depend on its size.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["Distribution", "TokenClasses"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class TokenClasses:
    """A partition of the vocabulary, shared by all distributions of one model.

    Args:
        labels: one integer per token id; equal labels make a class, classes are in ascending order of them.
    """

    def __init__(self, labels: Ints) -> None:
        _, self.class_of, sizes = np.unique(labels, return_inverse=True, return_counts=True)
        self.sizes: Ints = sizes
        self._members: Ints = np.argsort(self.class_of, kind="stable")
        self._begin: Ints = np.concatenate(([0], np.cumsum(sizes)))
        self._rank: Ints = np.empty(len(labels), np.int64)
        self._rank[self._members] = np.arange(len(labels)) - self._begin[self.class_of[self._members]]

    def first_members(self) -> Ints:
        """The lowest id of each class."""
        first: Ints = self._members[self._begin[:-1]]
        return first

    def members(self, which: int, first: int, count: int, without: Ints) -> Ints:
        """Members `first` to `first + count` of a class, in order of ids, skipping the ids in `without`.

        Args:
            which: the class.
            first, count: places among the members that are not skipped; in range.
            without: ascending ids, of any class.
        """
        skipped = self._rank[without[self.class_of[without] == which]]
        wanted = np.arange(first, first + count)
        # The j-th member left lies behind as many skipped ones as have at most j members left before them.
        wanted += np.searchsorted(skipped - np.arange(len(skipped)), wanted, side="right")
        found: Ints = self._members[self._begin[which] + wanted]
        return found


class Distribution:
    """Logits over a vocabulary: of some tokens one by one, of all others by class.

    Args:
        classes: the partition.
        ids: the single tokens, ascending.
        logits: theirs.
        class_logits: what every token of a class has that is not among `ids`.
    """

    def __init__(self, classes: TokenClasses, ids: Ints, logits: Floats, class_logits: Floats) -> None:
        self.classes = classes
        self.ids = ids
        self.logits = logits
        self.class_logits = class_logits
        self._tops: dict[int, tuple[list[int], list[float]]] = {}

    def class_sizes(self) -> Ints:
        """How many tokens of each class are not single."""
        singles = np.bincount(self.classes.class_of[self.ids], minlength=len(self.classes.sizes))
        return self.classes.sizes - singles

    def logits_of(self, ids: Ints) -> Floats:
        """The logit of each id, single or not."""
        logits = self.class_logits[self.classes.class_of[ids]]
        if len(self.ids):
            at = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
            logits = np.where(self.ids[at] == ids, self.logits[at], logits)
        return logits

    def single_out(self, ids: Ints) -> Distribution:
        """The same distribution, its own copy, with these tokens among the single ones."""
        merged = np.union1d(self.ids, ids)
        return Distribution(self.classes, merged, self.logits_of(merged), self.class_logits)

    def ranked(self) -> tuple[Ints, Floats, Ints]:
        """Every entry, best first: single tokens and classes that still have members.

        Returns:
            Entry numbers (below len(ids): a single token, above: a class), their logits, and how many tokens
            each stands for. Equal logits: single tokens by id, then classes.
        """
        logits = np.concatenate((self.logits, self.class_logits))
        sizes = np.concatenate((np.ones(len(self.ids), np.int64), self.class_sizes()))
        order = np.argsort(-logits, kind="stable")
        order = order[(sizes[order] > 0) & (logits[order] > -np.inf)]
        return order, logits[order], sizes[order]

    def tokens(self, entry: int, first: int, count: int) -> Ints:
        """Ids `first` to `first + count` of an entry of `ranked`."""
        if entry < len(self.ids):
            return self.ids[entry : entry + 1]
        return self.classes.members(entry - len(self.ids), first, count, self.ids)

    def top(self, count: int) -> tuple[list[int], list[float]]:
        """The `count` likeliest tokens and their logits, best first; remembered, so not to be changed."""
        found = self._tops.get(count)
        if found is None:
            found = self._tops[count] = self._find_top(count)
        return found

    def _find_top(self, count: int) -> tuple[list[int], list[float]]:
        ids: list[int] = []
        values: list[float] = []
        for entry, logit, size in zip(*self.ranked(), strict=True):
            take = min(int(size), count - len(ids))
            if take <= 0:
                break
            ids += self.tokens(int(entry), 0, take).tolist()
            values += [float(logit)] * take
        return ids, values

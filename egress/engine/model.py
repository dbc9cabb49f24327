"""An interpolated n-gram model: counts of all n-grams of a text, as sorted arrays, nothing else.

The n-grams of length k are numbered by their place in one sorted array of keys, `prefix * vocab + token`,
where prefix is the number of the n-gram's first k - 1 tokens. So the continuations of a context lie side by
side, a context is one integer, and longer contexts are found from shorter ones by one binary search, for
any number of requests at once.

Probabilities are Witten and Bell's, interpolated over all lengths down to a uniform floor::

    P(w | h) = s(h) count(hw) / count(h) + (1 - s(h)) P(w | h without its first token)
    s(h)     = count(h) / (count(h) + novelty * kinds(h))

with kinds(h) the number of different continuations; a context that never occurred has s = 0. The one
difference is the factor `novelty` (1 is Witten and Bell; less trusts long contexts more, which a small
text needs to be readable). Every token has a probability above 0 and they sum to 1.

Which tokens can't be told apart is used twice. Tokens that never followed the last token only differ by
their own count, so all of one count form a class (`TokenClasses`), and a distribution over 150,000 tokens is
some dozens of tokens and about a hundred classes: exact, not truncated.

Mirrors: Bell, Cleary and Witten, Text Compression (1990), method C; Chen and Goodman (1998), section 2.4.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from egress.engine.distribution import Distribution, TokenClasses

__all__ = ["NGramModel"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class NGramModel:
    """The counts of one token sequence, and what they say about the next token.

    A *context* is a row of `order - 1` integers: entry k - 1 numbers the n-gram made of the last k tokens,
    -1 where it does not occur in the text. Rows are made by `start` and moved on by `advance`.

    Args:
        token_ids: the text; at least one token.
        vocab_size: ids are below it.
        order: longest n-gram counted, 2 or more. Each length costs at most 24 bytes per token of text.
        novelty: weight of the unseen, above 0.
        holes: ids below vocab_size that name no token: their probability is 0, all others' is above.
    """

    def __init__(
        self,
        token_ids: Sequence[int] | Ints,
        vocab_size: int,
        order: int = 5,
        novelty: float = 0.1,
        holes: Sequence[int] = (),
    ) -> None:
        text = np.asarray(token_ids, np.int64)
        if not len(text):
            raise ValueError("an n-gram model needs a text of at least one token")
        self.vocab_size = vocab_size
        self.order = order
        self.text_tokens = len(text)
        self._levels = [_Level(text, vocab_size)]
        ends = self._levels[0].number_of
        for length in range(2, order + 1):
            level = _Level(ends[:-1] * vocab_size + text[length - 1 :], vocab_size)
            self._levels[-1].adopt(level, vocab_size, novelty)
            self._levels.append(level)
            ends = level.number_of
        for level in self._levels:
            level.number_of = _NO_INTS
        words = self._levels[0]
        kinds = len(words.tokens)
        self._word_share = len(text) / (len(text) + novelty * kinds)
        counts = np.zeros(vocab_size, np.int64)
        counts[words.tokens] = words.counts[:-1]
        self._real_ids: Ints = np.setdiff1d(np.arange(vocab_size), holes)
        self._word_p: Floats = (counts * (self._word_share / len(text))).astype(np.float64)
        self._word_p[self._real_ids] += (1.0 - self._word_share) / len(self._real_ids)
        labels = -counts
        labels[list(holes)] = 1
        self._classes = TokenClasses(labels)
        # One member stands for its class: they all have the same count.
        with np.errstate(divide="ignore"):
            self._class_log_p: Floats = np.log(self._word_p[self._classes.first_members()])

    def ngrams(self) -> list[int]:
        """How many different n-grams of each length, shortest first."""
        return [len(level.tokens) for level in self._levels]

    def start(self) -> Ints:
        """The context of nothing at all, shape (1, order - 1)."""
        return np.full((1, self.order - 1), -1, np.int64)

    def advance(self, contexts: Ints, tokens: Ints) -> tuple[Ints, Floats]:
        """Append one token to each context.

        Args:
            contexts: shape (rows, order - 1).
            tokens: one id per row.

        Returns:
            The new contexts, and the probability each token had in its old one; both owned by the caller.

        Cost: `order` binary searches per row, a fixed number of numpy calls for all rows.
        """
        new = np.empty_like(contexts)
        new[:, 0] = self._levels[0].find(tokens)
        p = self._word_p[tokens]
        for k in range(1, self.order):
            shorter, longer = self._levels[k - 1], self._levels[k]
            context = contexts[:, k - 1]
            found = longer.find(context * self.vocab_size + tokens)
            share = shorter.share[context]
            p = share * (longer.counts[found] / shorter.total[context]) + (1.0 - share) * p
            if k < self.order - 1:
                new[:, k] = found
        return new, p

    def read(self, context: Ints, tokens: Sequence[int]) -> tuple[Ints, Floats]:
        """Append many tokens to one context.

        Args:
            context: shape (1, order - 1).
            tokens: ids, in order.

        Returns:
            The context before each token and after the last, shape (len(tokens) + 1, order - 1), and the
            probability of each token where it stood.
        """
        ids = np.asarray(tokens, np.int64)
        contexts = np.full((len(ids) + 1, self.order - 1), -1, np.int64)
        contexts[0] = context[0]
        # A context of k + 1 tokens needs the one of k tokens at the place before, so lengths go one by one
        # and places all at once.
        contexts[1:, 0] = self._levels[0].find(ids)
        for k in range(1, self.order - 1):
            contexts[1:, k] = self._levels[k].find(contexts[:-1, k - 1] * self.vocab_size + ids)
        return contexts, self.advance(contexts[:-1], ids)[1]

    def draw(self, contexts: Ints, uniforms: Floats) -> Ints:
        """Sample one token per row from the unmodified distribution of its context.

        The interpolation is read as a lottery: the longest context answers with probability s(h), with one
        of its continuations by count, else hands over to the next shorter one, and in the end to a uniform
        draw. So nothing is ever summed over the vocabulary.

        Args:
            contexts: shape (rows, order - 1).
            uniforms: one number of [0, 1) per row; a row's token depends on its own number alone.

        Returns:
            One id per row.

        Cost: `order` binary searches per row, a fixed number of numpy calls for all rows.
        """
        u = uniforms.copy()
        tokens = np.full(len(u), -1, np.int64)
        for k in range(self.order - 1, 0, -1):
            shorter, longer = self._levels[k - 1], self._levels[k]
            context = contexts[:, k - 1]
            share = shorter.share[context]
            # A row that has its token keeps drawing into the void; masking costs more than the draws.
            here = (u < share) & (tokens < 0)
            nth = np.minimum(
                (u / np.maximum(share, 1e-300) * shorter.total[context]), shorter.total[context] - 1
            )
            drawn = longer.nth_from(shorter.counted_before[context], nth)
            tokens = np.where(here, drawn, tokens)
            u = np.where(tokens < 0, (u - share) / (1.0 - share), 0.0)
        from_text = self._levels[0].nth_from(
            np.zeros(len(u), np.int64), u / self._word_share * self.text_tokens
        )
        nth = (u - self._word_share) / (1.0 - self._word_share) * len(self._real_ids)
        from_all = self._real_ids[np.clip(nth, 0, len(self._real_ids) - 1).astype(np.int64)]
        return np.where(tokens >= 0, tokens, np.where(u < self._word_share, from_text, from_all))

    def distribution(self, context: Ints) -> Distribution:
        """The next-token distribution after one context, exact and over the whole vocabulary.

        Args:
            context: one row of contexts, shape (order - 1,).

        Returns:
            Log-probabilities of the continuations of the last token, one by one, and of all other tokens
            by class. Owned by the caller.
        """
        ids = _NO_INTS
        p: Floats = np.empty(0)
        rest = 1.0
        for k in range(1, self.order):
            number = context[k - 1]
            if number < 0:
                break
            shorter, longer = self._levels[k - 1], self._levels[k]
            begin, end = shorter.children[number], shorter.children[number + 1]
            # Whatever follows a long context follows its last token too: the first level names them all.
            if k == 1:
                ids = longer.tokens[begin:end]
                p = self._word_p[ids]
            share = float(shorter.share[number])
            p *= 1.0 - share
            at = np.searchsorted(ids, longer.tokens[begin:end])
            p[at] += longer.counts[begin:end] * (share / shorter.total[number])
            rest *= 1.0 - share
        return Distribution(self._classes, ids, np.log(p), self._class_log_p + np.log(rest))


_NO_INTS: Ints = np.empty(0, np.int64)


class _Level:
    """All n-grams of one length; what is indexed by number has one entry more, for index -1 (absent)."""

    def __init__(self, keys: Ints, vocab_size: int) -> None:
        distinct, self.number_of, counts = np.unique(keys, return_inverse=True, return_counts=True)
        self._keys: Ints = np.append(distinct, np.iinfo(np.int64).max)
        self._counted: Ints = np.concatenate(([0], np.cumsum(counts)))
        self.tokens: Ints = distinct % vocab_size
        self.counts: Ints = np.append(counts, 0)
        self.share: Floats = np.zeros(len(distinct) + 1)
        self.total: Ints = np.ones(len(distinct) + 1, np.int64)
        self.children: Ints = _NO_INTS
        self.counted_before: Ints = _NO_INTS

    def adopt(self, longer: _Level, vocab_size: int, novelty: float) -> None:
        """Learn where the continuations of each n-gram lie in the next level."""
        size = len(self.tokens)
        self.children = np.searchsorted(longer._keys[:-1], np.arange(size + 1) * vocab_size)
        self.counted_before = longer._counted[self.children]
        total = np.diff(self.counted_before)
        # An n-gram that only ends the text has no continuation: share 0, and total stays 1.
        self.share[:-1] = total / np.maximum(total + novelty * np.diff(self.children), 1e-300)
        self.total[:-1] = np.maximum(total, 1)

    def find(self, keys: Ints) -> Ints:
        """The number of each key's n-gram, -1 where there is none. Negative keys have none."""
        at = np.searchsorted(self._keys, keys)
        return np.where(self._keys[at] == keys, at, -1)

    def nth_from(self, counted: Ints, nth: Floats | Ints) -> Ints:
        """The token of the nth occurrence after the first `counted` ones, in order of keys."""
        if not len(self.tokens):  # a text shorter than the order; no share leads here
            return np.zeros_like(counted)
        at = np.searchsorted(self._counted, counted + nth.astype(np.int64), side="right") - 1
        return self.tokens[np.minimum(at, len(self.tokens) - 1)]

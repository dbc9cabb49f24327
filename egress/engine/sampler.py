"""From logits to one token, as SGLang's sampler does it.

In this order, each step skipped where its parameter has its default:

1. frequency and presence penalties are subtracted (over generated tokens), then the repetition penalty
   divides positive and multiplies negative logits (over generated tokens);
2. `logit_bias` is added; while fewer than `min_new_tokens` are generated the ending tokens become -inf;
3. logits are divided by the temperature;
4. of the softmax, the `top_k` best tokens, the smallest set of best tokens whose mass reaches `top_p`, and
   the tokens with at least `min_p` times the best one's probability; what is in all three stays;
5. one token of what stays, by probability, by one number of [0, 1).

All three filters of step 4 look at the same softmax (SGLang's joint order; vLLM takes top_p after top_k).
The n-gram model's logits are its log-probabilities, so all are negative: a repetition penalty above 1
always makes a token less likely.

Mirrors: sgl-project/sglang python/sglang/srt/layers/sampler.py top_k_top_p_min_p_sampling_from_probs_torch,
srt/sampling/sampling_batch_info.py apply_logits_bias.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from egress.engine.distribution import Distribution
from egress.request import SamplingParams

__all__ = ["Adjuster", "Choice", "random_key", "uniforms"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Keys = NDArray[np.uint64]

# SplitMix64: Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (OOPSLA 2014).
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_MASK = (1 << 64) - 1

# As SamplingParams: below it a temperature means greedy.
_GREEDY_BELOW = 1e-6


def random_key(seed: int) -> int:
    """Spread a seed, of any size and sign, over 64 bits, so that neighbours share no stream."""
    z = (seed + _GOLDEN) & _MASK
    z = ((z ^ (z >> 30)) * _MIX_1) & _MASK
    z = ((z ^ (z >> 27)) * _MIX_2) & _MASK
    return z ^ (z >> 31)


def uniforms(keys: Keys, counts: Ints) -> Floats:
    """The next random number of many requests at once.

    A number depends on its key and its count alone, never on the other rows: a request with a seed gives
    the same tokens whatever runs beside it.

    Args:
        keys: one `random_key` per row.
        counts: how many numbers that row has had.

    Returns:
        float64 in [0, 1), 53 random bits each.
    """
    z = keys + (counts.astype(np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(_MIX_1)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(_MIX_2)
    z ^= z >> np.uint64(31)
    numbers: Floats = (z >> np.uint64(11)).astype(np.float64)
    return numbers * 2.0**-53


class Choice:
    """A distribution after temperature and filters, ready to be drawn from any number of times.

    Args:
        distribution: logits after penalties and biases.
        params: temperature, top_k, top_p, min_p are read.
    """

    def __init__(self, distribution: Distribution, params: SamplingParams) -> None:
        entries, logits, sizes = distribution.ranked()
        greedy = params.temperature < _GREEDY_BELOW
        temperature = 1.0 if greedy else params.temperature
        # exp is 0 below -745; the floor keeps a huge bias over a tiny temperature from overflowing.
        weights = np.exp(np.maximum(logits - logits[0], -800.0 * temperature) / temperature)
        kept = sizes.astype(np.float64)
        if params.top_p < 1.0:
            mass = np.cumsum(weights * kept)
            room = params.top_p * mass[-1] - (mass - weights * kept)
            # A token stays when the mass before it is below top_p; inside a class that mass grows by steps.
            # Weights so small that they underflow to 0 have no room of their own.
            full = np.ceil(np.divide(room, weights, out=np.zeros_like(room), where=weights > 0))
            kept = np.clip(full, 0, kept)
            kept[0] = max(kept[0], 1.0)
        if params.min_p > 0.0:
            kept = np.where(weights >= params.min_p, kept, 0.0)
        top_k = 1 if greedy else params.top_k
        before = np.cumsum(sizes) - sizes
        kept = np.minimum(kept, np.maximum(top_k - before, 0))
        n = int(np.count_nonzero(kept))
        self._distribution = distribution
        self._entries = entries[:n]
        self._kept = kept[:n]
        self._weights = weights[:n]
        self._mass = np.cumsum(self._weights * self._kept)

    def pick(self, uniform: float) -> int:
        """The token at `uniform`, a number of [0, 1), of the mass that is left."""
        at = uniform * self._mass[-1]
        i = min(int(np.searchsorted(self._mass, at, side="right")), len(self._mass) - 1)
        nth = 0
        if self._kept[i] > 1.0:
            into = at - (self._mass[i - 1] if i else 0.0)
            nth = min(int(into / self._weights[i]), int(self._kept[i]) - 1)
        return int(self._distribution.tokens(int(self._entries[i]), nth, 1)[0])

    def probabilities(self) -> dict[int, float]:
        """Every token that can still be drawn and its probability; for tests and inspection."""
        found: dict[int, float] = {}
        total = float(self._mass[-1])
        for entry, kept, weight in zip(self._entries, self._kept, self._weights, strict=True):
            for token in self._distribution.tokens(int(entry), 0, int(kept)):
                found[int(token)] = float(weight) / total
        return found


class Adjuster:
    """One request's penalties, biases and early mask, applied to a distribution's logits.

    Args:
        params: the request's parameters.
        endings: ids that `min_new_tokens` keeps away.
    """

    def __init__(self, params: SamplingParams, endings: Iterable[int]) -> None:
        self._frequency = params.frequency_penalty
        self._presence = params.presence_penalty
        self._repetition = params.repetition_penalty
        self._bias_ids, self._bias = _bias_columns(params.logit_bias)
        self._endings: Ints = np.array(sorted(set(endings)), np.int64)
        self.penalizes = bool(self._frequency or self._presence or self._repetition != 1.0)
        self.changes_always = self.penalizes or bool(len(self._bias_ids))
        self._place: dict[int, int] = {}
        self._seen: Ints = np.empty(16, np.int64)
        self._times: Floats = np.zeros(16)

    def count(self, token: int) -> None:
        """Note that `token` was generated."""
        place = self._place.setdefault(token, len(self._place))
        if place == len(self._seen):
            self._seen = np.concatenate((self._seen, np.empty_like(self._seen)))
            self._times = np.concatenate((self._times, np.zeros_like(self._times)))
        self._seen[place] = token
        self._times[place] += 1.0

    def apply(self, distribution: Distribution, mask_endings: bool) -> Distribution:
        """The distribution with this request's changes; the one given stays as it is."""
        seen = self._seen[: len(self._place)]
        endings = self._endings if mask_endings else self._endings[:0]
        changed = distribution.single_out(np.concatenate((seen, self._bias_ids, endings)))
        ids, logits = changed.ids, changed.logits
        if self.penalizes and len(seen):
            at = np.searchsorted(ids, seen)
            values = logits[at] - self._frequency * self._times[: len(seen)] - self._presence
            logits[at] = np.where(values > 0, values / self._repetition, values * self._repetition)
        logits[np.searchsorted(ids, self._bias_ids)] += self._bias
        logits[np.searchsorted(ids, endings)] = -np.inf
        return changed


def _bias_columns(bias: Any) -> tuple[Ints, Floats]:
    columns = {int(token): float(value) for token, value in (bias or {}).items()}
    # Past 1e30 nothing changes but that sums could overflow.
    values = np.clip(np.array(list(columns.values()), np.float64), -1e30, 1e30)
    return np.array(list(columns), np.int64), values

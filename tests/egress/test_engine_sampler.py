"""The sampler against a dense reference: SGLang's steps over the whole vocabulary, written plainly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from egress.engine.distribution import Distribution, TokenClasses
from egress.engine.model import NGramModel
from egress.engine.sampler import Adjuster, Choice, random_key, uniforms
from egress.request import SamplingParams

VOCAB = 60


def params_of(**fields: Any) -> SamplingParams:
    params = SamplingParams.parse(fields)
    params.normalize()
    params.verify(VOCAB)
    return params


def dense(distribution: Distribution) -> np.ndarray:
    return distribution.logits_of(np.arange(VOCAB))


def reference(logits: np.ndarray, params: SamplingParams, output: list[int], masked: list[int]) -> np.ndarray:
    """Probabilities of all tokens; equal logits rank by id."""
    x = logits.copy()
    for token in set(output):
        x[token] -= params.frequency_penalty * output.count(token) + params.presence_penalty
        x[token] = (
            x[token] / params.repetition_penalty if x[token] > 0 else x[token] * params.repetition_penalty
        )
    for token, bias in (params.logit_bias or {}).items():
        x[int(token)] += bias
    x[masked] = -np.inf
    p = np.exp((x - x.max()) / params.temperature)
    p /= p.sum()
    order = np.argsort(-x, kind="stable")
    sorted_p = p[order]
    before = np.cumsum(sorted_p) - sorted_p
    keep = np.full(VOCAB, True)
    if params.top_p < 1.0:
        # Where sums taken in another order could decide, the test would not be one.
        assert np.abs(before - params.top_p).min() > 1e-12
        keep = before < params.top_p
    keep &= np.arange(VOCAB) < params.top_k
    keep &= sorted_p >= params.min_p * sorted_p[0]
    keep[0] = True
    sorted_p = np.where(keep, sorted_p, 0.0)
    result = np.zeros(VOCAB)
    result[order] = sorted_p / sorted_p.sum()
    return result


def random_distribution(seed: int, distinct: bool) -> Distribution:
    """Some single tokens, the others in classes; `distinct`: one member per class, so ranks are unique."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(VOCAB) if distinct else rng.integers(0, 6, VOCAB)
    classes = TokenClasses(labels.astype(np.int64))
    ids = np.sort(rng.choice(VOCAB, 17, replace=False)).astype(np.int64)
    # Shifted, so that repetition penalties meet both signs; a softmax does not see it.
    logits = np.log(rng.dirichlet(np.full(17, 0.6))) + 4
    class_logits = -rng.random(len(classes.sizes)) * 6 + 2
    return Distribution(classes, ids, logits, class_logits)


SETTINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.3},
    {"temperature": 1.9},
    {"temperature": 0},
    {"top_k": 1},
    {"top_k": 5},
    {"top_k": 40},
    {"top_p": 0.3331},
    {"top_p": 0.9001},
    {"top_p": 1e-9},
    {"min_p": 0.05},
    {"min_p": 1.0},
    {"temperature": 0.7, "top_p": 0.8001, "top_k": 20, "min_p": 0.01},
    {"logit_bias": {"3": 5.0, "7": -100.0, "59": 2.5}},
    {"frequency_penalty": 1.5},
    {"presence_penalty": -2.0},
    {"repetition_penalty": 1.7},
    {"repetition_penalty": 0.5},
    {
        "frequency_penalty": 0.7,
        "presence_penalty": 0.4,
        "repetition_penalty": 1.3,
        "logit_bias": {"11": 8.0, "12": -3.0},
        "temperature": 0.8,
        "top_k": 30,
        "top_p": 0.9501,
    },
]
OUTPUT = [3, 3, 3, 11, 40, 41, 11, 0]


@pytest.mark.parametrize("fields", SETTINGS, ids=str)
@pytest.mark.parametrize("masked", [[], [5, 40]], ids=["", "masked"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_choice_is_the_dense_reference(seed: int, masked: list[int], fields: dict[str, Any]) -> None:
    distribution = random_distribution(seed, distinct=True)
    params = params_of(**fields)
    adjuster = Adjuster(params, masked)
    for token in OUTPUT:
        adjuster.count(token)
    before = dense(distribution)
    changed = adjuster.apply(distribution, bool(masked))
    assert (dense(distribution) == before).all(), "the distribution given must stay as it is"
    output = OUTPUT if adjuster.penalizes else []
    wanted = reference(before, params, output, masked)
    got = np.zeros(VOCAB)
    for token, p in Choice(changed, params).probabilities().items():
        got[token] = p
    assert got == pytest.approx(wanted, rel=1e-9, abs=1e-15)
    assert set(np.flatnonzero(got)) == set(np.flatnonzero(wanted))


@pytest.mark.parametrize("fields", SETTINGS, ids=str)
@pytest.mark.parametrize("distinct", [True, False])
def test_picks_cover_the_unit_interval_by_probability(distinct: bool, fields: dict[str, Any]) -> None:
    """An even grid of uniforms gives each token as often as its probability says, to grid resolution."""
    params = params_of(**fields)
    adjuster = Adjuster(params, [])
    for token in OUTPUT:
        adjuster.count(token)
    choice = Choice(adjuster.apply(random_distribution(9, distinct), False), params)
    n = 4000
    picked = np.bincount([choice.pick((i + 0.5) / n) for i in range(n)], minlength=VOCAB) / n
    for token in range(VOCAB):
        assert picked[token] == pytest.approx(choice.probabilities().get(token, 0.0), abs=1.01 / n)


def test_picks_at_both_ends_of_the_interval_are_possible_tokens() -> None:
    for fields in SETTINGS:
        choice = Choice(random_distribution(4, distinct=False), params_of(**fields))
        for u in (0.0, float(np.nextafter(1.0, 0.0))):
            assert choice.pick(u) in choice.probabilities()


@pytest.mark.parametrize("top_k", [1, 2, 10, 31, 60, 1000])
def test_top_k_counts_tokens_inside_classes(top_k: int) -> None:
    choice = Choice(random_distribution(5, distinct=False), params_of(top_k=top_k))
    assert len(choice.probabilities()) == min(top_k, VOCAB)


def test_top_p_cuts_inside_a_class() -> None:
    """Sixty equal tokens: the smallest set that reaches 0.51 has 31 of them."""
    flat = Distribution(
        TokenClasses(np.zeros(VOCAB, np.int64)), np.empty(0, np.int64), np.empty(0), np.array([-4.0])
    )
    assert len(Choice(flat, params_of(top_p=0.51)).probabilities()) == 31


def test_a_huge_bias_over_a_tiny_temperature_neither_overflows_nor_divides() -> None:
    params = params_of(temperature=1e-6, logit_bias={"3": 1e308, "4": -1e308})
    choice = Choice(Adjuster(params, []).apply(random_distribution(1, True), False), params)
    assert choice.pick(0.999) == 3


def test_masked_tokens_are_never_picked_even_when_they_are_all_but_one() -> None:
    params = params_of()
    choice = Choice(Adjuster(params, range(1, VOCAB)).apply(random_distribution(2, False), True), params)
    assert choice.probabilities() == {0: 1.0}


def test_class_members_skip_the_single_tokens() -> None:
    classes = TokenClasses(np.array([0, 1, 0, 0, 1, 0, 0, 1], np.int64))
    without = np.array([0, 1, 3], np.int64)
    assert classes.members(0, 0, 3, without).tolist() == [2, 5, 6]
    assert classes.members(1, 1, 1, without).tolist() == [7]
    assert classes.members(0, 0, 5, np.empty(0, np.int64)).tolist() == [0, 2, 3, 5, 6]


def test_top_lists_the_likeliest_and_opens_classes() -> None:
    distribution = random_distribution(6, distinct=False)
    logits = dense(distribution)
    for count in (1, 5, 25, VOCAB, VOCAB + 5):
        ids, values = distribution.top(count)
        assert values == sorted(logits, reverse=True)[:count]
        assert len(set(ids)) == len(ids) == min(count, VOCAB)
        assert values == logits[ids].tolist()


def test_plain_draws_and_choices_agree_on_one_model() -> None:
    """The two ways to sample are one distribution: a chi-square of a million seeded draws."""
    rng = np.random.default_rng(11)
    text = rng.integers(0, 30, 400)
    model = NGramModel(text, VOCAB, 4, 0.5)
    row = model.read(model.start(), text[100:104].tolist())[0][-1:]
    wanted = np.zeros(VOCAB)
    for token, p in Choice(model.distribution(row[0]), params_of()).probabilities().items():
        wanted[token] = p
    n = 1_000_000
    numbers = uniforms(np.full(n, random_key(5), np.uint64), np.arange(n))
    counts = np.bincount(model.draw(np.repeat(row, n, axis=0), numbers), minlength=VOCAB)
    chi_square = float(((counts - n * wanted) ** 2 / (n * wanted)).sum())
    # 59 degrees of freedom: mean 59, deviation 11. The seeds are fixed, so this is no gamble.
    assert 59 - 5 * 11 < chi_square < 59 + 5 * 11


def test_uniforms_are_uniform_and_independent_between_neighbouring_seeds() -> None:
    n = 100_000
    streams = [uniforms(np.full(n, random_key(s), np.uint64), np.arange(n)) for s in (0, 1, -1, 2**63 - 1)]
    for stream in streams:
        assert stream.min() >= 0
        assert stream.max() < 1
        cells = np.bincount((stream * 100).astype(int), minlength=100)
        assert ((cells - n / 100) ** 2 / (n / 100)).sum() < 99 + 5 * 14.1
    assert np.abs(np.corrcoef(streams) - np.eye(4)).max() < 0.02


def test_uniforms_of_a_row_do_not_depend_on_the_other_rows() -> None:
    keys = np.array([random_key(s) for s in range(50)], np.uint64)
    counts = np.arange(50) * 7
    together = uniforms(keys, counts)
    assert together.tolist() == [float(uniforms(keys[i : i + 1], counts[i : i + 1])[0]) for i in range(50)]

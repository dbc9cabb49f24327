"""The n-gram model against its own formula, computed naively from the text."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from egress.engine.model import NGramModel

VOCAB = 12
TEXT = [1, 2, 3, 1, 2, 4, 1, 2, 3, 5, 6, 1, 2, 3, 1, 3, 3, 7, 1, 2, 3, 1, 2]
NOVELTY = 0.4


def naive(context: list[int], token: int, order: int, holes: tuple[int, ...] = ()) -> float:
    """P(token | context) by the formula of the module's docstring."""
    grams = [Counter(tuple(TEXT[i : i + n]) for i in range(len(TEXT) - n + 1)) for n in range(order + 1)]
    total = len(TEXT)
    share = total / (total + NOVELTY * len(grams[1]))
    floor = 0.0 if token in holes else (1 - share) / (VOCAB - len(holes))
    p = share * grams[1][(token,)] / total + floor
    for n in range(1, min(order - 1, len(context)) + 1):
        prefix = tuple(context[-n:])
        following = {gram: count for gram, count in grams[n + 1].items() if gram[:-1] == prefix}
        if following:
            count = sum(following.values())
            share = count / (count + NOVELTY * len(following))
            p = share * following.get((*prefix, token), 0) / count + (1 - share) * p
    return p


def context_of(model: NGramModel, tokens: list[int]) -> np.ndarray:
    return model.read(model.start(), tokens)[0][-1:]


@pytest.fixture(scope="module", params=[2, 3, 5])
def model(request: pytest.FixtureRequest) -> NGramModel:
    return NGramModel(TEXT, VOCAB, request.param, NOVELTY)


CONTEXTS = [[], [1], [1, 2], [9, 1, 2], [3, 1, 2], [1, 2, 3], [6, 1, 2, 3], [2, 3, 1, 2], [11], [7, 7, 7]]


@pytest.mark.parametrize("context", CONTEXTS)
def test_probabilities_are_those_of_the_formula(model: NGramModel, context: list[int]) -> None:
    row = context_of(model, context)
    wanted = [naive(context, token, model.order) for token in range(VOCAB)]
    everywhere = np.repeat(row, VOCAB, axis=0)
    assert model.advance(everywhere, np.arange(VOCAB))[1] == pytest.approx(wanted, rel=1e-12)
    logits = model.distribution(row[0]).logits_of(np.arange(VOCAB))
    assert np.exp(logits) == pytest.approx(wanted, rel=1e-12)
    assert sum(wanted) == pytest.approx(1.0, rel=1e-12)
    assert min(wanted) > 0


def test_reading_at_once_is_advancing_one_by_one(model: NGramModel) -> None:
    prompt = [4, 1, 2, 3, 1, 9, 2, 3, 5]
    contexts, p = model.read(model.start(), prompt)
    row = model.start()
    for i, token in enumerate(prompt):
        assert contexts[i].tolist() == row[0].tolist()
        row, q = model.advance(row, np.array([token]))
        assert q[0] == p[i]
    assert contexts[-1].tolist() == row[0].tolist()


@pytest.mark.parametrize("context", CONTEXTS)
def test_draws_cover_the_unit_interval_by_probability(model: NGramModel, context: list[int]) -> None:
    """Over an even grid of uniforms each token appears as often as its probability, to grid resolution."""
    n = 200_000
    grid = (np.arange(n) + 0.5) / n
    drawn = model.draw(np.repeat(context_of(model, context), n, axis=0), grid)
    frequency = np.bincount(drawn, minlength=VOCAB) / n
    wanted = [naive(context, token, model.order) for token in range(VOCAB)]
    # A token owns at most one interval per order and one of the floor; each is off by a grid step at most.
    assert np.abs(frequency - wanted).max() <= 2 * (model.order + 1) / n


def test_a_draw_depends_on_its_own_row_only(model: NGramModel) -> None:
    rng = np.random.default_rng(3)
    rows = np.concatenate([context_of(model, context) for context in CONTEXTS * 20])
    u = rng.random(len(rows))
    together = model.draw(rows, u)
    alone = [int(model.draw(rows[i : i + 1], u[i : i + 1])[0]) for i in range(len(rows))]
    assert together.tolist() == alone


def test_extreme_uniforms_give_tokens_of_the_vocabulary(model: NGramModel) -> None:
    rows = np.concatenate([context_of(model, context) for context in CONTEXTS])
    for u in (0.0, np.nextafter(1.0, 0.0)):
        drawn = model.draw(rows, np.full(len(rows), u))
        assert ((drawn >= 0) & (drawn < VOCAB)).all()


def test_holes_have_no_probability_and_are_never_drawn() -> None:
    holes = (0, 8, 10)
    model = NGramModel(TEXT, VOCAB, 3, NOVELTY, holes)
    row = context_of(model, [1, 2])
    wanted = [naive([1, 2], token, 3, holes) for token in range(VOCAB)]
    assert [wanted[hole] for hole in holes] == [0, 0, 0]
    assert model.advance(np.repeat(row, VOCAB, axis=0), np.arange(VOCAB))[1] == pytest.approx(wanted)
    n = 50_000
    drawn = model.draw(np.repeat(row, n, axis=0), (np.arange(n) + 0.5) / n)
    assert set(drawn.tolist()) == set(range(VOCAB)) - set(holes)
    distribution = model.distribution(row[0])
    assert np.isneginf(distribution.logits_of(np.array(holes))).all()
    assert set(distribution.top(VOCAB)[0]) == set(range(VOCAB)) - set(holes)


@pytest.mark.parametrize("text", [[4], [4, 4], [4, 5], [4, 5, 4]])
def test_a_text_shorter_than_the_order_still_makes_a_distribution(text: list[int]) -> None:
    model = NGramModel(text, VOCAB, 5)
    for context in ([], [4], [4, 5], [5, 4]):
        row = context_of(model, context)
        p = model.advance(np.repeat(row, VOCAB, axis=0), np.arange(VOCAB))[1]
        assert p.sum() == pytest.approx(1.0)
        assert int(model.draw(row, np.array([0.0]))[0]) in text
        assert np.exp(model.distribution(row[0]).logits_of(np.arange(VOCAB))) == pytest.approx(p)


def test_an_empty_text_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one token"):
        NGramModel([], VOCAB)

"""The adversary: patterns over the grammar, and for every admitted one a search for a slow subject.

Times are only ever compared with the plainest quadratic loop (`\\n+$`) over as many characters, in the same
breath; a search that looks too slow is asked again before it counts. Long runs: tests/fuzz/fuzz_admission.py.
"""

from __future__ import annotations

import random
import re

import pytest
from fuzz import fuzz_admission as fuzz
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from egress.request.admission import MAX_TAIL

SLOW = 2 * fuzz.TIMES_PLAIN
"""Times the plainest loop; faster growth is far beyond it at 1,024 characters, a busy machine is not."""


def _quantified(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    groups = st.sampled_from(fuzz.GROUPS)
    bodies = st.one_of(parts, st.tuples(parts, parts).map("|".join))
    grouped = st.tuples(groups, bodies).map(lambda pair: pair[0].format(pair[1]))
    repeated = st.tuples(grouped, st.sampled_from(fuzz.COUNTS)).map("".join)
    return st.lists(st.one_of(grouped, repeated, parts), min_size=1, max_size=3).map("".join)


PATTERNS = st.tuples(
    st.sampled_from(fuzz.FLAGS), st.recursive(st.sampled_from(fuzz.ATOMS), _quantified, max_leaves=7)
).map("".join)


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(PATTERNS, st.integers(0, 2**32))
def test_no_admitted_pattern_has_a_slow_subject_or_a_match_over_its_bound(pattern: str, seed: int) -> None:
    ratio, subject = fuzz.check(random.Random(seed), pattern, 6, SLOW)
    assert ratio < SLOW, f"{pattern!r} takes {ratio:.1f} times the plainest loop on {subject!r}"


@settings(max_examples=200, deadline=None)
@given(
    st.one_of(st.text(max_size=300), PATTERNS.map(lambda text: fuzz.mutate(random.Random(len(text)), text)))
)
def test_any_text_gets_a_verdict(pattern: str) -> None:
    admitted = fuzz.verdict(pattern)
    if admitted is not None:
        assert admitted.max_len > 0
        re.compile(admitted.pattern)


@pytest.mark.parametrize(
    "pattern",
    [r"(?:a|ab|b)*c", r"(a+)+b", r"\s*\n\s*END", r"(?:#+\s*)+END", r"(\w+\.?)+@"],
)
def test_the_adversary_finds_what_is_slow(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Admitted:
        max_len = 1 << 30

    monkeypatch.setattr(fuzz, "verdict", lambda _: Admitted)
    ratio, _ = fuzz.check(random.Random(5), pattern, 40)
    assert ratio >= fuzz.TIMES_PLAIN


def test_subjects_are_as_long_as_asked() -> None:
    rng = random.Random(1)
    for subject in fuzz.subjects(rng, r"a(b|cd)+\d{2}", 20):
        assert len(fuzz.text_of(subject, MAX_TAIL)) == MAX_TAIL

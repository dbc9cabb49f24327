"""Verdicts: the vectors, everyday patterns, catastrophic ones, bounds, and the texts of refusals."""

# ruff: noqa: RUF001 - characters that look like others are the point here

from __future__ import annotations

import random
import re
import sys
import threading
from typing import Any

import pytest
from support import load_vectors

from egress.errors import ValidationError
from egress.request.admission import UNBOUNDED, RegexPattern

CASES = load_vectors("stop_regex")["cases"]

EVERYDAY = [
    (r"\d+\.\d+", UNBOUNDED),
    (r"\r?\n\r?\n", 4),
    (r"https?://\S+", UNBOUNDED),
    (r"\n{2,}", UNBOUNDED),
    (r"(?:^|\n)User:", 6),
    (r"(?m)^#{1,6} ", 7),
    (r"\b(?:yes|no)\b", 3),
    (r"(?i)\bthe end\b", 7),
    (r"<\|im_end\|>", 10),
    (r"<\|[a-z_]+\|>", UNBOUNDED),
    (r"\[/?INST\]", 7),
    (r"</(?:s|answer|think)>", 9),
    (r"(?i)final answer:\s*", UNBOUNDED),
    (r"[A-Z][a-z]+:", UNBOUNDED),
    (r"\w+\s*=\s*\w+", UNBOUNDED),
    (r"\d{4}-\d{2}-\d{2}", 10),
    (r"(?:\d{1,3}\.){3}\d{1,3}", 15),
    (r"[\w.-]+@[\w-]+\.com", UNBOUNDED),
    (r'"[^"]*"', UNBOUNDED),
    (r"\([^()]*\)", UNBOUNDED),
    (r"```[a-z]*\n", UNBOUNDED),
    (r"(?s)<tool>.*?</tool>", UNBOUNDED),
    (r"[\s\S]*?END", UNBOUNDED),
    (r"^\s*Observation:", UNBOUNDED),
    (r"\n\s*\n", UNBOUNDED),
    (r"(?:Human|User|Assistant):", 10),
    (r"(?<=\n)Q\d+:", UNBOUNDED),
    (r"[。！？]+$", UNBOUNDED),
    (r"(['\"])end\1", 5),
    (r"-{3,}\s*$", UNBOUNDED),
    (r"(\w+) \1", UNBOUNDED),
    (r"\n(?=Question)", 1),
    (r"(?:ha){2,5}!", 11),
    (r"\.{3}|…", 3),
    (r"a.{0,20}b", 22),
    (r"foo\s*\n\s*bar", UNBOUNDED),
    (r"(?:\w|\d)*-", UNBOUNDED),
]

CATASTROPHIC = [
    r"(a+)+b",
    r"(a|aa)+$",
    r"(?:a{1,1000}){1,1000}b",
    r"(x+x+)+y",
    r"(.*)*x",
    r"(\w+\s?)+!",
    r"(?:\s*\n)*\s*END",
    r"\s*\n\s*END",
    r".*foo.*bar",
    r"\s+\s+$",
    r"(\d+)*$",
    r"([a-z]+)*\d",
    r"(?i)(ky?|\u212ay?)*x",
    r"(?i)(sy?|ſy?)+!",
    r"(?:\d|[0-9a-f]x?)*z",
    r"(?:a|[^b])*b",
    r"(?:.|\n)*(?:.|\n)*X",
    r"(?:a?b?c?)*d",
    r"((a*)b?)*c",
    r"(?=(a+)+b)",
    r"(?!(?:a|a)*b)x",
    r"(a*)\1b",
    r"(?:a*?)*?b",
    r"(a?){30}a{30}",
    r"(?:[\w\d]+)*!",
    r"(?:(?:a|b)+c?)+d",
    r"(?:é|[à-ê]x?)*!",
    r"(?:。|[^a])*a",
    r"(?:\w|\d\d)*-",
    r"<.*>.*</.*>",
    r"(?:a{0,30}){0,30}b",
    r"(?>a+a+)+b",
    r"(?(1)a|b)(?:(c)|c)*d",
    r"(?:x?){20}(?:x?){20}y",
    r"(?:.?){9}(?:.?){9}(?:.?){9}Z",
    r"(a)(\1\1)(\2\2)(\3\3)(\4\4)(\5\5)(\6\6)"
    r"(\7\7)(\8\8)(\9\9)(\10\10)(\11\11)(\12\12)(\13\13)(\14\14)(\15\15)x",
]


def refusal(pattern: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        RegexPattern.build(pattern)
    assert caught.value.field == "stop_regex"
    assert caught.value.status_code == 400
    return str(caught.value)


@pytest.mark.parametrize("case", CASES, ids=[ascii(case["pattern"]) for case in CASES])
def test_vector(case: dict[str, Any]) -> None:
    pattern = case["pattern"]
    if case["policy"] == "must_reject":
        assert "is invalid" in refusal(pattern) or "is refused" in refusal(pattern)
        return
    try:
        admitted = RegexPattern.build(pattern)
    except ValidationError:
        assert case["policy"] == "may_reject"
        return
    assert admitted.pattern == pattern
    assert admitted.max_len >= (case["bound_min"] or 0)
    if "bound_exact" in case:
        assert admitted.max_len == case["bound_exact"]


@pytest.mark.parametrize(("pattern", "bound"), EVERYDAY, ids=[ascii(pattern) for pattern, _ in EVERYDAY])
def test_everyday_pattern_is_admitted_with_its_exact_bound(pattern: str, bound: int) -> None:
    assert RegexPattern.build(pattern).max_len == bound


@pytest.mark.parametrize("pattern", CATASTROPHIC, ids=ascii)
def test_catastrophic_pattern_is_refused(pattern: str) -> None:
    re.compile(pattern)
    assert "is refused" in refusal(pattern)


@pytest.mark.parametrize(
    ("pattern", "part"),
    [
        (r"Answer: (\w+\s?)+ END", r"(\w+\s?)+"),
        (r"[a-z]{3}(?:x|(?:a+)+)!", r"(?:a+)+"),
        (r"\s*\n\s*bar", r"\s*\n\s*"),
        (r"(?:(?=b(?:a|ba|ab)*c)b)x", r"(?:a|ba|ab)*"),
        (r"<b>.*</b>.*<i>", r"<b>.*</b>.*"),
        # What CPython spells otherwise: factored, as a set, with another count, by another name.
        (r"(foo|far|foo+)*(foo)*y", r"(foo|far|foo+)*"),
        (r"x(abc|abe|a+)*(\d+[0-9]*)+Z", r"(abc|abe|a+)*"),
        (r"(?:a|b){1,}?(?:b|a){1,}[ab]*c", r"(?:a|b){1,}?(?:b|a){1,}"),
        (r"(?P<word>(?:\w{1,})*)!", r"(?:\w{1,})*"),
        (r"\x41*\N{LATIN CAPITAL LETTER A}*[A]*\.", r"\x41*\N{LATIN CAPITAL LETTER A}*"),
        (r"(a)b(?:\1|a)*(?:a|\1)*(?#why)a*[)(|]", r"(?:\1|a)*"),
    ],
)
def test_refusal_names_the_part_at_fault_as_it_was_sent(pattern: str, part: str) -> None:
    said = refusal(pattern)
    assert said.startswith(f"stop_regex '{pattern}' is refused: ")
    assert f"'{part}'" in said.split(" is refused: ")[1]


def test_a_part_that_nobody_wrote_is_not_shown() -> None:
    # Too deep to be sought.
    assert " is refused: a part of it " in refusal("(" * 20 + "a+" + ")*" * 20 + "b")


def test_a_refusal_is_one_line_whatever_the_pattern_holds() -> None:
    assert refusal("(a+)+\n").startswith(r"stop_regex '(a+)+\n' is refused: '(a+)+' is slower")


@pytest.mark.parametrize(
    "pattern",
    [
        "(",
        "[",
        "*a",
        "(?P<x",
        "\\",
        "(?<=a+)b",
        "a{5000000000}",
        "(?R)",
        r"\p{L}",
        "[[]",
        "[a--b]",
        "(a)(?(+1)b)",
    ],
)
def test_what_python_does_not_take_is_invalid(pattern: str) -> None:
    assert "is invalid" in refusal(pattern)


@pytest.mark.parametrize("pattern", ["\ud83d", "a\udc00b", "[\ud800-\udfff]"])
def test_lone_surrogate_is_invalid_and_its_message_can_be_sent(pattern: str) -> None:
    text = refusal(pattern)
    assert "is invalid" in text
    assert text.encode()


@pytest.mark.parametrize("pattern", [None, 1, b"a", ["a"], {}, 1.5, True, re.compile("a")])
def test_anything_but_a_string_is_refused(pattern: Any) -> None:
    assert f"must be a string, got {type(pattern).__name__}" in refusal(pattern)


def test_length_is_counted_in_bytes_and_told_before_syntax() -> None:
    assert RegexPattern.build("b" * 256).max_len == 256
    assert "258 bytes, over the 256-byte limit" in refusal("é" * 129)
    assert "over the 256-byte limit" in refusal("(" * 257)
    assert "over the 256-byte limit" in refusal("(" * 100_000)


@pytest.mark.parametrize("pattern", ["", "^", "$", "(?:)", r"\b", "(?=x)", "(?!)", "()*", "(?:^|$)", "a{0}"])
def test_pattern_of_only_empty_matches_is_refused(pattern: str) -> None:
    assert "only the empty text" in refusal(pattern)


@pytest.mark.parametrize("pattern", ["a*", ".*", "(?:ab)?", "x{0,3}", r"\s*$"])
def test_pattern_that_may_also_match_more_is_admitted(pattern: str) -> None:
    assert RegexPattern.build(pattern).max_len > 0


def test_deep_nesting_gets_a_verdict_near_the_recursion_limit() -> None:
    answers: list[str] = []

    def down(levels: int) -> None:
        if levels:
            down(levels - 1)
            return
        try:
            RegexPattern.build("(?:" * 60 + str(len(answers)) + ")" * 60)
            answers.append("admitted")
        except ValidationError as error:
            answers.append(str(error))

    def run() -> None:
        for levels in range(sys.getrecursionlimit() - 400, sys.getrecursionlimit() - 30, 7):
            down(levels)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert answers
    assert all(text == "admitted" or "nested too deeply" in text for text in answers)
    assert any("nested too deeply" in text for text in answers)


def test_folding_wide_sets_is_refused_since_compiling_them_takes_long() -> None:
    assert "too wide" in refusal("(?i)" + "[\x00-\U0010ffff]" * 20)


def test_case_folding_keeps_the_bound_because_re_folds_one_to_one() -> None:
    for text in ("ß", "İ", "ŉ", "ǰ", "ΐ", "\u1e96", "ﬁ", "ﬆ", "\u212a", "ſ"):
        bound = RegexPattern.build(f"(?i){text}").max_len
        assert bound == 1
        for variant in (text.lower(), text.upper(), text.casefold(), text.swapcase()):
            found = re.search(f"(?i){text}", variant)
            assert found is None or len(found[0]) <= bound


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"(a{2,5})-\1\1", "aaaaa-aaaaaaaaaa"),
        (r"(?:(ab)|c)(?(1)xyz|q)", "abxyz"),
        (r"(?>ab{1,3})c", "abbbc"),
        (r"(?:ab?){2,3}+", "ababab"),
        (r"(?=abc)ab", "ab"),
        (r"(?<=a)bc", "bc"),
        (r"(?x) a b # c", "ab"),
        (r"(?s:.){4}", "a\nbc"),
    ],
)
def test_bound_of_rarer_constructs_is_the_longest_match(pattern: str, text: str) -> None:
    bound = RegexPattern.build(pattern).max_len
    found = re.search(pattern, "a" + text if "?<=" in pattern else text + "c" if "?=" in pattern else text)
    assert found is not None
    assert len(found[0]) == bound == len(text)


def test_verdict_does_not_depend_on_warning_filters() -> None:
    import warnings  # noqa: PLC0415 - the filters of this test alone

    for action in ("ignore", "error", "always"):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter(action)  # type: ignore[arg-type]
            assert "is invalid" in refusal("[[a]b]")
        assert seen == []


def test_noise_gets_nothing_but_verdicts() -> None:
    rng = random.Random(11)
    alphabet = "ab01()[]{}|*+?\\^$.-,:!<=>#P& \n\x00éß。𝒳i"
    for _ in range(3000):
        pattern = "".join(rng.choice(alphabet) for _ in range(rng.randint(0, 60)))
        try:
            assert RegexPattern.build(pattern).max_len > 0
        except ValidationError as error:
            if error.field != "stop_regex":
                raise


def test_same_pattern_is_equal_and_shows_itself() -> None:
    one = RegexPattern.build("x{2}")
    assert one == RegexPattern("x{2}", 2)
    assert hash(one) == hash(RegexPattern("x{2}", 2))
    assert one != RegexPattern("x{2}", 3)
    assert one != "x{2}"
    assert repr(one) == "RegexPattern(pattern='x{2}', max_len=2)"

"""Stop strings: what is held back, what is cut, and when an engine stops."""

from __future__ import annotations

import itertools
import random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from text_support import Strings, byte_values, qwen

from egress.errors import DetokenizeError, ValidationError
from egress.text import Detokenizer, StopMatcher
from egress.text.stop import Scan, cut_text
from egress.wire import Length, Stop

LENGTH = Length(length=1)
SHORT = st.text(alphabet="ab\n", max_size=12)


def opened(*stops: str, **fields: Any) -> Any:
    return Detokenizer(byte_values()).open(SimpleNamespace(stop_strs=list(stops), **fields))


def pushed(state: Any, *parts: str, finish: Any = LENGTH) -> list[str]:
    last = len(parts) - 1
    return [
        state.push(list(part.encode()), finish if i == last else None).text for i, part in enumerate(parts)
    ]


def matcher(*, stop: Any = None, stop_regex: Any = None, tokenizer: Any = None) -> StopMatcher:
    return StopMatcher(SimpleNamespace(stop=stop, stop_regex=stop_regex), tokenizer or byte_values())


# --- hold-back ---


def longest_beginning(text: str, stops: list[str]) -> int:
    return max((k for stop in stops for k in range(1, len(stop)) if text.endswith(stop[:k])), default=0)


@given(
    st.lists(st.text(alphabet="ab\n", min_size=1, max_size=6), min_size=1, max_size=4),
    st.lists(SHORT, max_size=8),
)
def test_exactly_the_longest_beginning_of_a_stop_is_held(stops: list[str], parts: list[str]) -> None:
    """Against the plain definition, for texts that hold no whole stop."""
    state, text, shown = opened(*stops), "", ""
    for part in parts:
        if any(stop in text + part for stop in stops):
            break
        text += part
        shown += pushed(state, part, finish=None)[0]
        assert shown == text[: len(text) - longest_beginning(text, stops)]
    assert shown + pushed(state, "")[0] == text


@given(
    st.lists(st.text(alphabet="ab\n", min_size=1, max_size=5), min_size=1, max_size=4),
    st.lists(SHORT, min_size=1, max_size=8),
)
def test_an_engine_and_a_detokenizer_agree_on_the_end(stops: list[str], parts: list[str]) -> None:
    """Engine and detokenizer chained: the client sees the text before the first stop that ends."""
    engine, state, shown = matcher(stop=stops), opened(*stops), ""
    whole, reason = "".join(parts), None
    for part in parts:
        reason = engine.push(list(part.encode()))
        shown += state.push(list(part.encode()), reason).text
        if reason is not None:
            break
    if reason is None:
        assert not any(stop in whole for stop in stops)
        assert shown + pushed(state, "")[0] == whole
    else:
        end, _, first = min(
            (whole.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in whole
        )
        assert (reason.matched, shown) == (first, whole[: end - len(first)])


def test_r098_text_that_no_longer_can_be_a_stop_flows_at_once() -> None:
    state = opened("<|end|>", "\n\nUser:")
    assert pushed(state, "hello", " <", "|e", "nx", "\n", "a", finish=None) == [
        "hello",
        " ",
        "",
        "<|enx",
        "",
        "\na",
    ]
    assert pushed(opened("<|end|>", "\n\nUser:"), "text<|e", "") == ["text", "<|e"]
    assert pushed(opened("<|end|>"), "text<|e") == ["text<|e"]


@pytest.mark.parametrize("n_parts", [2, 3, 4])
def test_r099_no_split_of_a_stop_leaks(n_parts: int) -> None:
    whole = "say STOP"
    for cuts in itertools.combinations(range(1, len(whole)), n_parts - 1):
        parts = [whole[a:b] for a, b in itertools.pairwise((0, *cuts, len(whole)))]
        assert "".join(pushed(opened("STOP"), *parts, finish=Stop(matched="STOP"))) == "say "
        kept = pushed(opened("STOP", no_stop_trim=True), *parts, finish=Stop(matched="STOP"))
        assert "".join(kept) == whole
        assert "".join(pushed(opened("STOP"), *parts, finish=LENGTH)) == whole


@pytest.mark.parametrize(
    ("text", "matched", "want"), [("xab", "ab", "x"), ("xabc", "abc", "x"), ("xbcd", "bcd", "x")]
)
def test_r099_overlapping_stops(text: str, matched: str, want: str) -> None:
    assert "".join(pushed(opened("ab", "abc", "bcd"), *text, finish=Stop(matched=matched))) == want


def test_r099_near_misses_are_delivered_in_full() -> None:
    texts = pushed(opened("STOP"), *"STSTSTOP", finish=Stop(matched="STOP"))
    assert texts == ["", "", "ST", "", "ST", "", "", ""]
    assert "".join(pushed(opened("STOP"), *"STSTSTO!", finish=LENGTH)) == "STSTSTO!"


def test_a_stop_reported_one_step_late_does_not_leak() -> None:
    assert pushed(opened("STOP"), "a STOP b", "", finish=Stop(matched="STOP")) == ["a ", ""]
    assert pushed(opened("STOP"), "a STOP b", "c", "d") == ["a ", "STOP bc", "d"]


@pytest.mark.parametrize(("no_stop_trim", "want"), [(False, "a "), (True, "a STOP")])
def test_r100_the_first_match_is_cut(no_stop_trim: bool, want: str) -> None:
    state = opened("STOP", no_stop_trim=no_stop_trim)
    assert pushed(state, "a STOP b STOP c", finish=Stop(matched="STOP")) == [want]
    both = opened("STOP", no_stop_trim=no_stop_trim, stop_token_ids=[99])
    delta = both.push([*b"a STOP b", 99], Stop(matched=99))
    assert delta.text == ("a STOP bc" if no_stop_trim else "a STOP b")


@pytest.mark.parametrize("length", range(1, 21))
def test_r093_hold_back_never_cuts_a_character(length: int) -> None:
    text = "海に👍🏽浮かぶ海ZZZ中" * 3
    for stop in ("ZZZ", "海", ("海ZZ" * 20)[:length], ("👍🏽浮" * 20)[:length]):
        engine, state, shown, reason = matcher(stop=stop), opened(stop), "", None
        for byte in text.encode():
            reason = engine.push([byte])
            shown += state.push([byte], reason).text
            if reason is not None:
                break
        else:
            shown += state.push([], LENGTH).text
        assert shown == text.split(stop)[0]
        assert (reason is None) == (stop not in text)


def test_stops_are_read_normalized_or_not() -> None:
    for fields in (
        {"stop": "ab"},
        {"stop": ["ab", ""]},
        {"stop_strs": ["ab"]},
        {"stop_strs": ["ab"], "stop": None},
    ):
        state = Detokenizer(byte_values()).open(SimpleNamespace(**fields))
        assert pushed(state, "xa", "c", finish=None) == ["x", "ac"]


def test_cut_text_knows_no_empty_match() -> None:
    assert cut_text("abc", "", False) == cut_text("abc", "", True) == cut_text("abc", "x", True) == "abc"


# --- the scan ---


@given(
    st.text(alphabet="ab", min_size=1, max_size=8),
    st.lists(st.text(alphabet="abc", max_size=10), max_size=10),
)
def test_scan_finds_what_find_finds(stop: str, parts: list[str]) -> None:
    scan, text, seen = Scan(stop), "", 0
    for part in parts:
        text += part
        ends = [i + len(stop) for i in range(len(text)) if text.startswith(stop, i)]
        new = [end - seen for end in ends if end > seen]
        assert scan.feed(part) == (new[0] if new else -1)
        assert scan.n_begun == longest_beginning(text, [stop])
        seen = len(text)


@pytest.mark.parametrize("stop", ["ab", "a" * 5_000 + "b", "a" * 30_000, "ab" * 4_000])
def test_a_hostile_stop_does_not_slow_the_scan_down(stop: str) -> None:
    """Comparing each beginning anew would look at the long ones a thousand times as often."""

    class Counted(str):
        __slots__ = ()
        looks = 0

        def __getitem__(self, key: Any) -> str:
            Counted.looks += 1
            return super().__getitem__(key)

    scan, text = Scan(Counted(stop)), "a" * 20_000
    for at in range(0, len(text), 4):
        scan.feed(text[at : at + 4])
    assert len(text) <= Counted.looks <= 6 * len(text)


# --- the engine's matcher ---


def test_a_matcher_without_stops_is_inactive() -> None:
    idle = StopMatcher(SimpleNamespace(stop=None, stop_strs=[], stop_regex_strs=[]), None)
    assert not idle.is_active
    assert idle.push([1, 2]) is None


def test_a_stop_string_is_matched_over_pushes() -> None:
    engine = matcher(stop=["END", "STOP"])
    assert engine.is_active
    assert engine.push(list(b"x ST")) is None
    assert engine.push(list(b"OP")) == Stop(matched="STOP")


def test_the_stop_that_ends_first_wins_then_the_longer_one() -> None:
    assert matcher(stop=["bcd", "abc", "bc"]).push(list(b"xabcd")) == Stop(matched="abc")


def test_special_tokens_count_as_their_text() -> None:
    tokenizer = Strings({0: "hi", 1: "<|im_end|>", 2: "\n"}, special=[1])
    engine = matcher(stop="<|im_end|>\n", tokenizer=tokenizer)
    assert engine.push([0, 1]) is None
    assert engine.push([2]) == Stop(matched="<|im_end|>\n")


def test_a_character_must_be_complete() -> None:
    engine = matcher(stop="海")
    assert [engine.push([byte]) for byte in "海".encode()] == [None, None, Stop(matched="海")]


def test_a_regex_stop_names_its_pattern() -> None:
    engine = matcher(stop_regex=r"\d{2}-\d{2}")
    assert engine.push(list(b"call 12-3")) is None
    assert engine.push(list(b"4")) == Stop(matched=r"\d{2}-\d{2}")


def test_stop_strings_come_before_regexes() -> None:
    assert matcher(stop=["ab"], stop_regex=["[ab]+x?"]).push(list(b"zzab")) == Stop(matched="[ab]+x?")
    assert matcher(stop=["b"], stop_regex=["[b]"]).push(list(b"zb")) == Stop(matched="b")


@pytest.mark.parametrize("pattern", [r"x\d+y", r"(?i)end[.!]", r"\n\n"])
def test_a_regex_is_found_wherever_the_tokens_cut_it(pattern: str) -> None:
    hit = {r"x\d+y": "x123y", r"(?i)end[.!]": "End!", r"\n\n": "\n\n"}[pattern]
    rng = random.Random(3)
    for _ in range(60):
        before = "".join(rng.choices("ab cd\n1", k=rng.randint(0, 3000))).replace("\n\n", "\n ")
        engine, data, at = matcher(stop_regex=[pattern]), (before + hit).encode(), 0
        if before.endswith("\n") and pattern == r"\n\n":
            continue
        while at < len(data):
            size = rng.randint(1, 5)
            reason = engine.push(list(data[at : at + size]))
            at += size
            assert (reason is not None) == (at >= len(data))


@pytest.mark.parametrize("pattern", ["a*", "a*?", "(?:a|)", "(?=b)a?"])
def test_r084_a_match_of_no_characters_never_stops(pattern: str) -> None:
    found = matcher(stop_regex=pattern)
    assert found.push(list(b"bbb")) is None
    reason = found.push(list(b"ba"))
    assert (reason is None) == (pattern == "(?=b)a?")


def test_an_anchor_means_the_beginning_of_the_output() -> None:
    assert matcher(stop_regex="^b").push(list(b"b")) == Stop(matched="^b")
    engine = matcher(stop_regex="^b")
    assert [engine.push([byte]) for byte in b"a" + b"b" * 2000] == [None] * 2001
    assert matcher(stop_regex=r"\bb").push(list(b"ab b")) == Stop(matched=r"\bb")
    assert matcher(stop_regex=r"\bb").push(list(b"abb")) is None


def test_an_unbounded_pattern_sees_1024_characters_and_no_more() -> None:
    for n, want in ((1022, True), (1023, False)):
        engine = matcher(stop_regex=r"x[^z]*z")
        assert engine.push(list(b"x" + b"-" * n)) is None
        assert (engine.push(list(b"z")) is not None) is want


def test_stops_need_a_tokenizer() -> None:
    for fields, field in (({"stop": ["a"]}, "stop"), ({"stop_regex": ["a"]}, "stop_regex")):
        with pytest.raises(ValidationError, match="needs a tokenizer") as caught:
            StopMatcher(SimpleNamespace(**fields), None)
        assert caught.value.field == field


def test_a_pattern_that_is_not_admitted_is_refused() -> None:
    with pytest.raises(ValidationError):
        matcher(stop_regex=["(a+)+$"])


def test_an_unknown_id_is_that_request_s_failure() -> None:
    with pytest.raises(DetokenizeError):
        matcher(stop="x").push([1, 256])


def test_the_real_vocabulary_stops_where_the_text_does() -> None:
    tokenizer, rng = qwen(), random.Random(11)
    text = "Once upon a time 海に浮かぶ 👍🏽 there was\n\nUser: a fox.<|im_end|>\n"
    ids = tokenizer.encode(text)
    for stop in ("\n\nUser:", "浮か", "👍🏽", "<|im_end|>", "fox", "e w"):
        engine = StopMatcher(SimpleNamespace(stop=[stop]), tokenizer)
        state = Detokenizer(tokenizer).open(SimpleNamespace(stop_strs=[stop], skip_special_tokens=False))
        shown, at, reason = "", 0, None
        while reason is None:
            size = rng.randint(1, 2)
            reason = engine.push(ids[at : at + size])
            shown += state.push(ids[at : at + size], reason).text
            at += size
        assert (reason, shown) == (Stop(matched=stop), text.split(stop)[0])

"""SamplingParams: the vectors, and what each step does to which field."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from support import load_vectors

from egress.errors import ValidationError
from egress.request import SamplingParams
from egress.request.sampling import TOP_K_ALL

VECTORS = load_vectors("sampling_params")
CASES = {case["name"]: case for case in VECTORS["cases"]}
# Through the dict path go only the inputs that JSON itself can be decoded from.
DICT_CASES = {name: case for name, case in CASES.items() if "input" in case}


def admitted(data: Any, skip_tokenizer_init: bool = False, vocab_size: int = 1000) -> SamplingParams:
    params = SamplingParams.parse(data)
    params.normalize(skip_tokenizer_init)
    params.verify(vocab_size)
    return params


def check(case: dict[str, Any], data: Any) -> None:
    expect = case["expect"]
    if expect["ok"]:
        params = admitted(data, case["skip_tokenizer_init"], case["vocab_size"])
        for name, value in expect["fields"].items():
            got = getattr(params, name)
            assert got == value, name
            assert type(got) is type(value), name
        return
    steps = SamplingParams.parse if expect.get("stage") == "parse" else admitted
    args = () if expect.get("stage") == "parse" else (case["skip_tokenizer_init"], case["vocab_size"])
    with pytest.raises(ValidationError) as refused:
        steps(data, *args)
    assert expect["error_contains"] in str(refused.value)
    assert refused.value.status_code == 400


@pytest.mark.parametrize("name", CASES)
def test_vectors_from_json(name: str) -> None:
    case = CASES[name]
    text = case.get("input_text") or json.dumps(case["input"])
    check(case, text)
    check(case, text.encode())


@pytest.mark.parametrize("name", DICT_CASES)
def test_vectors_from_dicts(name: str) -> None:
    before = json.dumps(CASES[name]["input"])
    check(CASES[name], CASES[name]["input"])
    assert json.dumps(CASES[name]["input"]) == before, "the caller's dict was changed"


def test_the_fields_are_in_wire_order() -> None:
    assert list(SamplingParams.__struct_fields__) == VECTORS["wire_order"]


def test_defaults() -> None:
    params = admitted({})
    for name, value in VECTORS["defaults_after_normalize"].items():
        assert getattr(params, name) == value, name
    assert params.beam_width is None


# -- post_init


@pytest.mark.parametrize("temperature", [0, 0.0, -0.0, 9.99e-7])
def test_greedy_is_top_k_one_whatever_top_k_said(temperature: float) -> None:
    params = SamplingParams.parse({"temperature": temperature, "top_k": -1})
    assert (params.temperature, params.top_k) == (1.0, 1)


def test_a_small_temperature_that_is_not_greedy_stays() -> None:
    params = admitted({"temperature": 1e-6, "top_k": -1})
    assert (params.temperature, params.top_k) == (1e-6, TOP_K_ALL)


@pytest.mark.parametrize("field", ["json_schema", "regex", "ebnf", "structural_tag"])
def test_an_empty_grammar_is_none(field: str) -> None:
    assert getattr(admitted({field: ""}), field) is None
    assert getattr(admitted({field: "x"}), field) == "x"


def test_stops_become_lists_and_then_move() -> None:
    params = SamplingParams.parse({"stop": "END", "stop_regex": "a|b"})
    assert (params.stop, params.stop_regex) == (["END"], ["a|b"])
    params.normalize()
    assert (params.stop, params.stop_regex) == (None, None)
    assert (params.stop_strs, params.stop_regex_strs) == (["END"], ["a|b"])


def test_post_init_passes_over_what_is_normalized() -> None:
    params = SamplingParams(temperature=0.0, top_k=-1, stop_token_ids=[], is_normalized=True)
    assert (params.temperature, params.top_k, params.stop_token_ids) == (0.0, -1, [])


# -- normalize


def test_normalize_twice_is_normalize_once() -> None:
    params = SamplingParams.parse({"stop": ["ab", "é"], "stop_regex": ["a{2}"], "temperature": 0})
    params.normalize()
    once = params.to_wire()
    params.normalize(skip_tokenizer_init=True)
    assert params.to_wire() == once


def test_a_refused_normalize_changes_nothing() -> None:
    params = SamplingParams.parse({"stop": ["a"], "stop_regex": ["b", "("]})
    before = params.to_wire()
    with pytest.raises(ValidationError) as refused:
        params.normalize()
    assert params.to_wire() == before
    assert refused.value.field == "stop_regex"


@pytest.mark.parametrize(("field", "noun"), [("stop", "stop strings"), ("stop_regex", "stop_regex patterns")])
def test_thirty_two_stops_and_no_more(field: str, noun: str) -> None:
    admitted({field: ["x"] * 32})
    with pytest.raises(ValidationError, match=f"at most 32 {noun} are allowed, got 33") as refused:
        admitted({field: ["x"] * 33})
    assert refused.value.field == field


def test_a_stop_regex_is_measured_in_bytes_before_it_is_read() -> None:
    admitted({"stop_regex": "\u505c" * 85})
    for pattern, size in (("\u505c" * 86, 258), ("(" * 257, 257), ("a" * 257, 257)):
        with pytest.raises(ValidationError) as refused:
            admitted({"stop_regex": ["a", pattern]})
        assert str(refused.value) == f"stop_regex pattern is {size} bytes, over the 256-byte limit"
        assert refused.value.field == "stop_regex"


def test_the_longest_bound_counts() -> None:
    assert admitted({"stop_regex": ["abcdef", "a"]}).stop_regex_max_len == 6


def test_without_a_tokenizer_nothing_needs_text() -> None:
    for body, text in (
        ({"stop": "x"}, "stop is unavailable when skip_tokenizer_init=True"),
        ({"stop_regex": "x"}, "stop_regex is unavailable when skip_tokenizer_init=True"),
        ({"min_new_tokens": 3}, "min_new_tokens=3 is unavailable when skip_tokenizer_init=True"),
    ):
        with pytest.raises(ValidationError) as refused:
            admitted(body, skip_tokenizer_init=True)
        assert str(refused.value) == text
        assert refused.value.field == next(iter(body))
    admitted({"stop": [], "stop_regex": [], "min_new_tokens": 0, "stop_token_ids": [1]}, True)


def test_a_lone_surrogate_in_a_constructed_stop_is_refused() -> None:
    with pytest.raises(ValidationError, match="surrogate"):
        SamplingParams(stop="\ud83d").normalize()


# -- verify

OUTSIDE = {
    "beam_width": [(0, "beam_width must be at least 1, got 0"), (2, "beam_width must be 1, got 2")],
    "temperature": [(-0.5, "temperature must be non-negative, got -0.5")],
    "top_p": [(1.5, "top_p must be in (0, 1], got 1.5"), (-1, "top_p must be in (0, 1], got -1")],
    "min_p": [(2.0, "min_p must be in [0, 1], got 2")],
    "top_k": [
        (0, "top_k must be -1 (disable) or at least 1, got 0"),
        (-2, "top_k must be -1 (disable) or at least 1, got -2"),
    ],
    "frequency_penalty": [(2.5, "frequency_penalty must be in [-2, 2], got 2.5")],
    "presence_penalty": [(-2.0000001, "presence_penalty must be in [-2, 2], got -2.0000001")],
    "repetition_penalty": [
        (0, "repetition_penalty must be in (0, 2], got 0"),
        (3.0, "repetition_penalty must be in (0, 2], got 3"),
    ],
    "min_new_tokens": [
        (-1, "min_new_tokens must be in [0, max_new_tokens], got -1"),
        (129, "min_new_tokens must be in [0, max_new_tokens(128)], got 129"),
    ],
    "max_new_tokens": [(-7, "max_new_tokens must be at least 0, got -7")],
    "n": [(0, "n must be 1, got 0"), (2, "n must be 1, got 2"), (-(2**63), f"n must be 1, got {-(2**63)}")],
}


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [(field, value, text) for field, cases in OUTSIDE.items() for value, text in cases],
)
def test_out_of_range_names_field_range_and_value(field: str, value: float, text: str) -> None:
    with pytest.raises(ValidationError) as refused:
        admitted({field: value})
    assert (str(refused.value), refused.value.field) == (text, field)


# Each of these is out of range, in the order in which verify looks.
ORDER: list[dict[str, Any]] = [
    {"beam_width": 0},
    {"temperature": -1},
    {"top_p": 0},
    {"min_p": -1},
    {"top_k": 0},
    {"frequency_penalty": 9},
    {"presence_penalty": 9},
    {"repetition_penalty": 9},
    {"min_new_tokens": -1},
    {"max_new_tokens": -1},
    {"logit_bias": {"x": 1}},
    {"regex": "a", "ebnf": "b"},
    {"n": 2},
]


@pytest.mark.parametrize("first", range(len(ORDER)))
def test_the_first_failure_wins(first: int) -> None:
    body: dict[str, Any] = {}
    # Later failures given first, so that neither order of keys nor of fields decides.
    for broken in reversed(ORDER[first:]):
        body |= broken
    with pytest.raises(ValidationError) as refused:
        admitted(body)
    assert refused.value.field in ORDER[first]


def test_beam_width_is_looked_at_first_and_last() -> None:
    with pytest.raises(ValidationError, match="n must be 1"):
        admitted({"beam_width": 2, "n": 2})
    with pytest.raises(ValidationError, match="beam_width must be 1"):
        admitted({"beam_width": 2})
    admitted({"beam_width": 1})


@pytest.mark.parametrize(
    "field",
    [
        "temperature",
        "top_p",
        "min_p",
        "frequency_penalty",
        "presence_penalty",
        "repetition_penalty",
    ],
)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_no_range_holds_a_number_that_is_not_finite(field: str, value: float) -> None:
    params = SamplingParams(**{field: value})
    with pytest.raises(ValidationError, match=field) as refused:
        params.verify(1000)
    assert refused.value.field == field


def test_max_new_tokens_null_is_no_limit() -> None:
    assert admitted({"max_new_tokens": None, "min_new_tokens": 5000}).max_new_tokens is None
    assert admitted({"max_new_tokens": 0}).max_new_tokens == 0


@pytest.mark.parametrize(
    "key", ["", " 7", "7 ", "+7", "-1", "1.5", "1e1", "0x1", "1_0", "\uff17", "\u0663", "7\n", "x", "\u00b2"]
)
def test_bias_keys_are_decimal_ids(key: str) -> None:
    with pytest.raises(ValidationError, match="logit_bias keys must be token ids, got ") as refused:
        admitted({"logit_bias": {"1": 0.5, key: 0.5}})
    assert refused.value.field == "logit_bias"


@pytest.mark.parametrize("key", ["1000", "1001", "2147483648", "9" * 19, "9" * 5000])
def test_bias_keys_are_below_the_vocabulary(key: str) -> None:
    with pytest.raises(ValidationError, match=r"logit_bias must have keys in \[0, 999\], got '") as refused:
        admitted({"logit_bias": {key: 0.5}})
    assert len(str(refused.value)) < 200
    assert admitted({"logit_bias": {"0": 1, "999": -1}}).logit_bias == {"0": 1.0, "999": -1.0}


@pytest.mark.parametrize("token_id", [-1, 1000, 2**31, 2**63 - 1, -(2**63)])
def test_stop_token_ids_are_in_the_vocabulary(token_id: int) -> None:
    with pytest.raises(ValidationError) as refused:
        admitted({"stop_token_ids": [0, token_id]})
    assert str(refused.value) == f"stop_token_ids must be ids in [0, 999], got {token_id}"
    assert refused.value.field == "stop_token_ids"
    assert admitted({"stop_token_ids": [0, 999]}).stop_token_ids == [0, 999]
    # It comes after all that SGLang checks.
    with pytest.raises(ValidationError, match="n must be 1"):
        admitted({"stop_token_ids": [token_id], "n": 2})


GRAMMARS = ["json_schema", "regex", "ebnf", "structural_tag"]


@pytest.mark.parametrize("second", GRAMMARS)
@pytest.mark.parametrize("first", GRAMMARS)
def test_at_most_one_grammar(first: str, second: str) -> None:
    if first == second:
        admitted({first: "x"})
        return
    with pytest.raises(ValidationError, match="Only one of") as refused:
        admitted({first: "x", second: "y"})
    assert refused.value.field in (first, second)
    assert first in str(refused.value)


# -- the wire form

FULL = {
    "max_new_tokens": None,
    "stop": ["停", "END"],
    "stop_token_ids": [1, 2],
    "stop_regex": "a{3}",
    "temperature": 0.5,
    "top_k": 40,
    "logit_bias": {"3": -1},
    "sampling_seed": -(2**63),
    "custom_params": {"a": [1, None, "x"], "b": {"c": 1.5}},
    "ignore_eos": True,
    "stream_interval": 4,
}


@pytest.mark.parametrize("is_normalized", [False, True])
def test_the_wire_form_round_trips(is_normalized: bool) -> None:
    params = SamplingParams.parse(FULL)
    if is_normalized:
        params.normalize()
    wire = params.to_wire()
    assert len(wire) == len(VECTORS["wire_order"])
    assert wire[0] is None
    assert SamplingParams.from_wire(wire) == params
    assert SamplingParams.from_wire(msgspec.msgpack.decode(msgspec.msgpack.encode(wire))) == params
    # The struct itself encodes to the same bytes, so it can stand inside other frames.
    assert msgspec.msgpack.encode(params) == msgspec.msgpack.encode(wire)


def test_short_and_empty_wire_forms_are_defaults() -> None:
    assert SamplingParams.from_wire([]) == SamplingParams()
    assert SamplingParams.from_wire([16, "END"]) == SamplingParams(max_new_tokens=16, stop="END")
    assert SamplingParams.from_wire([None] * 31) == SamplingParams(max_new_tokens=None)


def test_a_wire_form_that_is_not_normalized_gets_its_rewrites() -> None:
    assert SamplingParams.from_wire([128, None, None, None, 0.0]).top_k == 1


@pytest.mark.parametrize(
    ("items", "field"),
    [
        ([None] * 32, None),
        ({}, None),
        ("abc", None),
        (["x"], "max_new_tokens"),
        ([None] * 4 + [True], "temperature"),
        ([None] * 4 + [float("nan")], "temperature"),
        ([None] * 26 + [["a", 1]], "stop_strs"),
        ([None] * 26 + ["a"], "stop_strs"),
        ([None] * 30 + [1], "is_normalized"),
    ],
)
def test_wrong_wire_forms_are_refused(items: Any, field: str | None) -> None:
    with pytest.raises(ValidationError) as refused:
        SamplingParams.from_wire(items)
    assert refused.value.field == field

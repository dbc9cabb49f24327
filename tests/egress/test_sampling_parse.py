"""Reading what a client sent: strict types, unknown keys, limits of numbers, text that UTF-8 cannot carry."""

from __future__ import annotations

import enum
import json
from typing import Any

import msgspec
import numpy as np
import pytest
from fuzz.fuzz_params import fuzz
from hypothesis import given
from hypothesis import strategies as st

from egress.errors import ValidationError
from egress.request import SamplingParams

INTS = [
    "max_new_tokens",
    "top_k",
    "min_new_tokens",
    "n",
    "beam_width",
    "stream_interval",
    "sampling_seed",
]
FLOATS = [
    "temperature",
    "top_p",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
]
BOOLS = ["ignore_eos", "skip_special_tokens", "spaces_between_special_tokens", "no_stop_trim"]
STRINGS = ["json_schema", "regex", "ebnf", "structural_tag"]
STOPS = ["stop", "stop_regex"]
PIPELINE = ["stop_strs", "stop_regex_strs", "stop_str_max_len", "stop_regex_max_len", "is_normalized"]
CLIENT = [*INTS, *FLOATS, *BOOLS, *STRINGS, *STOPS, "stop_token_ids", "logit_bias", "custom_params"]


def refusal(data: Any) -> ValidationError:
    with pytest.raises(ValidationError) as refused:
        SamplingParams.parse(data)
    assert refused.value.status_code == 400
    str(refused.value).encode()
    return refused.value


def test_every_field_is_either_the_clients_or_the_pipelines() -> None:
    assert sorted([*CLIENT, *PIPELINE]) == sorted(SamplingParams.__struct_fields__)


WRONG = [
    *[(f, v) for f in INTS for v in ("8", 8.0, 8.5, True, False, [8], {}, "", 2**63, -(2**63) - 1, 2**64)],
    *[(f, v) for f in FLOATS for v in ("0.5", "nan", True, False, [0.5], {}, "", 2**63, 10**400)],
    *[(f, v) for f in BOOLS for v in ("true", 0, 1, 0.0, [], {})],
    *[(f, v) for f in STRINGS for v in (1, True, {"type": "object"}, ["x"])],
    *[(f, v) for f in STOPS for v in (1, True, {}, [1], [None], [["a"]], ["a", True])],
    *[("stop_token_ids", v) for v in (1, "1", [True], ["1"], [1.0], [None], [2**63], [[1]], {})],
    *[("logit_bias", v) for v in ([1], 1, "x", {"5": "1"}, {"5": [1]}, {"5": True}, {"5": None}, {"5": {}})],
    *[
        ("custom_params", v)
        for v in (
            1,
            "x",
            [1],
            {"a": [[1]]},
            {"a": {"b": [1]}},
            {"a": {"b": {}}},
            {"a": [{}]},
            {"a": 2**63},
            {"a": [2**64]},
            {"a": {"b": -(2**63) - 1}},
        )
    ],
]


@pytest.mark.parametrize(("field", "value"), WRONG, ids=lambda v: repr(v)[:40])
def test_nothing_is_coerced(field: str, value: Any) -> None:
    for data in ({field: value}, json.dumps({field: value}), json.dumps({"ignore_eos": True, field: value})):
        error = refusal(data)
        assert error.field == field
        assert field in str(error)


@pytest.mark.parametrize("field", FLOATS)
@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity", "1e400", "-1e400"])
def test_no_float_is_infinite_or_nan(field: str, literal: str) -> None:
    error = refusal(f'{{"{field}": {literal}}}')
    assert (error.field, "a finite number" in str(error)) == (field, True)
    assert refusal({field: float(literal.replace("Infinity", "inf"))}).field == field


@pytest.mark.parametrize("literal", ["NaN", "1e400"])
def test_nor_is_one_inside_an_object(literal: str) -> None:
    assert refusal(f'{{"logit_bias": {{"5": {literal}}}}}').field == "logit_bias"
    for inner in (f'{{"k": {literal}}}', f'{{"k": [1, {literal}]}}', f'{{"k": {{"l": {literal}}}}}'):
        error = refusal(f'{{"custom_params": {inner}}}')
        assert error.field == "custom_params"
        assert "custom_params.k" in str(error)


def test_integers_are_numbers_and_numbers_at_their_limits_pass() -> None:
    params = SamplingParams.parse(
        {
            "temperature": 2,
            "top_k": 2**63 - 1,
            "sampling_seed": -(2**63),
            "min_p": -0.0,
            "stop_token_ids": [0],
        }
    )
    assert type(params.temperature) is float
    assert (params.top_k, params.sampling_seed, params.min_p) == (2**63 - 1, -(2**63), 0.0)
    assert params.stop_token_ids == [0]


def test_zero_is_not_absence() -> None:
    params = SamplingParams.parse(
        '{"sampling_seed": 0, "min_new_tokens": 0, "max_new_tokens": 0, "stream_interval": 0, "top_k": 0,'
        ' "logit_bias": {}, "custom_params": {}, "skip_special_tokens": false}'
    )
    assert (params.sampling_seed, params.max_new_tokens, params.stream_interval, params.top_k) == (0, 0, 0, 0)
    assert (params.logit_bias, params.custom_params, params.skip_special_tokens) == ({}, {}, False)


def test_an_integer_of_many_thousand_digits_names_its_key() -> None:
    digits = "9" * 10_000
    assert refusal(f'{{"top_k": {digits}}}').field == "top_k"
    assert refusal(f'{{"custom_params": {{"a": [{digits}]}}}}').field == "custom_params"
    assert refusal({"top_k": 10**10_000}).field == "top_k"
    assert len(str(refusal({"top_k": 10**10_000}))) < 200


@pytest.mark.parametrize("key", ["temprature", "", "Temperature", "temperature ", "\U0001f600", "top_p\x00"])
def test_unknown_keys_are_named(key: str) -> None:
    error = refusal(json.dumps({key: 1}))
    assert error.field == key
    assert refusal({key: None}).field == key


@pytest.mark.parametrize("key", PIPELINE)
def test_pipeline_outputs_are_not_the_clients(key: str) -> None:
    for value in (None, False, 1, ["x"]):
        error = refusal({key: value})
        assert error.field == key
        assert key in str(error)


def test_keys_that_are_no_strings_or_no_text_are_refused() -> None:
    assert refusal({1: 2}).field == "1"
    assert refusal({None: 2}).field == "null"
    assert refusal('{"\\ud83d": 1}').field == "\\ud83d"
    assert len(refusal({"k" * 100_000: 1}).field or "") <= 64


@pytest.mark.parametrize(
    "body",
    [
        '{"stop": "\\ud83d"}',
        '{"stop": ["ok", "\\ude00\\ud83d"]}',
        '{"stop_regex": "\\udfff"}',
        '{"regex": "\\ud83d"}',
        '{"custom_params": {"\\ud83d": 1}}',
        '{"custom_params": {"a": "\\ud83d"}}',
        '{"custom_params": {"a": {"\\ud83d": 1}}}',
        '{"custom_params": {"a": ["\\ud83d"]}}',
        '{"logit_bias": {"\\ud83d": 1}}',
    ],
)
def test_lone_surrogates_are_refused_at_the_door(body: str) -> None:
    for data in (body, json.loads(body)):
        error = refusal(data)
        assert error.field == next(iter(json.loads(body)))
        assert "surrogate" in str(error)


def test_a_pair_of_surrogates_is_a_character() -> None:
    assert SamplingParams.parse('{"stop": "\\ud83d\\ude00"}').stop == ["\U0001f600"]


@pytest.mark.parametrize(
    "data",
    [
        b"\xff",
        b'{"stop": "\xed\xa0\x80"}',
        b'{"stop": "\xf0\x9f\x98"}',
        b'{"stop": "\xc0\xaf"}',
        "",
        "{",
        '{"temperature": 0.5',
        '{"temperature": 0.5,}',
        '{"temperature": .5}',
        '{"temperature": 01}',
        '{"stop": "a\nb"}',
        "{} {}",
        "\ufeff{}",
        "{'stop': 'x'}",
        b"\x00",
        "[" * 100_000,
        '{"custom_params":' * 100_000,
        "null",
        "[]",
        "1",
        '"x"',
        "true",
    ],
    ids=lambda data: repr(data)[:30],
)
def test_what_is_no_json_object_is_refused_whole(data: Any) -> None:
    assert refusal(data).field is None


@pytest.mark.parametrize("data", [None, 1, 1.5, [], (), object(), {1, 2}])
def test_other_things_are_refused_too(data: Any) -> None:
    assert "sampling_params must be an object" in str(refusal(data))


def test_a_key_given_twice_is_named() -> None:
    assert refusal('{"top_p": 0.5, "ignore_eos": true, "top_p": 0.9}').field == "top_p"
    assert refusal('{"custom_params": {"a": 1, "a": 2}}').field == "a"


def test_any_buffer_and_raw_json_will_do() -> None:
    text = '{"stop": "é", "top_p": 0.5}'
    wanted = SamplingParams.parse(text)
    data = text.encode()
    for buffer in (data, bytearray(data), memoryview(data), msgspec.Raw(data)):
        assert SamplingParams.parse(buffer) == wanted


def test_values_of_kindred_types_become_plain() -> None:
    class Level(enum.IntEnum):
        LOW = 3

    params = SamplingParams.parse({"top_k": Level.LOW, "top_p": np.float64(0.5), "stop": ("a", "b")})
    assert (type(params.top_k), type(params.top_p), params.stop) == (int, float, ["a", "b"])
    assert refusal({"top_k": np.int64(3)}).field == "top_k"


def test_the_clients_containers_are_copied() -> None:
    body: dict[str, Any] = {
        "stop": ["a"],
        "stop_token_ids": [1],
        "logit_bias": {"1": 1.0},
        "custom_params": {"a": [1], "b": {"c": 1}},
    }
    params = SamplingParams.parse(body)
    body["stop"].append("b")
    body["stop_token_ids"].append(2)
    body["logit_bias"]["2"] = 2.0
    body["custom_params"]["a"].append(2)
    body["custom_params"]["b"]["d"] = 2
    assert (params.stop, params.stop_token_ids, params.logit_bias) == (["a"], [1], {"1": 1.0})
    assert params.custom_params == {"a": [1], "b": {"c": 1}}


def test_parse_many_takes_one_or_a_list() -> None:
    one, two = SamplingParams(top_p=0.5), SamplingParams(top_k=3)
    assert SamplingParams.parse_many('{"top_p": 0.5}') == [one]
    assert SamplingParams.parse_many({"top_p": 0.5}) == [one]
    assert SamplingParams.parse_many(b'[{"top_p": 0.5}, {"top_k": 3}]') == [one, two]
    assert SamplingParams.parse_many([{"top_p": 0.5}, {"top_k": 3}]) == [one, two]
    assert SamplingParams.parse_many("[]") == []


@pytest.mark.parametrize(
    ("data", "field", "text"),
    [
        ('[{}, {"top_p": "x"}]', "top_p", "sampling_params[1]: top_p must be a number, got 'x'"),
        ("[{}, null]", None, "sampling_params[1]: must be an object, got null"),
        ("[[{}]]", None, "sampling_params[0]: must be an object, got an array"),
        ("3", None, "sampling_params must be an object or an array of objects, got 3"),
        ("nul", None, "sampling_params must be JSON"),
    ],
)
def test_parse_many_says_which(data: str, field: str | None, text: str) -> None:
    with pytest.raises(ValidationError) as refused:
        SamplingParams.parse_many(data)
    assert refused.value.field == field
    assert str(refused.value).startswith(text)


# Enough to hit every rule of text, and no more: the whole of Unicode takes Hypothesis seconds to set up.
texts = st.text("a5.é\U0001f600\ud83d", max_size=4)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from([*CLIENT, *PIPELINE, "other"]), json_values, max_size=4))
def test_any_object_is_read_or_refused_with_its_key(body: dict[str, Any]) -> None:
    text = json.dumps(body)
    refused: ValidationError | None = None
    try:
        params = SamplingParams.parse(body)
    except ValidationError as error:
        refused = error
    if refused is not None:
        assert refused.field in body
        assert refusal(text).field == refused.field
        return
    assert SamplingParams.parse(text) == params
    assert SamplingParams.from_wire(params.to_wire()) == params
    msgspec.msgpack.encode(params)


def test_a_short_fuzz_finds_nothing() -> None:
    fuzzer = fuzz(seed=1, seconds=30, count=3000)
    assert fuzzer.accepted > 100
    assert fuzzer.refused > 100

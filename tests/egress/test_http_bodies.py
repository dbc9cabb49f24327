"""Bodies that are refused: always a 400 that names the field, the range and the value."""

from __future__ import annotations

import json
from typing import Any

import pytest
from http_fakes import VOCAB, Bench, refused

from egress.errors import ValidationError
from egress.serve.http.bodies import Body, read_body

CHAT = [{"role": "user", "content": "p"}]


@pytest.mark.parametrize("path", ["/generate", "/v1/completions", "/v1/chat/completions", "/abort_request"])
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"null",
        b"[]",
        b"[1]",
        b'"x"',
        b"{",
        b'{"text": "x"} x',
        b'{"text": NaN}',
        b'{"text": "\xff"}',
        b'{"text": "\xed\xa0\x80"}',
        b'{"text": "\\ud83d"}',
        b'{"text": "\\udc00 alone"}',
        b'{"\\ud83d": 1}',
        b"\xef\xbb\xbf{}",
        b"\x00",
        b'{"text": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_what_is_no_json_object_is_a_400(path: str, content: bytes) -> None:
    assert refused(Bench(), path, content=content)["message"]


def test_a_pair_of_surrogate_escapes_is_a_character() -> None:
    bench = Bench()
    assert bench.post("/generate", content=b'{"text": "\\ud83d\\ude00"}').status_code == 200
    assert bytes(bench.asked[0].input_ids).decode() == "\U0001f600"


@pytest.mark.parametrize(
    "content",
    [
        b'{"text": "a", "text": "b"}',
        b'{"text": "a", "stream": false, "text": "a"}',
        b'{"rid":"x","text":"a","rid":"x"}',
        b'{"text": "a", "te\\u0078t": "b"}',
        b'{ "text" : "a" ,\n"sampling_params" : {"n": 1} , "sampling_params" : {} }',
    ],
)
def test_a_field_given_twice_is_refused(content: bytes) -> None:
    assert "more than once" in refused(Bench(), "/generate", content=content)["message"]


def test_a_sampling_parameter_given_twice_is_refused() -> None:
    content = b'{"text": "a", "sampling_params": {"top_p": 0.5, "top_p": 1}}'
    assert "top_p" in refused(Bench(), "/generate", content=content)["message"]


@pytest.mark.parametrize("space", ["", " ", "\n\t\r "])
def test_any_spelling_of_a_good_body_is_taken(space: str) -> None:
    text = space + "{" + space + f'"text"{space}:{space}"a, \\"b\\": {{}}"' + space + ","
    text += f'{space}"sampling_params"{space}:{space}{{"stop":{space}["x", "}}"]}}{space}}}{space}'
    assert Bench().post("/generate", content=text.encode()).status_code == 200


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "exactly one of text and input_ids must be given, got neither"),
        ({"text": "a", "input_ids": [1]}, "exactly one of text and input_ids must be given, got both"),
        ({"text": None}, "exactly one of text and input_ids must be given"),
        ({"text": 5}, "text must be a string or an array of strings, got 5"),
        ({"text": ["a", 5]}, "text[1] must be a string, got 5"),
        ({"text": ""}, "text must have 1 to 99 tokens, got 0"),
        ({"text": []}, "prompts in text must be in [1, 256], got 0"),
        ({"text": "x" * 100}, "text must have 1 to 99 tokens, got 100"),
        ({"text": ["a", "x" * 100]}, "text[1] must have 1 to 99 tokens, got 100"),
        ({"text": ["a"] * 257}, "prompts in text must be in [1, 256], got 257"),
        ({"input_ids": []}, "input_ids must have 1 to 99 tokens, got 0"),
        ({"input_ids": [[1], []]}, "input_ids[1] must have 1 to 99 tokens, got 0"),
        ({"input_ids": [1] * 100}, "input_ids must have 1 to 99 tokens, got 100"),
        ({"input_ids": [1, -1]}, f"input_ids[1] must be in [0, {VOCAB - 1}], got -1"),
        ({"input_ids": [VOCAB]}, f"input_ids[0] must be in [0, {VOCAB - 1}], got {VOCAB}"),
        ({"input_ids": [2**64]}, "input_ids[0] must be in"),
        ({"input_ids": [1.5]}, "input_ids[0] must be an integer, got 1.5"),
        ({"input_ids": [True]}, "input_ids[0] must be an integer, got true"),
        ({"input_ids": [1, [2]]}, "input_ids[1] must be an integer, got [2]"),
        ({"input_ids": [[1], 2]}, "input_ids[1] must be an array of integers, got 2"),
        ({"input_ids": [[1], [2, "x"]]}, 'input_ids[1][1] must be an integer, got "x"'),
        (
            {"input_ids": "12"},
            'input_ids must be an array of integers or an array of arrays of integers, got "12"',
        ),
        ({"text": "a", "stream": 1}, "stream must be true or false, got 1"),
        ({"text": "a", "stream": "true"}, 'got "true"'),
        ({"text": "a", "incremental": True}, "incremental needs stream"),
        ({"text": "a", "sampling_parms": {}}, "'sampling_parms' is no field of this request"),
        ({"text": "a", "max_tokens": 5}, "'max_tokens' is no field of this request"),
        ({"text": "a", "lora_path": "x"}, 'lora_path is not supported by this server, got "x"'),
        ({"text": "a", "sampling_params": []}, "sampling_params must be an object for a single prompt"),
        ({"text": "a", "sampling_params": [{}]}, "sampling_params must be an object for a single prompt"),
        ({"text": ["a", "b"], "sampling_params": [{}]}, "one object per prompt (2), got 1"),
        ({"text": ["a", "b"], "sampling_params": [{}, {"top_p": 2}]}, "top_p must be in (0, 1], got 2"),
        ({"text": "a", "sampling_params": "x"}, "sampling_params must be an object"),
        ({"text": "a", "sampling_params": {"temprature": 1}}, "'temprature' is no sampling parameter"),
        ({"text": "a", "sampling_params": {"stop_strs": []}}, "stop_strs"),
        ({"text": "a", "sampling_params": {"top_k": "5"}}, "top_k"),
        ({"text": "a", "sampling_params": {"temperature": "nan"}}, "temperature"),
        ({"text": "a", "sampling_params": {"n": 2}}, "n must be 1, got 2"),
        (
            {"text": "a", "sampling_params": {"max_new_tokens": 100}},
            "max_new_tokens must be in [0, 99] after a prompt",
        ),
        ({"text": "a", "sampling_params": {"max_new_tokens": 128}}, "got 128"),
        ({"text": "a", "sampling_params": {"min_new_tokens": 100}}, "min_new_tokens must be in [0, 99]"),
        ({"text": "a", "sampling_params": {"logit_bias": {str(VOCAB): 1}}}, "logit_bias"),
        ({"text": "a", "rid": ""}, "rid must have 1 to 512 bytes of UTF-8, got 0"),
        ({"text": "a", "rid": "é" * 257}, "rid must have 1 to 512 bytes of UTF-8, got 514"),
        ({"text": "a", "rid": ["x"]}, "rid must be a single value for a single prompt"),
        ({"text": ["a", "b"], "rid": "x"}, "rid must have one value per prompt (2), got one"),
        ({"text": ["a", "b"], "rid": ["x"]}, "rid must have one value per prompt (2), got 1"),
        ({"text": ["a", "b"], "rid": ["x", "x"]}, "different for each prompt, got 'x' for prompts 0 and 1"),
        ({"text": "a", "top_logprobs_num": 2}, "top_logprobs_num needs return_logprob"),
        ({"text": "a", "logprob_start_len": 0}, "logprob_start_len needs return_logprob"),
        ({"text": "a", "token_ids_logprob": [1]}, "token_ids_logprob needs return_logprob"),
        ({"text": "a", "return_logprob": True, "top_logprobs_num": -1}, f"must be in [0, {VOCAB}], got -1"),
        (
            {"text": "a", "return_logprob": True, "top_logprobs_num": 10**30},
            "got a number of more than 64 bits",
        ),
        (
            {"text": "a", "return_logprob": True, "top_logprobs_num": True},
            "top_logprobs_num must be an integer or an array of integers, got true",
        ),
        (
            {"text": "a", "return_logprob": True, "logprob_start_len": 2},
            "logprob_start_len must be in [-1, 1], got 2",
        ),
        ({"text": "a", "return_logprob": True, "token_ids_logprob": []}, "must be in [1, 1024], got 0"),
        (
            {"text": "a", "return_logprob": True, "token_ids_logprob": [VOCAB]},
            "token_ids_logprob[0] must be in",
        ),
        ({"text": "a", "return_logprob": True, "token_ids_logprob": [[1]]}, "must be a single value"),
        (
            {"text": "a", "return_logprob": [True]},
            "return_logprob must be a single value for a single prompt",
        ),
    ],
)
def test_generate_says_what_is_wrong(body: dict[str, Any], message: str) -> None:
    error = refused(Bench(max_context=100), "/generate", body)
    assert message in error["message"]
    assert error["code"] == 400


@pytest.mark.parametrize(
    "key", ["max_new_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty"]
)
@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e400", '"nan"', "true", "[]", "-7"])
def test_no_odd_number_gets_through(key: str, value: str) -> None:
    content = f'{{"text": "a", "sampling_params": {{"{key}": {value}}}}}'.encode()
    error = refused(Bench(), "/generate", content=content)
    assert key in error["message"] or "JSON" in error["message"]


def test_zero_is_not_absent() -> None:
    bench = Bench()
    bench.post(
        "/generate", {"text": "a", "sampling_params": {"sampling_seed": 0, "max_new_tokens": 0, "min_p": 0}}
    )
    assert (bench.asked[0].sampling.sampling_seed, bench.asked[0].sampling.max_new_tokens) == (0, 0)
    bench = Bench()
    bench.post("/v1/completions", {"prompt": "a", "logprobs": 0, "seed": 0, "max_tokens": 0, "min_tokens": 0})
    (asked,) = bench.asked
    assert (asked.return_logprob, asked.top_logprobs_num) == (True, 0)
    assert (asked.sampling.sampling_seed, asked.sampling.max_new_tokens) == (0, 0)


@pytest.mark.parametrize(
    ("path", "body", "param", "message"),
    [
        ("completions", {}, "prompt", "prompt is required"),
        ("completions", {"prompt": None}, "prompt", "prompt is required"),
        (
            "completions",
            {"prompt": 5},
            "prompt",
            "prompt must be a string, an array of strings, an array of integers or an array of arrays of "
            "integers, got 5",
        ),
        ("completions", {"prompt": ["a", 5]}, "prompt", "prompt[1] must be a string, got 5"),
        ("completions", {"prompt": ""}, "prompt", "prompt must have 1 to 99 tokens, got 0"),
        ("completions", {"prompt": [[1], [VOCAB]]}, "prompt[1][0]", f"got {VOCAB}"),
        ("completions", {"prompt": "a", "logprobs": 21}, "logprobs", "logprobs must be in [0, 20], got 21"),
        ("completions", {"prompt": "a", "logprobs": True}, "logprobs", "logprobs must be an integer, got "),
        ("completions", {"prompt": "a", "suffix": "b"}, "suffix", "suffix is not supported by this server"),
        (
            "completions",
            {"prompt": "a", "best_of": 2},
            "best_of",
            "best_of is not supported by this server, got 2",
        ),
        ("completions", {"prompt": "a", "messages": []}, "messages", "is no field of this request"),
        ("completions", {"prompt": ["a"] * 129, "n": 2}, "prompts times n", "must be in [1, 256], got 258"),
        ("completions", {"prompt": "a", "max_tokens": 100}, "max_tokens", "max_tokens must be in [0, 99]"),
        ("chat/completions", {}, "messages", "messages is required"),
        ("chat/completions", {"messages": []}, "messages", "at least 1 message, got 0"),
        (
            "chat/completions",
            {"messages": "hi"},
            "messages",
            'messages must be an array of objects, got "hi"',
        ),
        ("chat/completions", {"messages": [{}]}, "messages[0].role", "messages[0].role must be one of"),
        (
            "chat/completions",
            {"messages": [{"role": "tool", "content": ""}]},
            "messages[0].role",
            "got 'tool'",
        ),
        ("chat/completions", {"messages": [{"role": "user"}]}, "messages[0].content", "must be a string"),
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": 1}]},
            "messages[0].content",
            "must be a string",
        ),
        (
            "chat/completions",
            {"messages": [*CHAT, {"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[1].content[0]",
            "type must be text",
        ),
        (
            "chat/completions",
            {"messages": [{**CHAT[0], "weight": 1}]},
            "messages[0].weight",
            "no field of a message",
        ),
        (
            "chat/completions",
            {"messages": [{"role": "assistant", "tool_calls": [{}]}]},
            "messages[0].tool_calls",
            "not supported",
        ),
        (
            "chat/completions",
            {"messages": CHAT, "tools": [{}]},
            "tools",
            "tools is not supported by this server",
        ),
        ("chat/completions", {"messages": CHAT, "tool_choice": "auto"}, "tool_choice", 'got "auto"'),
        (
            "chat/completions",
            {"messages": CHAT, "top_logprobs": 2},
            "top_logprobs",
            "needs logprobs to be true",
        ),
        (
            "chat/completions",
            {"messages": CHAT, "logprobs": True, "top_logprobs": 21},
            "top_logprobs",
            "[0, 20]",
        ),
        (
            "chat/completions",
            {"messages": CHAT, "logprobs": 1},
            "logprobs",
            "logprobs must be true or false, got 1",
        ),
        (
            "chat/completions",
            {"messages": CHAT, "max_tokens": 5, "max_completion_tokens": 6},
            "max_completion_tokens",
            "must equal max_tokens (5)",
        ),
        (
            "chat/completions",
            {"messages": CHAT, "max_completion_tokens": 200},
            "max_completion_tokens",
            "max_completion_tokens must be in [0,",
        ),
        (
            "chat/completions",
            {"messages": CHAT, "response_format": {"type": "xml"}},
            "response_format",
            "type must be",
        ),
        (
            "chat/completions",
            {"messages": CHAT, "chat_template_kwargs": {"messages": []}},
            "chat_template_kwargs",
            "set by the request itself",
        ),
    ],
)
def test_v1_says_what_is_wrong(path: str, body: dict[str, Any], param: str, message: str) -> None:
    error = refused(Bench(max_context=100), f"/v1/{path}", body)
    assert message in error["message"]
    assert error == {
        "message": error["message"],
        "type": "invalid_request_error",
        "param": param,
        "code": 400,
    }


@pytest.mark.parametrize(
    ("more", "param", "message"),
    [
        ({"n": 0}, "n", "n must be in [1, 128], got 0"),
        ({"n": -1}, "n", "got -1"),
        ({"n": 129}, "n", "got 129"),
        ({"n": 2**63}, "n", f"got {2**63}"),
        ({"n": 2**64}, "n", "got a number of more than 64 bits"),
        ({"n": 1.5}, "n", "n must be an integer, got 1.5"),
        ({"n": True}, "n", "n must be an integer, got true"),
        ({"temperature": -1}, "temperature", "temperature must be non-negative, got -1"),
        ({"temperature": "hot"}, "temperature", "temperature"),
        ({"temperature": True}, "temperature", "temperature"),
        ({"top_p": 0}, "top_p", "top_p must be in (0, 1], got 0"),
        ({"frequency_penalty": 3}, "frequency_penalty", "in [-2, 2], got 3"),
        ({"max_tokens": -1}, "max_tokens", "max_tokens must be at least 0, got -1"),
        ({"max_tokens": 5, "min_tokens": 9}, "min_tokens", "min_tokens must be in [0, max_tokens(5)], got 9"),
        ({"seed": 2**63}, "seed", "seed"),
        ({"seed": 1.0}, "seed", "seed"),
        ({"stop": ["x"] * 33}, "stop", "at most 32 stop strings are allowed, got 33"),
        ({"stop": 5}, "stop", "stop"),
        ({"stop_token_ids": ["1"]}, "stop_token_ids", "stop_token_ids"),
        (
            {"logit_bias": {"1": 101}},
            "logit_bias values",
            "logit_bias values must be in [-100, 100], got 101",
        ),
        ({"logit_bias": {str(VOCAB): 1}}, "logit_bias", "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias", "logit_bias"),
        ({"logit_bias": {"1.5": 1}}, "logit_bias", "logit_bias"),
        (
            {"stream_options": {"include_usage": True}},
            "stream_options",
            "stream_options needs stream to be true",
        ),
        ({"stream": True, "stream_options": {"usage": True}}, "stream_options.usage", "not supported"),
        (
            {"stream": True, "stream_options": {"include_usage": 1}},
            "stream_options.include_usage",
            "true or false",
        ),
        ({"rid": "x" * 513}, "rid", "rid must have 1 to 512 bytes of UTF-8, got 513"),
        ({"rid": ["x"]}, "rid", 'rid must be a string, got ["x"]'),
        ({"temprature": 1}, "temprature", "'temprature' is no field of this request"),
        ({"max_new_tokens": 1}, "max_new_tokens", "'max_new_tokens' is no field of this request"),
        ({"x" * 1000: 1}, "x" * 64 + "...", "is no field of this request"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_both_v1_routes_say_what_is_wrong(path: str, more: dict[str, Any], param: str, message: str) -> None:
    base: dict[str, Any] = {"prompt": "p"} if path == "/v1/completions" else {"messages": CHAT}
    error = refused(Bench(), path, {**base, **more})
    assert message in error["message"]
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_what_could_change_no_answer_is_taken(path: str) -> None:
    body: dict[str, Any] = {"prompt": "p"} if path == "/v1/completions" else {"messages": CHAT}
    body |= {
        "user": "u",
        "metadata": {"a": "b"},
        "store": True,
        "service_tier": "auto",
        "safety_identifier": "s",
    }
    body |= {
        name: None for name in ("n", "stream", "stop", "seed", "logit_bias", "stream_options", "lora_path")
    }
    bench = Bench()
    assert bench.post(path, body).status_code == 200
    assert len(bench.asked) == 1


def test_another_model_is_a_404() -> None:
    response = Bench().post("/v1/completions", {"prompt": "a", "model": "gpt-4"})
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"
    assert "'m'" in response.json()["error"]["message"]


class Sample(Body, kw_only=True):
    text: str
    count: int = 3


def test_read_body_gives_typed_fields() -> None:
    body = read_body(Sample, json.dumps({"text": "a", "count": None}).encode())
    assert (body.text, body.count) == ("a", 3)
    with pytest.raises(ValidationError) as caught:
        read_body(Sample, b'{"count": 1}')
    assert (str(caught.value), caught.value.field) == ("text is required", "text")

"""What a refusal says: which value of the body, by its place, and which prompt of a batch."""

from __future__ import annotations

from typing import Any

import pytest
from http_fakes import VOCAB, Bench, refused


@pytest.mark.parametrize(
    ("path", "content", "param", "message"),
    [
        (
            "completions",
            b'{"prompt": "x\\ud800y"}',
            "prompt",
            "prompt must be valid Unicode, got 'x\\ud800y'",
        ),
        (
            "completions",
            b'{"prompt": ["a", "\\udc00"]}',
            "prompt",
            "prompt[1] must be valid Unicode, got '\\udc00'",
        ),
        ("completions", b'{"prompt": "a", "stop": "\\ud83d"}', "stop", "stop must be valid Unicode"),
        ("completions", b'{"\\ud83d": 1}', "\\ud83d", "got '\\ud83d' with a lone surrogate at character 0"),
        (
            "completions",
            b'{"prompt": "\xff"}',
            "prompt",
            "prompt must be UTF-8, got invalid start byte at byte 1",
        ),
        (
            "completions",
            b'{"prompt": ["a", "\xff"]}',
            "prompt",
            "prompt must be UTF-8, got invalid start byte",
        ),
        ("completions", b'{"prompt": "a", "user": "\xff", "stop": 1e999}', "stop", "stop must be"),
        (
            "completions",
            b'{"prompt": "a", "top_p": -Infinity}',
            "top_p",
            "top_p must be a finite number, got -inf",
        ),
        (
            "completions",
            b'{"prompt": "a", "stream_interval": 0}',
            "stream_interval",
            "stream_interval must be in [1, 2147483647], got 0",
        ),
        ("completions", b'{"prompt": "a", "prompt": NaN}', "prompt", "'prompt' is given more than once"),
        ("completions", b'{"prompt": "a", "seed": 8.0}', "seed", "seed must be an integer, got 8.0"),
        (
            "completions",
            b'{"prompt": "a\n"}',
            None,
            "must be JSON: Invalid control character at character 13",
        ),
        ("completions", b'["prompt"]', None, 'the body must be a JSON object, got ["prompt"]'),
        (
            "chat/completions",
            b'{"messages": [{"role": "user", "content": "a\\ud800"}]}',
            "messages",
            "messages[0].content must be valid Unicode, got 'a\\ud800' with a lone surrogate at character 1",
        ),
    ],
)
def test_what_the_parser_refuses_is_told_by_its_place(
    path: str, content: bytes, param: str | None, message: str
) -> None:
    error = refused(Bench(), f"/v1/{path}", content=content)
    assert message in error["message"]
    assert error["param"] == param


def test_a_long_body_is_refused_without_reading_it_twice() -> None:
    error = refused(Bench(), "/generate", content=b'{"text": "%b\\ud800"}' % (b"x" * (1 << 18)))
    assert error["message"].startswith("the body must be a JSON object: ")
    error = refused(Bench(), "/generate", content=b'{"text": [%b5]}' % (b'"x",' * (1 << 16)))
    assert error["message"].startswith('text must be a string or an array of strings, got ["x",')
    assert len(error["message"]) < 200


TWO = {"text": ["a", "b"]}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"sampling_params": [{}, {"top_p": 2}]}, "sampling_params[1]: top_p must be in (0, 1], got 2"),
        ({"sampling_params": {"top_p": 2}}, "top_p must be in (0, 1], got 2"),
        ({"sampling_params": [{}, {"stop_regex": "["}]}, "sampling_params[1]: stop_regex '[' is invalid"),
        (
            {"sampling_params": [{}, {"stop": ["x", 5]}]},
            "sampling_params[1]: stop[1] must be a string, got 5",
        ),
        ({"sampling_params": [{}, {"max_new_tokens": 100}]}, "prompt 1: max_new_tokens must be in [0, 99]"),
        ({"text": ["", "b"]}, "text[0] must have 1 to 99 tokens, got 0"),
        (
            {"text": ["a", "b" * 50], "sampling_params": {"max_new_tokens": 80}},
            "prompt 1: max_new_tokens must be",
        ),
        ({"rid": ["x", ""]}, "prompt 1: rid must have 1 to 512 bytes of UTF-8, got 0"),
        (
            {"return_logprob": True, "top_logprobs_num": [1, -1]},
            f"prompt 1: top_logprobs_num must be in [0, {VOCAB}], got -1",
        ),
        (
            {"return_logprob": [True, False], "top_logprobs_num": 1},
            "prompt 1: top_logprobs_num needs return_logprob",
        ),
        (
            {"text": ["aa", "b"], "return_logprob": True, "logprob_start_len": 2},
            "prompt 1: logprob_start_len must be in [-1, 1], got 2",
        ),
        (
            {"return_logprob": True, "token_ids_logprob": [[1], [1, VOCAB]]},
            f"token_ids_logprob[1][1] must be in [0, {VOCAB - 1}], got {VOCAB}",
        ),
        (
            {"return_logprob": True, "token_ids_logprob": [[1], []]},
            "the number of token_ids_logprob[1] must be in [1, 1024], got 0",
        ),
    ],
)
def test_a_refusal_of_one_in_a_batch_says_which(more: dict[str, Any], message: str) -> None:
    assert refused(Bench(max_context=100), "/generate", TWO | more)["message"].startswith(message)

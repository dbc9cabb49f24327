"""Field report R087: no id outside the vocabulary gets past a worker, in whichever field it stands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from http_fakes import VOCAB, Bench

CHAT = [{"role": "user", "content": "p"}]

# Field -> route and body that carries one id in it; {} where JSON has the id as a key.
FIELDS: dict[str, Callable[[Any], tuple[str, dict[str, Any]]]] = {
    "input_ids": lambda i: ("/generate", {"input_ids": [1, i]}),
    "input_ids of a batch": lambda i: ("/generate", {"input_ids": [[1], [1, i]]}),
    "token_ids_logprob": lambda i: (
        "/generate",
        {"text": "a", "return_logprob": True, "token_ids_logprob": [1, i]},
    ),
    "stop_token_ids": lambda i: ("/generate", {"text": "a", "sampling_params": {"stop_token_ids": [1, i]}}),
    "logit_bias": lambda i: ("/generate", {"text": "a", "sampling_params": {"logit_bias": {str(i): 1.0}}}),
    "prompt": lambda i: ("/v1/completions", {"prompt": [1, i]}),
    "stop_token_ids of completions": lambda i: ("/v1/completions", {"prompt": "a", "stop_token_ids": [i]}),
    "logit_bias of completions": lambda i: ("/v1/completions", {"prompt": "a", "logit_bias": {str(i): 1}}),
    "stop_token_ids of a chat": lambda i: ("/v1/chat/completions", {"messages": CHAT, "stop_token_ids": [i]}),
    "logit_bias of a chat": lambda i: (
        "/v1/chat/completions",
        {"messages": CHAT, "logit_bias": {str(i): 1}},
    ),
}


@pytest.mark.parametrize("bad", [-1, VOCAB, 2**31, 2**63 - 1])
@pytest.mark.parametrize("field", FIELDS)
def test_an_id_outside_the_vocabulary_is_a_400_with_field_value_and_limit(field: str, bad: int) -> None:
    bench = Bench()
    path, body = FIELDS[field](bad)
    answer = bench.post(path, body)
    assert answer.status_code == 400, answer.text
    message = answer.json()["error"]["message"]
    assert field.split()[0] in message
    assert f"[0, {VOCAB - 1}]" in message
    assert str(bad) in message
    assert bench.asked == []


@pytest.mark.parametrize("bad", ["12", 1.5, True, None])
@pytest.mark.parametrize("field", [field for field in FIELDS if "logit_bias" not in field])
def test_an_id_of_another_type_is_a_400_that_names_the_field(field: str, bad: Any) -> None:
    bench = Bench()
    path, body = FIELDS[field](bad)
    answer = bench.post(path, body)
    assert answer.status_code == 400, answer.text
    assert field.split()[0] in answer.json()["error"]["message"]
    assert bench.asked == []


@pytest.mark.parametrize("good", [0, VOCAB - 1])
@pytest.mark.parametrize("field", FIELDS)
def test_the_first_and_the_last_id_pass(field: str, good: int) -> None:
    bench = Bench()
    path, body = FIELDS[field](good)
    answer = bench.post(path, body)
    assert answer.status_code == 200, answer.text
    assert bench.asked

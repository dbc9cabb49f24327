"""POST /generate: SGLang's native shape."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
from typing import Any

import numpy as np
import pytest
from http_fakes import EOS, VOCAB, Bench, FakeRequest, events_of, says

from egress.wire.event import ChunkExtras
from egress.wire.finish_reason import Abort, Length, Stop, Unknown


def f32(*values: float) -> Any:
    return np.array(values, np.float32)


def i32(*values: int) -> Any:
    return np.array(values, np.int32)


def test_unary_answer_has_the_native_shape() -> None:
    answer = Bench().post("/generate", {"text": "hi", "rid": "mine"}).json()
    latency = answer["meta_info"].pop("e2e_latency")
    assert latency > 0
    assert answer == {
        "text": "Hello, world",
        "output_ids": list(b"Hello, world"),
        "meta_info": {
            "id": "mine",
            "finish_reason": {"type": "stop", "matched": EOS},
            "prompt_tokens": 2,
            "completion_tokens": 12,
        },
    }


def test_stream_is_cumulative_and_ends_like_the_unary_answer() -> None:
    bench = Bench()
    unary = bench.post("/generate", {"text": "hi", "rid": "r"}).json()
    *events, done = events_of(bench.post("/generate", {"text": "hi", "rid": "r", "stream": True}))
    assert done == "[DONE]"
    for event in (unary, events[-1]):
        del event["meta_info"]["e2e_latency"]
    assert events[-1] == unary
    for earlier, later in itertools.pairwise(events):
        assert later["text"].startswith(earlier["text"])
        assert earlier["meta_info"]["finish_reason"] is None
        assert earlier["meta_info"]["completion_tokens"] == len(earlier["output_ids"])


def test_incremental_events_join_to_the_whole() -> None:
    body = {"text": "hi", "stream": True, "incremental": True}
    *events, done = events_of(Bench(says(*"streamed, piece by piece")).post("/generate", body))
    assert done == "[DONE]"
    assert "".join(event["text"] for event in events) == "streamed, piece by piece"
    assert [i for event in events for i in event["output_ids"]] == list(b"streamed, piece by piece")
    assert [event["meta_info"]["completion_tokens"] for event in events][-1] == 24


def test_waiting_chunks_are_merged_and_nothing_is_lost() -> None:
    async def burst(request: FakeRequest) -> None:
        for _ in range(500):
            request.frame("ab")
        request.done("c")

    for incremental in (False, True):
        body = {"text": "hi", "stream": True, "incremental": incremental}
        *events, _ = events_of(Bench(burst).post("/generate", body))
        assert len(events) < 100
        text = "".join(e["text"] for e in events) if incremental else events[-1]["text"]
        assert text == "ab" * 500 + "c"


def test_batch_answers_in_order() -> None:
    async def echo(request: FakeRequest) -> None:
        request.done(bytes(request.asked.input_ids).decode().upper())

    answers = Bench(echo).post("/generate", {"text": ["a", "bb", "ccc"], "rid": ["x", "y", "z"]}).json()
    assert [(a["text"], a["meta_info"]["id"]) for a in answers] == [("A", "x"), ("BB", "y"), ("CCC", "z")]


def test_batch_of_one_is_a_list() -> None:
    assert isinstance(Bench().post("/generate", {"text": ["a"]}).json(), list)
    assert isinstance(Bench().post("/generate", {"input_ids": [[1]]}).json(), list)
    assert isinstance(Bench().post("/generate", {"input_ids": [1]}).json(), dict)


def test_streamed_batch_tells_its_prompts_apart() -> None:
    async def echo(request: FakeRequest) -> None:
        for char in bytes(request.asked.input_ids).decode():
            request.frame(char.upper())
        request.done()

    *events, done = events_of(Bench(echo).post("/generate", {"text": ["ab", "cde"], "stream": True}))
    assert done == "[DONE]"
    assert {e["index"]: e["text"] for e in events if e["meta_info"]["finish_reason"]} == {0: "AB", 1: "CDE"}


def test_every_field_reaches_the_dispatch() -> None:
    bench = Bench()
    bench.post(
        "/generate",
        {
            "input_ids": [[5, 6], [7]],
            "sampling_params": [{"max_new_tokens": 9, "temperature": 0.5, "stop": "x"}, {"top_k": 3}],
            "rid": ["a", "b"],
            "return_logprob": [True, False],
            "logprob_start_len": [1, -1],
            "top_logprobs_num": [2, 0],
            "token_ids_logprob": None,
            "return_text_in_logprobs": True,
            "return_hidden_states": [False, True],
        },
    )
    first, second = bench.asked
    assert (first.input_ids, second.input_ids) == ([5, 6], [7])
    assert (first.sampling.max_new_tokens, first.sampling.temperature, first.sampling.stop_strs) == (
        9,
        0.5,
        ["x"],
    )
    assert (second.sampling.max_new_tokens, second.sampling.top_k) == (128, 3)
    assert (first.client_rid, second.client_rid) == ("a", "b")
    assert (first.return_logprob, second.return_logprob) == (True, False)
    assert (first.logprob_start_len, first.top_logprobs_num) == (1, 2)
    assert first.return_text_in_logprobs
    assert (first.return_hidden_states, second.return_hidden_states) == (False, True)
    assert all(asked.sampling.is_normalized for asked in bench.asked)


def test_one_params_object_serves_a_batch_each_with_its_own_limit() -> None:
    bench = Bench(max_context=20)
    body = {"input_ids": [[1] * 5, [1] * 15], "sampling_params": {"max_new_tokens": None}}
    assert bench.post("/generate", body).status_code == 200
    assert [asked.sampling.max_new_tokens for asked in bench.asked] == [15, 5]


def test_ids_that_were_not_given_are_drawn_and_can_be_aborted() -> None:
    bench = Bench()
    shown = bench.post("/generate", {"text": "hi"}).json()["meta_info"]["id"]
    assert shown == bench.asked[0].client_rid
    assert bench.post("/abort_request", {"rid": shown}).json() == {"rid": shown, "aborted": 1}
    assert bench.dispatch.client_aborts == [shown]


EXTRAS = ChunkExtras(
    out_lp_val=f32(-0.5, math.nan),
    out_lp_idx=i32(104, 105),
    out_lp_txt=["h", "i"],
    in_lp_val=f32(-math.inf, -2.0),
    in_lp_idx=i32(1, 2),
    out_top_val=f32(-0.5, -1.5),
    out_top_idx=i32(104, 7),
    out_top_lens=[2, 0],
    in_top_lens=[0, 0],
    out_tid_val=f32(-3.0, -4.0),
    out_tid_idx=i32(9, 9),
    out_tid_lens=[1, 1],
    hidden_val=f32(1, 2, 3, 4),
    hidden_lens=[2, 2],
)

ASKED = {
    "text": "hi",
    "return_logprob": True,
    "top_logprobs_num": 2,
    "token_ids_logprob": [9],
    "return_hidden_states": True,
    "logprob_start_len": 0,
}


def test_logprobs_are_tuples_and_what_is_not_finite_is_null() -> None:
    meta = Bench(says("hi", extras=EXTRAS)).post("/generate", ASKED).json()["meta_info"]
    assert meta["output_token_logprobs"] == [[-0.5, 104, "h"], [None, 105, "i"]]
    assert meta["input_token_logprobs"] == [[None, 1, None], [-2.0, 2, None]]
    assert meta["output_top_logprobs"] == [[[-0.5, 104, None], [-1.5, 7, None]], None]
    assert meta["input_top_logprobs"] == [None, None]
    assert meta["output_token_ids_logprobs"] == [[[-3.0, 9, None]], [[-4.0, 9, None]]]
    assert meta["input_token_ids_logprobs"] == []
    assert meta["hidden_states"] == [[1, 2], [3, 4]]


def test_logprobs_append_on_the_way_out_and_replace_on_the_way_in() -> None:
    script = says("hi", "hi", extras=EXTRAS)
    meta = Bench(script).post("/generate", ASKED).json()["meta_info"]
    assert len(meta["output_token_logprobs"]) == len(meta["output_top_logprobs"]) == 4
    assert len(meta["input_token_logprobs"]) == len(meta["hidden_states"]) == 2
    *events, _ = events_of(Bench(script).post("/generate", {**ASKED, "stream": True}))
    assert {**events[-1]["meta_info"], "id": 0, "e2e_latency": 0} == {**meta, "id": 0, "e2e_latency": 0}
    *events, _ = events_of(Bench(script).post("/generate", {**ASKED, "stream": True, "incremental": True}))
    joined = [one for event in events for one in event["meta_info"]["output_token_logprobs"]]
    assert joined == meta["output_token_logprobs"]


def test_logprobs_nobody_asked_for_are_not_shown() -> None:
    meta = Bench(says("hi", extras=EXTRAS)).post("/generate", {"text": "hi"}).json()["meta_info"]
    assert set(meta) == {"id", "finish_reason", "prompt_tokens", "completion_tokens", "e2e_latency"}
    meta = Bench(says("hi")).post("/generate", {"text": "hi", "return_logprob": True}).json()["meta_info"]
    assert meta["input_token_logprobs"] == meta["output_token_logprobs"] == []


@pytest.mark.parametrize(
    "reason",
    [
        Stop(None),
        Stop("END"),
        Stop([1, 2]),
        Length(7),
        Abort("by you", None, None),
        Unknown({"type": "novel", "x": [1]}),
    ],
)
def test_reasons_are_shown_as_they_are(reason: Any) -> None:
    for stream in (False, True):
        response = Bench(says("a", finish=reason)).post("/generate", {"text": "p", "stream": stream})
        answer = events_of(response)[-2] if stream else response.json()
        assert answer["meta_info"]["finish_reason"] == reason.to_wire()


def test_stream_interval_thins_a_stream() -> None:
    async def steady(request: FakeRequest) -> None:
        for _ in range(40):
            request.frame("x")
            for _ in range(8):
                await asyncio.sleep(0)
        request.done()

    body = {"text": "p", "stream": True, "sampling_params": {"stream_interval": 10}}
    *events, _ = events_of(Bench(steady).post("/generate", body))
    counts = [event["meta_info"]["completion_tokens"] for event in events]
    assert counts == [1, 11, 21, 31, 40]


def test_a_server_without_tokenizer_speaks_ids() -> None:
    bench = Bench(with_tokenizer=False, vocab_size=VOCAB, skip_tokenizer_init=True)
    assert bench.post("/generate", {"input_ids": [1, 2]}).status_code == 200
    refused = bench.post("/generate", {"text": "hi"})
    assert (refused.status_code, "tokenizer" in refused.json()["error"]["message"]) == (400, True)
    refused = bench.post("/v1/completions", {"prompt": "hi"})
    assert (refused.status_code, "tokenizer" in refused.json()["error"]["message"]) == (400, True)


def test_long_texts_are_encoded_off_the_loop_to_the_same_ids() -> None:
    bench = Bench()
    assert bench.post("/generate", {"text": "é" * 2000}).status_code == 200
    assert bench.asked[0].input_ids == list(("é" * 2000).encode())


def test_answer_is_plain_json_of_any_text() -> None:
    text = 'quote " backslash \\ newline \n 你 \u2028'
    response = Bench(says(text)).post("/generate", {"text": "p"})
    assert json.loads(response.content)["text"] == text

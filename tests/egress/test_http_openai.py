"""The /v1 routes, by shape and through the official client."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import openai
import pytest
from http_fakes import EOS, Bench, FakeRequest, events_of, says, serving

from egress.wire.event import ChunkExtras
from egress.wire.finish_reason import Length, Stop, Unknown

CHAT: list[Any] = [{"role": "user", "content": "p"}]

EXTRAS = ChunkExtras(
    out_lp_val=np.array([-0.5, -1.0], np.float32),
    out_lp_idx=np.array([104, 105], np.int32),
    out_lp_txt=["h", "i"],
    in_lp_val=np.array([math.nan, -2.0], np.float32),
    in_lp_idx=np.array([97, 98], np.int32),
    in_lp_txt=["a", "b"],
    out_top_val=np.array([-0.5, -1.5, -1.0, -9.0], np.float32),
    out_top_idx=np.array([104, 7, 105, EOS], np.int32),
    out_top_lens=[2, 2],
    out_top_txt=["h", "\x07", "i", ""],
    in_top_val=np.array([-2.0], np.float32),
    in_top_idx=np.array([98], np.int32),
    in_top_lens=[0, 1],
    in_top_txt=["b"],
)


def with_client(bench: Bench, use: Callable[[openai.AsyncOpenAI], Awaitable[None]]) -> None:
    async def main() -> None:
        async with (
            serving(bench) as base,
            openai.AsyncOpenAI(base_url=f"{base}/v1", api_key="key", max_retries=0, timeout=30) as client,
        ):
            await use(client)

    asyncio.run(main())


def test_completion_has_openais_shape() -> None:
    answer = Bench().post("/v1/completions", {"prompt": "hi", "max_tokens": 20}).json()
    assert answer.pop("id").startswith("cmpl-")
    assert answer.pop("created") > 1_700_000_000
    assert answer == {
        "object": "text_completion",
        "model": "m",
        "choices": [
            {
                "index": 0,
                "text": "Hello, world",
                "logprobs": None,
                "finish_reason": "stop",
                "matched_stop": EOS,
            }
        ],
        "usage": {"prompt_tokens": 2, "completion_tokens": 12, "total_tokens": 14},
    }


def test_chat_has_openais_shape() -> None:
    answer = Bench().post("/v1/chat/completions", {"messages": CHAT}).json()
    assert answer.pop("id").startswith("chatcmpl-")
    assert answer.pop("created") > 1_700_000_000
    usage = answer.pop("usage")
    assert usage["total_tokens"] == usage["prompt_tokens"] + 12
    assert answer == {
        "object": "chat.completion",
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello, world", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
                "matched_stop": EOS,
            }
        ],
    }


def test_chat_goes_through_the_template() -> None:
    bench = Bench()
    messages = [
        {"role": "developer", "content": "Be brief."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "He"}, {"type": "text", "text": "llo"}],
            "name": "me",
        },
        {"role": "assistant", "content": None, "refusal": None, "tool_calls": []},
    ]
    assert bench.post("/v1/chat/completions", {"messages": messages}).status_code == 200
    assert bytes(bench.asked[0].input_ids).decode() == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n"
        "<|im_start|>assistant\n<|im_end|>\n<|im_start|>assistant\n"
    )
    bench.post("/v1/chat/completions", {"messages": CHAT, "add_generation_prompt": False})
    assert bytes(bench.asked[1].input_ids).decode() == "<|im_start|>user\np<|im_end|>\n"


def test_limits_default_as_openais_do() -> None:
    bench = Bench(max_context=100)
    bench.post("/v1/completions", {"prompt": "hi"})
    bench.post("/v1/chat/completions", {"messages": CHAT})
    bench.post("/v1/chat/completions", {"messages": CHAT, "max_tokens": 5, "max_completion_tokens": 5})
    prompt = len(bench.asked[1].input_ids)
    assert [asked.sampling.max_new_tokens for asked in bench.asked] == [16, 100 - prompt, 5]
    bench = Bench(max_context=10)
    bench.post("/v1/completions", {"prompt": "12345678"})
    assert bench.asked[0].sampling.max_new_tokens == 2


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_every_sampling_field_reaches_the_dispatch(path: str) -> None:
    body: dict[str, Any] = {"prompt": "p"} if path == "/v1/completions" else {"messages": CHAT}
    given = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
        "frequency_penalty": 0.2,
        "presence_penalty": 0.3,
        "repetition_penalty": 1.1,
        "stop_token_ids": [3],
        "ignore_eos": True,
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
        "no_stop_trim": True,
        "logit_bias": {"5": -100},
        "custom_params": {"a": 1},
        "stream_interval": 4,
    }
    bench = Bench()
    more = {"stop": "a", "stop_regex": ["b+"], "seed": 7, "max_tokens": 9, "min_tokens": 2}
    response = bench.post(path, {**body, **given, **more, "response_format": {"type": "json_object"}})
    assert response.status_code == 200, response.text
    sampling = bench.asked[0].sampling
    assert {name: getattr(sampling, name) for name in given} == given
    assert (sampling.stop_strs, sampling.stop_regex_strs, sampling.sampling_seed) == (["a"], ["b+"], 7)
    assert (sampling.max_new_tokens, sampling.min_new_tokens) == (9, 2)
    assert sampling.json_schema == '{"type":"object"}'
    bench.post(path, {**body, "regex": "a+"})
    assert bench.asked[1].sampling.regex == "a+"
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "integer"}}}
    bench.post(path, {**body, "response_format": schema})
    assert bench.asked[2].sampling.json_schema == '{"type":"integer"}'
    bench.post(path, {**body, "response_format": {"type": "text"}})
    assert bench.asked[3].sampling.json_schema is None


def test_choices_are_numbered_prompt_by_prompt_and_share_the_id() -> None:
    async def echo(request: FakeRequest) -> None:
        request.done(bytes(request.asked.input_ids).decode() + str(request.asked.sampling.sampling_seed))

    bench = Bench(echo)
    answer = bench.post("/v1/completions", {"prompt": ["a", "b"], "n": 2, "seed": 2**63 - 1}).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    # The next seed after the largest is the smallest.
    texts = [f"{prompt}{seed}" for prompt in "ab" for seed in (2**63 - 1, -(2**63))]
    assert [choice["text"] for choice in answer["choices"]] == texts
    assert answer["usage"]["prompt_tokens"] == 2
    assert {asked.client_rid for asked in bench.asked} == {answer["id"]}
    assert bench.post("/abort_request", {"rid": answer["id"]}).json()["aborted"] == 4


def test_the_clients_own_rid_is_the_answers_id() -> None:
    assert Bench().post("/v1/completions", {"prompt": "a", "rid": "mine"}).json()["id"] == "mine"


@pytest.mark.parametrize("prompt", ["ab", [97, 98], ["ab"], [[97, 98]]])
def test_echo_gives_the_prompt_back(prompt: Any) -> None:
    for stream in (False, True):
        body = {"prompt": prompt, "echo": True, "stream": stream}
        response = Bench().post("/v1/completions", body)
        if stream:
            text = "".join(event["choices"][0]["text"] for event in events_of(response)[:-1])
        else:
            text = response.json()["choices"][0]["text"]
        assert text == "abHello, world"


def test_completion_logprobs() -> None:
    bench = Bench(says("hi", extras=EXTRAS))
    body = {"prompt": "ab", "logprobs": 2, "echo": True}
    logprobs = bench.post("/v1/completions", body).json()["choices"][0]["logprobs"]
    assert (bench.asked[0].logprob_start_len, bench.asked[0].top_logprobs_num) == (0, 2)
    assert logprobs == {
        "tokens": ["a", "b", "h", "i"],
        "token_logprobs": [None, -2.0, -0.5, -1.0],
        "top_logprobs": [None, {"b": -2.0}, {"h": -0.5, "\x07": -1.5}, {"i": -1.0, f"token_id:{EOS}": -9.0}],
        "text_offset": [0, 1, 2, 3],
    }
    logprobs = bench.post("/v1/completions", {"prompt": "ab", "logprobs": 0}).json()["choices"][0]["logprobs"]
    assert (logprobs["tokens"], logprobs["top_logprobs"]) == (["h", "i"], None)


def test_completion_logprobs_stream_once_each() -> None:
    async def steps(request: FakeRequest) -> None:
        for _ in range(3):
            request.frame("hi", EXTRAS)
            for _ in range(10):
                await asyncio.sleep(0)
        request.done()

    *events, _ = events_of(
        Bench(steps).post("/v1/completions", {"prompt": "ab", "logprobs": 2, "stream": True})
    )
    chunks = [event["choices"][0]["logprobs"] for event in events]
    assert [token for chunk in chunks for token in chunk["tokens"]] == ["h", "i"] * 3
    assert [place for chunk in chunks for place in chunk["text_offset"]] == [0, 1, 2, 3, 4, 5]


def test_chat_logprobs() -> None:
    bench = Bench(says("hi", extras=EXTRAS))
    body = {"messages": CHAT, "logprobs": True, "top_logprobs": 2}
    first, second = bench.post("/v1/chat/completions", body).json()["choices"][0]["logprobs"]["content"]
    assert first == {
        "token": "h",
        "logprob": -0.5,
        "bytes": [104],
        "top_logprobs": [
            {"token": "h", "logprob": -0.5, "bytes": [104]},
            {"token": "\x07", "logprob": -1.5, "bytes": [7]},
        ],
    }
    assert second["top_logprobs"][1] == {"token": "", "logprob": -9.0, "bytes": list(b"<|end|>")}
    *events, _ = events_of(bench.post("/v1/chat/completions", {**body, "stream": True}))
    shown = [
        one
        for event in events
        if event["choices"][0]["logprobs"]
        for one in event["choices"][0]["logprobs"]["content"]
    ]
    assert shown == [first, second]


@pytest.mark.parametrize(
    ("reason", "word", "matched"),
    [
        (Stop("END"), "stop", "END"),
        (Length(5), "length", None),
        (Unknown({"type": "novel"}), "novel", None),
        (Unknown({"type": 5}), "unknown", None),
    ],
)
def test_reasons_in_openais_words(reason: Any, word: str, matched: Any) -> None:
    choice = Bench(says("a", finish=reason)).post("/v1/completions", {"prompt": "p"}).json()["choices"][0]
    assert (choice["finish_reason"], choice["matched_stop"]) == (word, matched)


def test_a_failed_stream_tells_how_far_it_came() -> None:
    async def script(request: FakeRequest) -> None:
        request.frame("xyz")
        for _ in range(10):
            await asyncio.sleep(0)
        request.error("no", 500)

    body = {"prompt": "ab", "stream": True, "stream_options": {"include_usage": True}}
    *_, last = events_of(Bench(script).post("/v1/completions", body))
    assert last["usage"] == {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5, "partial": True}


def test_text_that_is_held_back_makes_no_event() -> None:
    async def script(request: FakeRequest) -> None:
        for text in ("", "", "a", "", "b", ""):
            request.frame(text)
            for _ in range(10):
                await asyncio.sleep(0)
        request.done()

    *events, _ = events_of(Bench(script).post("/v1/completions", {"prompt": "ab", "stream": True}))
    assert [event["choices"][0]["text"] for event in events] == ["a", "b", ""]


def test_official_client_chats() -> None:
    async def use(client: openai.AsyncOpenAI) -> None:
        answer = await client.chat.completions.create(
            model="m", messages=CHAT, logprobs=True, n=2, extra_body={"top_k": 5, "ignore_eos": True}
        )
        assert [choice.message.content for choice in answer.choices] == ["Hello, world"] * 2
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 24
        # What was answered can be sent back.
        message: Any = answer.choices[0].message
        await client.chat.completions.create(model="m", messages=[*CHAT, message, *CHAT])
        stream = await client.chat.completions.create(
            model="m", messages=CHAT, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        assert chunks[0].choices[0].delta.role == "assistant"
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "Hello, world"
        assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
        assert chunks[-1].choices == []
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == 12

    with_client(Bench(), use)


def test_official_client_completes() -> None:
    async def use(client: openai.AsyncOpenAI) -> None:
        answer = await client.completions.create(model="m", prompt=["a", "b"], logprobs=0)
        assert [choice.text for choice in answer.choices] == ["Hello, world"] * 2
        stream = await client.completions.create(model="m", prompt="a", stream=True, n=3)
        texts = {0: "", 1: "", 2: ""}
        async for chunk in stream:
            texts[chunk.choices[0].index] += chunk.choices[0].text
        assert set(texts.values()) == {"Hello, world"}
        assert [model.id async for model in client.models.list()] == ["m"]
        assert (await client.models.retrieve("m")).id == "m"

    with_client(Bench(), use)


def test_official_client_sees_failures_as_failures() -> None:
    async def fails_late(request: FakeRequest) -> None:
        request.frame("x")
        for _ in range(20):
            await asyncio.sleep(0)
        request.error("shard 1 died", 500)

    async def use(client: openai.AsyncOpenAI) -> None:
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("other")
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(model="m", messages=CHAT, temperature=3, top_p=2)
        assert caught.value.param == "top_p"
        stream = await client.completions.create(model="m", prompt="a", stream=True)
        with pytest.raises(openai.APIError, match="shard 1 died"):
            async for _ in stream:
                pass
        with pytest.raises(openai.InternalServerError, match="shard 1 died"):
            await client.completions.create(model="m", prompt="a")

    with_client(Bench(fails_late), use)


def test_official_client_needs_the_key() -> None:
    bench = Bench(api_key="right")

    async def use(client: openai.AsyncOpenAI) -> None:
        with pytest.raises(openai.AuthenticationError):
            await client.completions.create(model="m", prompt="a")
        answer = await client.with_options(api_key="right").completions.create(model="m", prompt="a")
        assert answer.choices[0].text == "Hello, world"

    with_client(bench, use)
    assert len(bench.asked) == 1


def test_thirty_two_official_clients_at_once() -> None:
    async def echo(request: FakeRequest) -> None:
        await says(*bytes(request.asked.input_ids).decode())(request)

    async def use(client: openai.AsyncOpenAI) -> None:
        async def one(place: int) -> None:
            stream = await client.completions.create(model="m", prompt=f"text {place}", stream=True)
            assert "".join([chunk.choices[0].text async for chunk in stream]) == f"text {place}"

        async with asyncio.TaskGroup() as group:
            for place in range(32):
                group.create_task(one(place))

    with_client(Bench(echo), use)

"""The whole path with real clients: processes, rings, tokenizer, engine, HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from server_kit import Server, events_of
from support import SLOWNESS, wait_until

import egress

pytestmark = pytest.mark.slow

KEY = {"Authorization": "Bearer secret"}
TIMEOUT = httpx.Timeout(60 * SLOWNESS)
MULTIBYTE = "数据从引擎流向客户端 🙂👩‍👩‍👧 한국어 naïve — def f(x):\n    return {'λ': x}\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server("--step-ms", "2", runtime=tmp_path_factory.mktemp("run")) as running:
        yield running.wait_ready()


@pytest.fixture(scope="module")
def replay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that says MULTIBYTE over and over."""
    flags = ["--engine", "replay", "--engine-option", f"text={MULTIBYTE}", "--engine-option", "loops=0"]
    with Server(*flags, "--step-ms", "1", runtime=tmp_path_factory.mktemp("run")) as running:
        yield running.wait_ready()


async def stream_generate(client: httpx.AsyncClient, url: str, body: dict[str, Any]) -> list[Any]:
    async with client.stream("POST", f"{url}/generate", json={**body, "stream": True}) as answer:
        assert answer.status_code == 200
        lines = [line async for line in answer.aiter_lines()]
    return list(events_of(iter(lines)))


def test_thirty_two_openai_clients_at_a_time_chat_and_complete(server: Server) -> None:
    async def one(client: openai.AsyncOpenAI, i: int) -> None:
        prompt, seed = f"Once upon a time {i}", i
        whole = await client.completions.create(model="egress-ngram", prompt=prompt, max_tokens=24, seed=seed)
        stream = await client.completions.create(
            model="egress-ngram", prompt=prompt, max_tokens=24, seed=seed, stream=True
        )
        parts = [chunk.choices[0] async for chunk in stream if chunk.choices]
        assert "".join(part.text for part in parts) == whole.choices[0].text
        assert [part.finish_reason for part in parts if part.finish_reason] == [
            whole.choices[0].finish_reason
        ]
        messages: Any = [{"role": "user", "content": f"Tell me {i}"}]
        chat = await client.chat.completions.create(
            model="egress-ngram", messages=messages, max_tokens=16, seed=seed
        )
        chat_stream = await client.chat.completions.create(
            model="egress-ngram", messages=messages, max_tokens=16, seed=seed, stream=True
        )
        deltas = [chunk.choices[0].delta.content or "" async for chunk in chat_stream if chunk.choices]
        assert "".join(deltas) == chat.choices[0].message.content
        assert chat.usage is not None
        assert chat.usage.total_tokens == chat.usage.prompt_tokens + chat.usage.completion_tokens

    async def main() -> None:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=TIMEOUT) as client:
            assert [model.id for model in (await client.models.list()).data] == ["egress-ngram"]
            await asyncio.gather(*(one(client, i) for i in range(32)))

    asyncio.run(main())
    wait_until(lambda: server.metric("egress_requests_running") == 0, 10, "no request running")


def test_streamed_unary_and_decoded_text_are_one(replay: Server) -> None:
    tokenizer = egress.load_tokenizer("qwen")
    body = {"text": "x", "sampling_params": {"max_new_tokens": 150, "ignore_eos": True}}

    async def main() -> None:
        async with httpx.AsyncClient(timeout=TIMEOUT) as client:
            answer = await client.post(f"{replay.url}/generate", json=body)
            assert answer.status_code == 200
            unary = answer.json()
            cumulative, deltas = await asyncio.gather(
                stream_generate(client, replay.url, body),
                stream_generate(client, replay.url, {**body, "incremental": True}),
            )
        assert cumulative[-1] == deltas[-1] == "[DONE]"
        assert cumulative[-2]["text"] == unary["text"]
        assert "".join(event["text"] for event in deltas[:-1]) == unary["text"]
        assert cumulative[-2]["output_ids"] == unary["output_ids"]
        decoded = b"".join(map(tokenizer.token_bytes, unary["output_ids"])).decode("utf-8", "replace")
        assert decoded == unary["text"]
        assert unary["text"].startswith(MULTIBYTE)
        assert "\ufffd" not in unary["text"].rstrip("\ufffd")

    asyncio.run(main())


def test_a_client_that_leaves_stops_its_generation(server: Server) -> None:
    made = server.metric("egress_generation_tokens_total")
    body = {"text": "a", "stream": True, "sampling_params": {"max_new_tokens": 6000, "ignore_eos": True}}
    with (
        httpx.Client(timeout=TIMEOUT) as client,
        client.stream("POST", f"{server.url}/generate", json=body) as answer,
    ):
        lines = answer.iter_lines()  # dropped, it would close the connection
        next(lines)
        wait_until(lambda: server.metric("egress_requests_running") == 1, 10, "the request running")
    wait_until(lambda: server.metric("egress_requests_running") == 0, 10, "the abort's arrival")
    assert server.metric("egress_generation_tokens_total") - made < 6000


def test_a_bad_field_is_a_400_and_nobody_else_notices(server: Server) -> None:
    bad = [
        ({"text": "x", "sampling_params": {"top_p": 2}}, "top_p must be in (0, 1], got 2"),
        ({"text": "x", "sampling_params": {"stop_regex": "(a+)+$"}}, "stop_regex"),
        ({"text": "x", "sampling_params": {"temprature": 1}}, "temprature"),
        ({"text": "x", "smapling_params": {}}, "smapling_params"),
        ({"text": "x", "input_ids": [1]}, "input_ids"),
        ({"input_ids": [10**6]}, "input_ids"),
        ({"text": 5}, "text"),
        (b"{", "JSON"),
    ]

    async def main() -> None:
        async with httpx.AsyncClient(timeout=TIMEOUT) as client:
            good = {"text": "Once", "sampling_params": {"max_new_tokens": 300, "ignore_eos": True}}
            others = [asyncio.create_task(stream_generate(client, server.url, good)) for _ in range(8)]
            for body, part in bad:
                data = body if isinstance(body, bytes) else json.dumps(body).encode()
                answer = await client.post(f"{server.url}/generate", content=data)
                assert answer.status_code == 400, (body, answer.text)
                assert part in answer.json()["error"]["message"]
            for events in await asyncio.gather(*others):
                assert events[-1] == "[DONE]"
                assert events[-2]["meta_info"]["completion_tokens"] == 300

    asyncio.run(main())


def test_log_probabilities_come_with_their_tokens(server: Server) -> None:
    status, answer = server.post(
        "/generate",
        {
            "text": "Once upon",
            "sampling_params": {"max_new_tokens": 5, "ignore_eos": True, "temperature": 0},
            "return_logprob": True,
            "logprob_start_len": 0,
            "top_logprobs_num": 3,
            "token_ids_logprob": [1, 2],
            "return_text_in_logprobs": True,
        },
    )
    assert status == 200
    meta = answer["meta_info"]
    rows = meta["output_token_logprobs"]
    assert [row[1] for row in rows] == answer["output_ids"]
    assert "".join(row[2] for row in rows) == answer["text"]
    assert all(row[0] <= 0 for row in rows)
    assert [len(row) for row in meta["output_top_logprobs"]] == [3] * 5
    # Greedy: the token taken is the likeliest of its alternatives.
    assert [max(row)[1] for row in meta["output_top_logprobs"]] == answer["output_ids"]
    assert [[cell[1] for cell in row] for row in meta["output_token_ids_logprobs"]] == [[1, 2]] * 5
    assert meta["input_token_logprobs"][0][0] is None


def test_stops_end_the_text_where_they_begin(replay: Server) -> None:
    for field, value in (("stop", "🙂"), ("stop", ["nothing", "客户端"]), ("stop_regex", "na.ve")):
        status, answer = replay.post(
            "/generate",
            {"text": "x", "sampling_params": {"max_new_tokens": 200, "ignore_eos": True, field: value}},
        )
        assert status == 200
        assert answer["meta_info"]["finish_reason"]["type"] == "stop"
        text, whole = answer["text"], MULTIBYTE
        if field == "stop":
            stop = value if isinstance(value, str) else value[1]
            assert text == whole[: whole.index(stop)]
        else:
            assert whole.startswith(text)
            assert "naïve" in text


def test_questions_to_the_shards_and_the_server(server: Server) -> None:
    for shard in (0, 1):
        info = server.get(f"/server_info?shard={shard}")
        assert info["shard"] == shard
        assert info["engine"] == "ngram"
    assert server.post("/abort_request", {"rid": "nobody"})[0] == 200
    with pytest.raises(Exception, match=r"400|404"):
        server.get("/server_info?shard=2")
    assert server.get("/live") is not None


def test_an_abort_by_client_rid_ends_the_stream_without_success(server: Server) -> None:
    body = {
        "text": "a",
        "rid": "mine",
        "stream": True,
        "sampling_params": {"max_new_tokens": 6000, "ignore_eos": True},
    }
    with (
        httpx.Client(timeout=TIMEOUT) as client,
        client.stream("POST", f"{server.url}/generate", json=body) as answer,
    ):
        lines = answer.iter_lines()
        first = json.loads(next(lines)[6:])
        assert first["meta_info"]["id"] == "mine"
        assert server.post("/abort_request", {"rid": "mine"})[0] == 200
        last = [event for event in events_of(lines) if event != "[DONE]"][-1]
    assert last["meta_info"]["finish_reason"]["type"] == "abort"


def test_two_hundred_streams_at_once_lose_nothing(replay: Server) -> None:
    tokenizer = egress.load_tokenizer("qwen")
    expected = tokenizer.encode(MULTIBYTE)

    async def main() -> None:
        limits = httpx.Limits(max_connections=200)
        async with httpx.AsyncClient(timeout=TIMEOUT, limits=limits) as client:
            body = {
                "text": "x",
                "sampling_params": {"max_new_tokens": 60, "ignore_eos": True},
                "incremental": True,
            }
            answers = await asyncio.gather(*(stream_generate(client, replay.url, body) for _ in range(200)))
        wanted = (expected * 3)[:60]
        for events in answers:
            assert events[-1] == "[DONE]"
            assert [token for event in events[:-1] for token in event["output_ids"]] == wanted

    asyncio.run(main())
    wait_until(lambda: replay.metric("egress_requests_running") == 0, 10, "no request running")


@pytest.mark.parametrize(
    ("flags", "body", "headers", "status"),
    [
        (["--max-body", "2000"], {"text": "x" * 3000}, {}, 413),
        (["--max-context", "64"], {"text": "a b " * 100}, {}, 400),
        (["--api-key", "secret"], {"text": "x"}, {}, 401),
        (["--api-key", "secret"], {"text": "x", "sampling_params": {"max_new_tokens": 1}}, KEY, 200),
    ],
)
def test_limits_have_clear_answers(
    flags: list[str], body: dict[str, Any], headers: dict[str, str], status: int, tmp_path: Path
) -> None:
    with Server(*flags, runtime=tmp_path, shards=1, workers=1) as server:
        server.wait_ready()
        answer = httpx.post(f"{server.url}/generate", json=body, headers=headers, timeout=TIMEOUT)
        assert answer.status_code == status, answer.text
        if status != 200:
            assert answer.json()["error"]["message"]


def test_too_many_running_requests_are_a_503(tmp_path: Path) -> None:
    with Server("--max-running", "2", "--step-ms", "20", runtime=tmp_path, shards=1, workers=1) as server:
        server.wait_ready()

        async def main() -> None:
            body = {"text": "x", "sampling_params": {"max_new_tokens": 60, "ignore_eos": True}}
            async with httpx.AsyncClient(timeout=TIMEOUT) as client:
                answers = await asyncio.gather(
                    *(client.post(f"{server.url}/generate", json=body) for _ in range(5))
                )
            assert sorted(answer.status_code for answer in answers) == [200, 200, 503, 503, 503]
            assert all("retry-after" in answer.headers for answer in answers if answer.status_code == 503)

        asyncio.run(main())

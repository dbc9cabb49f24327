"""Every way to end badly: a real status while nothing was sent, an event without [DONE] afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from http_fakes import Bench, FakeRequest, events_of

from egress.errors import ValidationError
from egress.serve.dispatch import Overloaded, ShardDown
from egress.stream.item import Control
from egress.wire.finish_reason import Abort, Length, Stop

BODIES: dict[str, dict[str, Any]] = {
    "/generate": {"text": "p"},
    "/v1/completions": {"prompt": "p"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "p"}]},
}

pytestmark = pytest.mark.parametrize("path", BODIES)


def post(bench: Bench, path: str, **more: Any) -> Any:
    return bench.post(path, {**BODIES[path], **more})


def aborts_with(status: int | None, message: str | None) -> Callable[[FakeRequest], Awaitable[None]]:
    async def script(request: FakeRequest) -> None:
        request.done("half", Abort(message, status, None))

    return script


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("status", "message", "shown", "text"),
    [
        (400, "too bad", 400, "too bad"),
        (503, "a\nb\u2028c", 503, "a\nb\u2028c"),
        (599, "x" * (1 << 20), 599, "x" * (1 << 20)),
        (500, None, 500, "request aborted"),
        (404, "", 404, "internal error"),
        (0, "odd", 500, "odd"),
        (200, "no failure's status", 500, "no failure's status"),
        (65535, "odd", 500, "odd"),
    ],
)
def test_abort_with_a_status_is_that_status(
    path: str, stream: bool, status: int, message: str | None, shown: int, text: str
) -> None:
    bench = Bench(aborts_with(status, message))
    response = post(bench, path, stream=stream)
    assert response.status_code == shown
    error = response.json()["error"]
    assert error["message"] == text
    assert error["code"] == shown
    if path.startswith("/v1"):
        assert error["type"] == ("invalid_request_error" if shown < 500 else "server_error")
        assert "param" in error
    assert response.headers.get("retry-after") == ("1" if shown == 503 else None)
    assert bench.count(f'egress_request_failures_total{{code="{shown}"}}') == 1


@pytest.mark.parametrize("stream", [False, True])
def test_abort_without_a_status_is_an_ending(path: str, stream: bool) -> None:
    response = post(Bench(aborts_with(None, None)), path, stream=stream)
    assert response.status_code == 200
    if stream:
        *events, done = events_of(response)
        assert done == "[DONE]"
    answer = events[-1] if stream else response.json()
    if path == "/generate":
        assert answer["meta_info"]["finish_reason"]["type"] == "abort"
    else:
        assert answer["choices"][0]["finish_reason"] == "abort"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("status", [400, 499, 500, 503])
def test_error_before_anything_was_sent_is_a_status(path: str, stream: bool, status: int) -> None:
    async def script(request: FakeRequest) -> None:
        request.error("the shard said no", status)

    response = post(Bench(script), path, stream=stream)
    assert response.status_code == status
    assert response.json()["error"]["message"] == "the shard said no"


@pytest.mark.parametrize("n_chunks", [1, 5])
@pytest.mark.parametrize("how", ["error", "abort", "truncated", "control"])
def test_failure_in_a_stream_is_an_event_and_no_end_mark(path: str, n_chunks: int, how: str) -> None:
    async def script(request: FakeRequest) -> None:
        for _ in range(n_chunks):
            request.frame("x")
            for _ in range(10):
                await asyncio.sleep(0)
        if how == "error":
            request.error("shard 0 died", 500)
        elif how == "abort":
            request.done("", Abort("shard 0 died", 500, None))
        elif how == "control":
            request.sink.try_send(Control(b"{}"))
        else:
            request.sink.close()

    bench = Bench(script)
    response = post(bench, path, stream=True)
    assert response.status_code == 200
    events = events_of(response)
    assert "[DONE]" not in events
    said = "shard 0 died" if how in ("error", "abort") else "response truncated before completion"
    assert events[-1]["error"]["message"] == said
    assert events[-1]["error"]["code"] == 500
    assert all("error" not in event for event in events[:-1])
    # A sink that went away told nothing about the request: it is aborted. A terminal item did.
    assert bench.dispatch.aborted == [[bench.dispatch.requests[0].rid] if how == "truncated" else []]


def test_truncated_unary_answer_is_a_500(path: str) -> None:
    async def script(request: FakeRequest) -> None:
        request.frame("half")
        request.sink.close()

    response = post(Bench(script), path)
    assert response.status_code == 500
    assert response.json()["error"]["message"] == "response truncated before completion"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("refusal", "status", "retry"),
    [
        (Overloaded("shard 0 runs 8 requests of at most 8", 3), 503, "3"),
        (ShardDown(1), 503, "2"),
        (ValidationError("rid must have 1 to 512 bytes, got 0", "rid"), 400, None),
        (RuntimeError("a secret"), 500, None),
    ],
)
def test_refusals_of_the_dispatch_are_statuses(
    path: str,
    stream: bool,
    refusal: Exception,
    status: int,
    retry: str | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench()
    bench.dispatch.refusal = refusal
    response = post(bench, path, stream=stream)
    assert response.status_code == status
    assert response.headers.get("retry-after") == retry
    message = response.json()["error"]["message"]
    if status == 500:
        assert message == "internal error"
        assert "a secret" in caplog.text
    else:
        assert message == str(refusal)
    if path.startswith("/v1") and status == 400:
        assert response.json()["error"]["param"] == "rid"


def test_every_ended_call_leaves_nothing_armed(path: str) -> None:
    for stream in (False, True):
        bench = Bench()
        post(bench, path, stream=stream)
        assert bench.dispatch.aborted == [[]]


def several(path: str) -> dict[str, Any]:
    if path == "/generate":
        return {"text": ["a", "b", "c"]}
    return {**BODIES[path], "n": 3}


def test_one_failure_in_a_unary_call_is_the_calls_and_the_rest_is_aborted(path: str) -> None:
    async def script(request: FakeRequest) -> None:
        if request is bench.dispatch.requests[1]:
            request.error("no", 503)
        else:
            request.frame("goes on")

    bench = Bench(script)
    response = bench.post(path, several(path))
    assert response.status_code == 503
    first, _, third = (request.rid for request in bench.dispatch.requests)
    assert bench.dispatch.aborted == [[first, third]]


def test_one_failure_in_a_stream_leaves_the_others_but_no_end_mark(path: str) -> None:
    async def script(request: FakeRequest) -> None:
        place = bench.dispatch.requests.index(request)
        request.frame("x")
        for _ in range(20 * (place + 1)):
            await asyncio.sleep(0)
        if place == 1:
            request.error("no", 500)
        else:
            request.done("y", Length(2))

    bench = Bench(script)
    events = events_of(bench.post(path, {**several(path), "stream": True}))
    assert "[DONE]" not in events
    assert [event["error"]["message"] for event in events if "error" in event] == ["no"]
    good = [event for event in events if "error" not in event]
    if path == "/generate":
        ended = [event["index"] for event in good if event["meta_info"]["finish_reason"]]
        assert next(event["index"] for event in events if "error" in event) == 1
    else:
        ended = [event["choices"][0]["index"] for event in good if event["choices"][0]["finish_reason"]]
    assert ended == [0, 2]


def test_choices_finish_once_each_whatever_their_order(path: str) -> None:
    """R072: ends at steps 2, 7 and 4, one with an empty last part."""

    async def script(request: FakeRequest) -> None:
        steps = (2, 7, 4)[bench.dispatch.requests.index(request)]
        for _ in range(steps - 1):
            request.frame("x")
            for _ in range(5):
                await asyncio.sleep(0)
        request.done("" if steps == 7 else "x", Stop(1))

    bench = Bench(script)
    more = {} if path == "/generate" else {"stream_options": {"include_usage": True}}
    *events, done = events_of(bench.post(path, {**several(path), "stream": True, **more}))
    assert done == "[DONE]"
    if path == "/generate":
        ended = [event["index"] for event in events if event["meta_info"]["finish_reason"]]
        texts = {event["index"]: event["text"] for event in events}
        assert texts == {0: "xx", 1: "x" * 6, 2: "x" * 4}
    else:
        usage = events.pop()
        assert usage["choices"] == []
        assert usage["usage"]["completion_tokens"] == 12
        assert all(event["usage"] is None for event in events)
        ended = []
        for event in events:
            (choice,) = event["choices"]
            assert choice["index"] not in ended, "nothing follows a finish"
            if choice["finish_reason"]:
                ended.append(choice["index"])
    assert sorted(ended) == [0, 1, 2]

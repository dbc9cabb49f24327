"""Events written without a step of their stream's task: the same bytes, the same endings, the same bounds."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from http_fakes import Bench, FakeRequest, Script, serving
from http_raw import connect, leave_by, raw_request, run, until
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from egress.errors import SinkClosed, SinkFull
from egress.serve.http.direct import Direct, Rounds
from egress.serve.http.native import NativeAnswer
from egress.wire.event import ChunkEvent
from egress.wire.finish_reason import Abort

TEXTS = [
    "To",
    "ken",
    ' "quoted" \\',
    "\n\r\t\x00",
    "schön",
    "你好",
    "a\u2028b\u2029c\u0085d",
    "",
    "\x7f",
    "x" * 9000,
]

BODIES: dict[str, dict[str, Any]] = {
    "/generate": {"text": "p", "incremental": True},
    "/v1/completions": {"prompt": "p"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "p"}]},
}


def held(request: FakeRequest) -> int:
    """Tokens that wait in a request's sink."""
    return int(request.sink._channel.weigh()[1])


def stepwise(*texts: str, end: Callable[[FakeRequest], None] = FakeRequest.done) -> Script:
    """One event at a time, the next when this one was taken."""

    async def script(request: FakeRequest) -> None:
        for text in texts:
            request.frame(text)
            # Not after some time: on a busy machine two would be told as one.
            while held(request):
                await asyncio.sleep(0.001)
        end(request)

    return script


@pytest.fixture
def sends(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The size of every body part that went through uvicorn's coroutine."""
    sizes: list[int] = []
    send = RequestResponseCycle.send

    async def counted(self: RequestResponseCycle, message: Any) -> None:
        if message["type"] == "http.response.body":
            sizes.append(len(message["body"]))
        await send(self, message)

    monkeypatch.setattr(RequestResponseCycle, "send", counted)
    return sizes


def body_of(answer: bytes) -> bytes:
    """The chunks of one answer, joined; there must be a last one."""
    _, _, rest = answer.partition(b"\r\n\r\n")
    parts = []
    while True:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        assert rest[length : length + 2] == b"\r\n"
        if not length:
            assert rest == b"\r\n"
            return b"".join(parts)
        parts.append(rest[:length])
        rest = rest[length + 2 :]


async def ask(base: str, path: str, **fields: Any) -> bytes:
    """One stream's whole body."""
    reader, writer = await connect(base)
    body = {**BODIES[path], "stream": True, **fields}
    writer.write(raw_request(path, body, Connection="close"))
    answer = await reader.read(-1)
    writer.close()
    assert answer.startswith(b"HTTP/1.1 200 ")
    return body_of(answer)


def plain(body: bytes) -> bytes:
    """What does not differ from one answer to the next."""
    body = re.sub(rb'"created":\d+', b"", body)
    return re.sub(rb'"e2e_latency":[\d.]+', b"", body)


@pytest.mark.parametrize(
    "extra", [{}, {"stream_options": {"include_usage": True}}, {"n": 3}, {"stream_interval": 3}]
)
@pytest.mark.parametrize("path", BODIES)
def test_it_writes_what_would_have_been_sent(path: str, extra: dict[str, Any], sends: list[int]) -> None:
    if path == "/generate":
        extra = {"sampling_params": {"stream_interval": 3}} if "stream_interval" in extra else {}
    bench = Bench(stepwise(*TEXTS))
    fields = {"rid": "r\u2028\u0000é", **extra}
    # httpx has no uvicorn: everything goes through `send`.
    sent = bench.post(path, {**BODIES[path], "stream": True, **fields})
    got = b""

    async def main() -> None:
        nonlocal got
        async with serving(bench) as base:
            got = await ask(base, path, **fields)

    run(main)
    if "n" not in extra:
        assert plain(got) == plain(sent.content)
    for line_end in "\u2028", "\u2029", "\u0085":
        assert line_end.encode() not in got + sent.content
    # Which choice comes first in a step is nobody's promise.
    assert sorted(plain(got).split(b"\n\n")) == sorted(plain(sent.content).split(b"\n\n"))
    # The first event and the last of each choice, and the end.
    assert len(sends) <= 2 * extra.get("n", 1) + 1


@pytest.mark.parametrize("path", BODIES)
def test_an_error_amid_the_stream_is_told_and_ends_it(path: str, sends: list[int]) -> None:
    bench = Bench(stepwise(*"abcdef", end=lambda request: request.error("it broke", 500)))

    async def main() -> None:
        async with serving(bench) as base:
            body = await ask(base, path)
            assert b"[DONE]" not in body
            *events, last, rest = body.split(b"\n\n")
            assert rest == b""
            assert json.loads(last[6:])["error"]["message"] == "it broke"
            assert len(events) >= 6

    run(main)
    assert len(sends) == 2
    assert bench.dispatch.aborted == [[]]


@pytest.mark.parametrize(
    ("end", "told", "armed"),
    [
        (lambda request: request.sink.close(), b"truncated", 1),
        (lambda request: request.done("z", Abort("cut off", 503)), b"cut off", 0),
    ],
)
def test_every_other_ending_is_as_honest(end: Any, told: bytes, armed: int, sends: list[int]) -> None:
    bench = Bench(stepwise(*"abc", end=end))

    async def main() -> None:
        async with serving(bench) as base:
            body = await ask(base, "/generate")
            assert told in body.split(b"\n\n")[-2]
            assert b"[DONE]" not in body

    run(main)
    assert len(sends) == 2
    assert [len(rids) for rids in bench.dispatch.aborted] == [armed]


def test_an_answer_that_cannot_be_shown_ends_its_own_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    pass_on = NativeAnswer.pass_on

    def fails(self: NativeAnswer, event: ChunkEvent) -> bytes:
        if event.text == "boom":
            raise RuntimeError("cannot be shown")
        return pass_on(self, event)

    monkeypatch.setattr(NativeAnswer, "pass_on", fails)
    texts = iter((["a", "boom", "b"], ["a", "b", "c"]))

    async def script(request: FakeRequest) -> None:
        await stepwise(*next(texts))(request)

    bench = Bench(script)

    async def main() -> None:
        async with serving(bench) as base:
            broken, whole = await asyncio.gather(ask(base, "/generate"), ask(base, "/generate"))
            assert b"internal error" in broken
            assert b"[DONE]" not in broken
            assert whole.endswith(b"[DONE]\n\n")

    run(main)
    assert sorted(map(len, bench.dispatch.aborted)) == [0, 1]


def test_a_connection_is_used_again_after_a_stream() -> None:
    bench = Bench(stepwise("a", "b", "c", "d"))

    async def main() -> None:
        async with serving(bench) as base:
            reader, writer = await connect(base)
            for _ in range(3):
                writer.write(raw_request("/generate", {"text": "p", "stream": True, "incremental": True}))
                body = body_of(await reader.readuntil(b"\r\n0\r\n\r\n"))
                assert [json.loads(part[6:])["text"] for part in body.split(b"\n\n")[:4]] == [
                    "a",
                    "b",
                    "c",
                    "d",
                ]
            writer.write(b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            writer.close()

    run(main)
    assert bench.dispatch.aborted == [[], [], []]


def test_the_next_request_may_wait_on_the_connection_already() -> None:
    bench = Bench(stepwise("a", "b", "c"))

    async def main() -> None:
        async with serving(bench) as base:
            reader, writer = await connect(base)
            request = raw_request("/generate", {"text": "p", "stream": True, "incremental": True})
            writer.write(request + request)
            for _ in range(2):
                assert body_of(await reader.readuntil(b"\r\n0\r\n\r\n")).endswith(b"[DONE]\n\n")
            writer.close()

    run(main)


@pytest.mark.parametrize("path", ["/generate", "/v1/completions"])
@pytest.mark.parametrize("how", ["fin", "rst"])
@pytest.mark.parametrize("choices", [1, 3])
def test_leaving_with_the_next_request_sent_already(
    path: str, how: str, choices: int, caplog: pytest.LogCaptureFixture
) -> None:
    """uvicorn tells of the leaving to the request that came last, which is not the one under way."""

    async def endless(request: FakeRequest) -> None:
        while True:
            request.frame("x")
            await asyncio.sleep(0.001)

    bench = Bench(endless)
    fields = (
        {"text": ["p"] * choices, "incremental": True}
        if path == "/generate"
        else {"prompt": "p", "n": choices}
    )

    async def main() -> None:
        async with serving(bench) as base:
            reader, writer = await connect(base)
            request = raw_request(path, {**fields, "stream": True})
            writer.write(request + request)
            await reader.readuntil(b"data: ")
            leave_by(how, writer)
            await until(lambda: bool(bench.dispatch.aborted), "aborted")
            await asyncio.sleep(0.02)
            assert sorted(bench.dispatch.aborted[0]) == sorted(r.rid for r in bench.dispatch.requests)

    run(main)
    assert len(bench.dispatch.aborted) == 1
    assert bench.count(f'egress_http_requests_total{{code="499",route="{path}"}}') == 1
    assert bench.count("egress_calls_open") == 0
    assert not caplog.records


def test_an_http_1_0_client_reads_to_the_end() -> None:
    bench = Bench(stepwise("a", "b", "c"))

    async def main() -> None:
        async with serving(bench) as base:
            reader, writer = await connect(base)
            request = raw_request("/generate", {"text": "p", "stream": True, "incremental": True})
            writer.write(request.replace(b"HTTP/1.1", b"HTTP/1.0"))
            assert body_of(await reader.read(-1)).endswith(b"[DONE]\n\n")
            writer.close()

    run(main)


@pytest.mark.parametrize("how", ["fin", "rst"])
@pytest.mark.parametrize("choices", [1, 3])
def test_leaving_while_the_socket_is_full(how: str, choices: int) -> None:
    """A write was refused and waits in `send`; the client leaves. Nothing more is produced for it."""
    full = asyncio.Event()

    async def flood(request: FakeRequest) -> None:
        try:
            while True:
                request.frame("x" * 1024)
                await asyncio.sleep(0)
        except SinkFull:
            full.set()
            await asyncio.sleep(3600)

    bench = Bench(flood)

    async def main() -> None:
        async with serving(bench) as base:
            _, writer = await connect(base)
            writer.transport.pause_reading()
            writer.write(raw_request("/v1/completions", {"prompt": "p", "stream": True, "n": choices}))
            await full.wait()
            assert bench.dispatch.aborted == []
            leave_by(how, writer)
            await until(lambda: bool(bench.dispatch.aborted), "aborted")
            writer.close()
            assert bench.dispatch.aborted == [[request.rid for request in bench.dispatch.requests]]
            for request in bench.dispatch.requests:
                with pytest.raises(SinkClosed):
                    request.frame("late")
            for task in bench.dispatch._tasks:
                task.cancel()

    run(main)


def test_a_client_that_pauses_gets_everything_in_order() -> None:
    """A full socket gives the stream back to its task, and what waited comes in one event, in its place."""
    parts = [f"{number:05d}" * 1024 for number in range(400)]

    async def script(request: FakeRequest) -> None:
        for part in parts:
            # What the sink cannot hold waits here: it is the client's pace that counts.
            while held(request) > 0:
                await asyncio.sleep(0.001)
            request.frame(part)
            await asyncio.sleep(0)
        request.done()

    bench = Bench(script)

    async def main() -> None:
        async with serving(bench) as base:
            reader, writer = await connect(base)
            writer.write(
                raw_request(
                    "/generate", {"text": "p", "stream": True, "incremental": True}, Connection="close"
                )
            )
            answer = b""
            while more := await reader.read(1 << 16):
                answer += more
                if len(answer) % 7 == 0:
                    writer.transport.pause_reading()
                    await asyncio.sleep(0.01)
                    writer.transport.resume_reading()
            events = body_of(answer).split(b"\n\n")
            assert events[-2:] == [b"data: [DONE]", b""]
            told = [json.loads(event[6:]) for event in events[:-2]]
            assert "".join([event["text"] for event in told]) == "".join(parts)
            assert told[-1]["meta_info"]["completion_tokens"] == sum(map(len, parts))
            writer.close()

    run(main)


def test_events_from_another_thread() -> None:
    done = threading.Event()

    async def script(request: FakeRequest) -> None:
        def send() -> None:
            for number in range(2000):
                while held(request) > 1000:
                    time.sleep(0.0001)
                request.frame(f"{number},")
            request.done()
            done.set()

        await asyncio.to_thread(send)

    bench = Bench(script)

    async def main() -> None:
        async with serving(bench) as base:
            body = await ask(base, "/generate")
            texts = [json.loads(event[6:])["text"] for event in body.split(b"\n\n")[:-2]]
            assert "".join(texts) == "".join([f"{number}," for number in range(2000)])

    run(main)
    assert done.is_set()


def test_a_loop_that_was_closed_is_not_missed() -> None:
    async def make() -> Rounds:
        return Rounds.here()

    first = asyncio.run(make())
    second = asyncio.run(make())
    assert first is not second
    first.add(None)  # type: ignore[arg-type]
    other = threading.Thread(target=first.add, args=(None,))
    other.start()
    other.join()


def test_another_server_is_left_to_its_own_send() -> None:
    async def send(message: Any) -> None:
        raise AssertionError(message)

    class Cycle:
        async def send(self, message: Any) -> None:
            raise AssertionError(message)

    assert Direct.of(send) is None
    assert Direct.of(Cycle().send) is None

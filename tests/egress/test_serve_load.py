"""`egress bench`: what it counts as a whole stream, against a server that answers as each test says."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from egress.serve.load import Load, Report, run_load

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def event(tokens: int, reason: str = "null") -> bytes:
    meta = f'{{"completion_tokens":{tokens},"finish_reason":{reason}}}'
    return f'data: {{"text":"x","meta_info":{meta}}}\n\n'.encode()


def chunks(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)


DONE = b"data: [DONE]\n\n"
END = b"0\r\n\r\n"
STOP = '{"type":"length","length":2}'
WHOLE = HEAD + chunks(event(1), event(2, STOP), DONE) + END


@contextlib.asynccontextmanager
async def server(*answers: bytes) -> AsyncIterator[tuple[str, list[bytes]]]:
    """One that gives these answers in turn, byte by byte pieces and all; its URL, and what it was asked."""
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        answer = answers[len(asked) % len(answers)]
        asked.append(head + await reader.readexactly(size))
        for at in range(0, len(answer), 7):
            writer.write(answer[at : at + 7])
            await asyncio.sleep(0)
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listener:
        yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}", asked


def measure(*answers: bytes, requests: int = 1, api_key: str | None = None) -> tuple[Report, list[bytes]]:
    async def run() -> tuple[Report, list[bytes]]:
        async with server(*answers) as (url, asked):
            load = Load(url=url, requests=requests, concurrency=2, max_tokens=2, api_key=api_key)
            return await run_load(load), asked

    return asyncio.run(run())


def test_whole_streams_are_counted_with_their_tokens() -> None:
    report, asked = measure(WHOLE, requests=5, api_key="k")
    assert (report.requests, report.failed, report.failures, report.tokens) == (5, 0, {}, 10)
    assert report.tokens_per_s > 0
    for found in (report.first_ms, report.gap_ms, report.total_ms):
        assert list(found) == ["p50", "p90", "p99"]
        assert 0 <= found["p50"] <= found["p90"] <= found["p99"]
    assert len(asked) == 5
    assert b'"max_new_tokens": 2' in asked[0]
    assert b"Authorization: Bearer k\r\n" in asked[0]


@pytest.mark.parametrize(
    ("answer", "failure"),
    [
        (HEAD + chunks(event(1), event(2, STOP)) + END, "the stream has no honest end"),
        (HEAD + chunks(event(1), DONE) + END, "the stream has no honest end"),
        (HEAD + chunks(event(1), event(2, STOP), DONE), "EOFError"),
        (HEAD + chunks(event(1), b'data: {"error":{"message":"no"}}\n\n') + END, "error event"),
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 2\r\n\r\n{}", "status 503"),
        (b"no HTTP\r\n\r\n", "HttpParser"),
        (HEAD + chunks(b"data: {\n\n") + END, "JSONDecodeError"),
        (b"", "EOFError"),
    ],
)
def test_every_other_ending_is_a_failure(answer: bytes, failure: str) -> None:
    report, _ = measure(WHOLE, answer, requests=4)
    assert (report.requests, report.failed, report.tokens) == (4, 2, 4)
    [(text, count)] = report.failures.items()
    assert failure in text
    assert count == 2


def test_nobody_there_is_a_failure_and_no_crash() -> None:
    async def run() -> Report:
        async with server() as (url, _):
            pass
        return await run_load(Load(url=url, requests=3, concurrency=2))

    report = asyncio.run(run())
    assert (report.requests, report.failed, report.tokens, report.first_ms) == (3, 3, 0, {})
    assert "Connect" in next(iter(report.failures))

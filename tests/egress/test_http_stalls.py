"""Clients that do not read, and those that read slowly: over real sockets, as a worker serves them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import http_fakes
import pytest
from http_fakes import Bench, FakeRequest, says
from http_raw import leave_by, raw_request, run, until
from support import MS

from egress.serve.dispatch import Call
from egress.serve.http import stalls
from egress.stream.item import Done, Frame
from egress.wire.event import ChunkEvent
from egress.wire.finish_reason import Length

# Whatever the kernel keeps on loopback, and the server's buffer, are full long before.
HUGE = 12 << 20


def held(request: FakeRequest) -> int:
    """Tokens that wait in a request's sink."""
    return int(request.sink._channel.weigh()[1])


async def endless(request: FakeRequest) -> None:
    """As much as is taken: the sink is never full, and never ends its request."""
    while True:
        if held(request) < 2048:
            request.frame("x" * 1024)
        await asyncio.sleep(0)


async def huge(request: FakeRequest) -> None:
    """One event that no socket takes at once."""
    request.sink.try_send(Done(ChunkEvent.make(request.rid, [1], Length(1), 1, "x" * HUGE)))


_clients: list[socket.socket] = []


@contextlib.asynccontextmanager
async def serving(bench: Bench) -> AsyncIterator[str]:
    """A server whose clients leave before it, however the test ends: it would wait for them."""
    async with http_fakes.serving(bench) as base:
        try:
            yield base
        finally:
            while _clients:
                _clients.pop().close()


async def ask(base: str, path: str, body: dict[str, Any], **headers: str) -> socket.socket:
    """A connection that has asked and reads only where the test does."""
    client = socket.socket()
    _clients.append(client)
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(client, ("127.0.0.1", int(base.rsplit(":", 1)[1])))
    await loop.sock_sendall(client, raw_request(path, body, **headers))
    return client


async def rest_of(client: socket.socket) -> tuple[bytes, bool]:
    """All that is left to read, and whether the connection was reset."""
    got = bytearray()
    loop = asyncio.get_running_loop()
    try:
        while part := await loop.sock_recv(client, 1 << 20):
            got += part
    except ConnectionResetError:
        return bytes(got), True
    return bytes(got), False


def n_open() -> int:
    return len(os.listdir("/proc/self/fd"))


def waiting(bench: Bench) -> int:
    """Connections that the server holds to be stalled."""
    return len(bench.app._service.stalls._stalled)  # type: ignore[attr-defined]


def calls_of(bench: Bench) -> list[Call]:
    """The calls that the bench makes from now on."""
    calls: list[Call] = []
    make = bench.dispatch.call

    def call(generations: Any) -> Call:
        calls.append(make(generations))
        return calls[-1]

    bench.dispatch.call = call  # type: ignore[method-assign]
    return calls


def said(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """The fields of each line about a client that does not read."""
    return [
        record.egress_fields  # type: ignore[attr-defined]
        for record in caplog.records
        if "does not read" in record.getMessage() and record.levelno == logging.INFO
    ]


@pytest.fixture(autouse=True)
def _hear(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, stalls.__name__)


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/generate", "/v1/completions"])
def test_a_client_that_never_reads_is_cut_amid_its_stream(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(endless, stall_s=400 * MS)
    calls = calls_of(bench)
    body = {"text": "p", "incremental": True} if path == "/generate" else {"prompt": "p", "n": 3}

    async def main() -> None:
        async with serving(bench) as base:
            before = n_open()
            client = await ask(base, path, {**body, "stream": True})
            await until(lambda: bool(bench.dispatch.aborted), "aborted")
            # The client's own is left.
            await until(lambda: n_open() == before + 1, "the server's socket is closed")
            assert waiting(bench) == 0
            _, is_reset = await rest_of(client)
            assert is_reset

    run(main)
    assert bench.dispatch.aborted == [[request.rid for request in bench.dispatch.requests]]
    assert [call.cause for call in calls] == ["stalled_client"]
    assert bench.count(f'egress_http_requests_total{{code="499",route="{path}"}}') == 1
    assert bench.count("egress_calls_open") == 0
    (line,) = said(caplog)
    assert line["client"].startswith("127.0.0.1:")
    assert line["waiting_bytes"] > 0


@pytest.mark.slow
def test_one_that_never_reads_and_says_that_it_sends_no_more_is_cut_too() -> None:
    """Its transport is closing, which waits for the bytes to be taken."""
    bench = Bench(endless, stall_s=400 * MS)

    async def main() -> None:
        async with serving(bench) as base:
            before = n_open()
            client = await ask(base, "/generate", {"text": "p", "stream": True, "incremental": True})
            await until(lambda: waiting(bench) == 1, "stalled")
            client.shutdown(socket.SHUT_WR)
            await until(lambda: bool(bench.dispatch.aborted), "aborted")
            await until(lambda: n_open() == before + 1, "the server's socket is closed")

    run(main)


@pytest.mark.slow
def test_a_handler_that_waits_after_the_generation_has_ended_is_freed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def script(request: FakeRequest) -> None:
        while not waiting(bench):
            if held(request) < 2048:
                request.frame("x" * 1024)
            await asyncio.sleep(0)
        request.done()

    bench = Bench(script, stall_s=400 * MS)
    calls = calls_of(bench)

    async def main() -> None:
        async with serving(bench) as base:
            before = n_open()
            client = await ask(base, "/generate", {"text": "p", "stream": True, "incremental": True})
            await until(lambda: bool(bench.dispatch.aborted), "left")
            await until(lambda: n_open() == before + 1, "the server's socket is closed")
            got, is_reset = await rest_of(client)
            assert is_reset
            assert b"[DONE]" not in got

    run(main)
    assert len(calls) == 1
    assert bench.count('egress_http_requests_total{code="499",route="/generate"}') == 1
    assert len(said(caplog)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("connection", ["close", "keep-alive"])
@pytest.mark.parametrize("stream", [False, True])
def test_bytes_that_outlive_their_handler_are_given_up(
    stream: bool, connection: str, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(huge, stall_s=400 * MS)

    async def main() -> None:
        async with serving(bench) as base:
            before = n_open()
            client = await ask(base, "/generate", {"text": "p", "stream": stream}, Connection=connection)
            await until(lambda: waiting(bench) == 1, "stalled")
            # Its answer is complete as far as the handler is concerned.
            assert bench.dispatch.aborted == [[]]
            await until(lambda: n_open() == before + 1, "the server's socket is closed")
            got, is_reset = await rest_of(client)
            assert is_reset
            assert len(got) < HUGE

    run(main)
    assert bench.count('egress_http_requests_total{code="200",route="/generate"}') == 1
    assert len(said(caplog)) == 1


@pytest.mark.slow
def test_a_client_that_reads_slowly_gets_everything(caplog: pytest.LogCaptureFixture) -> None:
    """Its socket asks for more only every few seconds, longer than what counts as a stall."""
    bench = Bench(huge, stall_s=1000 * MS)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with serving(bench) as base:
            client = await ask(base, "/generate", {"text": "p", "stream": True}, Connection="close")
            await until(lambda: waiting(bench) == 1, "stalled")
            got = b""
            for _ in range(35):
                got += await loop.sock_recv(client, 128 << 10)
                await asyncio.sleep(100 * MS)
            assert waiting(bench) == 1
            rest, is_reset = await rest_of(client)
            assert not is_reset
            assert len(got) + len(rest) > HUGE
            assert rest.endswith(b"[DONE]\n\n\r\n0\r\n\r\n")
            client.close()
            await until(lambda: waiting(bench) == 0, "forgotten")

    run(main)
    assert said(caplog) == []


@pytest.mark.slow
def test_without_a_limit_the_bytes_wait_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    async def script(request: FakeRequest) -> None:
        request.sink.try_send(Frame(ChunkEvent.make(request.rid, [1], None, 1, "x" * HUGE)))
        while held(request):
            await asyncio.sleep(0.001)
        # Its handler waits for room now, and after it nobody does.
        await huge(request)

    bench = Bench(script, stall_s=0.0)

    async def main() -> None:
        async with serving(bench) as base:
            client = await ask(base, "/generate", {"text": "p", "stream": True}, Connection="close")
            await until(lambda: bool(bench.dispatch.requests), "asked")
            await asyncio.sleep(300 * MS)
            assert waiting(bench) == 0
            rest, is_reset = await rest_of(client)
            assert not is_reset
            assert len(rest) > HUGE

    run(main)
    assert said(caplog) == []


@pytest.mark.parametrize("how", ["fin", "rst"])
def test_a_stalled_client_that_leaves_is_no_stalled_client(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(endless, stall_s=2000 * MS)
    calls = calls_of(bench)

    async def main() -> None:
        async with serving(bench) as base:
            _, writer = await asyncio.open_connection("127.0.0.1", int(base.rsplit(":", 1)[1]))
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(raw_request("/generate", {"text": "p", "stream": True, "incremental": True}))
            await until(lambda: waiting(bench) == 1, "stalled")
            leave_by(how, writer)
            await until(lambda: bool(bench.dispatch.aborted), "aborted")
            await until(lambda: waiting(bench) == 0, "forgotten")

    run(main)
    assert [call.cause for call in calls] == ["disconnect"]
    assert said(caplog) == []


def test_whoever_reads_costs_no_look(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[Any] = []
    acked: Callable[[Any], int] = stalls._acked
    monkeypatch.setattr(stalls, "_acked", lambda transport: looks.append(transport) or acked(transport))
    bench = Bench(says(*"many events of one stream"), stall_s=20 * MS)

    async def main() -> None:
        async with serving(bench) as base:
            for stream in (False, True):
                client = await ask(base, "/generate", {"text": "p", "stream": stream}, Connection="close")
                got, is_reset = await rest_of(client)
                assert not is_reset
                assert json.dumps("stream")[1:-1].encode() in got
            assert waiting(bench) == 0

    run(main)
    assert looks == []

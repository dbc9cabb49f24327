"""Clients that leave, read slowly, or send too much: over real sockets, as a worker serves them."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from http_fakes import Bench, FakeRequest, says, serving
from http_raw import connect, leave_by, raw_request, run, until

from egress.errors import SinkClosed, SinkFull
from egress.serve.http.exchange import ClientGone, Connected


async def endless(request: FakeRequest) -> None:
    while True:
        request.frame("x")
        await asyncio.sleep(0.001)


async def silent(request: FakeRequest) -> None:
    await asyncio.sleep(0)


async def one_then_silent(request: FakeRequest) -> None:
    request.frame("x")


@pytest.mark.parametrize("how", ["fin", "rst", "half"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("script", [silent, one_then_silent, endless])
def test_leaving_aborts_once_at_any_moment(script: Any, stream: bool, how: str) -> None:
    bench = Bench(script)

    async def main() -> None:
        async with serving(bench) as base:
            reader, writer = await connect(base)
            writer.write(raw_request("/generate", {"text": "p", "stream": stream}))
            if stream and script is not silent:
                await reader.readuntil(b"data: ")
            else:
                await until(lambda: bool(bench.dispatch.requests), "asked")
                await asyncio.sleep(0.02)
            leave_by(how, writer)
            await until(lambda: bool(bench.dispatch.aborted), "aborted")
            await asyncio.sleep(0.02)
            writer.close()
            assert bench.dispatch.aborted == [[bench.dispatch.requests[0].rid]]
            with pytest.raises(SinkClosed):
                bench.dispatch.requests[0].frame("late")

    run(main)
    assert bench.count('egress_http_requests_total{code="499",route="/generate"}') == 1
    assert bench.count("egress_calls_open") == 0


def test_leaving_aborts_every_choice() -> None:
    bench = Bench(endless)

    async def main() -> None:
        async with serving(bench) as base:
            reader, writer = await connect(base)
            writer.write(raw_request("/v1/completions", {"prompt": ["a", "b"], "n": 3, "stream": True}))
            await reader.readuntil(b"data: ")
            leave_by("rst", writer)
            await until(lambda: bool(bench.dispatch.aborted), "aborted")
            assert bench.dispatch.aborted == [[request.rid for request in bench.dispatch.requests]]

    run(main)
    assert len(bench.dispatch.requests) == 6


def test_leaving_while_the_body_is_sent_asks_for_nothing() -> None:
    bench = Bench()

    async def main() -> None:
        async with serving(bench) as base:
            _, writer = await connect(base)
            writer.write(raw_request("/generate", {"text": "p"})[:-3])
            await writer.drain()
            await asyncio.sleep(0.02)
            writer.close()
            await until(
                lambda: bench.count('egress_http_requests_total{code="499",route="/generate"}') == 1,
                "noticed",
            )

    run(main)
    assert bench.dispatch.requests == []


@pytest.mark.slow
def test_two_hundred_leave_and_nobody_else_notices() -> None:
    bench = Bench(endless)

    async def stay(client: httpx.AsyncClient) -> None:
        response = await client.post("/v1/completions", json={"prompt": "stay"})
        assert response.json()["choices"][0]["text"] == "all of it"

    async def script(request: FakeRequest) -> None:
        if bytes(request.asked.input_ids) == b"stay":
            await says(*"all of it")(request)
        else:
            await endless(request)

    bench.dispatch.script = script

    async def leave(base: str) -> None:
        reader, writer = await connect(base)
        writer.write(raw_request("/generate", {"text": "p", "stream": True}))
        await reader.readuntil(b"data: ")
        leave_by("rst", writer)

    async def main() -> None:
        async with serving(bench) as base, httpx.AsyncClient(base_url=base, timeout=60) as client:
            async with asyncio.TaskGroup() as group:
                for place in range(200):
                    group.create_task(leave(base))
                    if place % 10 == 0:
                        group.create_task(stay(client))
            await until(lambda: sum(map(len, bench.dispatch.aborted)) == 200, "aborted")

    run(main)
    assert len(bench.dispatch.aborted) == 220


@pytest.mark.slow
def test_a_client_that_does_not_read_is_bounded_and_ended() -> None:
    """R081: it may fill its socket and its sink; then its request ends, and memory with it."""
    sent = 0
    full = asyncio.Event()

    async def flood(request: FakeRequest) -> None:
        nonlocal sent
        try:
            while True:
                request.frame("x" * 1024)
                sent += 1
                await asyncio.sleep(0)
        except SinkFull:
            full.set()
            request.error("the client reads too slowly", 503)

    bench = Bench(flood)

    async def main() -> None:
        async with serving(bench) as base:
            reader, writer = await connect(base)
            writer.transport.pause_reading()
            body = {"text": "p", "stream": True, "incremental": True}
            # Without it the server would keep the connection, and read() would not end.
            writer.write(raw_request("/generate", body, Connection="close"))
            await full.wait()
            held = sent
            await asyncio.sleep(0.1)
            assert sent == held
            # It was the sink that ended it: once it reads again it learns why, and sees no end mark.
            writer.transport.resume_reading()
            rest = await reader.read()
            while more := await reader.read():
                rest += more
            assert b"the client reads too slowly" in rest[-400:]
            assert b"[DONE]" not in rest
            writer.close()

    run(main)
    # 1 KiB and more each; sockets on loopback hold a few MiB at most.
    assert sent < 64_000


def test_a_silent_stream_notices_within_its_silence() -> None:
    """R078: a disconnect during a long gap between tokens is not found out only at the next token."""
    bench = Bench(one_then_silent)

    async def main() -> None:
        async with serving(bench) as base:
            for _ in range(20):
                reader, writer = await connect(base)
                writer.write(
                    raw_request(
                        "/v1/chat/completions",
                        {"messages": [{"role": "user", "content": "p"}], "stream": True},
                    )
                )
                await reader.readuntil(b'"content":"x"')
                leave_by("fin", writer)
            await until(lambda: len(bench.dispatch.aborted) == 20, "aborted")

    run(main)
    assert all(len(rids) == 1 for rids in bench.dispatch.aborted)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_over_the_limit_is_refused_while_it_is_sent(chunked: bool) -> None:
    bench = Bench(max_body=2048)

    async def main() -> None:
        async with serving(bench) as base:
            reader, writer = await connect(base)
            head = "Transfer-Encoding: chunked" if chunked else "Content-Length: 1000000000000"
            writer.write(f"POST /generate HTTP/1.1\r\nHost: x\r\n{head}\r\n\r\n".encode())
            if chunked:
                for _ in range(3):
                    writer.write(b"400\r\n" + b"x" * 1024 + b"\r\n")
            # The body is far from complete, and will never be.
            status = await reader.readline()
            assert status.split()[1] == b"413"
            answer = await reader.readuntil(b"}}")
            assert b"at most 2048 bytes" in answer
            writer.close()

    run(main)


def test_a_client_that_sends_all_of_it_first_still_reads_the_refusal() -> None:
    bench = Bench(max_body=2048)

    async def main() -> None:
        async with serving(bench) as base, httpx.AsyncClient(base_url=base) as client:
            for _ in range(3):
                response = await client.post("/generate", content=b"x" * (3 << 20))
                assert response.status_code == 413

    run(main)


def test_the_guard_passes_on_a_cancellation_that_is_not_its_own() -> None:
    async def main() -> None:
        async def never() -> Any:
            await asyncio.Event().wait()

        async def handler() -> None:
            async with Connected(never):
                await asyncio.Event().wait()

        task = asyncio.create_task(handler())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()

    run(main)


def test_the_guard_cancels_even_a_handler_that_is_about_to_resume() -> None:
    async def main() -> None:
        async def gone() -> Any:
            return {"type": "http.disconnect"}

        async def handler() -> None:
            async with Connected(gone):
                while True:
                    await asyncio.sleep(0)

        async def caller() -> None:
            with pytest.raises(ClientGone):
                await handler()
            # Nothing of the cancellation is left over for what comes next.
            await asyncio.sleep(0)

        await asyncio.create_task(caller())

    run(main)


def test_a_forced_shutdown_tells_a_running_stream() -> None:
    bench = Bench(endless)

    async def main() -> None:
        async with serving(bench) as base:
            reader, writer = await connect(base)
            writer.write(raw_request("/generate", {"text": "p", "stream": True}))
            await reader.readuntil(b"data: ")
            handlers = [task for task in asyncio.all_tasks() if "run_asgi" in repr(task.get_coro())]
            assert len(handlers) == 1
            handlers[0].cancel()
            rest = await reader.read()
            while more := await reader.read():
                rest += more
            assert b"the server is shutting down" in rest
            assert b"[DONE]" not in rest
            assert bench.dispatch.aborted == [[bench.dispatch.requests[0].rid]]
            writer.close()

    run(main)

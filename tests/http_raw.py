"""Raw HTTP against `http_fakes.serving`: clients that leave, pause, or send what no library would."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import uvloop
from support import MS

PATIENCE_S = 10_000 * MS


def run(main: Callable[[], Awaitable[None]]) -> None:
    """Run on the loop that workers use, with a watchdog, and see that nothing was left behind."""

    async def guarded() -> None:
        before = asyncio.all_tasks()
        async with asyncio.timeout(6 * PATIENCE_S):
            await main()
        await until(lambda: asyncio.all_tasks() == before, "no task is left")

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        complaints: list[Any] = []
        runner.get_loop().set_exception_handler(lambda _, context: complaints.append(context))
        runner.run(guarded())
        gc.collect()
    assert complaints == []


async def until(condition: Callable[[], bool], what: str) -> None:
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                await asyncio.sleep(0.002)
    except TimeoutError:
        raise AssertionError(f"{what} did not come true") from None


def raw_request(path: str, body: dict[str, Any], **headers: str) -> bytes:
    data = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(data)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


async def connect(base: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", int(base.rsplit(":", 1)[1]))


def leave_by(how: str, writer: asyncio.StreamWriter) -> None:
    if how == "rst":
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if how == "half":
        writer.write_eof()
    else:
        writer.close()

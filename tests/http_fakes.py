"""A dispatch without rings, a tokenizer of bytes and a real server on loopback, for tests of the routes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import httpx
import uvicorn

from egress.errors import SinkClosed
from egress.serve.config import Settings
from egress.serve.dispatch import Call, Generation, Stream
from egress.serve.http import create_app
from egress.serve.metrics import WorkerMetrics
from egress.stream import channel
from egress.stream.item import Done, Error, Frame
from egress.text import ByteTokenizer
from egress.wire.event import ChunkEvent, ChunkExtras
from egress.wire.finish_reason import FinishReason, Length, Stop

EOS = 256
VOCAB = 257

Script = Callable[["FakeRequest"], Awaitable[None]]


def make_tokenizer() -> ByteTokenizer:
    """Every byte is a token; 256 ends a text."""
    tokens: dict[int, bytes | str] = {i: bytes([i]) for i in range(256)}
    tokens[EOS] = "<|end|>"
    return ByteTokenizer("bytes", tokens, lambda text: list(text.encode()), [EOS])


class FakeRequest:
    """One generation as the fake's scripts see it."""

    def __init__(self, rid: str, asked: Generation, sink: Any) -> None:
        self.rid = rid
        self.asked = asked
        self.sink = sink

    def event(
        self, text: str = "", finish: FinishReason | None = None, extras: ChunkExtras | None = None
    ) -> ChunkEvent:
        return ChunkEvent.make(
            self.rid, list(text.encode()), finish, len(self.asked.input_ids), text, extras=extras
        )

    def frame(self, text: str, extras: ChunkExtras | None = None) -> None:
        self.sink.try_send(Frame(self.event(text, extras=extras)))

    def done(self, text: str = "", finish: FinishReason | None = None) -> None:
        self.sink.try_send(Done(self.event(text, Length(16) if finish is None else finish)))

    def error(self, message: str, status: int = 500) -> None:
        self.sink.try_send(Error(message, status))


def says(*texts: str, finish: FinishReason | None = None, extras: ChunkExtras | None = None) -> Script:
    """A script: one chunk per text, a turn of the loop apart, then the end."""

    async def script(request: FakeRequest) -> None:
        for text in texts:
            request.frame(text, extras)
            await asyncio.sleep(0)
        request.done(finish=Stop(EOS) if finish is None else finish)

    return script


class FakeDispatch:
    """Answers calls by running a script per generation; notes what was asked and how it ended."""

    def __init__(self, script: Script | None = None) -> None:
        self.script = says("Hello", ", ", "world") if script is None else script
        self.requests: list[FakeRequest] = []
        self.aborted: list[list[str]] = []  # per call left: the rids that were still armed
        self.refusal: Exception | None = None
        self.state: dict[str, Any] = {
            "ready": True,
            "draining": False,
            "shards": [{"index": 0, "alive": True}, {"index": 1, "alive": True}],
        }
        self.control_answer: bytes | Exception = b'{"engine": "fake"}'
        self.controls: list[tuple[str, int]] = []
        self.client_aborts: list[str] = []
        self._tasks: list[asyncio.Task[None]] = []

    def call(self, generations: Sequence[Generation]) -> Call:
        if self.refusal is not None:
            raise self.refusal
        streams = []
        for asked in generations:
            sink, source = channel(64, 4096)
            request = FakeRequest(f"{asked.client_rid}#{len(self.requests)}", asked, sink)
            self.requests.append(request)
            self._tasks.append(asyncio.get_running_loop().create_task(self._run(request)))
            streams.append(Stream(request.rid, asked.client_rid or request.rid, source))
        return Call(streams, self.aborted.append)

    async def _run(self, request: FakeRequest) -> None:
        with contextlib.suppress(SinkClosed):
            await self.script(request)

    def abort(self, client_rid: str) -> int:
        self.client_aborts.append(client_rid)
        return sum(request.asked.client_rid == client_rid for request in self.requests)

    async def control(self, op: str, shard: int = 0, timeout: float = 2.0) -> bytes:
        self.controls.append((op, shard))
        if isinstance(self.control_answer, Exception):
            raise self.control_answer
        return self.control_answer

    def health(self) -> dict[str, Any]:
        return self.state


class Bench:
    """An app over a fake dispatch, and ways to talk to it."""

    def __init__(self, script: Script | None = None, with_tokenizer: bool = True, **settings: Any) -> None:
        self.dispatch = FakeDispatch(script)
        self.settings = Settings(shards=2, model_name="m", **settings)
        self.metrics = WorkerMetrics()
        self.app = create_app(
            self.dispatch, make_tokenizer() if with_tokenizer else None, self.settings, self.metrics
        )

    async def request(self, method: str, path: str, **kwargs: Any) -> httpx.Response:
        transport = httpx.ASGITransport(self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.request(method, path, **kwargs)

    def post(self, path: str, body: Any = None, **kwargs: Any) -> httpx.Response:
        """POST a JSON body (or content=) in a loop of its own."""
        if body is not None:
            kwargs["json"] = body
        return asyncio.run(self.request("POST", path, **kwargs))

    def get(self, path: str, **kwargs: Any) -> httpx.Response:
        return asyncio.run(self.request("GET", path, **kwargs))

    @property
    def asked(self) -> list[Generation]:
        """What reached the dispatch."""
        return [request.asked for request in self.dispatch.requests]

    def count(self, sample: str) -> float:
        """A sample's value in the metrics, 0 when it is not there."""
        for line in self.metrics.scrape().decode().splitlines():
            if line.startswith(sample + " "):
                return float(line.rsplit(" ", 1)[1])
        return 0.0


def events_of(response: httpx.Response) -> list[Any]:
    """The events of a stream, JSON decoded, "[DONE]" as it is; read as strictly as the standard demands."""
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    blocks = response.content.split(b"\n\n")
    assert blocks.pop() == b""
    events: list[Any] = []
    for block in blocks:
        assert block.startswith(b"data: ")
        assert b"\n" not in block
        assert b"\r" not in block
        data = block[6:].decode()
        events.append(data if data == "[DONE]" else json.loads(data))
    return events


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield


@contextlib.asynccontextmanager
async def serving(bench: Bench) -> AsyncIterator[str]:
    """The app under uvicorn, as a worker runs it, on a free port; gives the base address."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        bench.app, http="httptools", ws="none", lifespan="off", log_config=None, access_log=False
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:
        await asyncio.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = server.force_exit = True
        await task
        listener.close()


def refused(bench: Bench, path: str, body: Any = None, content: bytes | None = None) -> dict[str, Any]:
    """The error of a request that must be refused with a 400 and reach nobody."""
    response = bench.post(path, content=content) if content is not None else bench.post(path, body)
    assert response.status_code == 400, response.text
    assert bench.asked == []
    error: dict[str, Any] = response.json()["error"]
    return error

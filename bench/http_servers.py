"""The processes of `http_events`: our worker, what feeds it, and the bare handler it is held against.

The worker is `egress.serve.worker.Worker` itself: its application, router, links and ring source on uvicorn
and uvloop. The feeder speaks a shard's side of the rings, but waits for room in the ring instead of keeping a
backlog, so that the worker sets the pace; with one frame to a turn few steps are merged into one event.
"""

from __future__ import annotations

import asyncio
import secrets
import select
import socket
import time
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from bench.harness import pin
from egress.serve.config import Settings
from egress.serve.lifeline import Lifeline
from egress.serve.peers import Peer
from egress.serve.worker import Worker
from egress.wire import Length, Tag, encode_batch
from egress.wire.requests import Control, Generate, Hello, decode_request

WORDS = (" the", " of", "ing", " a", ".", " Tag", "er", "\n", " schön", "你好", " token", "s")


def _word(step: int, at: int) -> str:
    return WORDS[(step + at) % len(WORDS)]


def text_of_stream(at: int, steps: int) -> str:
    """What the feeder says to its `at`-th request."""
    return "".join([_word(step, at) for step in range(steps)])


def settings_for(instance: str) -> Settings:
    """One shard, one worker; one frame to a turn."""
    return Settings(instance=instance, turn_frames=1, ring_bytes=1 << 20)


def run_worker(instance: str, listener: socket.socket) -> None:
    """Serve as a real worker until killed."""
    pin(1)
    supervisor, end = Lifeline.pair()
    worker = Worker(settings_for(instance), 0, Lifeline(end, is_child=True), listener)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(worker.serve())
    finally:
        worker.close()
        supervisor.close()


def run_feeder(instance: str, requests: int, steps: int) -> None:
    """Answer every `requests` requests with `steps` steps of one token each, until killed."""
    pin(0)
    epoch = secrets.token_hex(8)
    peer = Peer(settings_for(instance), 0, 0, epoch)
    peer.greet()
    while not peer.attach():
        time.sleep(0.01)
    assert peer.requests is not None
    waiting: list[Generate] = []
    while True:
        select.select([peer.requests.fileno()], [], [])
        for frame in peer.read(256):
            with frame:
                request = decode_request(frame.tag, frame.payload)
            if isinstance(request, Hello):
                peer.epoch = request.epoch
                peer.greet()
            elif isinstance(request, Control):
                peer.sink.send_result(request.rid, b"{}")
            elif isinstance(request, Generate):
                waiting.append(request)
        if len(waiting) == requests:
            _feed(peer, waiting, steps)
            waiting.clear()


def _feed(peer: Peer, waiting: list[Generate], steps: int) -> None:
    n = len(waiting)
    rids = [request.rid for request in waiting]
    prompts = [len(request.input_ids) for request in waiting]
    for step in range(steps):
        reasons: list[Any] = [Length(length=steps) if step == steps - 1 else None] * n
        ids = [[(step * 31 + at) % 150_000] for at in range(n)]
        texts = [_word(step, at) for at in range(n)]
        buffers = encode_batch(rids, reasons, prompts, ids, texts=texts)
        peer.producer.write(Tag.BATCH, buffers, timeout=60, align_at=len(buffers[0]))


def run_bare(listener: socket.socket, events: list[bytes], is_paced: bool) -> None:
    """Serve a handler that has every event in memory, under the worker's uvicorn settings, until killed.

    Args:
        is_paced: whether the loop turns once between two events of a stream, as when tokens come step by
            step; otherwise they are sent in a row.
    """
    pin(1)

    async def emit() -> AsyncIterator[bytes]:
        for event in events:
            yield event
            if is_paced:
                await asyncio.sleep(0)

    async def generate(request: Request) -> StreamingResponse:
        await request.json()
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        return StreamingResponse(emit(), media_type="text/event-stream", headers=headers)

    routes = [Route(path, generate, methods=["POST"]) for path in ("/generate", "/v1/completions")]
    config = uvicorn.Config(
        Starlette(routes=routes),
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(uvicorn.Server(config).serve(sockets=[listener]))

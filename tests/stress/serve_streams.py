"""Thousands of streams at once through HTTP, every byte of each checked, nothing lost, nothing of another's.

    python -m tests.stress.serve_streams [--streams 2000] [--tokens 200] [--rounds 1]

All streams are open before the first is read to its end. Each has a rid of its own, which every event must
show, and a length of its own; its text must be the tokenizer's full decode of the same ids.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from typing import cast

import uvloop

from tests.stress._kit import hold
from tests.stress._serve import Answer, Script, quiet, request, running


class Stream(asyncio.Protocol):
    """One client: collects what it is sent until the server closes."""

    def __init__(self, data: bytes, ended: asyncio.Future[bytes], opened: list[int]) -> None:
        self._data, self._ended, self._opened = data, ended, opened
        self._parts: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports inherit from none of asyncio's.
        cast(asyncio.Transport, transport).write(self._data)

    def data_received(self, data: bytes) -> None:
        if not self._parts:
            self._opened[0] += 1
            self._opened[1] = max(self._opened[0], self._opened[1])
        self._parts.append(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._opened[0] -= 1
        if not self._ended.done():
            self._ended.set_result(b"".join(self._parts))


async def one(port: int, script: Script, rid: str, count: int, opened: list[int]) -> int:
    """Run one stream; how many bytes it was."""
    params = {"max_new_tokens": count, "ignore_eos": True}
    body = {"text": "x", "rid": rid, "stream": True, "incremental": True, "sampling_params": params}
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[bytes] = loop.create_future()
    await loop.create_connection(lambda: Stream(request("/generate", body), ended, opened), "127.0.0.1", port)
    raw = await ended
    answer = Answer(raw)
    hold(answer.status == 200, f"{rid}: status {answer.status} {answer.body[:200]!r}")
    hold(answer.hold_one_ending() == "done", f"{rid}: {answer.error or 'cut'}")
    for event in answer.events[:-1]:
        hold(event["meta_info"]["id"] == rid, f"{rid} was shown an event of {event['meta_info']['id']}")
    last = answer.events[-2]["meta_info"]
    hold(last["completion_tokens"] == count, f"{rid}: {last['completion_tokens']} of {count} tokens")
    hold(sum(len(event["output_ids"]) for event in answer.events[:-1]) == count, f"{rid}: ids are missing")
    hold(answer.text() == script.text(count), f"{rid}: another text of {count} tokens")
    return len(raw)


async def all_at_once(port: int, streams: int, tokens: int, rng: random.Random) -> tuple[int, int, int]:
    """Bytes and tokens of all streams, and how many were open at once."""
    script = Script()
    opened = [0, 0]
    counts = [max(1, tokens + rng.randint(-9, 9)) for _ in range(streams)]
    sizes = await asyncio.gather(
        *(one(port, script, f"r{i}", count, opened) for i, count in enumerate(counts))
    )
    return sum(sizes), sum(counts), opened[1]


def main() -> int:
    """Run rounds until the time is over; at least one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=0, help="more rounds until then")
    parser.add_argument("--streams", type=int, default=2000)
    parser.add_argument("--tokens", type=int, default=200)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    with running("--max-running", str(args.streams), "--step-ms", "60") as server:
        begun = time.monotonic()
        rounds = n_bytes = n_tokens = most = 0
        while not rounds or time.monotonic() - begun < args.seconds:
            size, count, at_once = uvloop.run(all_at_once(server.port, args.streams, args.tokens, rng))
            rounds, n_bytes, n_tokens, most = rounds + 1, n_bytes + size, n_tokens + count, max(most, at_once)
        seconds = time.monotonic() - begun
        uvloop.run(quiet(server))
    print(
        f"{rounds} x {args.streams} streams ({most} open at once), {n_tokens} tokens, "
        f"{n_bytes} bytes checked, {n_tokens / seconds:.0f} tokens/s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

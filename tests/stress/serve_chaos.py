"""Thousands of requests, most of them by clients that misbehave: every one ends once, nothing is left.

    python -m tests.stress.serve_chaos [--requests 10000] [--seconds S]

Clients leave by FIN, by RST or by closing one half; they read slowly or not at all; they abort, use one rid
many times over, and send bodies that are no JSON, of wrong types, too large, in chunks, or with lone
surrogates. Whoever reads to the end must see one honest ending. Afterwards no shard runs anything, every
request that a shard admitted has ended once, no call is open, and no process has grown.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager

import uvloop

from tests.stress._kit import hold
from tests.stress._serve import (
    Answer,
    Books,
    Script,
    Server,
    connect,
    exchange,
    quiet,
    request,
    rss_mb,
    running,
)

MAX_BODY = 256 << 10
# Left alone, this many tokens take far longer than any client here waits: its end is always an abort.
ENDLESS = 8000
SHORT = 40

NO_BODIES = [
    b"",
    b"{",
    b"[]",
    b"null",
    b'"text"',
    b"\xff\xfe{}",
    b'{"text": "a", "text": "b"}',
    b'{"text": "a", "no_such_field": 1}',
    b'{"text": "a", "input_ids": [1]}',
    b'{"text": 1}',
    b'{"text": ["a", 2]}',
    b'{"text": []}',
    b'{"text": "\\ud800"}',
    b'{"text": "\xed\xa0\x80"}',
    b'{"text": "a", "rid": "\\udfff"}',
    b'{"text": "a", "rid": ""}',
    b'{"text": "a", "rid": "' + b"r" * 5000 + b'"}',
    b'{"text": "a", "stream": "yes"}',
    b'{"input_ids": [-1]}',
    b'{"input_ids": [1.5]}',
    b'{"input_ids": [99999999]}',
    b'{"input_ids": []}',
    b'{"text": "a", "sampling_params": []}',
    b'{"text": "a", "sampling_params": {"temperature": NaN}}',
    b'{"text": "a", "sampling_params": {"temperature": 1e400}}',
    b'{"text": "a", "sampling_params": {"temperature": "hot"}}',
    b'{"text": "a", "sampling_params": {"max_new_tokens": 1.0}}',
    b'{"text": "a", "sampling_params": {"max_new_tokens": 99999999999999999999}}',
    b'{"text": "a", "sampling_params": {"n": 0}}',
    b'{"text": "a", "sampling_params": {"stop": "\\ud800"}}',
    b'{"text": "a", "sampling_params": {"stop_regex": "(a+)+$"}}',
    b'{"text": "a", "sampling_params": {"stop_regex": "("}}',
    b'{"text": "a", "sampling_params": {"logit_bias": {"-1": 1}}}',
    b'{"text": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    b'{"a":' * 3000 + b"1" + b"}" * 3000,
]

NO_HTTP = [
    b"\x16\x03\x01\x02\x00\x01\x00",
    b"GET\r\n\r\n",
    b"\x00" * 100,
    b"POST /generate HTTP/9.9\r\n\r\n",
    b"POST /generate HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    b"DELETE / HTTP/1.1\r\nHost: x\r\n\r\n",
]


def asked(rng: random.Random, tokens: int, stream: bool = True, rid: str | None = None) -> dict[str, object]:
    """A good body for /generate."""
    return {
        "text": rng.choice(["x", "海", "a b c"]),
        "rid": rid or f"c{rng.getrandbits(64):x}",
        "stream": stream,
        **({"incremental": rng.random() < 0.7} if stream else {}),
        "sampling_params": {"max_new_tokens": tokens, "ignore_eos": True},
    }


class Chaos:
    """The clients, and what became of their requests."""

    def __init__(self, server: Server, rng: random.Random) -> None:
        self.server = server
        self.rng = rng
        self.script = Script()
        self.outcomes: Counter[str] = Counter()
        self.kinds: list[tuple[int, Callable[[random.Random], Awaitable[str]]]] = [
            (18, self.reads_a_stream),
            (10, self.reads_an_answer),
            (6, self.asks_openai),
            (12, self.leaves),
            (8, self.half_closes),
            (5, self.leaves_before_the_body_is_whole),
            (6, self.reads_slowly),
            (3, self.never_reads),
            (8, self.aborts),
            (6, self.uses_a_rid_twice),
            (14, self.sends_no_body),
            (3, self.sends_too_much),
            (5, self.sends_chunks),
            (4, self.sends_no_http),
        ]

    async def one(self, seed: int) -> None:
        """One client, drawn by `seed`."""
        rng = random.Random(seed)
        (act,) = rng.choices([k[1] for k in self.kinds], [k[0] for k in self.kinds])
        try:
            outcome = await act(rng)
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            raise AssertionError(f"{act.__name__} (seed {seed}): {type(error).__name__}: {error}") from error
        except AssertionError as error:
            raise AssertionError(f"{act.__name__} (seed {seed}): {error}") from error
        self.outcomes[f"{act.__name__}: {outcome}"] += 1

    async def many(self, count: int, at_once: int, seconds: float) -> int:
        """So many clients, or as many as there is time for; how many it were."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds if seconds else float("inf")
        seeds = (self.rng.getrandbits(48) for _ in range(count))
        served = 0

        async def serve() -> None:
            nonlocal served
            for seed in seeds:
                await self.one(seed)
                served += 1
                if loop.time() > deadline:
                    return

        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(serve())
        return served

    # Clients who behave

    async def reads_a_stream(self, rng: random.Random) -> str:
        count = rng.randint(1, SHORT)
        body = asked(rng, count)
        answer = await exchange(self.server, request("/generate", body))
        if answer.status == 503:
            return "503"
        hold(answer.status == 200, f"status {answer.status}: {answer.body[:200]!r}")
        hold(answer.hold_one_ending() == "done", answer.error or "cut")
        hold(all(event["meta_info"]["id"] == body["rid"] for event in answer.events[:-1]), "another's event")
        text = answer.text() if body["incremental"] else answer.events[-2]["text"]
        hold(text == self.script.text(count), f"another text of {count} tokens: {text[-40:]!r}")
        return "done"

    async def reads_an_answer(self, rng: random.Random) -> str:
        count = rng.randint(0, SHORT)
        body = asked(rng, count, stream=False)
        answer = await exchange(self.server, request("/generate", body))
        if answer.status == 503:
            return "503"
        hold(answer.status == 200 and answer.is_whole, f"status {answer.status}: {answer.body[:200]!r}")
        told = json.loads(answer.body)
        hold(told["meta_info"]["id"] == body["rid"], "another's answer")
        hold(told["text"] == self.script.text(count), f"another text of {count} tokens")
        return "done"

    async def asks_openai(self, rng: random.Random) -> str:
        count, stream = rng.randint(1, SHORT), rng.random() < 0.5
        body = {"model": "egress-replay", "prompt": "x", "max_tokens": count, "stream": stream, "n": 2}
        answer = await exchange(self.server, request("/v1/completions", body))
        if answer.status == 503:
            return "503"
        hold(answer.status == 200 and answer.is_whole, f"status {answer.status}: {answer.body[:200]!r}")
        if stream:
            hold(answer.events[-1] == "[DONE]", "no end mark")
            ends = [c["index"] for e in answer.events[:-1] for c in e["choices"] if c["finish_reason"]]
            hold(sorted(ends) == [0, 1], f"finish reasons of choices {ends}")
        else:
            hold(len(json.loads(answer.body)["choices"]) == 2, "not two choices")
        return "done"

    # Clients who leave

    async def leaves(self, rng: random.Random) -> str:
        by_reset = rng.random() < 0.5
        async with connect(self.server) as (_, writer):
            writer.write(request("/generate", asked(rng, ENDLESS, stream=rng.random() < 0.7)))
            if rng.random() < 0.6:
                await asyncio.sleep(rng.random() * 0.3)
            if by_reset:
                reset(writer)
        return "reset" if by_reset else "closed"

    async def half_closes(self, rng: random.Random) -> str:
        """Its request is complete and nothing more will come: for HTTP servers of asyncio it has left."""
        async with connect(self.server) as (reader, writer):
            writer.write(request("/generate", asked(rng, ENDLESS)))
            await asyncio.sleep(rng.random() * 0.1)
            writer.write_eof()
            raw = await to_the_end(reader)
        if not raw:
            return "nothing"
        answer = Answer(raw)
        if answer.status == 503:
            return "503"
        hold(answer.status == 200 and answer.hold_one_ending() == "cut", "an endless answer ended")
        return "cut"

    async def leaves_before_the_body_is_whole(self, rng: random.Random) -> str:
        whole = request("/generate", asked(rng, ENDLESS))
        async with connect(self.server) as (_, writer):
            writer.write(whole[: rng.randrange(len(whole))])
            await asyncio.sleep(rng.random() * 0.05)
            if rng.random() < 0.5:
                reset(writer)
        return "left"

    # Clients who read badly

    async def reads_slowly(self, rng: random.Random) -> str:
        count = rng.randint(100, 400)
        async with connect(self.server) as (reader, writer):
            small_buffer(writer)
            body = asked(rng, count)
            writer.write(request("/generate", body))
            raw = b""
            pause = True
            while part := await asyncio.wait_for(reader.read(2048), 60):
                raw += part
                pause = pause and len(raw) < 40_000
                if pause:
                    await asyncio.sleep(rng.random() * 0.02)
        answer = Answer(raw)
        if answer.status == 503:
            return "503"
        ending = answer.hold_one_ending()
        hold(ending != "cut", "cut without a reason")
        if ending == "done":
            text = answer.text() if body["incremental"] else answer.events[-2]["text"]
            hold(text == self.script.text(count), "another text")
        return ending

    async def never_reads(self, rng: random.Random) -> str:
        async with connect(self.server) as (_, writer):
            small_buffer(writer)
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(request("/generate", asked(rng, ENDLESS)))
            await asyncio.sleep(0.2 + rng.random())
            if rng.random() < 0.5:
                reset(writer)
        return "left"

    # Aborts and rids

    async def aborts(self, rng: random.Random) -> str:
        body = asked(rng, ENDLESS, stream=rng.random() < 0.6)
        reading = asyncio.create_task(exchange(self.server, request("/generate", body)))
        while not reading.done():
            await asyncio.sleep(0.02 + rng.random() * 0.1)
            told = await exchange(self.server, request("/abort_request", {"rid": body["rid"]}))
            hold(told.status == 200, f"abort: status {told.status}")
        answer = await reading
        if answer.status == 503:
            return "503"
        hold(answer.status == 200 and answer.is_whole, f"status {answer.status}: {answer.body[:200]!r}")
        last = answer.events[-2] if body["stream"] else json.loads(answer.body)
        reason = last["meta_info"]["finish_reason"]["type"]
        hold(reason == "abort", f"an aborted request ended by {reason}")
        if body["stream"]:
            answer.hold_one_ending()
        return "aborted"

    async def uses_a_rid_twice(self, rng: random.Random) -> str:
        rid = f"twice-{rng.randrange(20)}"
        counts = [rng.randint(1, SHORT) for _ in range(2)]
        answers = await asyncio.gather(
            *(
                exchange(self.server, request("/generate", asked(rng, count, stream=False, rid=rid)))
                for count in counts
            )
        )
        for count, answer in zip(counts, answers, strict=True):
            if answer.status == 503:
                return "503"
            hold(answer.status == 200, f"status {answer.status}: {answer.body[:200]!r}")
            told = json.loads(answer.body)
            hold(told["meta_info"]["id"] == rid and told["text"] == self.script.text(count), "mixed up")
        return "both"

    # Clients who send nonsense

    async def sends_no_body(self, rng: random.Random) -> str:
        path = rng.choice(["/generate"] * 4 + ["/v1/completions", "/v1/chat/completions", "/abort_request"])
        answer = await exchange(self.server, request(path, rng.choice(NO_BODIES)))
        hold(answer.status == 400 and answer.is_whole, f"{path}: {answer.status} {answer.body[:200]!r}")
        hold(json.loads(answer.body)["error"]["message"], "an error that says nothing")
        return "400"

    async def sends_too_much(self, rng: random.Random) -> str:
        size = MAX_BODY + rng.randint(1, 1 << 20)
        body = b'{"text":"' + b"a" * (size - 11) + b'"}'
        async with connect(self.server) as (reader, writer):
            writer.write(request("/generate", body))
            raw = await to_the_end(reader)
        # It may close while we still send; then the answer may be lost to a reset.
        answer = Answer(raw)
        hold(answer.status in (0, 413), f"status {answer.status}")
        return str(answer.status or "reset")

    async def sends_chunks(self, rng: random.Random) -> str:
        count = rng.randint(1, SHORT)
        data = json.dumps(asked(rng, count, stream=False)).encode()
        whole = (
            b"POST /generate HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        )
        async with connect(self.server) as (reader, writer):
            writer.write(whole)
            place = 0
            while place < len(data):
                size = rng.randint(1, 40)
                part = data[place : place + size]
                writer.write(b"%x\r\n%b\r\n" % (len(part), part))
                place += size
                if rng.random() < 0.1:
                    await asyncio.sleep(0.005)
            if rng.random() < 0.2:
                return "left"
            writer.write(b"0\r\n\r\n")
            answer = Answer(await to_the_end(reader))
        if answer.status == 503:
            return "503"
        hold(answer.status == 200, f"status {answer.status}: {answer.body[:200]!r}")
        hold(json.loads(answer.body)["text"] == self.script.text(count), "another text")
        return "done"

    async def sends_no_http(self, rng: random.Random) -> str:
        nonsense = rng.choice(NO_HTTP)
        async with connect(self.server) as (reader, writer):
            writer.write(nonsense)
            writer.write_eof()
            answer = Answer(await to_the_end(reader))
        hold(answer.status in (0, 400, 405), f"status {answer.status}")
        return str(answer.status or "closed")


def reset(writer: asyncio.StreamWriter) -> None:
    """Leave by RST."""
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def small_buffer(writer: asyncio.StreamWriter) -> None:
    """Let the kernel keep as little as possible for a client that does not read."""
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)


async def to_the_end(reader: asyncio.StreamReader, seconds: float = 60) -> bytes:
    """What comes until the server closes or resets."""
    raw = b""
    try:
        async with asyncio.timeout(seconds):
            while part := await reader.read(1 << 16):
                raw += part
    except (BrokenPipeError, ConnectionResetError):  # which of the two: whether we were sending when it came
        pass
    except TimeoutError:
        raise AssertionError(f"no end within {seconds} s; so far {raw[-100:]!r}") from None
    return raw


def serving() -> AbstractContextManager[Server]:
    """A server with small limits, so that they are met."""
    limits = (
        "--max-body",
        str(MAX_BODY),
        "--max-running",
        "400",
        "--sink-tokens",
        "512",
        "--sink-items",
        "8",
    )
    return running(*limits, "--step-ms", "4")


async def run(
    server: Server, count: int, at_once: int, seconds: float, seed: int
) -> tuple[Chaos, int, Books]:
    """Clients in two parts; what the first part made grow may stay, the second must add nothing."""
    chaos = Chaos(server, random.Random(seed))
    served = await chaos.many(count // 3, at_once, seconds / 3)
    await quiet(server)
    before = rss_mb(server)
    served += await chaos.many(count - count // 3, at_once, 2 * seconds / 3)
    books = await quiet(server)
    after = rss_mb(server)
    hold(before.keys() == after.keys(), f"processes were replaced: {before} {after}")
    grown = {name: round(after[name] - before[name], 1) for name in after}
    print(f"resident MB grown by {grown}")
    hold(max(grown.values()) < 24, f"memory grew: {grown}")
    return chaos, served, books


def main() -> int:
    """Let clients come until there were enough, or the time is over."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=0, help="no new clients after that; 0 = no limit")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--at-once", type=int, default=100)
    args = parser.parse_args()
    with serving() as server:
        begun = time.monotonic()
        chaos, served, books = uvloop.run(run(server, args.requests, args.at_once, args.seconds, args.seed))
        errors = [line for line in server.output().splitlines() if "Traceback" in line or "never" in line]
        hold(not errors, server.output()[-4000:])
    for outcome, times in sorted(chaos.outcomes.items()):
        print(f"  {times:6} {outcome}")
    print(
        f"{served} clients in {time.monotonic() - begun:.0f} s, "
        f"{books.samples['egress_requests_total']:.0f} requests admitted and ended once, tables empty"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

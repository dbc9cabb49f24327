"""Events per second through a worker's whole HTTP stack, against a bare handler with the bytes in memory.

A client opens N streams at once and reads them to their end; the same bytes come from our worker (fed through
a real ring by another process) and from a bare Starlette StreamingResponse under the same uvicorn settings,
which is given the events of one of our streams. Rounds in turns. The server has a core to itself.

    python -m bench.http_events [--smoke] [--rounds N]

"bare, paced" lets the loop turn between two events of a stream, as a server must whose tokens come step by
step. "bare, at once" sends all events of a stream in one turn of the loop, still a write each: no server can
whose tokens come one by one. The goal is held against the first. Every answer's text is checked, and its
`[DONE]`. An event may carry two steps, when both came in one turn of the loop; the bare handlers get the same
events. How many writes each server did is counted by the kernel. Ratios are medians over the rounds, each
round's ours against the same round's other.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import socket
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import uvloop

import ringbuf
from bench import harness
from bench.http_servers import run_bare, run_feeder, run_worker, text_of_stream
from egress.serve.config import frame_ring, request_ring

GOAL = 0.8
OURS = "egress worker"
PACED = "bare, paced"

BODIES: dict[str, dict[str, Any]] = {
    "/generate": {"input_ids": [1, 2, 3], "stream": True, "incremental": True},
    "/v1/completions": {"model": "egress-ngram", "prompt": [1, 2, 3], "stream": True},
}


class Round(NamedTuple):
    """One measurement: events per second, and the server's processor time and writes per event."""

    events_per_s: float
    cpu_us: float
    writes: float


class _Reader(asyncio.Protocol):
    """One stream, kept whole until its end."""

    def __init__(self, request: bytes) -> None:
        self.parts: list[bytes] = []
        self.ended = asyncio.get_running_loop().create_future()
        self._request = request

    def connection_made(self, transport: Any) -> None:
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self.parts.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set_result(None)


def request_bytes(path: str, steps: int) -> bytes:
    body = dict(BODIES[path])
    if path == "/generate":
        body["sampling_params"] = {"max_new_tokens": steps}
    else:
        body["max_tokens"] = steps
    data = json.dumps(body).encode()
    lines = (
        f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n"
    )
    return lines.encode() + data


def body_of(answer: bytes) -> bytes:
    """An HTTP answer's body, its chunks joined."""
    head, _, rest = answer.partition(b"\r\n\r\n")
    if b" 200 " not in head.split(b"\r\n")[0]:
        raise RuntimeError(answer[:500].decode(errors="replace"))
    parts = []
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        parts.append(rest[:length])
        rest = rest[length + 2 :]
    return b"".join(parts)


def events_of(answer: bytes) -> list[bytes]:
    """The events of an answer, framed as they came."""
    body = body_of(answer)
    if not body.endswith(b"data: [DONE]\n\n"):
        raise RuntimeError(f"no [DONE]: {body[-200:]!r}")
    return [part + b"\n\n" for part in body.split(b"\n\n")[:-1]]


async def read_streams(port: int, path: str, streams: int, steps: int) -> tuple[list[bytes], float]:
    """Read N streams to their end; the answers, and the seconds it took, requests included."""
    request = request_bytes(path, steps)
    loop = asyncio.get_running_loop()
    readers = []
    started = time.perf_counter()
    for _ in range(streams):
        _, reader = await loop.create_connection(lambda: _Reader(request), "127.0.0.1", port)
        readers.append(reader)
    await asyncio.wait_for(asyncio.gather(*(reader.ended for reader in readers)), 300)
    ended = time.perf_counter()
    return [b"".join(reader.parts) for reader in readers], ended - started


def text_of(events: list[bytes]) -> str:
    """The text that a stream of deltas carried."""
    shown = [json.loads(event.removeprefix(b"data: ")) for event in events[:-1]]
    return "".join([event["text"] if "text" in event else event["choices"][0]["text"] for event in shown])


class Server:
    """One server under test: its processes, and where it listens."""

    def __init__(self, processes: list[tuple[Callable[..., None], tuple[Any, ...]]], port: int) -> None:
        context = multiprocessing.get_context("fork")
        self.port = port
        self._processes = [context.Process(target=run, args=args, daemon=True) for run, args in processes]
        for process in self._processes:
            process.start()

    def cpu_s(self) -> float:
        """Processor time of the HTTP process so far."""
        with open(f"/proc/{self._processes[0].pid}/schedstat", encoding="ascii") as stat:
            return int(stat.read().split()[0]) / 1e9

    def writes(self) -> int:
        """Calls of write and its like by the HTTP process so far."""
        with open(f"/proc/{self._processes[0].pid}/io", encoding="ascii") as counts:
            return int(dict(line.split(": ") for line in counts)["syscw"])

    def measure(self, path: str, streams: int, steps: int) -> tuple[Round, list[bytes]]:
        """Read all streams once; the measurement, and the events of the first stream."""
        cores = os.sched_getaffinity(0)
        harness.pin(0)
        cpu, writes = self.cpu_s(), self.writes()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            answers, seconds = runner.run(read_streams(self.port, path, streams, steps))
        cpu, writes = self.cpu_s() - cpu, self.writes() - writes
        os.sched_setaffinity(0, cores)
        found = [events_of(answer) for answer in answers]
        wanted = {text_of_stream(at, steps) for at in range(streams)}
        if not {text_of(events) for events in found} <= wanted:
            raise RuntimeError(f"{path}: a stream's text is not what was fed")
        count = sum(map(len, found))
        return Round(count / seconds, cpu / count * 1e6, writes / count), found[0]

    def close(self) -> None:
        """End its processes."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join(10)


def listener() -> tuple[socket.socket, int]:
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", 0))
    listening.listen(1024)
    listening.set_inheritable(True)
    return listening, listening.getsockname()[1]


def measure(path: str, streams: int, steps: int, rounds: int) -> dict[str, dict[str, float]]:
    """Medians of ours and of both bare handlers on one route."""
    instance = f"bench{os.getpid()}-{path.rsplit('/', 1)[-1]}"
    listening, port = listener()
    servers = {
        OURS: Server([(run_worker, (instance, listening)), (run_feeder, (instance, streams, steps))], port)
    }
    listening.close()
    found: dict[str, list[Round]] = {}
    try:
        wait_until_up(port)
        _, events = servers[OURS].measure(path, streams, steps)
        for name, is_paced in ((PACED, True), ("bare, at once", False)):
            listening, port = listener()
            servers[name] = Server([(run_bare, (listening, events, is_paced))], port)
            listening.close()
            wait_until_up(port)
            servers[name].measure(path, streams, steps)
        for _ in range(rounds):
            for name, server in servers.items():
                found.setdefault(name, []).append(server.measure(path, streams, steps)[0])
    finally:
        for server in servers.values():
            server.close()
        for name in (frame_ring(instance, 0, 0), request_ring(instance, 0, 0)):
            with contextlib.suppress(ringbuf.RingNotFound):
                ringbuf.unlink(name)
    return {
        name: {
            "events_per_s": harness.median(one.events_per_s for one in measured),
            "cpu_us_per_event": harness.median(one.cpu_us for one in measured),
            "writes_per_event": harness.median(one.writes for one in measured),
            "ours_is": _ratio(
                found[OURS], measured, lambda ours, other: ours.events_per_s / other.events_per_s
            ),
            "ours_takes": _ratio(found[OURS], measured, lambda ours, other: ours.cpu_us / other.cpu_us),
        }
        for name, measured in found.items()
    }


def _ratio(ours: list[Round], other: list[Round], of: Callable[[Round, Round], float]) -> float:
    return harness.median(of(mine, its) for mine, its in zip(ours, other, strict=True))


def wait_until_up(port: int) -> None:
    """Wait until any answer comes; of a worker, until it is ready."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with socket.create_connection(("127.0.0.1", port)) as probe:
            probe.sendall(b"GET /health HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n")
            status = probe.recv(64).split(b" ")[1:2]
        if status in ([b"200"], [b"404"]):
            return
        time.sleep(0.05)
    raise RuntimeError("the server did not come up in 60 s")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--smoke", action="store_true", help="tiny counts: does it run, is it right")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    streams, steps, rounds = (4, 20, 1) if args.smoke else (64, 400, args.rounds)
    results: dict[str, Any] = {}
    for path in BODIES:
        found = measure(path, streams, steps, rounds)
        rows = [
            (
                name,
                harness.rate(values["events_per_s"]),
                f"{values['ours_is']:.2f}x",
                f"{values['cpu_us_per_event']:.1f}",
                f"{values['ours_takes']:.2f}x",
                f"{values['writes_per_event']:.2f}",
            )
            for name, values in found.items()
        ]
        header = (
            f"{path}, {streams} streams",
            "events/s",
            "ours is",
            "CPU us per event",
            "ours takes",
            "writes per event",
        )
        print(harness.table(header, rows), "\n", flush=True)
        results[path] = {**found, "ratio": round(found[PACED]["ours_is"], 3), "goal": GOAL}
    harness.emit("http_events", {"smoke": args.smoke, "streams": streams, "steps": steps, "routes": results})
    return 0


if __name__ == "__main__":
    sys.exit(main())

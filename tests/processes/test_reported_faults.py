"""Field reports that only a whole server can try; FIELD_REPORTS.md says where each of the others is tried."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from server_kit import Server, events_of
from support import SLOWNESS, wait_until

pytestmark = pytest.mark.slow

TIMEOUT = httpx.Timeout(60 * SLOWNESS)
ENDLESS = ("--engine", "replay", "--engine-option", "loops=0", "--step-ms", "10")


def generate(count: int, **more: Any) -> dict[str, Any]:
    return {"text": "x", "sampling_params": {"max_new_tokens": count, "ignore_eos": True}, **more}


def send(server: Server, body: dict[str, Any]) -> socket.socket:
    """A connection that has asked and does not read."""
    data = json.dumps(body).encode()
    client = socket.create_connection(("127.0.0.1", server.port), timeout=60 * SLOWNESS)
    client.sendall(b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
    return client


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(*ENDLESS, "--sink-tokens", "256", runtime=tmp_path_factory.mktemp("run")) as server:
        yield server.wait_ready()


@pytest.mark.parametrize("how", ["flag", "environment"])
def test_r104_every_ring_has_the_size_that_was_set(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ["--ring-bytes", "131072"] if how == "flag" else []
    if how == "environment":
        monkeypatch.setenv("EGRESS_SERVE_RING_BYTES", "131072")
    with Server(*ENDLESS, *flags, runtime=tmp_path, shards=2, workers=3) as server:
        server.wait_ready()
        pattern = re.compile(rf"ringbuf\.egress-{server.process.pid}-[0-9a-f]+\.(s\d\.w\d|w\d\.s\d)$")
        sizes = [os.stat(f"/dev/shm/{n}").st_size for n in os.listdir("/dev/shm") if pattern.match(n)]
        assert len(sizes) == 12
        # Header, producer, wake and slot pages come on top.
        assert all(131072 <= size <= 131072 + (64 << 10) for size in sizes), sizes
        assert "12 rings of 131,072 bytes take" in server.output()


def test_r105_idle_is_silent_slow_is_said_once_and_dead_is_an_error(tmp_path: Path) -> None:
    with Server(
        *ENDLESS, "--ring-bytes", "65536", "--backlog-bytes", "65536", runtime=tmp_path, shards=1, workers=1
    ) as server:
        server.wait_ready()
        said = server.output()
        time.sleep(3)
        assert server.output() == said, "an idle server says something"
        (worker,) = server.children()["worker"]
        clients = [send(server, generate(8000, stream=True)) for _ in range(40)]
        wait_until(lambda: server.metric("egress_requests_running") == 40, 20, "40 requests")
        os.kill(worker, signal.SIGSTOP)
        wait_until(lambda: "worker 0 is slow" in server.output(), 40, "a line about the slow worker")
        time.sleep(3)
        assert server.output().count("worker 0 is slow") == 1, "more than one line in 10 s"
        os.kill(worker, signal.SIGKILL)
        wait_until(lambda: "worker 0 died" in server.output(), 20, "a line about the dead worker")
        assert str(worker) in server.output()
        for client in clients:
            client.close()


def test_r075_r076_a_rid_in_use_or_just_freed_mixes_nothing_up(server: Server) -> None:
    async def main() -> None:
        async with httpx.AsyncClient(timeout=TIMEOUT) as client:

            async def ask(count: int) -> tuple[int, Any]:
                answer = await client.post(f"{server.url}/generate", json=generate(count, rid="same"))
                return count, answer.json()

            for count, told in await asyncio.gather(*(ask(count) for count in range(1, 41))):
                assert told["meta_info"]["id"] == "same"
                assert told["meta_info"]["completion_tokens"] == len(told["output_ids"]) == count
            for turn in range(50):
                # The old connection is still closing when its rid is used again.
                leaving = send(server, generate(8000, rid="same", stream=True))
                leaving.close()
                count, told = await ask(turn % 5 + 1)
                assert told["meta_info"]["finish_reason"]["type"] == "length"
                assert len(told["output_ids"]) == count

    asyncio.run(main())
    wait_until(lambda: server.metric("egress_requests_running") == 0, 20, "the end of those that left")


COSTLY = ["(a+)+b", "(a|aa)+$", "(?:a{1,1000}){1,1000}b", "a" * 102_400, "|".join(["ab"] * 10_000)]
WRONG = ["(", "[", "*a", "(?P<x", "\\", "(?<=a+)b", "\ud800", 7, ["ok", "("], "^", "(?:)"]


@pytest.mark.parametrize("pattern", [*COSTLY, *WRONG], ids=lambda pattern: ascii(pattern)[:20])
def test_r082_r083_r084_a_bad_stop_regex_is_a_400_and_harms_nobody(server: Server, pattern: Any) -> None:
    with send(server, generate(50, stream=True)) as other:
        body = generate(5)
        body["sampling_params"]["stop_regex"] = pattern
        status, told = server.post("/generate", body)
        assert status == 400, told
        assert "stop_regex" in told["error"]["message"]
        raw = b""
        while b"[DONE]" not in raw:
            part = other.recv(1 << 16)
            assert part, "the other stream was cut"
            raw += part


def test_r084_patterns_that_match_nothing_at_all_stop_nothing(server: Server) -> None:
    for name, value in (("stop_regex", []), ("stop", []), ("stop", None), ("stop_regex", None)):
        body = generate(5)
        body["sampling_params"][name] = value
        status, told = server.post("/generate", body)
        assert (status, len(told["output_ids"])) == (200, 5), (name, value)


def test_r079_r081_a_client_that_does_not_read_is_bounded_and_delays_nobody(server: Server) -> None:
    pids = [pid for found in server.children().values() for pid in found]

    def private() -> float:
        infos = [psutil.Process(pid).memory_info() for pid in pids]
        return sum(info.rss - info.shared for info in infos) / 1e6

    before = private()
    full = server.metric("egress_sinks_full_total")
    # Cumulative events grow with the answer: 8,000 tokens of them are 150 MB.
    silent = [send(server, generate(8000, stream=True)) for _ in range(3)]
    wait_until(lambda: server.metric("egress_requests_running") >= 3, 20, "three that do not read")
    with httpx.Client(timeout=TIMEOUT) as client:
        for _ in range(10):
            told = client.post(f"{server.url}/generate", json=generate(20)).json()
            assert len(told["output_ids"]) == 20
    wait_until(lambda: server.metric("egress_sinks_full_total") == full + 3, 120, "three ends by policy")
    wait_until(lambda: server.metric("egress_requests_running") == 0, 20, "an empty shard")
    assert private() - before < 40
    for client_socket in silent:
        client_socket.close()


def test_r088_n_and_rid_at_their_limits(server: Server) -> None:
    for n in (0, -1, 2**63 - 1, 2**64, 100_000):
        status, told = server.post("/v1/completions", {"model": "egress-replay", "prompt": "x", "n": n})
        assert status == 400, (n, told)
        assert "n " in told["error"]["message"] or "n:" in told["error"]["message"]
    for size, expected in ((509, 200), (512, 200), (513, 400)):
        status, told = server.post("/generate", generate(2, rid="r" * size))
        assert status == expected, (size, told)
    status, told = server.post(
        "/v1/completions", {"model": "egress-replay", "prompt": "x", "n": 11, "max_tokens": 3}
    )
    assert status == 200
    assert sorted(choice["index"] for choice in told["choices"]) == list(range(11))


def test_r068_r090_a_stop_under_load_ends_streams_in_words_and_a_stalled_client_holds_nothing_up(
    tmp_path: Path,
) -> None:
    with Server(*ENDLESS, "--drain-s", "1", runtime=tmp_path) as server:
        server.wait_ready()
        stalled = send(server, generate(8000, stream=True))
        readers = [send(server, generate(8000, stream=True, incremental=True)) for _ in range(20)]
        wait_until(lambda: server.metric("egress_requests_running") == 21, 20, "21 streams")
        server.process.send_signal(signal.SIGTERM)
        for reader in readers:
            raw = b""
            while part := reader.recv(1 << 16):
                raw += part
            events = list(events_of(iter(raw.decode().splitlines())))
            assert "shut" in events[-1]["error"]["message"]
            assert "[DONE]" not in events
            reader.close()
        assert server.process.wait(30 * SLOWNESS) == 0
        stalled.close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", server.port))
        assert server.left_behind() == []

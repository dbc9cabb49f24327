"""Clients that never read, at a whole server: they get their time, then everything is given back."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from server_kit import Server
from support import SLOWNESS, wait_until

pytestmark = pytest.mark.slow

STALL_S = 2 * SLOWNESS
# Sinks that hold all of an answer: what ends a request here is the stall, not its queue.
FLAGS = ("--engine", "replay", "--engine-option", "loops=0", "--step-ms", "1", "--sink-tokens", "100000")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    runtime = tmp_path_factory.mktemp("run")
    with Server(*FLAGS, "--stall-s", str(STALL_S), runtime=runtime, shards=1, workers=1) as server:
        yield server.wait_ready()


def ask(server: Server, n_tokens: int) -> socket.socket:
    """A stream that nobody reads; its events are cumulative: 8,000 tokens are more than 100 MB."""
    body: dict[str, Any] = {
        "text": "x",
        "stream": True,
        "sampling_params": {"max_new_tokens": n_tokens, "ignore_eos": True},
    }
    data = json.dumps(body).encode()
    client = socket.socket()
    # The smallest there is, so that the server's socket is full early.
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(60 * SLOWNESS)
    client.connect(("127.0.0.1", server.port))
    client.sendall(b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
    return client


def read_all(client: socket.socket) -> None:
    while client.recv(1 << 16):
        pass


def stalled(server: Server) -> float:
    return server.metric(r"egress_aborts_total\{cause=\"stalled_client\"\}")


def left(server: Server) -> float:
    return server.metric(r"egress_http_requests_total\{code=\"499\",route=\"/generate\"\}")


def tables(server: Server) -> tuple[int, float, float]:
    """What the shard, the engine and the worker hold."""
    running = server.get("/server_info")["running"]
    return running, server.metric("egress_requests_running"), server.metric("egress_calls_open")


@pytest.mark.parametrize("when", ["amid the generation", "after its end"])
def test_a_client_that_never_reads_is_cut_and_all_is_given_back(server: Server, when: str) -> None:
    (pid,) = server.children()["worker"]
    worker = psutil.Process(pid)
    is_amid = when == "amid the generation"
    # What a worker opens once and keeps: its files of metrics, what a thread waits on.
    assert server.post("/generate", {"text": "x"})[0] == 200
    tables(server)
    held, aborts, answers = tables(server), stalled(server), left(server)
    wait_until(lambda: all(c.status == "LISTEN" for c in worker.net_connections()), 20, "no connection")
    n_fds = worker.num_fds()
    lines = server.output().count("a client does not read")
    clients = [ask(server, 8000 if is_amid else 1500) for _ in range(3)]
    if not is_amid:
        wait_until(lambda: server.metric("egress_calls_open") == 3, 20, "three handlers at work")
        wait_until(lambda: server.metric("egress_requests_running") == 0, 60, "the generations' end")
        # Their handlers, their sockets and their bytes have no other reason to go.
        assert server.metric("egress_calls_open") == 3
    wait_until(lambda: left(server) == answers + 3, 60, "three that are taken to have left")
    wait_until(lambda: worker.num_fds() == n_fds, 20, "the worker's descriptors")
    wait_until(lambda: tables(server) == held, 20, "the tables")
    # The worker reports once a second.
    wait_until(lambda: stalled(server) == aborts + (3 if is_amid else 0), 20, "the cause")
    said = re.findall(r"INFO +worker 0: a client does not read.* client=127\.0\.0\.1:(\d+) ", server.output())
    assert len(said) == lines + 3
    assert {str(client.getsockname()[1]) for client in clients} <= set(said)
    assert server.metric("egress_sinks_full_total") == 0
    for client in clients:
        with client, pytest.raises(ConnectionResetError):
            read_all(client)

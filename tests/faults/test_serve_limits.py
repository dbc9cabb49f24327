"""Descriptors: a server takes all it may have, and lives on when there are no more."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
import server_kit
from server_kit import Server
from support import wait_until

pytestmark = pytest.mark.slow

HARD = resource.getrlimit(resource.RLIMIT_NOFILE)[1]


def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, soft: int, hard: int) -> Server:
    """A server under limits of its own, as a shell's `ulimit -n` sets them."""
    real = subprocess.Popen

    def limited(command: list[str], **more: object) -> object:
        code = (
            f"import os, resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard})); "
            "os.execv(sys.argv[1], sys.argv[1:])"
        )
        return real([sys.executable, "-c", code, *command], **more)

    with monkeypatch.context() as patch:
        patch.setattr(server_kit.subprocess, "Popen", limited)
        return Server("--engine", "replay", runtime=tmp_path, shards=1, workers=1)


@pytest.mark.skipif(HARD < 4096, reason="needs a hard limit of 4,096 descriptors")
def test_a_server_raises_its_soft_limit_to_the_hard_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with start(tmp_path, monkeypatch, 1024, 4096) as server, ExitStack() as clients:
        server.wait_ready()
        (worker,) = server.children()["worker"]
        assert psutil.Process(worker).rlimit(psutil.RLIMIT_NOFILE) == (4096, 4096)
        for _ in range(1300):
            clients.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=30))
        wait_until(lambda: psutil.Process(worker).num_fds() > 1300, 20, "1,300 clients")
        assert server.post("/generate", {"text": "x", "sampling_params": {"max_new_tokens": 2}})[0] == 200


def test_a_server_without_descriptors_serves_whom_it_has_and_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with start(tmp_path, monkeypatch, 256, 256) as server:
        server.wait_ready()
        (worker,) = server.children()["worker"]
        with ExitStack() as clients:
            first, *_ = [
                clients.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=30))
                for _ in range(400)
            ]
            wait_until(lambda: psutil.Process(worker).num_fds() >= 250, 20, "no more descriptors")
            first.sendall(b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n")
            assert first.recv(1000).startswith(b"HTTP/1.1 200")
        wait_until(lambda: psutil.Process(worker).num_fds() < 100, 20, "the closed ones let go")
        assert server.post("/generate", {"text": "x", "sampling_params": {"max_new_tokens": 2}})[0] == 200
        assert server.children()["worker"] == [worker]


def test_a_dead_shard_s_requests_are_in_no_gauge(tmp_path: Path) -> None:
    endless = {"text": "a", "stream": True, "sampling_params": {"max_new_tokens": 8000, "ignore_eos": True}}
    flags = ("--engine", "replay", "--engine-option", "loops=0", "--step-ms", "20")
    with Server(*flags, runtime=tmp_path, shards=1, workers=1) as server:
        server.wait_ready()
        head = b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
        body = server_kit.json.dumps(endless).encode()
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:
            client.sendall(head % len(body) + body)
            wait_until(lambda: server.metric("egress_requests_running") == 1, 20, "the request in the gauge")
            os.kill(server.shard_pids()[0], signal.SIGKILL)
            wait_until(
                lambda: server.metric("egress_requests_running") == 0, 20, "the gauge without the dead"
            )
        server.wait_ready()
        wait_until(lambda: server.metric("egress_child_starts_total") == 3, 20, "three starts")

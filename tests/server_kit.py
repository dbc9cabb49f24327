"""A real server for tests: `egress serve` in its own processes on a free port, and what it left behind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from support import ROOT, SLOWNESS, wait_until


def free_port() -> int:
    """A port nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """One `egress serve`; a context manager that ends it and fails when anything is left.

    Args:
        flags: more of the command line.
        runtime: directory for its instance's files, so that tests do not meet.
    """

    def __init__(self, *flags: str, runtime: Path, shards: int = 2, workers: int = 2) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.runtime = runtime
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the server
        command = [sys.executable, "-m", "egress", "serve", "--port", str(self.port)]
        command += ["--shards", str(shards), "--workers", str(workers), *flags]
        env = {**os.environ, "XDG_RUNTIME_DIR": str(runtime), "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=env, stdout=self.log, stderr=self.log, start_new_session=True
        )

    def output(self) -> str:
        """All it printed so far."""
        self.log.flush()
        return os.pread(self.log.fileno(), 1 << 20, 0).decode()

    def is_ready(self) -> bool:
        """Whether /health says so."""
        assert self.process.poll() is None, self.output()
        with contextlib.suppress(OSError, json.JSONDecodeError):
            return bool(self.get("/health")["ready"])
        return False

    def wait_ready(self) -> Server:
        """Wait until one worker's /health says so, and the supervisor that every child is up."""
        try:
            wait_until(
                lambda: self.is_ready() and "egress listens on" in self.output(),
                90,
                "the server's readiness",
            )
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.output()}") from None
        return self

    def get(self, path: str) -> Any:
        """GET, parsed from JSON."""
        with urllib.request.urlopen(self.url + path, timeout=10 * SLOWNESS) as answer:
            return json.load(answer)

    def post(self, path: str, body: Any) -> tuple[int, Any]:
        """POST JSON (or bytes as they are); status and parsed answer."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60 * SLOWNESS) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def metric(self, name: str) -> float:
        """The sum of a metric over its labels, 0 when it is not there."""
        with urllib.request.urlopen(self.url + "/metrics", timeout=10 * SLOWNESS) as answer:
            text = answer.read().decode()
        found = re.findall(rf"^{name}(?:\{{[^}}]*\}})? ([0-9.e+-]+)$", text, re.MULTILINE)
        return sum(map(float, found))

    def children(self) -> dict[str, list[int]]:
        """Pids of the shards and of the workers, by role."""
        return self._children("shard", "worker")

    def template_pid(self) -> int | None:
        """Of the process that the children are forked from; None while there is none."""
        return next(iter(self._children("template")["template"]), None)

    def _children(self, *roles: str) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {role: [] for role in roles}
        for child in psutil.Process(self.process.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):
                command = " ".join(child.cmdline())
                for role in found:
                    if f"egress.serve.{role}" in command:
                        found[role].append(child.pid)
        return found

    def shard_pids(self) -> list[int]:
        """Pids of the shards in their order, as /health knows them."""
        return [shard["pid"] for shard in self.get("/health")["shards"]]

    def left_behind(self) -> list[str]:
        """Segments and FIFOs of this server, and its instance directory."""
        pattern = re.compile(rf"ringbuf\.egress-{self.process.pid}-")
        left = [name for name in os.listdir("/dev/shm") if pattern.match(name)]
        return left + [str(path) for path in self.runtime.glob(f"*/*{self.process.pid}*")]

    def stop(self, how: signal.Signals = signal.SIGTERM, timeout: float = 30.0) -> int:
        """Signal the supervisor and wait for its end; the exit status."""
        self.process.send_signal(how)
        return self.process.wait(timeout * SLOWNESS)

    def kill_everything(self) -> None:
        """SIGKILL the supervisor and every process under it, at once."""
        tree = [psutil.Process(self.process.pid), *psutil.Process(self.process.pid).children(recursive=True)]
        for process in tree:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait(10 * SLOWNESS)
        psutil.wait_procs(tree[1:], timeout=10 * SLOWNESS)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *exception: object) -> None:
        try:
            if self.process.poll() is None:
                tree = psutil.Process(self.process.pid).children(recursive=True)
                self.stop()
                _, alive = psutil.wait_procs(tree, timeout=5 * SLOWNESS)
                assert not alive, f"processes outlive their supervisor: {alive}"
                if exception[0] is None:
                    assert not self.left_behind(), self.output()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.log.close()


def events_of(lines: Iterator[str]) -> Iterator[Any]:
    """The data of server-sent events, parsed; "[DONE]" as the string it is."""
    for line in lines:
        if line.startswith("data: "):
            data = line[6:]
            yield data if data == "[DONE]" else json.loads(data)

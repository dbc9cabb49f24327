"""Starting, ending, and every process killed: what goes on, what is said, what is left."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from server_kit import Server, events_of
from support import SLOWNESS, wait_until

pytestmark = pytest.mark.slow

TIMEOUT = httpx.Timeout(60 * SLOWNESS)
LONG = {"text": "a", "stream": True, "sampling_params": {"max_new_tokens": 7000, "ignore_eos": True}}


class Reader(threading.Thread):
    """One streaming client in a thread: its events, and how the stream ended."""

    def __init__(self, server: Server, body: dict[str, Any] | None = None) -> None:
        super().__init__(daemon=True)
        self.url, self.body = f"{server.url}/generate", body or LONG
        self.events: list[Any] = []
        self.status = 0
        self.error: Exception | None = None
        self.ended = 0.0
        self.start()

    def run(self) -> None:
        try:
            with (
                httpx.Client(timeout=TIMEOUT) as client,
                client.stream("POST", self.url, json=self.body) as answer,
            ):
                self.status = answer.status_code
                self.events.extend(event for event in events_of(answer.iter_lines()))
        except httpx.HTTPError as error:
            self.error = error
        self.ended = time.monotonic()

    @property
    def failure(self) -> str:
        """The message of the in-band error event that ended the stream, "" when there was none."""
        last = self.events[-1] if self.events else {}
        return last.get("error", {}).get("message", "") if isinstance(last, dict) else ""


def start(tmp_path: Path, *flags: str, shards: int = 2, workers: int = 2) -> Server:
    return Server("--step-ms", "5", *flags, runtime=tmp_path, shards=shards, workers=workers)


def readers_running(server: Server, count: int) -> list[Reader]:
    readers = [Reader(server) for _ in range(count)]
    wait_until(lambda: server.metric("egress_requests_running") == count, 20, f"{count} running requests")
    return readers


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_what_runs_and_leaves_nothing(how: signal.Signals, tmp_path: Path) -> None:
    with start(tmp_path) as server:
        server.wait_ready()
        short = {**LONG, "sampling_params": {"max_new_tokens": 200, "ignore_eos": True}}
        readers = [Reader(server, short) for _ in range(6)]
        wait_until(lambda: server.metric("egress_requests_running") == 6, 20, "running requests")
        tree = psutil.Process(server.process.pid).children(recursive=True)
        assert server.stop(how) == 0
        for reader in readers:
            reader.join(10 * SLOWNESS)
            assert reader.events[-1] == "[DONE]", reader.error
            assert reader.events[-2]["meta_info"]["completion_tokens"] == 200
        assert not psutil.wait_procs(tree, timeout=5 * SLOWNESS)[1]
        assert server.left_behind() == []
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{server.url}/live")


def test_a_second_signal_hurries_and_streams_end_with_an_error(tmp_path: Path) -> None:
    with start(tmp_path, "--drain-s", "60") as server:
        server.wait_ready()
        readers = readers_running(server, 4)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        assert server.process.poll() is None
        server.stop()
        for reader in readers:
            reader.join(10 * SLOWNESS)
            assert "[DONE]" not in reader.events
        assert server.left_behind() == []


def test_a_start_after_sigkill_of_everything_works_at_once(tmp_path: Path) -> None:
    with start(tmp_path) as first:
        first.wait_ready()
        readers_running(first, 2)
        first.kill_everything()
        assert first.left_behind()
        with start(tmp_path) as second:
            second.wait_ready()
            assert first.left_behind() == []
            assert second.post("/generate", {"text": "x", "sampling_params": {"max_new_tokens": 3}})[0] == 200


def test_a_killed_supervisor_takes_its_children_along(tmp_path: Path) -> None:
    with start(tmp_path) as server:
        server.wait_ready()
        tree = psutil.Process(server.process.pid).children(recursive=True)
        assert len(tree) == 5  # the template is one
        server.process.kill()
        server.process.wait()
        assert not psutil.wait_procs(tree, timeout=20 * SLOWNESS)[1]
        assert [name for name in server.left_behind() if not name.startswith("/")] == []
        with start(tmp_path) as second:
            second.wait_ready()
            assert server.left_behind() == []


def said_ready_again(server: Server, role: str) -> list[tuple[str, str]]:
    """Index and pid of each child of this role that the log calls ready again."""
    return re.findall(rf"INFO +supervisor: {role} (\d+) is ready again pid=(\d+) seconds=\d", server.output())


def test_a_killed_shard_fails_its_own_requests_and_comes_back(tmp_path: Path) -> None:
    with start(tmp_path) as server:
        server.wait_ready()
        readers = readers_running(server, 12)
        victim, other = server.shard_pids()
        killed = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: any(reader.ended for reader in readers), 10, "failed requests")
        time.sleep(2 * SLOWNESS)
        failed = [reader for reader in readers if reader.ended]
        going = [reader for reader in readers if not reader.ended]
        assert failed
        assert going, "requests of the other shard ended too"
        for reader in failed:
            assert "shard" in reader.failure
            assert "[DONE]" not in reader.events
            assert reader.ended - killed < 10 * SLOWNESS
        counts = [len(reader.events) for reader in going]
        wait_until(
            lambda: all(len(r.events) > n for r, n in zip(going, counts, strict=True)),
            10,
            "other streams go on",
        )
        wait_until(server.is_ready, 60, "the shard's return")
        assert other in server.shard_pids()
        assert victim not in server.shard_pids()
        [(index, pid)] = said_ready_again(server, "shard")
        assert int(pid) in server.shard_pids()
        assert f"shard {index} ended pid={victim}" in server.output()
        for _ in range(8):
            assert server.post("/generate", {"text": "x", "sampling_params": {"max_new_tokens": 3}})[0] == 200


def test_a_unary_request_of_a_killed_shard_is_a_500_that_says_so(tmp_path: Path) -> None:
    with start(tmp_path, shards=1) as server:
        server.wait_ready()
        found: list[tuple[int, Any]] = []
        body = {**LONG, "stream": False}
        caller = threading.Thread(target=lambda: found.append(server.post("/generate", body)), daemon=True)
        caller.start()
        wait_until(lambda: server.metric("egress_requests_running") == 1, 10, "the request running")
        os.kill(server.shard_pids()[0], signal.SIGKILL)
        caller.join(20 * SLOWNESS)
        [(status, answer)] = found
        assert status == 500
        assert "shard 0" in answer["error"]["message"]


def test_a_killed_worker_is_replaced_and_its_requests_are_aborted(tmp_path: Path) -> None:
    with start(tmp_path, shards=1) as server:
        server.wait_ready()
        readers = readers_running(server, 8)
        workers = server.children()["worker"]
        os.kill(workers[0], signal.SIGKILL)
        wait_until(
            lambda: any(reader.error for reader in readers) or all(not r.ended for r in readers),
            10,
            "cut streams",
        )
        wait_until(lambda: len(set(server.children()["worker"]) - set(workers)) == 1, 20, "the replacement")
        going = len([reader for reader in readers if not reader.ended])
        wait_until(lambda: server.metric("egress_requests_running") == going, 20, "the aborts")
        wait_until(server.is_ready, 60, "readiness")
        wait_until(lambda: said_ready_again(server, "worker"), 20, "the line that says so")
        [(index, pid)] = said_ready_again(server, "worker")
        assert int(pid) in {*server.children()["worker"]} - {*workers}
        assert f"worker {index} ended pid={workers[0]}" in server.output()
        for _ in range(8):
            assert server.post("/generate", {"text": "x", "sampling_params": {"max_new_tokens": 3}})[0] == 200


def successor(server: Server, role: str, before: list[int]) -> int:
    """The pid of the one new child of this role, once there are as many as before."""
    wait_until(
        lambda: len(now := server.children()[role]) == len(before) and set(now) != set(before),
        20,
        f"another {role}",
    )
    [new] = set(server.children()[role]) - set(before)
    return new


def test_a_killed_template_is_replaced_and_no_child_notices(tmp_path: Path) -> None:
    with start(tmp_path) as server:
        server.wait_ready()
        short = {**LONG, "sampling_params": {"max_new_tokens": 200, "ignore_eos": True}}
        readers = [Reader(server, short) for _ in range(6)]
        wait_until(lambda: server.metric("egress_requests_running") == 6, 20, "running requests")
        children, template = server.children(), server.template_pid()
        assert template is not None
        os.kill(template, signal.SIGKILL)
        for reader in readers:
            reader.join(20 * SLOWNESS)
            assert reader.events[-1] == "[DONE]", reader.error
        wait_until(lambda: server.template_pid() not in (None, template), 20, "another template")
        assert server.children() == children
        os.kill(children["shard"][0], signal.SIGKILL)
        successor(server, "shard", children["shard"])
        wait_until(server.is_ready, 60, "readiness")


def test_children_come_back_whatever_the_template_does(tmp_path: Path) -> None:
    with start(tmp_path) as server:
        server.wait_ready()
        template, before = server.template_pid(), server.children()
        assert template is not None
        # Just dead: the child is started by itself, or by the next template, whichever is there first.
        for pid in (template, before["shard"][0]):
            os.kill(pid, signal.SIGKILL)
        successor(server, "shard", before["shard"])
        wait_until(server.is_ready, 60, "the shard's return")
        # Stuck: it is given up after a while.
        wait_until(lambda: "another template is ready" in server.output(), 60, "another template")
        template, before = server.template_pid(), server.children()
        assert template is not None
        os.kill(template, signal.SIGSTOP)
        os.kill(before["worker"][0], signal.SIGKILL)
        successor(server, "worker", before["worker"])
        wait_until(server.is_ready, 60, "the worker's return")
        wait_until(lambda: server.template_pid() not in (None, template), 20, "another template")
        assert "the template does not fork" in server.output()


def test_a_template_that_dies_while_it_loads_stops_no_start(tmp_path: Path) -> None:
    with start(tmp_path, shards=1, workers=1) as server:
        template = wait_until(server.template_pid, 20, "the template")
        os.kill(template, signal.SIGKILL)
        wait_until(lambda: server.template_pid() not in (None, template), 20, "another template")
        server.wait_ready()
        assert server.post("/generate", {"text": "x", "sampling_params": {"max_new_tokens": 3}})[0] == 200
        assert "the template ended" in server.output()


def test_forked_shards_draw_other_numbers(tmp_path: Path) -> None:
    with start(tmp_path, "--engine", "tests.processes.drawing:make") as server:
        server.wait_ready()
        drawn = [server.get(f"/server_info?shard={shard}")["engine_info"]["drawn"] for shard in (0, 1)]
        before = server.children()["shard"]
        os.kill(server.shard_pids()[0], signal.SIGKILL)
        successor(server, "shard", before)
        wait_until(server.is_ready, 60, "the shard's return")
        drawn.append(server.get("/server_info?shard=0")["engine_info"]["drawn"])
        for kind in range(2):
            assert len({numbers[kind] for numbers in drawn}) == 3, drawn


def test_a_stopped_shard_is_slow_and_not_dead(tmp_path: Path) -> None:
    with start(tmp_path, "--hang-s", "60") as server:
        server.wait_ready()
        short = {**LONG, "sampling_params": {"max_new_tokens": 400, "ignore_eos": True}}
        readers = [Reader(server, short) for _ in range(6)]
        wait_until(lambda: server.metric("egress_requests_running") == 6, 20, "running requests")
        pid = server.shard_pids()[0]
        os.kill(pid, signal.SIGSTOP)
        time.sleep(1.5)
        os.kill(pid, signal.SIGCONT)
        for reader in readers:
            reader.join(30 * SLOWNESS)
            assert reader.events[-1] == "[DONE]", (reader.events[-1:], reader.error)
            assert reader.events[-2]["meta_info"]["completion_tokens"] == 400
        assert pid in server.shard_pids()


def test_rings_too_large_for_shared_memory_are_refused_before_any_is_made(tmp_path: Path) -> None:
    with start(tmp_path, "--ring-bytes", str(1 << 34)) as server:
        assert server.process.wait(30 * SLOWNESS) != 0
        text = server.output()
        assert "--ring-bytes" in text
        assert "Traceback" not in text
        assert server.left_behind() == []


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        (["--tokenizer", "no-such"], "no-such"),
        (["--engine", "no.such:factory"], "no.such"),
        (["--corpus", "/no/such/file"], "/no/such/file"),
        (["--ring-bytes", "1000"], "1000"),
        (["--engine-option", "order=99"], "order"),
        (["--skip-tokenizer-init"], "--skip-tokenizer-init needs --vocab-size"),
    ],
)
def test_a_bad_flag_ends_the_start_with_its_name(flags: list[str], part: str, tmp_path: Path) -> None:
    with start(tmp_path, *flags, shards=1, workers=1) as server:
        assert server.process.wait(60 * SLOWNESS) != 0
        assert part in server.output()
        assert "Traceback" not in server.output()
        assert server.left_behind() == []

"""A child's back-off, by the length of the life that ended; the template's and the plain way to make one."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from support import MS, wait_until

from egress.serve import logs
from egress.serve.children import FIRST_BACKOFF_S, LAST_BACKOFF_S, SETTLED_S, START_S, Child
from egress.serve.config import Settings
from egress.serve.forks import Process, Template, adopt_orphans, reap_strays
from egress.serve.lifeline import Lifeline, Ping, Pong, Ready, Start

SLEEP = "import time; time.sleep(600)"


class Sleepers(Template):
    """Makes processes that do nothing; keeps the other ends of their lifelines."""

    def __init__(self) -> None:
        super().__init__(Settings(), {})
        self.ends: list[Lifeline] = []

    def spawn(self, role: str, listen_fd: int | None) -> tuple[Process, Lifeline]:
        lifeline, theirs = Lifeline.pair()
        self.ends.append(Lifeline(theirs, is_child=True))
        return subprocess.Popen([sys.executable, "-S", "-c", SLEEP]), lifeline


@pytest.fixture
def template() -> Iterator[Sleepers]:
    sleepers = Sleepers()
    yield sleepers
    for end in sleepers.ends:
        end.close()


@pytest.fixture
def child(template: Sleepers) -> Iterator[Child]:
    made = Child("shard", 0, Settings(), None, template)
    yield made
    if made.process is not None:
        made.kill()
        made.ended(0.0)


def live(child: Child, template: Sleepers, at: float, up_s: float | None) -> float:
    """Start at `at`, be up after a second for `up_s` (None: never), die; seconds until the next start."""
    child.start(at)
    ended = at + 1.0
    if up_s is not None:
        template.ends[-1].send(Ready())
        child.receive(at + 1.0)
        assert child.is_up
        ended += up_s
    child.kill()
    assert child.ended(ended) == -signal.SIGKILL
    assert not child.is_up
    return child.start_at - ended


def test_a_life_that_worked_is_followed_at_once(child: Child, template: Sleepers) -> None:
    for _ in range(3):
        assert live(child, template, 100.0, SETTLED_S) == 0.0


def test_short_lives_are_followed_later_and_later(child: Child, template: Sleepers) -> None:
    waits = [live(child, template, 100.0, up_s) for up_s in (None, 0.5, 0.0, None, None, None, None)]
    assert waits == pytest.approx([min(FIRST_BACKOFF_S * 2**n, LAST_BACKOFF_S) for n in range(7)])
    assert live(child, template, 100.0, SETTLED_S + 1) == 0.0
    assert live(child, template, 100.0, None) == pytest.approx(FIRST_BACKOFF_S)


def test_only_what_runs_is_pinged_and_only_what_is_silent_is_killed(
    child: Child, template: Sleepers, caplog: pytest.LogCaptureFixture
) -> None:
    child.ping(1e9)
    child.start(100.0)
    child.ping(100.0 + START_S)
    template.ends[-1].send(Ready())
    child.receive(200.0)
    child.ping(200.0 + Settings().hang_s)
    assert [type(order) for order in template.ends[-1].receive()] == [Start, Ping]
    assert not caplog.records
    child.ping(200.1 + Settings().hang_s)
    assert "does not answer" in caplog.text
    assert child.ended(300.0) == -signal.SIGKILL


def test_what_is_ready_again_says_so_once_with_the_seconds_it_was_missed(
    child: Child, template: Sleepers, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "egress.serve.children")
    live(child, template, 100.0, None)
    live(child, template, 102.0, 10.0)  # until 113
    assert not caplog.records
    live(child, template, 114.0, None)  # it was not up: the same absence goes on
    child.start(116.0)
    template.ends[-1].send(Ready())
    child.receive(118.5)
    template.ends[-1].send(Pong(number=1))
    child.receive(119.0)
    [record] = caplog.records
    line = logs._Text("supervisor").format(record)
    assert line.endswith(f"INFO    supervisor: shard 0 is ready again pid={child.pid} seconds=5.5")


class Full(Template):
    """A machine with no room for another process."""

    def spawn(self, role: str, listen_fd: int | None) -> tuple[Process, Lifeline]:
        raise BlockingIOError(11, "Resource temporarily unavailable")


def test_a_start_that_fails_is_tried_again_later() -> None:
    child = Child("shard", 0, Settings(), None, Full(Settings(), {}))
    waits = []
    for _ in range(6):
        with pytest.raises(BlockingIOError):
            child.start(100.0)
        assert child.process is None
        assert child.lifeline is None
        waits.append(child.start_at - 100.0)
    assert waits == pytest.approx([min(FIRST_BACKOFF_S * 2**n, LAST_BACKOFF_S) for n in range(6)])


def test_without_descriptors_nothing_is_left_half_made() -> None:
    template = Template(Settings(), dict(os.environ))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    spare = os.dup(0)
    try:
        # Room for the socket pair, and then for less and less of what comes after it.
        for room in range(8):
            resource.setrlimit(resource.RLIMIT_NOFILE, (spare + room, hard))
            with contextlib.suppress(OSError):
                process, lifeline = template.spawn("shard", None)
                lifeline.close()
                process.wait()  # it finds no first line and leaves
            with contextlib.suppress(OSError):
                template.start()
                template.kill()
                template.ended()
            assert template.process is None
            assert template.fileno() == -1
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        os.close(spare)


def test_the_template_is_not_started_by_hand() -> None:
    for data in ("", "{", '{"shards": "x"}'):
        done = subprocess.run(
            [sys.executable, "-m", "egress.serve.template"], input=data, capture_output=True, text=True
        )
        assert done.returncode == 1
        assert done.stderr == "egress.serve.template is started by `egress serve`, not by hand\n"


def test_what_falls_to_us_and_is_nobodys_is_reaped_and_nothing_else() -> None:
    ours = subprocess.Popen([sys.executable, "-S", "-c", ""])
    reap_strays([ours.pid])
    assert ours.wait() == 0
    assert adopt_orphans(True)
    try:
        reader, writer = os.pipe()
        # It leaves a child that ends at once.
        code = f"import os; pid = os.fork(); pid and os.write({writer}, b'%d' % pid)"
        subprocess.run([sys.executable, "-S", "-c", code], pass_fds=[writer], check=True)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            stray = int(pipe.read())

        def is_gone() -> bool:
            reap_strays([])
            return not os.path.exists(f"/proc/{stray}")

        wait_until(is_gone, 1000 * MS, "the stray's end")
    finally:
        assert adopt_orphans(False)

"""How the supervisor makes processes: by asking the template for a fork, or from an empty interpreter.

The second way is there for whenever the first is not: the template is gone or still loads, does not answer,
or may not be used here. Either way the child is the supervisor's own to wait for, and reads its lifeline as
standard input.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable
from typing import Protocol

from egress.serve.config import Settings
from egress.serve.lifeline import Lifeline

__all__ = ["Process", "Template", "adopt_orphans", "reap_strays"]

log = logging.getLogger(__name__)

# A fork takes some milliseconds, under load some tens; a template silent for so long is stuck, and everything
# else of the supervisor waits meanwhile.
ANSWER_S = 3.0
_PR_SET_CHILD_SUBREAPER = 36


class Process(Protocol):
    """What `Child` needs of its process; `subprocess.Popen` has it."""

    pid: int

    def kill(self) -> None:
        """SIGKILL."""

    def wait(self) -> int:
        """Wait for its end, once; the exit status, negative after a signal."""


class _Forked:
    """A process that the template forked and that fell to us."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._status: int | None = None

    def kill(self) -> None:
        """SIGKILL."""
        if self._status is None:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        """Wait for its end; the exit status, negative after a signal."""
        if self._status is None:
            self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._status


class Template:
    """The supervisor's end of the template process.

    Args:
        settings: the server's.
        environment: of the template, and of all that is forked from it.

    Attributes:
        process: the template's, None while there is none.
        has_loaded: this one became ready once.
        is_ready: it has loaded, and forks.
        pidfd: readable when it has ended; -1 while there is none.
    """

    def __init__(self, settings: Settings, environment: dict[str, str]) -> None:
        self._settings = settings
        self._environment = environment
        self._control: socket.socket | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.pidfd = -1
        self.has_loaded = self.is_ready = False

    def start(self) -> None:
        """Make the process; it loads by itself and then becomes ready.

        Raises:
            OSError: the machine has no room for another process, or descriptor; then there is none.
        """
        self.has_loaded = False
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, contextlib.ExitStack() as undo:
            undo.callback(ours.close)
            process = self._execute("template", theirs.fileno(), None)
            undo.callback(process.wait)
            undo.callback(process.kill)
            self.pidfd = os.pidfd_open(process.pid)
            ours.settimeout(ANSWER_S)
            ours.send(self._settings.to_json())
            undo.pop_all()
        self.process, self._control = process, ours

    def fileno(self) -> int:
        """For selectors: readable when it has become ready or has ended."""
        return -1 if self._control is None else self._control.fileno()

    def receive(self) -> None:
        """Take in that it is ready. Its end is told by its pidfd, not here."""
        assert self._control is not None
        with contextlib.suppress(OSError):
            self.has_loaded = self.is_ready = self._control.recv(64) == b"ready"

    def spawn(self, role: str, listen_fd: int | None) -> tuple[Process, Lifeline]:
        """A new child process: forked where that is possible now, else started by itself.

        Raises:
            OSError: the machine has no room for another process, or descriptor.
        """
        if self.is_ready:
            forked = self._fork(role, [] if listen_fd is None else [listen_fd])
            if forked is not None:
                return forked
        lifeline, theirs = Lifeline.pair()
        with theirs:
            try:
                return self._execute(role, theirs.fileno(), listen_fd), lifeline
            except OSError:
                lifeline.close()
                raise

    def _fork(self, role: str, fds: list[int]) -> tuple[Process, Lifeline] | None:
        assert self._control is not None
        lifeline, theirs = Lifeline.pair()
        with theirs:
            try:
                socket.send_fds(self._control, [role.encode()], [theirs.fileno(), *fds])
                pid = int(self._control.recv(64))
            except (OSError, ValueError) as error:
                log.error(
                    "the template does not fork: %s", error if isinstance(error, OSError) else "it is gone"
                )
                # Should a fork have been made all the same, it reads the end of its lifeline and leaves.
                self.kill()
                pid = -1
        if pid > 0:
            return _Forked(pid), lifeline
        lifeline.close()
        return None

    def _execute(self, role: str, stdin: int, listen_fd: int | None) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", f"egress.serve.{role}"],
            stdin=stdin,
            pass_fds=() if listen_fd is None else (listen_fd,),
            env=self._environment,
            # Ctrl-C in a terminal reaches its foreground process group: the supervisor alone is to answer.
            process_group=0,
        )

    def leave(self) -> None:
        """Fork nothing more: it reads the end of its socket, and ends."""
        self.is_ready = False
        if self._control is not None:
            self._control.close()
            self._control = None

    def kill(self) -> None:
        """End it at once."""
        self.is_ready = False
        if self.process is not None:
            self.process.kill()

    def ended(self) -> int:
        """Note that the process has ended; its exit status."""
        assert self.process is not None
        status = self.process.wait()
        self.leave()
        os.close(self.pidfd)
        self.pidfd = -1
        self.process = None
        return status


def adopt_orphans(is_wanted: bool) -> bool:
    """Let processes whose parent ends fall to this one, or no longer; whether the kernel agreed."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    return prctl is not None and prctl(_PR_SET_CHILD_SUBREAPER, int(is_wanted), 0, 0, 0) == 0


def reap_strays(known: Iterable[int]) -> None:
    """Let go of dead processes that fell to us and are nobody's, say an engine's helper.

    Args:
        known: pids that somebody here waits for; where the first dead one is such, it is left for later.
    """
    ours = set(known)
    with contextlib.suppress(ChildProcessError):
        while found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if found.si_pid in ours:
                return
            os.waitpid(found.si_pid, 0)

"""One child of the supervisor: its process, its lifeline, and what to do when either ends.

A child is *starting* until it says that it is ready, then *up*; when its process ends it is *down* until its
back-off has passed. After a life in which it worked for a while there is none: its clients wait. Ends that
come sooner double it.
"""

from __future__ import annotations

import logging
import os
from typing import Any

import msgspec

from egress.serve import logs
from egress.serve.config import Settings
from egress.serve.forks import Process, Template
from egress.serve.lifeline import Drain, Failed, Lifeline, Lost, Ping, Pong, Ready, Start
from egress.serve.metrics import forget_process

__all__ = ["START_S", "Child"]

log = logging.getLogger(__name__)

FIRST_BACKOFF_S = 0.1
# A shard is to be back within 5 s of its death, loading included; a child that keeps dying is tried this
# often.
LAST_BACKOFF_S = 2.0
# A child that was up for so long did not fail by itself at its start, and another is worth starting at once:
# one that dies of every tenth request is no busier than this.
SETTLED_S = 1.0
# Loading a tokenizer and building an engine may take long; a child that has said nothing by then is stuck.
START_S = 300.0


class Child:
    """One shard or worker, through all its lives.

    Args:
        role, index: "shard" or "worker", and which.
        settings: the server's.
        listen_fd: the listening socket, for a worker.
        template: makes its processes.
    """

    def __init__(
        self, role: str, index: int, settings: Settings, listen_fd: int | None, template: Template
    ) -> None:
        self.role = role
        self.index = index
        self._settings = settings
        self._listen_fd = listen_fd
        self._template = template
        self.process: Process | None = None
        self.lifeline: Lifeline | None = None
        self.pidfd = -1
        self.is_up = False
        self.failure: str | None = None
        self.rings: list[str] = []
        self.restarts = 0
        self.start_at = 0.0
        self._up_at = 0.0
        # When the last life in which it was up ended; None: it is up, or was never.
        self._missed_since: float | None = None
        self._backoff_s = FIRST_BACKOFF_S
        self._number = 0
        self._pinged = 0.0
        self._answered = 0.0

    def __str__(self) -> str:
        return f"{self.role} {self.index}"

    @property
    def pid(self) -> int | None:
        """Of the process that runs now."""
        return None if self.process is None else self.process.pid

    def start(self, now: float) -> None:
        """Make the process and send it its first line.

        Raises:
            OSError: there is no room for another process, or descriptor; it is due again after its back-off.
        """
        try:
            process, lifeline = self._template.spawn(self.role, self._listen_fd)
            try:
                self.pidfd = os.pidfd_open(process.pid)
            except OSError:
                lifeline.close()
                process.kill()
                process.wait()
                raise
        except OSError:
            self._back_off(now)
            raise
        self.process, self.lifeline = process, lifeline
        self._answered = now
        self._send(
            Start(
                index=self.index,
                settings=msgspec.Raw(self._settings.to_json()),
                listen_fd=-1 if self._listen_fd is None else self._listen_fd,
            )
        )

    def receive(self, now: float) -> None:
        """Take in what the child says. Its end is told by its pidfd, not here."""
        assert self.lifeline is not None
        try:
            for report in self.lifeline.receive():
                self._hear(report, now)
        except Lost:
            self.lifeline.close()
            self.lifeline = None

    def ping(self, now: float) -> None:
        """Ask for a sign of life; kill a child that has given none for too long."""
        if self.process is None:
            return
        silent_s = now - self._answered
        if silent_s > (self._settings.hang_s if self.is_up else START_S):
            log.error(
                "%s does not answer; it is replaced", self, extra=logs.fields(silent_s=round(silent_s, 1))
            )
            self.kill()
        elif self.is_up:
            self._number += 1
            self._send(Ping(number=self._number))

    def drain(self, seconds: float) -> None:
        """Tell it to end within `seconds`."""
        self._send(Drain(seconds=seconds))

    def kill(self) -> None:
        """End it at once."""
        if self.process is not None:
            self.process.kill()

    def ended(self, now: float) -> int:
        """Note that the process has ended and when to start the next one; its exit status."""
        assert self.process is not None
        status = self.process.wait()
        forget_process(self.process.pid, self._settings.metrics_dir)
        os.close(self.pidfd)
        self.pidfd = -1
        self.process = None
        if self.lifeline is not None:
            # Its last words may still be in the socket.
            self.receive(now)
        if self.lifeline is not None:
            self.lifeline.close()
            self.lifeline = None
        if self.is_up:
            self._missed_since = now
        if self.is_up and now - self._up_at >= SETTLED_S:
            self._backoff_s = FIRST_BACKOFF_S
            self.start_at = now
        else:
            self._back_off(now)
        self.is_up = False
        return status

    def _back_off(self, now: float) -> None:
        self.start_at = now + self._backoff_s
        self._backoff_s = min(2 * self._backoff_s, LAST_BACKOFF_S)

    def _hear(self, report: Any, now: float) -> None:
        self._answered = now
        if isinstance(report, Ready):
            self.is_up = True
            self._up_at = now
            self.rings = report.rings
            if self._missed_since is not None:
                seconds = round(now - self._missed_since, 3)
                log.info("%s is ready again", self, extra=logs.fields(pid=self.pid, seconds=seconds))
                self._missed_since = None
        elif isinstance(report, Failed):
            self.failure = report.message
        else:
            assert isinstance(report, Pong)

    def _send(self, order: Start | Ping | Drain) -> None:
        if self.lifeline is None:
            return
        try:
            self.lifeline.send(order)
        except Lost:
            log.debug("%s takes no orders any more", self)

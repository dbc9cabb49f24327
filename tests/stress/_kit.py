"""What the stress programs share: a command line, a private /dev/shm, forked children, numbered payloads."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import faulthandler
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import NoReturn

__all__ = ["Child", "arguments", "hold", "payload", "private_shm", "spawn", "tag"]

_CLONE_NEWNS = 0x00020000
_MS_REC, _MS_PRIVATE = 0x4000, 1 << 18
# Longer than any wait that is under test; whoever is still busy then hangs.
WATCHDOG_S = 60.0


def arguments(doc: str | None, seconds: float = 30) -> argparse.Namespace:
    """The flags every program of `make stress` takes."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=seconds)
    return parser.parse_args()


def private_shm(size: str = "1g") -> bool:
    """Give this process and its children a /dev/shm of their own; False where that is not permitted.

    Then a program may reap, fill and count without meeting anybody else's segments.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS):
        return False
    if libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None):
        return False
    return not libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, f"size={size}".encode())


def hold(statement: object, text: str) -> None:
    """`assert`, also under python -O."""
    if not statement:
        raise AssertionError(text)


def _mix(seed: int, seq: int) -> int:
    return ((seq + 1) * 0x9E3779B97F4A7C15 ^ seed * 0xD1B54A32D192ED03) >> 7 & (1 << 56) - 1


def payload(seed: int, seq: int, limit: int) -> bytes:
    """The payload of frame `seq`: of 0 bytes to `limit`, mostly small, each like no other."""
    mixed = _mix(seed, seq)
    kind = mixed % 16
    if kind == 0:
        return b""
    size = limit if kind == 1 else mixed // 16 % ((limit if kind < 4 else min(limit, 200)) + 1)
    return (mixed.to_bytes(7, "little") * (size // 7 + 1))[:size]


def tag(seed: int, seq: int) -> int:
    """The tag of frame `seq`."""
    return 1 + _mix(seed, seq) % 255


class Child:
    """A forked process; killed at the latest when its block ends."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.status: int | None = None

    def signal(self, number: int) -> None:
        """Send it a signal, if it was not yet reaped."""
        if self.status is None:
            os.kill(self.pid, number)

    def poll(self) -> int | None:
        """Its exit code, negative after a signal; None while it runs."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
        return self.status

    def wait(self, seconds: float = WATCHDOG_S) -> int:
        """Its exit code; AssertionError, with its stacks on stderr, when it hangs."""
        deadline = time.monotonic() + seconds
        while (status := self.poll()) is None:
            if time.monotonic() > deadline:
                self.signal(signal.SIGCONT)
                self.signal(signal.SIGUSR1)
                time.sleep(0.5)
                self.kill()
                raise AssertionError(f"pid {self.pid} hangs")
            time.sleep(0.0005)
        return status

    def kill(self) -> None:
        """SIGKILL and reap."""
        with contextlib.suppress(ProcessLookupError):
            self.signal(signal.SIGKILL)
        if self.status is None:
            self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def _run(work: Callable[[], None]) -> NoReturn:
    code = 1
    try:
        faulthandler.register(signal.SIGUSR1)
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def spawn(work: Callable[[], None]) -> Child:
    """Fork a child that runs `work` and exits with 0, or with 1 and a traceback."""
    pid = os.fork()
    if not pid:
        _run(work)
    return Child(pid)


@contextlib.contextmanager
def gone_afterwards(children: list[Child]) -> Iterator[None]:
    """Kill whoever of `children` is left when the block ends."""
    try:
        yield
    finally:
        for child in children:
            if child.status is None:
                child.kill()

"""The template: a process that has imported and loaded what every child needs, and is forked for each.

A child made this way is at work a few hundredths of a second after it was asked for, where one that begins
with an empty interpreter first spends most of a second of processor time, and several under load. Memory is
shared until it is written to, so that the vocabulary is there once and not once per process.

It is safe to fork because it does nothing: one thread, no ring, no event loop, no engine. (numpy's OpenBLAS
stops its own threads before a fork and starts them again when they are wanted.) Its standard input is a
socket to the supervisor; when that ends it leaves. It forks twice and the process in between ends at once,
so that the child falls to the supervisor (a subreaper, `egress.serve.forks`), which alone waits for it.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import signal
import socket
import sys
from pathlib import Path

import msgspec
import numpy as np

from egress.engine import prepare_engine
from egress.serve import logs, shard, worker
from egress.serve.child import tokenizer_of
from egress.serve.config import Settings

__all__ = ["main"]

log = logging.getLogger(__name__)

# The settings are a few hundred bytes, and may hold paths.
MAX_MESSAGE_BYTES = 1 << 16
# Of `/proc/<pid>/stat`, counted after the command's name: where the arguments lie in memory.
_ARG_START, _ARG_END = 45, 46


def main() -> int:
    """Load, then fork until the supervisor is gone; in each child, be that child."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        control = socket.socket(fileno=sys.stdin.fileno())
        settings = Settings.from_json(control.recv(MAX_MESSAGE_BYTES))
    except (OSError, msgspec.MsgspecError):
        raise SystemExit("egress.serve.template is started by `egress serve`, not by hand") from None
    logs.configure(settings, "template")
    _load(settings)
    # What is loaded stays: no collection in a child is to write to the pages it shares.
    gc.collect()
    gc.freeze()
    try:
        control.send(b"ready")
        while True:
            order, fds, _, _ = socket.recv_fds(control, MAX_MESSAGE_BYTES, 2)
            if not order:
                return 0
            pid = _fork_to_grandparent()
            if not pid:
                break
            for fd in fds:
                os.close(fd)
            control.send(b"%d" % pid)
    except ConnectionError:
        return 0  # the supervisor is gone
    control.detach()
    return _become(order.decode(), *fds)


def _load(settings: Settings) -> None:
    """Load what children share. What cannot be loaded is theirs to complain about."""
    try:
        prepare_engine(settings.engine, tokenizer_of(settings), settings.engine_options)
    except Exception:
        log.debug("loading is left to the children", exc_info=True)


def _fork_to_grandparent() -> int:
    """Fork a child that is not ours; its pid here, 0 there; -1 where there is no room for it."""
    reader, writer = os.pipe()
    try:
        between = os.fork()
        if not between:
            try:
                pid = os.fork()
                if pid:
                    os.write(writer, b"%d" % pid)
            except OSError:
                pid = -1
            if pid:
                os._exit(0)
            return 0
        # Once it has ended its child belongs to the supervisor.
        os.waitpid(between, 0)
        os.set_blocking(reader, False)
        return int(os.read(reader, 64))
    except OSError as error:
        log.error("cannot fork: %s", error)
        return -1
    finally:
        os.close(reader)
        os.close(writer)


def _become(role: str, lifeline_fd: int, listen_fd: int = -1) -> int:
    """Be a child like one that was started by itself; returns its exit status."""
    os.setpgid(0, 0)
    os.dup2(lifeline_fd, sys.stdin.fileno())
    os.close(lifeline_fd)
    _show_as(f"egress.serve.{role}")
    # Python seeds its own generator again after a fork; engines may draw from this one.
    np.random.seed()
    return shard.main() if role == "shard" else worker.main(listen_fd)


def _show_as(module: str) -> None:
    """Let `ps` show the child's module where it would show the template's.

    The kernel reads a command line from the process's own memory, and the new one is no longer.
    """
    ours, shown = __spec__.name.encode(), module.encode()
    try:
        line = Path("/proc/self/cmdline").read_bytes()
        stat = Path("/proc/self/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return
    start, size = int(stat[_ARG_START]), int(stat[_ARG_END]) - int(stat[_ARG_START])
    if len(shown) <= len(ours) and size == len(line) and ctypes.string_at(start, size) == line:
        ctypes.memmove(start, line.replace(ours, shown).ljust(size, b"\0"), size)


if __name__ == "__main__":
    sys.exit(main())

"""Faults at named steps: kill, pause or raise just before a step of an operation is taken.

Cold steps are named where they are taken, with a call of `_hooks.step`. Hot operations have no such call;
their steps are the accesses to shared words they consist of, and a recorder around the words finds them (so
only for handles opened inside `at_step`, which have the Python body).
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator

from ringbuf import _hooks, layout
from ringbuf.testing.words import Access, watching

__all__ = ["COLD_STEPS", "HOT_STEPS", "STEPS", "at_step", "kill_here", "stop_here"]

COLD_STEPS = (
    "create.open",
    "create.opened",
    "create.locked",
    "create.sized",
    "create.filled",
    "create.fifos",
    "create.link",
    "create.linked",
    "attach.locked",
    "attach.joining",
    "attach.live",
    "resume.locked",
    "resume.named",
    "resume.live",
    "room.floor",
    "room.evict",
    "room.nap",
    "write.ring",
    "read.nap",
    "read.ring",
    "read.dead",
    "detach.begin",
    "detach.free",
    "close.state",
    "close.unlink",
    "close.lock",
    "reap.locked",
    "remove.name",
    "remove.fifos",
    "replace.end",
)

# Step -> (which words, "" for a consumer's own; kind of access; word, -1 for any).
_ACCESSES = {
    "write.header": ("data", "store", -1),
    "write.count": ("producer", "store", layout.P_FRAMES),
    "write.publish": ("producer", "store", layout.P_POS),
    "write.look": ("wake", "load", 0),
    "read.look": ("producer", "load", layout.P_POS),
    "read.header": ("data", "load", -1),
    "read.release": ("", "store", layout.C_CURSOR),
    "read.released": ("producer", "load", layout.P_WAITING),
}
HOT_STEPS = tuple(_ACCESSES)
STEPS = COLD_STEPS + HOT_STEPS


def kill_here() -> None:
    """End this process at once, as the kernel would."""
    os.kill(os.getpid(), signal.SIGKILL)


def stop_here() -> None:
    """Pause this process until somebody sends it SIGCONT."""
    os.kill(os.getpid(), signal.SIGSTOP)


@contextlib.contextmanager
def at_step(step: str, action: Callable[[], object], nth: int = 1) -> Iterator[None]:
    """Do something just before a step is taken for the nth time, in this process.

    Args:
        step: one of STEPS.
        action: what to do; what it raises comes out of the operation.
        nth: from 1.
    """
    if step not in STEPS:
        raise ValueError(f"no step {step!r}; there are {', '.join(STEPS)}")
    passed = 0

    def take() -> None:
        nonlocal passed
        passed += 1
        if passed == nth:
            action()

    if step in COLD_STEPS:
        with _on_steps(lambda name: take() if name == step else None):
            yield
        return
    words, kind, word = _ACCESSES[step]

    def look(access: Access) -> None:
        if (
            access.kind == kind
            and word in (-1, access.word)
            and (access.words == words or (not words and access.words.startswith("c")))
        ):
            take()

    with watching(look):
        yield


@contextlib.contextmanager
def _on_steps(callback: Callable[[str], None]) -> Iterator[None]:
    previous, _hooks.on_step = _hooks.on_step, callback
    try:
        yield
    finally:
        _hooks.on_step = previous

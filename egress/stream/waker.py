"""How a sender tells a waiting reader of `egress.channel`: a task, a thread, or something called back.

A waker is called once, in the sender's thread, after an item was queued or the channel has ended. It never
raises, and it carries nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

__all__ = ["Waker", "forget", "waker_of"]

Waker: TypeAlias = Callable[[], None]


def waker_of(loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]) -> Waker:
    """Make the waker of a task: it finishes `future`, from any thread."""
    thread = threading.get_ident()

    def wake() -> None:
        try:
            if threading.get_ident() == thread:
                _finish(future)
            else:
                loop.call_soon_threadsafe(_finish, future)
        except RuntimeError:
            # The loop was closed under its waiting reader: there is nobody to wake.
            return

    return wake


def forget(wakers: deque[Waker], waker: Waker) -> None:
    """Take `waker` back out, unless a sender has taken it meanwhile."""
    with contextlib.suppress(ValueError):
        wakers.remove(waker)


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)

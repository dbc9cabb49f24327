"""The ring's hot operations in pure Python: the specification of what a body does.

A body is two factories, `make_writer` and `make_reader`. What they return is bundles of closures over
private state; the fast path of each runs without another Python call, and everything slow (looking at
consumers, waking, leases, errors) is a callback into code that exists once, above the body. This file is
the body's door: the writer is in `_pywriter`, the reader in `_pyreader`, what a frame is in bytes in
`_pyframes`.

Ordering. One aligned 8-byte store of P_POS publishes: a frame's bytes are stored before it, and a consumer
loads it before it loads any of them. One aligned 8-byte store of C_CURSOR releases: a consumer's loads of
the bytes come before it, and the producer loads it before it overwrites them. This body gets both from the
machine: x86-64 keeps loads and stores in program order except that a load may pass an earlier store to
another place, and an item of a memoryview cast to "Q" is loaded and stored by one 8-byte move
(struct.pack_into is not: it clears first; it is good only for bytes that nobody looks at yet). Where a
store must be seen before a later load, the sleep protocol in `wait` has the barrier. On other machines this
body refuses to run; the C body has the fences.

Private state is kept small on purpose: offsets in the ring instead of 64-bit positions, because arithmetic on
Python integers below 2**30 costs half; the position is formed only where it is stored.

Interruption. KeyboardInterrupt may fall between any two steps. A writer's frame counts once its offset is
taken, and becomes visible with the next publication at the latest; nothing is visible half. A reader's
frame is released once its offset is taken.
"""

from __future__ import annotations

import platform
import threading

from ringbuf._pyreader import COPY_LIMIT, make_reader
from ringbuf._pywriter import make_writer
from ringbuf.frame import Frame, private

__all__ = ["COPY_LIMIT", "Frame", "fence", "make_reader", "make_writer", "private", "unsupported"]


def unsupported() -> str | None:
    """Why this body cannot run here, or None."""
    machine = platform.machine()
    if machine in ("x86_64", "AMD64"):
        return None
    return (
        f"the pure-Python body relies on the total store order of x86-64 and this machine is {machine}: "
        "install the package with a C compiler, so that the C body is built"
    )


_lock = threading.Lock()


def fence() -> None:
    """A full barrier: both lock operations are locked instructions, also where nobody contends."""
    with _lock:
        pass

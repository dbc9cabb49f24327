"""What an open handle holds of a ring, and the processes that may use it.

A tenure is a lock, a FIFO and a mapping, given back once. It also knows the two reasons why a handle may
not be used any more: it was closed, or this is a forked child. A child holds nothing: its FIFO descriptors
are closed, the lock never came along, and every call of an inherited handle raises UseAfterFork.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable

from ringbuf import layout
from ringbuf.doorbell import Bell, OwnBell
from ringbuf.errors import RingClosed, UseAfterFork
from ringbuf.mapping import Anchor
from ringbuf.segment import Segment

__all__ = ["Tenure"]

_open: weakref.WeakSet[Tenure] = weakref.WeakSet()


class Tenure:
    """The lock, the FIFO and the peers' FIFOs of one open handle.

    Args:
        segment: the mapped segment.
        anchor: holds the lock.
        fifo: this side's own FIFO.
        shut: makes the body of the handle take its slow path for ever; called on close and in a child.
    """

    __slots__ = (
        "__weakref__",
        "anchor",
        "bells",
        "closed",
        "fifo",
        "forked",
        "party",
        "pid",
        "segment",
        "shut",
    )

    def __init__(self, segment: Segment, anchor: Anchor, fifo: OwnBell, party: str) -> None:
        self.segment = segment
        self.anchor = anchor
        self.fifo = fifo
        self.party = party
        self.pid = os.getpid()
        self.closed = False
        self.forked = False
        self.bells: dict[str, Bell] = {}
        self.shut: Callable[[], None] = _nothing
        _open.add(self)

    def check(self) -> None:
        """Raise what a handle that may not be used any more raises.

        Raises:
            UseAfterFork, RingClosed.
        """
        if self.forked:
            raise UseAfterFork(self.segment.name, self.pid)
        if self.closed:
            raise RingClosed(self.segment.name, "us")

    def bell(self, party: str) -> Bell:
        """The doorbell of a peer, opened on its first use and kept."""
        bell = self.bells.get(party)
        if bell is None:
            bell = self.bells[party] = self.segment.bell(party)
        return bell

    def is_alive(self, party: str, holds_lock: bool | None) -> bool:
        """Whether a peer lives; its FIFO tells where its lock cannot be asked. In doubt it does.

        Args:
            party: the peer.
            holds_lock: what the probe said, None where it could not ask.

        Raises:
            RingClosed: neither can be asked, because somebody removed the ring's files.
        """
        if holds_lock is not None:
            return holds_lock
        held = self.bell(party).is_held()
        if held is None and not self.segment.still_named():
            raise RingClosed(self.segment.name, layout.ENDERS[layout.ENDED_UNLINKED])
        return held is not False

    def close(self) -> bool:
        """Mark the handle closed and wake a thread that waits in it; False when it already was."""
        if self.closed or self.forked:
            return False
        self.closed = True
        self.shut()
        self.fifo.nudge()
        return True

    def give_back(self) -> None:
        """Close the descriptors and let the lock go; last, because it tells others that nobody is here."""
        for bell in self.bells.values():
            bell.close()
        self.segment.probe.close()
        self.fifo.close()
        self.anchor.release()
        # A body may refer to its callbacks, and they to this.
        self.shut = _nothing

    def _leave_to_parent(self) -> None:
        self.forked = True
        self.anchor.forget()
        for bell in self.bells.values():
            bell.close()
        self.segment.probe.close()
        self.fifo.close_in_child()
        self.shut()


def _nothing() -> None:
    pass


def _after_fork_in_child() -> None:
    for tenure in list(_open):
        tenure._leave_to_parent()


os.register_at_fork(after_in_child=_after_fork_in_child)

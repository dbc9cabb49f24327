"""What a consumer does while nothing is there: notices the end, parks, and shows it to an event loop.

Three things end a consumer's wait, and each has its own witness: a frame (P_POS, with the doorbell as a
hint), the clean end (P_STATE or P_ENDED, set after the last publication), and the death of the producer
(its lock, with its FIFO as a lifeline). Each is looked at only after P_POS was found unmoved, and P_POS is
looked at once more before it is believed: so everything published comes first.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from ringbuf import layout
from ringbuf._hooks import step
from ringbuf._ops import fence as keep_order
from ringbuf.doorbell import PRODUCER, ReadySet
from ringbuf.errors import PeerDead, RingClosed
from ringbuf.frame import Frame
from ringbuf.layout import (
    C_SPURIOUS,
    C_WAKEUPS,
    P_ENDED,
    P_INCARNATION,
    P_PID,
    P_POS,
    P_STATE,
)
from ringbuf.tenure import Tenure
from ringbuf.wait import AWAKE, CUT, LOOK, RUNG, TIME, Deadline, Doze, Sleeper, spin_seconds

__all__ = ["Watch"]

# Between the moment a dying producer's FIFO closes and the one its lock goes, or while a successor has one
# and not yet the other, the lifeline says nothing; look again this soon.
_UNSURE_S = 0.01


class Watch:
    """One consumer's waiting.

    Args:
        tenure: its hold on the ring.
        peer: words of the producer page.
        own: words of its own page.
        sleeper: its parked flag.
    """

    __slots__ = (
        "_own",
        "_peer",
        "_ready",
        "_ready_incarnation",
        "_spin_s",
        "_told_incarnation",
        "attend",
        "doze",
        "position",
        "refresh",
        "sleeper",
        "tenure",
    )

    def __init__(self, tenure: Tenure, peer: memoryview, own: memoryview, sleeper: Sleeper) -> None:
        self.tenure = tenure
        self.sleeper = sleeper
        self._peer = peer
        self._own = own
        self._spin_s = spin_seconds()
        self._told_incarnation = 0
        self._ready: ReadySet | None = None
        self._ready_incarnation = 0
        # Of the body, set once it is made; `doze` only where the body has it and nobody watches its steps.
        self.attend: Callable[[], None]
        self.doze: Doze | None = None
        self.position: Callable[[], int]
        self.refresh: Callable[[], bool]

    # ----------------------------------------------------------------------------------- nothing was there

    def idle(self) -> bool:
        """What a read that found nothing asks: whether to look again.

        Raises:
            RingClosed: everything was read and no more will come.
            UseAfterFork.
        """
        self.tenure.check()
        peer = self._peer
        if peer[P_STATE] == layout.STATE_CLOSED or peer[P_ENDED]:
            # SYNC: load P_STATE, then P_POS again; pairs with the producer's store of P_POS before P_STATE.
            keep_order()
            if peer[P_POS] != self.position():
                return True
            ended = peer[P_ENDED]
            raise RingClosed(self.tenure.segment.name, layout.ended_by(ended) if ended else "the producer")
        return self._ready is not None and self._rearm(self._ready)

    def _rearm(self, ready: ReadySet) -> bool:
        """Make the descriptor unreadable until something happens; True if it already has."""
        if self.sleeper.drain():
            # The loop slept, or may have: whoever rang meant it to wake up.
            layout.add(self._own, C_WAKEUPS, 1)
        self.sleeper.arm()
        bell = self.tenure.bell(PRODUCER)
        incarnation = self._peer[P_INCARNATION]
        if bell.is_cut() and (
            incarnation == self._told_incarnation or not self.tenure.segment.probe.producer_alive()
        ):
            # A dying process closes its FIFO a moment before its lock goes. Until then nobody can say that
            # it is dead, so the descriptor stays readable and the next look comes at once.
            ready.unwatch()
            self._ready_incarnation = 0
        elif self._ready_incarnation != incarnation:
            ready.watch(bell.fileno())
            self._ready_incarnation = incarnation
        return bool(self._peer[P_POS] != self.position())

    def fileno(self) -> int:
        """A descriptor that is readable from now on until a read finds nothing, then whenever one may not."""
        self.tenure.check()
        if self._ready is None:
            self._ready = ReadySet(self.sleeper.fifo.fileno())
            self.attend()
            self.sleeper.fifo.nudge()
        return self._ready.fileno()

    # ------------------------------------------------------------------------------------------- the wait

    def first_sleep(self, deadline: Deadline, takes: bool) -> int | Frame:
        """Begin a wait in the body, where it can.

        Args:
            takes: return the frame that ended the sleep, if one did.

        Returns:
            As Sleeper.doze; AWAKE where that is not to be had. `wait` goes on from there.
        """
        if self._spin_s:
            spin_until = time.monotonic() + min(self._spin_s, deadline.remaining())
            while time.monotonic() < spin_until:
                if self.refresh():
                    return LOOK
        if self.doze is not None and (lifeline := self._easy_lifeline()) >= 0:
            return self.sleeper.doze(self.doze, lifeline, deadline.remaining(), takes)
        return AWAKE

    def wait(self, deadline: Deadline, woken: int) -> bool:
        """Wait for a frame; False when none came before the deadline.

        Args:
            woken: how `first_sleep` ended.

        Raises:
            RingClosed, PeerDead.
        """
        if woken in (RUNG, LOOK) and self.refresh():
            return True
        sleeper = self.sleeper
        # Whether the producer may be dead. While nothing says so it is not asked for, which costs system
        # calls: the lifeline is polled with the doorbell, and what it does not show is found out in time.
        doubt = woken in (TIME, CUT)
        try:
            sleeper.arm()
            while True:
                if self.refresh() or (self.idle() and self.refresh()):
                    return True
                if woken in (RUNG, CUT):
                    layout.add(self._own, C_SPURIOUS, 1)
                remaining = deadline.remaining()
                if doubt or not remaining:
                    self.raise_if_dead()
                    if not remaining:
                        return False
                step("read.nap")
                woken = sleeper.nap(*self._lifeline(remaining, doubt))
                doubt = woken != RUNG
                if woken:
                    layout.add(self._own, C_WAKEUPS, 1)
                    sleeper.arm()
        finally:
            # A closed handle's slot, and a parent's, may be another's.
            if self._ready is None and not (self.tenure.closed or self.tenure.forked):
                sleeper.disarm()

    def _easy_lifeline(self) -> int:
        """The lifeline of a producer that is not known to be dead, for a sleep in the body; else -1."""
        if self._ready is not None or self._told_incarnation == self._peer[P_INCARNATION]:
            return -1
        return self.tenure.bell(PRODUCER).fileno()

    def _lifeline(self, seconds: float, doubt: bool) -> tuple[tuple[int, ...], float]:
        """What to poll beside the doorbell, and for how long."""
        if self._told_incarnation == self._peer[P_INCARNATION]:
            # A successor rings every doorbell.
            return (), seconds
        bell = self.tenure.bell(PRODUCER)
        fd = bell.fileno()
        if fd < 0 or (doubt and bell.is_cut()):
            return (), min(seconds, _UNSURE_S)
        return (fd,), seconds

    def raise_if_dead(self) -> None:
        """Raise PeerDead, the first time it is asked about a producer that died and left nothing unread."""
        peer = self._peer
        incarnation = peer[P_INCARNATION]
        if incarnation == self._told_incarnation:
            return
        pid = peer[P_PID]
        keep_order()
        locked = self.tenure.segment.probe.producer_alive()
        if locked is None and (peer[P_STATE] == layout.STATE_CLOSED or peer[P_ENDED]):
            return
        alive = self.tenure.is_alive(PRODUCER, locked)
        # The lock was free after P_INCARNATION was loaded; what that producer published is all there is.
        if alive or self.refresh() or peer[P_INCARNATION] != incarnation:
            return
        if peer[P_STATE] == layout.STATE_CLOSED or peer[P_ENDED]:
            return
        self._told_incarnation = incarnation
        step("read.dead")
        raise PeerDead(self.tenure.segment.name, pid, time.time(), incarnation)

    def close(self) -> None:
        """Give the event-loop descriptor back."""
        ready, self._ready = self._ready, None
        if ready is not None:
            ready.close()
        # A body may refer to its callbacks, and they to this. Whoever still waits here looks again, and is
        # told.
        self.refresh = _look_again
        self.position = _nowhere
        self.attend = _nothing
        self.doze = None


def _nothing() -> None:
    pass


def _look_again() -> bool:
    return True


def _nowhere() -> int:
    return -1

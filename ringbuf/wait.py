"""How one side sleeps until the other has done something, and why no wake-up is lost.

    sleeper: flag = generation;  BARRIER;  look at the ring again;  poll (for a bounded time)
    waker:   publish;            BARRIER;  look at the flag;        ring if it is set

Each side stores, then loads what the other stores; without a barrier between, a processor may do its load
first, both see nothing and the sleeper sleeps on. Two ways to pay, fixed in the header page when the ring
is made:

- BARRIER_SLEEPER: the sleeper alone, with membarrier(2): the call returns only after every thread of every
  registered process has passed a full barrier. If that fell before the waker's store, its look comes later
  and sees the flag; if after, the sleeper's second look sees the publication. Parking costs about 2 us
  more, and publishing costs nothing. Every party registers when it opens the ring.
- BARRIER_WAKER: each waker fences on every publication (in Python a lock operation, 70-180 ns). Taken where
  the kernel or a seccomp filter has no membarrier.

The flag is a generation, not a bit: a waker rings each generation once, however much it publishes
meanwhile. The sleeper takes another generation only after it drained its FIFO, and one that no waker can
have rung: so "already rung" always means that a byte still lies there. (The producer's generations count
up; a consumer has only a byte and avoids the two values the producer may hold, the one it last rang and the
one that was up until now.)
"""

from __future__ import annotations

import ctypes
import math
import os
import platform
import select
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from ringbuf._ops import fence
from ringbuf.doorbell import OwnBell
from ringbuf.errors import RingError
from ringbuf.frame import Frame
from ringbuf.layout import BARRIER_SLEEPER, BARRIER_WAKER

__all__ = [
    "AWAKE",
    "CUT",
    "LOOK",
    "RUNG",
    "TIME",
    "Deadline",
    "Doze",
    "Sleeper",
    "barrier_for",
    "best_barrier",
    "fence",
    "spin_seconds",
    "usable_cores",
]

# What ended a sleep: only time, a bell, or (with or without a bell) a lifeline. LOOK: it did not begin, for
# there was something to see; AWAKE: nobody tried.
TIME, RUNG, CUT, LOOK, AWAKE = range(5)

# Bounded re-check: what no descriptor shows (a lock that ends before its process does, a doorbell that was
# removed) is looked at after two seconds of sleep, then less and less often. A bare poll that wakes up once a
# second already costs 0.010 % of a core on the machine this was measured on, all that an idle side may use.
RECHECK_FIRST_S = 2.0
RECHECK_LAST_S = 8.0

# (flags, index, generation, by membarrier, own FIFO, lifeline, milliseconds) -> what ended it.
Doze: TypeAlias = Callable[[memoryview, int, int, bool, int, int, int, bool], int | Frame]

# --------------------------------------------------------------------------------------------- membarrier(2)

# From <linux/membarrier.h> and the system-call tables.
_SYSCALL = {"x86_64": 324, "aarch64": 283}.get(platform.machine())
_GLOBAL_EXPEDITED = 1 << 1
_REGISTER_GLOBAL_EXPEDITED = 1 << 2

_syscall = ctypes.CDLL(None, use_errno=True).syscall


def _register() -> bool:
    """Whether this process takes part in expedited barriers; the registration survives fork."""
    if _SYSCALL is None or os.environ.get("RINGBUF_BARRIER") == "waker":
        return False
    return bool(_syscall(_SYSCALL, _REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0)


_registered = _register()


def best_barrier() -> int:
    """Which barrier a ring made by this process uses; RINGBUF_BARRIER=waker forces the other."""
    return BARRIER_SLEEPER if _registered else BARRIER_WAKER


def _membarrier() -> None:
    if _syscall(_SYSCALL, _GLOBAL_EXPEDITED, 0, 0):
        code = ctypes.get_errno()
        raise OSError(code, f"membarrier: {os.strerror(code)}")


def barrier_for(name: str, barrier: int) -> tuple[Callable[[], None], Callable[[], None] | None]:
    """The barriers of a sleeper and of a waker of a ring with this header word.

    Raises:
        RingError: the ring relies on membarrier(2) and this process may not use it.
    """
    if barrier == BARRIER_WAKER:
        return fence, fence
    if not _registered:
        raise RingError(
            f"ring {name!r} relies on membarrier(2), which this process may not use: "
            "allow it, or make the ring with RINGBUF_BARRIER=waker in the environment"
        )
    return _membarrier, None


# --------------------------------------------------------------------------------------------------- spinning

# Spinning helps only if the other side runs meanwhile; the length is the scale of a futex wake-up.
_SPIN_S = 20e-6


def usable_cores() -> float:
    """Processors this process may use at once: affinity and cgroup quota, whichever is less."""
    cores = float(len(os.sched_getaffinity(0)))
    for path, parse in (
        ("/sys/fs/cgroup/cpu.max", _parse_cpu_max),
        ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", _parse_cfs_quota),
    ):
        try:
            cores = min(cores, parse(Path(path).read_text(encoding="ascii")))
        except (OSError, ValueError):
            continue
    return cores


def _parse_cpu_max(text: str) -> float:
    quota, period = text.split()[:2]
    return math.inf if quota == "max" else int(quota) / int(period)


def _parse_cfs_quota(text: str) -> float:
    quota = int(text)
    return math.inf if quota < 0 else quota / 100_000


def spin_seconds() -> float:
    """How long a wait looks again and again before it parks: nothing on two cores or fewer."""
    return _SPIN_S if usable_cores() > 2 else 0.0


# -------------------------------------------------------------------------------------------------- sleeping


class Deadline:
    """A moment on the monotonic clock, or never."""

    __slots__ = ("_at", "started")

    def __init__(self, timeout: float | None) -> None:
        self.started = time.monotonic()
        self._at = math.inf if timeout is None else self.started + max(0.0, timeout)

    def remaining(self) -> float:
        """Seconds left, never negative; infinite without a time-out."""
        return max(0.0, self._at - time.monotonic())

    def waited(self) -> float:
        """Seconds since the wait began."""
        return time.monotonic() - self.started


class Sleeper:
    """The parked flag of one side, and the FIFO that ends its sleep.

    Args:
        flags, index: where its generation is stored; nobody else stores there.
        fifo: its own FIFO.
        barrier: what a sleeper runs between the flag and its second look.
        renew: returns a generation that no waker holds for rung.
    """

    __slots__ = (
        "_barrier",
        "_flags",
        "_generation",
        "_index",
        "_is_rung",
        "_lifelines",
        "_pause_s",
        "_poll",
        "_renew",
        "armed",
        "fifo",
    )

    def __init__(
        self,
        flags: memoryview,
        index: int,
        fifo: OwnBell,
        barrier: Callable[[], None],
        renew: Callable[[], int],
    ) -> None:
        self._flags = flags
        self._index = index
        self._barrier = barrier
        self._renew = renew
        self._generation = renew()
        self._pause_s = RECHECK_FIRST_S
        # What the last sleep polled, for the next one, which mostly polls the same.
        self._poll: select.poll | None = None
        # Whether a bell may still lie in the FIFO that ended a sleep in the body.
        self._is_rung = False
        self._lifelines: tuple[int, ...] = ()
        self.fifo = fifo
        self.armed = False

    def arm(self) -> None:
        """Raise the flag; whatever was done before this is seen by a look after it.

        SYNC: store flag, barrier, load of the ring by the caller; pairs with the waker's store to the ring,
        barrier, load of the flag.
        """
        self.armed = True
        self._pause_s = RECHECK_FIRST_S
        if self._is_rung:
            self.drain()
        self._flags[self._index] = self._generation
        self._barrier()

    def doze(self, doze: Doze, lifeline: int, seconds: float, takes: bool) -> int | Frame:
        """Arm, look, nap once and disarm, all in a body's own `doze`; as `nap`, or LOOK.

        Args:
            doze: of the C body's reader.
            lifeline: the producer's FIFO.
            seconds: how long at most.
            takes: if a bell brought a frame, it is read at once, and returned instead of RUNG: every line of
                Python behind a sleep runs cold.
        """
        if self._is_rung:
            # Put off until now: who was woken has better things to do.
            self.drain()
        # What runs behind a sleep runs cold and makes somebody wait: so it compares nothing it need not.
        self._is_rung = True
        ended = doze(
            self._flags,
            self._index,
            self._generation,
            self._barrier is not fence,
            self.fifo.fileno(),
            lifeline,
            math.ceil(min(seconds, RECHECK_FIRST_S) * 1000),
            takes,
        )
        if ended is TIME or ended is LOOK:
            self._is_rung = False
        return ended

    def disarm(self) -> None:
        """Lower the flag."""
        self.armed = False
        self._flags[self._index] = 0

    def drain(self) -> bool:
        """Empty the FIFO; whether anything was in it. Arm again, then look again, before sleeping."""
        self._is_rung = False
        if not self.fifo.drain():
            return False
        self._generation = self._renew()
        return True

    def nap(self, lifelines: tuple[int, ...], seconds: float) -> int:
        """Sleep until rung, a lifeline is cut, or the time is over, at most until the next re-check.

        Args:
            lifelines: descriptors of peers' FIFOs.
            seconds: how long at most.

        Returns:
            TIME, RUNG or CUT. After TIME the flag still stands, else arm again. Signals do not shorten it,
            PEP 475.
        """
        own = self.fifo.fileno()
        if own < 0:
            return CUT
        poll = self._poll
        if poll is None or lifelines != self._lifelines:
            # A number may stand for another descriptor by now: poll looks it up anew each time.
            poll = self._poll = select.poll()
            poll.register(own, select.POLLIN)
            for fd in lifelines:
                poll.register(fd, 0)
            self._lifelines = lifelines
        events = poll.poll(math.ceil(min(seconds, self._pause_s) * 1000))
        if not events:
            self._pause_s = min(self._pause_s * 2, RECHECK_LAST_S)
            return TIME
        self.drain()
        return RUNG if len(events) == 1 and events[0][0] == own else CUT

"""Every exception of the ring.

RingError
├── RingNotFound     (FileNotFoundError)  no such ring, or none that is ready within the deadline
├── RingExists       (FileExistsError)    the name is taken by a ring that is in use
├── RingForbidden    (PermissionError)    the name belongs to another user
├── RingFull         (TimeoutError)       the slowest consumer left no room in time
├── RingClosed       (EOFError)           the clean end: closed by this side, the producer, or a replacement
├── PeerDead         (ConnectionError)    the producer died; everything it published was delivered
├── RingCorrupt      (ValueError)         the segment breaks a rule of its own layout
├── RingVersion      (ValueError)         a segment of another layout version
├── ProducerAlive    (RuntimeError)       the ring already has a living producer
├── NoFreeSlot       (RuntimeError)       as many consumers as the ring has slots are attached
├── FrameTooLarge    (ValueError)         our caller's frame can never fit
├── FrameInUse       (BufferError)        our caller still holds views of what should be given back
├── SharedMemoryFull (OSError)            /dev/shm cannot hold the ring
└── UseAfterFork     (RuntimeError)       our caller used a handle in a process that did not open it

Full and empty are answers of the try_ calls, not errors; only the waiting calls raise. An impossible argument
(a tag of 0, a capacity of 100) is a plain ValueError or TypeError, because no ring is at fault.
"""

from __future__ import annotations

import errno

__all__ = [
    "FrameInUse",
    "FrameTooLarge",
    "NoFreeSlot",
    "PeerDead",
    "ProducerAlive",
    "RingClosed",
    "RingCorrupt",
    "RingError",
    "RingExists",
    "RingForbidden",
    "RingFull",
    "RingNotFound",
    "RingVersion",
    "SharedMemoryFull",
    "UseAfterFork",
]


class RingError(Exception):
    """The root of everything the ring raises on purpose."""

    def __reduce__(self) -> tuple[object, ...]:
        # OSError and its kin rebuild from (errno, text), which is not what these are made from.
        return _rebuild, (type(self), self.__dict__)


def _rebuild(kind: type[RingError], fields: dict[str, object]) -> RingError:
    error = kind.__new__(kind)
    error.__dict__.update(fields)
    return error


class RingNotFound(RingError, FileNotFoundError):
    """No ring of this name became ready in time.

    Args:
        name: the ring.
        reason: what was there instead: "missing", "empty", "not ready" or "being removed".
        waited: seconds spent looking.
    """

    def __init__(self, name: str, reason: str = "missing", waited: float = 0.0) -> None:
        super().__init__(errno.ENOENT, reason, name)
        self.name = name
        self.reason = reason
        self.waited = waited

    def __str__(self) -> str:
        return f"ring {self.name!r} is {self.reason} (waited {self.waited:.3f} s)"


class RingExists(RingError, FileExistsError):
    """The name is in use by living processes, so it was not replaced.

    Args:
        name: the ring.
        pids: the processes that hold it, as they named themselves.
    """

    def __init__(self, name: str, pids: tuple[int, ...] = ()) -> None:
        super().__init__(errno.EEXIST, "in use", name)
        self.name = name
        self.pids = pids

    def __str__(self) -> str:
        by = f" by pid {', '.join(map(str, self.pids))}" if self.pids else ""
        return f"ring {self.name!r} exists and is in use{by}; pass replace=True to end it"


class RingForbidden(RingError, PermissionError):
    """The name belongs to another user, or its mode keeps this process out.

    Args:
        name: the ring.
        uid: the owner found; None when it could not be seen.
        expected: the owner this process accepts.
    """

    def __init__(self, name: str, uid: int | None, expected: int) -> None:
        super().__init__(errno.EACCES, "not ours", name)
        self.name = name
        self.uid = uid
        self.expected = expected

    def __str__(self) -> str:
        owner = "an unknown user" if self.uid is None else f"uid {self.uid}"
        return f"ring {self.name!r} belongs to {owner}, not to uid {self.expected}: refused"


class RingFull(RingError, TimeoutError):
    """No room for a frame came free in time.

    Args:
        name: the ring.
        nbytes: bytes the frame needs in the ring, header included.
        waited: seconds spent waiting.
        slot, pid, lag, leases, oldest_lease: the slowest consumer: its slot, its process, bytes it has not
            released, leases it holds and the seq of the oldest; all None when no consumer is attached.
    """

    def __init__(
        self,
        name: str,
        nbytes: int,
        waited: float,
        slot: int | None = None,
        pid: int | None = None,
        lag: int | None = None,
        leases: int | None = None,
        oldest_lease: int | None = None,
    ) -> None:
        super().__init__(errno.ETIMEDOUT, "full")
        self.name = name
        self.nbytes = nbytes
        self.waited = waited
        self.slot = slot
        self.pid = pid
        self.lag = lag
        self.leases = leases
        self.oldest_lease = oldest_lease

    def __str__(self) -> str:
        if self.slot is None:
            who = "no consumer is attached"
        else:
            who = f"the slowest consumer is pid {self.pid} in slot {self.slot}, {self.lag} bytes behind"
            if self.leases:
                who += f" with {self.leases} leases since seq {self.oldest_lease}"
        return f"ring {self.name!r} had no room for {self.nbytes} bytes within {self.waited:.3f} s: {who}"


class RingClosed(RingError, EOFError):
    """The clean end of a ring.

    Args:
        name: the ring.
        by: who ended it: "us", "the producer" or "a replacement".
    """

    def __init__(self, name: str, by: str = "the producer") -> None:
        super().__init__(name, by)
        self.name = name
        self.by = by

    def __str__(self) -> str:
        return f"ring {self.name!r} was closed by {self.by}"


class PeerDead(RingError, ConnectionError):
    """The producer died without closing; everything it published has been delivered.

    Args:
        name: the ring.
        pid: the dead producer, as it named itself.
        since: when its death was noticed, Unix time in seconds.
        incarnation: which life of the producer ended.
    """

    def __init__(self, name: str, pid: int, since: float, incarnation: int = 0) -> None:
        super().__init__(errno.EPIPE, "dead")
        self.name = name
        self.pid = pid
        self.since = since
        self.incarnation = incarnation

    def __str__(self) -> str:
        return f"producer of ring {self.name!r} (pid {self.pid}, incarnation {self.incarnation}) is dead"


class RingCorrupt(RingError, ValueError):
    """The segment breaks a rule of its layout; nothing after `offset` was used.

    Args:
        name: the ring.
        offset: byte offset in the segment of the word at fault.
        reason: the broken rule with the values that disagree.
    """

    def __init__(self, name: str, offset: int, reason: str) -> None:
        super().__init__(name, offset, reason)
        self.name = name
        self.offset = offset
        self.reason = reason

    def __str__(self) -> str:
        return f"ring {self.name!r} is corrupt at byte {self.offset}: {self.reason}"


class RingVersion(RingError, ValueError):
    """The segment has another layout version than this package.

    Args:
        name: the ring.
        found, expected: the two versions.
    """

    def __init__(self, name: str, found: int, expected: int) -> None:
        super().__init__(name, found, expected)
        self.name = name
        self.found = found
        self.expected = expected

    def __str__(self) -> str:
        return (
            f"ring {self.name!r} has layout version {self.found}, this package reads version {self.expected}"
        )


class ProducerAlive(RingError, RuntimeError):
    """The ring already has a living producer.

    Args:
        name: the ring.
        pid: that producer, as it named itself.
    """

    def __init__(self, name: str, pid: int) -> None:
        super().__init__(name, pid)
        self.name = name
        self.pid = pid

    def __str__(self) -> str:
        return f"ring {self.name!r} has a living producer: pid {self.pid}"


class NoFreeSlot(RingError, RuntimeError):
    """Every consumer slot of the ring is taken by a living process.

    Args:
        name: the ring.
        slots: how many there are.
    """

    def __init__(self, name: str, slots: int) -> None:
        super().__init__(name, slots)
        self.name = name
        self.slots = slots

    def __str__(self) -> str:
        return f"ring {self.name!r} has no free slot: all {self.slots} are taken"


class FrameTooLarge(RingError, ValueError):
    """A frame that could never be written; nothing was.

    Args:
        name: the ring.
        size: payload bytes asked for.
        limit: most payload bytes this ring takes, at this alignment.
    """

    def __init__(self, name: str, size: int, limit: int) -> None:
        super().__init__(name, size, limit)
        self.name = name
        self.size = size
        self.limit = limit

    def __str__(self) -> str:
        return f"frame of {self.size} bytes is over the limit of {self.limit} bytes of ring {self.name!r}"


class FrameInUse(RingError, BufferError):
    """Views of a frame (or an open claim) still live, so nothing was changed.

    Args:
        views: how many references were counted, at least 1.
        what: what they are views of.
    """

    def __init__(self, views: int, what: str = "the frame") -> None:
        super().__init__(views, what)
        self.views = views
        self.what = what

    def __str__(self) -> str:
        return f"{self.views} view(s) of {self.what} still live"


class SharedMemoryFull(RingError, OSError):
    """The shared-memory file system cannot hold the ring; nothing was left behind.

    Args:
        name: the ring.
        needed, free: bytes.
        remedy: what to do about it.
    """

    def __init__(self, name: str, needed: int, free: int, remedy: str) -> None:
        super().__init__(errno.ENOSPC, "full", name)
        self.name = name
        self.needed = needed
        self.free = free
        self.remedy = remedy

    def __str__(self) -> str:
        return (
            f"ring {self.name!r} needs {self.needed} bytes of /dev/shm, {self.free} are free: {self.remedy}"
        )


class UseAfterFork(RingError, RuntimeError):
    """A handle was used in a forked child; only the process that opened it may.

    Args:
        name: the ring.
        pid: the process that opened the handle.
    """

    def __init__(self, name: str, pid: int) -> None:
        super().__init__(name, pid)
        self.name = name
        self.pid = pid

    def __str__(self) -> str:
        return f"this handle of ring {self.name!r} belongs to pid {self.pid}: attach again after fork"

"""Who is alive: open-file-description locks on bytes of the segment, never time-outs.

The kernel ends such a lock with the process that holds it, whatever ended the process, also when it lives
in another pid namespace; a stopped process keeps it. Pids and start times are written beside it for people
to read, and decide nothing: a lock cannot be mistaken for another process of the same pid.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct

from ringbuf.layout import PRODUCER_PAGE, slot_page

__all__ = ["LockProbe", "is_locked", "lock_all", "lock_byte", "process_start"]

# From <fcntl.h>; the struct is `struct flock` of 64-bit Linux, l_pid must be 0.
_F_OFD_GETLK = 36
_F_OFD_SETLK = 37
_FLOCK = struct.Struct("hhqqi4x")


def lock_byte(fd: int, offset: int, length: int = 1) -> bool:
    """Take the write lock on bytes of the segment if nobody holds any part of it; never waits.

    Args:
        fd: an open of the segment of its own, writable: every mapping made from it would hold the lock on.
    """
    try:
        fcntl.fcntl(fd, _F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, offset, length, 0))
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def lock_all(fd: int, slots: int) -> bool:
    """Take the locks of the producer and of every slot at once, or none."""
    return lock_byte(fd, PRODUCER_PAGE, slot_page(slots) - PRODUCER_PAGE)


def is_locked(fd: int, offset: int, length: int = 1) -> bool:
    """Whether another open of the segment holds a lock on these bytes; read permission is enough."""
    answer = fcntl.fcntl(fd, _F_OFD_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, offset, length, 0))
    return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)


class LockProbe:
    """Asks about the locks of one segment, through a descriptor that is opened on the first question.

    Once the name is gone the segment cannot be opened any more; then the answer is None and the caller has
    only the peer's FIFO to go by.
    """

    __slots__ = ("_device", "_fd", "_inode", "_path")

    def __init__(self, path: str, device: int, inode: int) -> None:
        self._path = path
        self._device = device
        self._inode = inode
        self._fd = -1

    def _held(self, offset: int) -> bool | None:
        if self._fd < 0:
            try:
                fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            except OSError:
                return None
            found = os.fstat(fd)
            if (found.st_dev, found.st_ino) != (self._device, self._inode):
                os.close(fd)
                return None
            self._fd = fd
        return is_locked(self._fd, offset)

    def producer_alive(self) -> bool | None:
        """Whether a process holds the producer's lock; None when that cannot be asked any more."""
        return self._held(PRODUCER_PAGE)

    def consumer_alive(self, slot: int) -> bool | None:
        """Whether a process holds the lock of `slot`; None when that cannot be asked any more."""
        return self._held(slot_page(slot))

    def close(self) -> None:
        """Give the descriptor back."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def process_start(pid: int) -> int:
    """Start time of a process in clock ticks since boot, 0 when /proc does not tell.

    Mirrors: proc_pid_stat(5), field 22; the command name before it may hold spaces and parentheses.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0

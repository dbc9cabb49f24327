"""Doorbells: one FIFO per party, beside the segment, that wakes its owner and shows its death.

The owner holds its FIFO open for reading and writing, so it never sees an end of file; a waker opens it for
writing only. That one open serves twice: a byte written to it wakes the owner, and poll reports POLLERR on
it as soon as no reader is left, which is the moment the owner's process ends. A bell is only a hint, the
state is in the ring: a full pipe, a missing FIFO or a dead owner are no errors here.

All FIFOs are made by the creator of the segment, with its mode, and named after the instance, so a new ring
of the same name has new ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import select
import signal
import stat
import threading
import weakref

from ringbuf.layout import PAGE

__all__ = [
    "PRODUCER",
    "Bell",
    "OwnBell",
    "ReadySet",
    "consumer_party",
    "fifo_path",
    "make_fifo",
    "readable",
]

SHM_DIR = "/dev/shm"
PRODUCER = "p"


_F_SETPIPE_SZ = 1031


def consumer_party(slot: int) -> str:
    """The party name of the consumer in `slot`."""
    return f"c{slot}"


def fifo_path(name: str, instance: int, party: str) -> str:
    """Where the FIFO of one party of a ring lies."""
    return f"{SHM_DIR}/ringbuf.{name}~{instance:016x}.{party}"


def make_fifo(path: str, mode: int) -> None:
    """Make a FIFO with exactly `mode`, whatever the umask."""
    os.mkfifo(path, 0o600)
    os.chmod(path, mode)


class OwnBell:
    """One's own FIFO, both ends: what rings this side, and its lifeline for the others.

    A thread may sleep on it while another closes it; then it is woken, and no read goes to a closed
    descriptor.

    Raises:
        FileNotFoundError: the FIFO was removed, so the ring is being removed.
    """

    __slots__ = ("_fd", "_lock")

    def __init__(self, path: str) -> None:
        fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        if not stat.S_ISFIFO(os.fstat(fd).st_mode):
            os.close(fd)
            raise FileNotFoundError(path)
        # One page holds more bells than anybody lets collect; the default of 16 counts against the user's
        # limit.
        with contextlib.suppress(OSError):
            fcntl.fcntl(fd, _F_SETPIPE_SZ, PAGE)
        self._fd = fd
        self._lock = threading.Lock()

    def fileno(self) -> int:
        """The descriptor, -1 once closed."""
        return self._fd

    def nudge(self) -> None:
        """Wake whoever sleeps on it here."""
        with contextlib.suppress(BlockingIOError), self._lock:
            if self._fd >= 0:
                os.write(self._fd, b"!")

    def drain(self) -> bool:
        """Empty it; whether anything was in it."""
        with self._lock:
            if self._fd < 0:
                return False
            try:
                return bool(os.read(self._fd, PAGE))
            except BlockingIOError:
                return False

    def close(self) -> None:
        """Give the descriptor back, which tells the others that nobody is here."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def close_in_child(self) -> None:
        """Close it after a fork, where the lock may be held by a thread that does not exist here."""
        self._lock = threading.Lock()
        self._close()


class Bell:
    """A peer's FIFO: its doorbell and its lifeline."""

    __slots__ = ("_fd", "_path")

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = -1

    def fileno(self) -> int:
        """The descriptor to poll for POLLERR (poll for nothing else), -1 when the peer is not there."""
        if self._fd < 0:
            try:
                fd = os.open(self._path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
            except OSError:
                return -1
            if not stat.S_ISFIFO(os.fstat(fd).st_mode):
                os.close(fd)
                return -1
            self._fd = fd
        return self._fd

    def is_cut(self) -> bool:
        """Whether no process holds the peer's FIFO."""
        fd = self.fileno()
        if fd < 0:
            return True
        poll = select.poll()
        poll.register(fd, 0)
        return bool(poll.poll(0))

    def is_held(self) -> bool | None:
        """Whether a process holds the peer's FIFO; None when the FIFO cannot be opened (any more)."""
        return None if self.fileno() < 0 else not self.is_cut()

    def ring(self) -> bool:
        """Wake the owner; False when nobody is there to wake."""
        fd = self.fileno()
        if fd < 0:
            return False
        try:
            if signal.getsignal(signal.SIGPIPE) == signal.SIG_DFL:
                _write_without_sigpipe(fd)
            else:
                os.write(fd, b"!")
        except BlockingIOError:
            return True
        except BrokenPipeError:
            return False
        return True

    def close(self) -> None:
        """Give the descriptor back; the next use opens it again."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _write_without_sigpipe(fd: int) -> None:
    """Write to a FIFO whose reader may have died, in a program that lets SIGPIPE kill it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})
    try:
        os.write(fd, b"!")
    except BrokenPipeError:
        if signal.SIGPIPE not in before:
            signal.sigtimedwait({signal.SIGPIPE}, 0)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class ReadySet:
    """One descriptor that is readable when a FIFO has been rung or a lifeline is cut; for event loops.

    Args:
        fifo: one's own FIFO.
    """

    __slots__ = ("_epoll", "_lifeline")

    def __init__(self, fifo: int) -> None:
        self._epoll = select.epoll()
        self._epoll.register(fifo, select.EPOLLIN)
        self._lifeline = -1

    def fileno(self) -> int:
        """The descriptor."""
        return self._epoll.fileno()

    def watch(self, fd: int) -> None:
        """Be readable also when `fd` reports an error; in place of the lifeline watched before."""
        self.unwatch()
        if fd >= 0:
            self._epoll.register(fd, 0)
            self._lifeline = fd

    def unwatch(self) -> None:
        """Watch no lifeline: a cut one would be readable for ever."""
        fd, self._lifeline = self._lifeline, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                self._epoll.unregister(fd)

    def close(self) -> None:
        """Give the descriptor back."""
        self._epoll.close()


# ------------------------------------------------------------------------------------------------ asyncio

# A loop looks at all its waiters from time to time, with one timer whatever their number, and none while
# nobody waits.
_RECHECK_S = 4.0


class _Ticker:
    """The waiters of one loop, and whether its timer runs."""

    __slots__ = ("running", "waiters")

    def __init__(self) -> None:
        self.waiters: set[asyncio.Future[None]] = set()
        self.running = False

    def look_again(self, loop: asyncio.AbstractEventLoop) -> None:
        for waiter in self.waiters:
            _resolve(waiter)
        self.running = bool(self.waiters)
        if self.running:
            loop.call_later(_RECHECK_S, self.look_again, loop)


_tickers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Ticker] = weakref.WeakKeyDictionary()


async def readable(fd: int) -> None:
    """Wait under the running loop until `fd` is readable, or until the loop's next re-check."""
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()
    ticker = _tickers.get(loop)
    if ticker is None:
        ticker = _tickers[loop] = _Ticker()
    ticker.waiters.add(waiter)
    if not ticker.running:
        ticker.running = True
        loop.call_later(_RECHECK_S, ticker.look_again, loop)
    loop.add_reader(fd, _resolve, waiter)
    try:
        await waiter
    finally:
        loop.remove_reader(fd)
        ticker.waiters.discard(waiter)


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)

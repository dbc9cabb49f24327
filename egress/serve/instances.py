"""What a server leaves on the machine under its instance's name, and how the next one clears up after a
dead one.

A directory per instance holds a lock file and the metrics files. The supervisor keeps the lock (`flock`)
while it lives, and the kernel lets go of it however it ends; so a directory whose lock can be had belongs
to a dead instance, and so do the rings whose names begin with its name. Rings that a process still uses are
left alone, as is whatever is not ours to remove; both are named in the log once and try again at the next
start.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import shutil
import tempfile
import time
from pathlib import Path

import ringbuf
from egress.serve import logs

__all__ = ["Instance", "free_shm_bytes", "reap_dead"]

log = logging.getLogger(__name__)

# Children of a dead supervisor read the end of their lifeline and leave; this is how long the next start
# waits.
LEAVING_S = 2.0


def _root() -> Path:
    """Where the directories of this user's instances are."""
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    return Path(base) / f"egress-{os.getuid()}"


class Instance:
    """This server's name and directory, for as long as the object is not closed.

    Args:
        name: None takes a new one, unique on this machine.

    Raises:
        RuntimeError: another live server has this name.
        OSError: the directory cannot be made, or belongs to somebody else.
    """

    def __init__(self, name: str | None = None) -> None:
        self.name = name or f"egress-{os.getpid()}-{secrets.token_hex(3)}"
        root = _root()
        root.mkdir(mode=0o700, exist_ok=True)
        if root.stat().st_uid != os.getuid():
            raise PermissionError(f"{root} belongs to uid {root.stat().st_uid}")
        self.directory = root / self.name
        self.directory.mkdir(mode=0o700, exist_ok=True)
        lock = _try_lock(self.directory)
        if lock is None:
            raise RuntimeError(f"instance {self.name!r} is running")
        self._lock = lock
        self.metrics_directory = self.directory / "metrics"
        shutil.rmtree(self.metrics_directory, ignore_errors=True)
        self.metrics_directory.mkdir(mode=0o700)

    def close(self) -> None:
        """Take away the rings that are left and the directory. The children must have ended."""
        _unlink_rings(self.name)
        shutil.rmtree(self.directory, ignore_errors=True)
        os.close(self._lock)


def reap_dead() -> list[str]:
    """Take away what this user's dead instances left.

    Returns:
        The names of the rings and directories that are gone now.
    """
    root = _root()
    if not root.is_dir() or root.stat().st_uid != os.getuid():
        return []
    reaped = []
    for directory in sorted(root.iterdir()):
        lock = _try_lock(directory)
        if lock is None:
            continue
        try:
            deadline = time.monotonic() + LEAVING_S
            while (busy := _busy_rings(directory.name)) and time.monotonic() < deadline:
                time.sleep(0.05)
            reaped += _unlink_rings(directory.name)
            if busy:
                log.warning("a dead server's rings are still in use", extra=logs.fields(rings=",".join(busy)))
            else:
                shutil.rmtree(directory, ignore_errors=True)
                reaped.append(str(directory))
        finally:
            os.close(lock)
    return reaped


def free_shm_bytes() -> int:
    """Bytes free in /dev/shm."""
    found = os.statvfs("/dev/shm")
    return found.f_bavail * found.f_frsize


def _try_lock(directory: Path) -> int | None:
    """The lock of an instance's directory as an open descriptor; None: held, or no such directory."""
    try:
        fd = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd


def _rings_of(name: str) -> list[ringbuf.RingInfo]:
    return [info for info in ringbuf.rings() if info.name.startswith(f"{name}.")]


def _is_used(info: ringbuf.RingInfo) -> bool:
    return info.producer.alive or any(consumer.alive for consumer in info.consumers)


def _busy_rings(name: str) -> list[str]:
    return [info.name for info in _rings_of(name) if _is_used(info)]


def _unlink_rings(name: str) -> list[str]:
    gone = []
    for info in _rings_of(name):
        if _is_used(info):
            continue
        try:
            ringbuf.unlink(info.name)
        except FileNotFoundError:
            continue
        except (ringbuf.RingError, OSError) as error:
            log.warning("ring %s cannot be removed: %s", info.name, error)
        else:
            gone.append(info.name)
    # What a child was making when it was killed bears no ring's name yet.
    return gone + ringbuf.reap(prefix=f"{name}.")

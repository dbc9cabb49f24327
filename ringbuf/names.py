"""How a ring's files are named, found, checked and removed.

    ringbuf.<name>                     the segment, complete and ready
    ringbuf.<name>~<instance>.new      the same segment while it is being made
    ringbuf.<name>~<instance>.p, .cN   the FIFOs of the producer and of the consumer in slot N

Opening refuses whatever is not a regular file of the expected owner, and reads the header into a private copy
before anything of it is believed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

import posix_ipc  # type: ignore[import-not-found]  # a C module without stubs

from ringbuf import layout
from ringbuf._hooks import step
from ringbuf.doorbell import PRODUCER, SHM_DIR, consumer_party, fifo_path
from ringbuf.errors import RingCorrupt, RingForbidden, RingNotFound
from ringbuf.layout import HEADER_WORDS, WORD, Geometry

__all__ = ["leads_to", "open_descriptor", "open_ready", "read_geometry", "remove_names", "segment_path"]

# O_NONBLOCK, because opening a planted FIFO would wait for its other end.
OPEN_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_HEADER_BYTES = HEADER_WORDS * WORD
# Whoever waits for a name looks again after these pauses.
_FIRST_PAUSE_S = 0.001
_LONGEST_PAUSE_S = 0.02


def segment_path(name: str) -> str:
    """Where the segment of a ring lies."""
    return f"{SHM_DIR}/ringbuf.{name}"


def temporary_path(name: str, instance: int) -> str:
    """Where a segment lies while it is being made."""
    return f"{SHM_DIR}/ringbuf.{name}~{instance:016x}.new"


def shared_names() -> list[str]:
    """File names in the shared-memory directory that begin like ours."""
    return sorted(path.name for path in Path(SHM_DIR).glob("ringbuf.*"))


def create_shared(path: str) -> int:
    """Make an empty shared-memory object that only its owner may open; its descriptor, close-on-exec."""
    try:
        made = posix_ipc.SharedMemory("/" + os.path.basename(path), posix_ipc.O_CREX, mode=0o600)
    except posix_ipc.ExistentialError as error:
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, "somebody made it meanwhile", path) from error
        reason = "no shared-memory directory; mount a tmpfs there, `ringbuf doctor` says how"
        raise FileNotFoundError(errno.ENOENT, reason, SHM_DIR) from error
    except posix_ipc.PermissionsError as error:
        raise PermissionError(errno.EACCES, "shared memory is not writable for this user", SHM_DIR) from error
    return int(made.fd)


def unlink_shared(path: str) -> None:
    """Remove a shared-memory object's name, if it is there and may be removed."""
    with contextlib.suppress(posix_ipc.ExistentialError, posix_ipc.PermissionsError):
        posix_ipc.unlink_shared_memory("/" + os.path.basename(path))


def leads_to(path: str, device: int, inode: int) -> bool:
    try:
        found = os.stat(path, follow_symlinks=False)
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == (device, inode)


def remove_names(name: str, instance: int, slots: int, device: int, inode: int) -> None:
    """Remove what names a segment, the segment's own name first, and only if it leads to this one."""
    for path in (segment_path(name), temporary_path(name, instance)):
        if leads_to(path, device, inode):
            step("remove.name")
            unlink_shared(path)
    step("remove.fifos")
    for party in (PRODUCER, *map(consumer_party, range(slots))):
        with contextlib.suppress(OSError):
            os.unlink(fifo_path(name, instance, party))


def open_descriptor(name: str, owner: int | None, flags: int = os.O_RDWR) -> int:
    """Open a ring's segment without mapping it.

    Args:
        owner: the uid it must belong to; None for this process's own.

    Raises:
        RingNotFound: there is nothing of this name.
        RingForbidden: it is somebody else's, or no regular file.
    """
    path = segment_path(name)
    expected = os.geteuid() if owner is None else owner
    try:
        fd = os.open(path, flags | OPEN_FLAGS)
    except FileNotFoundError:
        raise RingNotFound(name) from None
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise RingForbidden(name, _owner_of(path), expected) from error
        raise
    found = os.fstat(fd)
    if found.st_uid != expected or not stat.S_ISREG(found.st_mode):
        os.close(fd)
        raise RingForbidden(name, found.st_uid, expected)
    return fd


def _owner_of(path: str) -> int | None:
    try:
        return os.stat(path, follow_symlinks=False).st_uid
    except OSError:
        return None


def read_geometry(name: str, fd: int) -> Geometry:
    """Read and check the header page of an open segment, from a private copy.

    Raises:
        RingNotFound: it is empty or not ready.
        RingCorrupt, RingVersion: it is no segment of this version.
    """
    file_bytes = os.fstat(fd).st_size
    if file_bytes == 0:
        raise RingNotFound(name, "empty")
    head = os.pread(fd, _HEADER_BYTES, 0)
    if len(head) < _HEADER_BYTES:
        raise RingCorrupt(name, 0, f"segment has {file_bytes} bytes, its header alone needs {_HEADER_BYTES}")
    words = struct.unpack(f"={HEADER_WORDS}Q", head)
    if not layout.is_ready(words):
        raise RingNotFound(name, "not ready")
    return layout.read_header(name, words, file_bytes)


def open_ready(name: str, owner: int | None, flags: int = os.O_RDWR) -> tuple[int, Geometry]:
    """Open a ready segment: its descriptor and its geometry."""
    fd = open_descriptor(name, owner, flags)
    try:
        return fd, read_geometry(name, fd)
    except BaseException:
        os.close(fd)
        raise


@contextlib.contextmanager
def opened(name: str, owner: int | None, flags: int = os.O_RDWR) -> Iterator[tuple[int, Geometry]]:
    """`open_ready` for a block."""
    fd, geometry = open_ready(name, owner, flags)
    try:
        yield fd, geometry
    finally:
        os.close(fd)


def pauses() -> Iterator[float]:
    """Seconds to pause between looks at a name: short at first, never long."""
    pause = _FIRST_PAUSE_S
    while True:
        yield pause
        pause = min(_LONGEST_PAUSE_S, pause * 1.5)

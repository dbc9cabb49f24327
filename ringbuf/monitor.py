"""Looking at rings from outside, and removing what the dead left."""

from __future__ import annotations

import contextlib
import os
import re
import stat

from ringbuf import layout
from ringbuf.counters import RingInfo, read_info
from ringbuf.doorbell import SHM_DIR
from ringbuf.errors import RingError, RingForbidden, RingNotFound
from ringbuf.layout import PRODUCER_PAGE, check_name
from ringbuf.liveness import is_locked
from ringbuf.names import (
    OPEN_FLAGS,
    open_descriptor,
    opened,
    shared_names,
    temporary_path,
)
from ringbuf.removal import end_ring, try_remove_dead

__all__ = ["inspect", "reap", "ring_names", "rings", "unfinished", "unlink"]

_PREFIX = "ringbuf."
_PART = re.compile(r"(?P<name>.+)~(?P<instance>[0-9a-f]{16})\.(?P<part>new|p|c[0-9]+)")


def ring_names() -> list[str]:
    """Every name in /dev/shm that a ring could bear, whatever lies there."""
    return [file[len(_PREFIX) :] for file in shared_names() if "~" not in file]


def unfinished() -> list[tuple[str, bool | None]]:
    """Every segment that bears no ring's name yet: its file name without prefix, and whether it is locked.

    It is while it is being made; what nobody locks was left by a killed creator and is removed by `reap`.
    None: another user's.
    """
    found: list[tuple[str, bool | None]] = []
    for file in shared_names():
        part = _PART.fullmatch(file[len(_PREFIX) :])
        if part is None or part["part"] != "new":
            continue
        making: bool | None = None
        try:
            fd = os.open(f"{SHM_DIR}/{file}", os.O_RDONLY | OPEN_FLAGS)
        except FileNotFoundError:
            continue
        except OSError:
            pass
        else:
            try:
                making = is_locked(fd, PRODUCER_PAGE)
            finally:
                os.close(fd)
        found.append((file[len(_PREFIX) :], making))
    return found


def inspect(name: str, *, owner: int | None = None) -> RingInfo:
    """What a ring says about itself, live or dead; needs only read permission and changes nothing.

    Args:
        owner: uid the ring must belong to; None for this process's own.

    Raises:
        RingNotFound, RingForbidden, RingVersion, RingCorrupt: there is no such ring to be read.
    """
    check_name(name)
    with opened(name, owner, os.O_RDONLY) as (fd, geometry):
        return read_info(name, fd, geometry)


def rings() -> list[RingInfo]:
    """Every ring of this user that can be read, by name; what cannot is left out."""
    found = []
    for name in ring_names():
        with contextlib.suppress(RingError, ValueError):
            found.append(inspect(name))
    return found


def unlink(name: str) -> None:
    """Remove a ring's name and FIFOs, whoever uses it.

    For those who do, it has ended: consumers read what is there and then find RingClosed, the producer finds
    it when it next looks for room. What they have mapped they keep.

    Raises:
        RingNotFound: there is nothing of this name.
        RingForbidden: it belongs to another user.
    """
    check_name(name)
    fd = open_descriptor(name, None)
    try:
        end_ring(name, fd, layout.ENDED_UNLINKED)
    finally:
        os.close(fd)


def reap(*, prefix: str = "") -> list[str]:
    """Remove every ring of this user that no living process holds, and what killed creators left.

    A ring in the making is locked by its creator and so never taken.

    Args:
        prefix: only rings whose names begin so.

    Returns:
        The names of the rings that were removed, sorted; leftovers of a ring count under its name.
    """
    removed: set[str] = set()
    files = [file for file in shared_names() if file.startswith(_PREFIX + prefix)]
    for file in files:
        if "~" not in file:
            _reap_segment(file[len(_PREFIX) :], f"{SHM_DIR}/{file}", removed)
    parts = [(file, part) for file in files if (part := _PART.fullmatch(file[len(_PREFIX) :]))]
    # Unfinished segments first: a FIFO is a leftover only when no segment of its instance is there.
    for file, part in parts:
        if part["part"] == "new":
            _reap_segment(part["name"], f"{SHM_DIR}/{file}", removed)
    for file, part in parts:
        if part["part"] != "new" and not _instance_exists(part["name"], int(part["instance"], 16)):
            _reap_fifo(part["name"], f"{SHM_DIR}/{file}", removed)
    return sorted(removed)


def _reap_segment(name: str, path: str, removed: set[str]) -> None:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        found = os.fstat(fd)
        if found.st_uid == os.geteuid() and stat.S_ISREG(found.st_mode) and try_remove_dead(name, fd, path):
            removed.add(name)
    finally:
        os.close(fd)


def _instance_exists(name: str, instance: int) -> bool:
    """Whether a segment, finished or being made, owns FIFOs of this instance."""
    if os.path.lexists(temporary_path(name, instance)):
        return True
    try:
        with opened(name, None, os.O_RDONLY) as (_, geometry):
            return geometry.instance == instance
    except RingNotFound as error:
        return error.reason != "missing"
    except (RingForbidden, ValueError):
        return True


def _reap_fifo(name: str, path: str, removed: set[str]) -> None:
    with contextlib.suppress(OSError):
        found = os.stat(path, follow_symlinks=False)
        if found.st_uid == os.geteuid() and stat.S_ISFIFO(found.st_mode):
            os.unlink(path)
            removed.add(name)

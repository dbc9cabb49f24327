"""The life of a shared-memory object: named, locked, sized, filled, linked, opened, removed.

A ring comes to be under a temporary name, `ringbuf.<name>~<instance>.new`, and is locked by its creator
before it has a size; only a complete, ready segment is linked to `ringbuf.<name>`, and only if that name is
free. So what bears a ring's name is never half made, and at every instant a lock tells a segment in the
making from one left by the dead: whoever removes a segment first takes all its locks, and a creator whose
temporary segment was taken between open and lock notices and starts over.

Removing is by name only: whoever has the segment mapped keeps it. A name is removed by its owner (the
producer), by an explicit unlink, or by a reaper that holds every lock, and only while it still leads to the
same segment.
"""

from __future__ import annotations

import errno
import os
import secrets
import struct
import time

from ringbuf import layout
from ringbuf._hooks import step, wrap_words
from ringbuf.doorbell import PRODUCER, SHM_DIR, Bell, consumer_party, fifo_path, make_fifo
from ringbuf.errors import RingNotFound, SharedMemoryFull
from ringbuf.layout import PAGE, PRODUCER_PAGE, WORD, Geometry
from ringbuf.liveness import LockProbe, lock_byte, process_start
from ringbuf.mapping import Anchor, map_pages
from ringbuf.names import (
    OPEN_FLAGS,
    create_shared,
    leads_to,
    open_ready,
    pauses,
    remove_names,
    segment_path,
    temporary_path,
    unlink_shared,
)
from ringbuf.removal import clear_name

__all__ = ["Segment", "create_segment", "hold_lock", "open_segment"]


class Segment:
    """A mapped segment: the control pages read-only, the rest as asked for.

    Args:
        name: the ring.
        fd: an open of it; stays the caller's to close.
        geometry: its checked header.
    """

    __slots__ = ("control", "device", "geometry", "inode", "name", "path", "probe", "raw")

    def __init__(self, name: str, fd: int, geometry: Geometry) -> None:
        found = os.fstat(fd)
        self.name = name
        self.path = segment_path(name)
        self.geometry = geometry
        self.device = found.st_dev
        self.inode = found.st_ino
        self.raw = memoryview(map_pages(fd, 0, geometry.data_offset, writable=False))
        self.control = self.raw.cast("Q")
        self.probe = LockProbe(self.path, self.device, self.inode)

    def words(self, offset: int, label: str) -> memoryview:
        """The words of one control page, read-only."""
        first = offset // WORD
        return wrap_words(label, self.control[first : first + PAGE // WORD])

    def bell(self, party: str) -> Bell:
        """The doorbell of a peer."""
        return Bell(fifo_path(self.name, self.geometry.instance, party))

    def bell_path(self, party: str) -> str:
        """Where one's own doorbell lies."""
        return fifo_path(self.name, self.geometry.instance, party)

    def still_named(self) -> bool:
        """Whether the name leads to this segment."""
        return leads_to(self.path, self.device, self.inode)

    def remove_names(self) -> None:
        """Remove the name if it still leads here, and the FIFOs of this instance."""
        remove_names(self.name, self.geometry.instance, self.geometry.slots, self.device, self.inode)


# ------------------------------------------------------------------------------------------------- opening


def open_segment(name: str, timeout: float, owner: int | None) -> tuple[Segment, int]:
    """Wait for a ring to be there and ready, and map its control pages.

    Returns:
        The segment, and a descriptor of it for the caller to map more from and close.

    Raises:
        RingNotFound: not within `timeout` seconds; its reason tells missing from empty from not ready.
        RingForbidden, RingCorrupt, RingVersion: at once.
    """
    started = time.monotonic()
    for pause in pauses():
        try:
            fd, geometry = open_ready(name, owner)
            break
        except RingNotFound as error:
            waited = time.monotonic() - started
            if waited >= timeout:
                raise RingNotFound(name, error.reason, waited) from None
            time.sleep(min(pause, timeout - waited))
    try:
        return Segment(name, fd, geometry), fd
    except BaseException:
        os.close(fd)
        raise


def hold_lock(segment: Segment, offset: int) -> Anchor | None:
    """Take the lock on a byte of the segment through an open of its own.

    Returns:
        What holds the lock, without a descriptor; None when somebody else has it.

    Raises:
        RingNotFound: the name does not lead to this segment any more.
    """
    try:
        fd = os.open(segment.path, os.O_RDWR | OPEN_FLAGS)
    except OSError:
        raise RingNotFound(segment.name, "being removed") from None
    try:
        found = os.fstat(fd)
        if (found.st_dev, found.st_ino) != (segment.device, segment.inode):
            raise RingNotFound(segment.name, "being removed")
        return Anchor(fd) if lock_byte(fd, offset) else None
    finally:
        os.close(fd)


# ------------------------------------------------------------------------------------------------- creating


def create_segment(
    name: str, capacity: int, slots: int, *, mode: int, replace: bool, origin: int, barrier: int
) -> tuple[Segment, int, Anchor]:
    """Make a ring's segment, ready, under its name, with the producer's lock held.

    Returns:
        The segment, a descriptor of it for the caller to map more from and close, and the lock.

    Raises:
        RingExists: the name is in use and `replace` is false.
        RingForbidden: the name is another user's.
        SharedMemoryFull: the pages could not be reserved.
    """
    while True:
        instance = secrets.randbits(64) | 1
        geometry = layout.plan(
            capacity,
            slots,
            instance=instance,
            origin=origin,
            created_ns=time.time_ns(),
            pid=os.getpid(),
            barrier=barrier,
        )
        # First, so that the memory of a dead predecessor is free before the new ring asks for its own.
        clear_name(name, replace)
        made = _make(name, geometry, mode)
        if made is None:
            continue
        fd, anchor = made
        try:
            step("create.link")
            os.link(temporary_path(name, instance), segment_path(name), follow_symlinks=False)
        except FileExistsError:
            _discard(name, geometry, fd, anchor)
            continue
        except BaseException:
            _discard(name, geometry, fd, anchor)
            raise
        try:
            step("create.linked")
            os.unlink(temporary_path(name, instance))
            return Segment(name, fd, geometry), fd, anchor
        except BaseException:
            _discard(name, geometry, fd, anchor)
            raise


def _discard(name: str, geometry: Geometry, fd: int, anchor: Anchor | None) -> None:
    found = os.fstat(fd)
    remove_names(name, geometry.instance, geometry.slots, found.st_dev, found.st_ino)
    os.close(fd)
    if anchor is not None:
        anchor.release()


def _make(name: str, geometry: Geometry, mode: int) -> tuple[int, Anchor] | None:
    """A complete segment under its temporary name; None when a reaper took it before it was locked."""
    path = temporary_path(name, geometry.instance)
    step("create.open")
    lock_fd = create_shared(path)
    anchor = None
    fd = -1
    try:
        step("create.opened")
        if not lock_byte(lock_fd, PRODUCER_PAGE) or os.fstat(lock_fd).st_nlink == 0:
            # The reaper may die before it removes the name, and nobody else would.
            unlink_shared(path)
            return None
        fd = os.open(path, os.O_RDWR | OPEN_FLAGS)
        anchor = Anchor(lock_fd)
        step("create.locked")
        os.fchmod(fd, mode)
        _reserve(name, fd, geometry.size)
        step("create.sized")
        _fill(fd, geometry)
        step("create.filled")
        for party in (PRODUCER, *map(consumer_party, range(geometry.slots))):
            make_fifo(fifo_path(name, geometry.instance, party), mode)
        step("create.fifos")
        os.pwrite(fd, struct.pack("=Q", layout.MAGIC), layout.H_READY * WORD)
        return fd, anchor
    except BaseException:
        if fd >= 0:
            _discard(name, geometry, fd, anchor)
        else:
            unlink_shared(path)
        raise
    finally:
        os.close(lock_fd)


def _reserve(name: str, fd: int, size: int) -> None:
    """Give the segment its size, with every page of it backed."""
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        room = os.statvfs(SHM_DIR)
        raise SharedMemoryFull(
            name,
            size,
            room.f_bavail * room.f_frsize,
            f"enlarge it (containers: --shm-size={-(-size // (1 << 20)) * 2}m or more), remove what the dead "
            "left (`ringbuf reap`), or make the ring smaller",
        ) from error


def _fill(fd: int, geometry: Geometry) -> None:
    """Write the header and the producer page of a new ring; everything else is zero."""
    header = layout.header_words(geometry)
    os.pwrite(fd, struct.pack(f"={len(header)}Q", *header), 0)
    words = [0] * (PAGE // WORD)
    words[layout.P_POS] = words[layout.P_FLOOR] = words[layout.P_FLOOR_SEQ_POS] = geometry.origin
    words[layout.P_STATE] = layout.STATE_LIVE
    words[layout.P_INCARNATION] = 1
    words[layout.P_PID] = geometry.creator_pid
    words[layout.P_STARTED] = process_start(geometry.creator_pid)
    words[layout.P_SINCE_NS] = geometry.created_ns
    os.pwrite(fd, struct.pack(f"={len(words)}Q", *words), PRODUCER_PAGE)

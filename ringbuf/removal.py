"""Taking a ring's name away: from the dead, from a ring that is to be replaced, or because its owner says so.

Removing is by name only: whoever has the segment mapped keeps it. The dead are told from the living by locks
alone: whoever removes a dead segment holds every lock of it meanwhile, so nobody can attach, resume or finish
making it in between.
"""

from __future__ import annotations

import os
import time

from ringbuf import layout
from ringbuf._hooks import step
from ringbuf.doorbell import PRODUCER, Bell, consumer_party, fifo_path
from ringbuf.errors import RingExists, RingNotFound
from ringbuf.layout import PAGE, PRODUCER_PAGE, WORD, slot_page
from ringbuf.liveness import is_locked, lock_all
from ringbuf.mapping import map_pages
from ringbuf.names import (
    leads_to,
    open_descriptor,
    pauses,
    read_geometry,
    remove_names,
    segment_path,
    unlink_shared,
)

__all__ = ["clear_name", "end_ring", "living_pids", "try_remove_dead"]

# A lock that somebody holds only while removing or creating is free again within this time.
_BUSY_S = 0.05


def clear_name(name: str, replace: bool) -> None:
    """Make sure the name is free: remove what the dead left there, or, if asked, end what lives.

    Raises:
        RingExists: living processes use it and `replace` is false.
        RingForbidden: it is another user's.
    """
    started = time.monotonic()
    for pause in pauses():
        try:
            fd = open_descriptor(name, None)
        except RingNotFound:
            return
        try:
            if try_remove_dead(name, fd, segment_path(name)):
                return
            if replace:
                end_ring(name, fd, layout.ENDED_REPLACED)
                return
            if time.monotonic() - started > _BUSY_S:
                raise RingExists(name, living_pids(name, fd))
        finally:
            os.close(fd)
        time.sleep(pause)


def try_remove_dead(name: str, fd: int, path: str) -> bool:
    """Remove a segment and its FIFOs if no process holds any lock of it.

    Args:
        fd: an open of it, writable; the locks taken here are given back when the caller closes it.
        path: the name it was found under, final or temporary.

    Returns:
        Whether that name is gone now.
    """
    if not lock_all(fd, layout.MAX_SLOTS):
        return False
    found = os.fstat(fd)
    if not leads_to(path, found.st_dev, found.st_ino):
        return True
    step("reap.locked")
    try:
        geometry = read_geometry(name, fd)
    except (RingNotFound, ValueError):
        # Never ready, or garbage: nobody can be attached, and its FIFOs, if any, are found by their own
        # names.
        unlink_shared(path)
        return True
    remove_names(name, geometry.instance, geometry.slots, found.st_dev, found.st_ino)
    # A consumer that opened it before and takes a slot after us finds the end here.
    _mark_ended(fd, layout.ENDED_REPLACED)
    return True


def _mark_ended(fd: int, how: int) -> None:
    page = memoryview(map_pages(fd, PRODUCER_PAGE, PAGE, writable=True)).cast("Q")
    page[layout.P_ENDED] = how


def end_ring(name: str, fd: int, how: int) -> None:
    """Take the name from a ring: its consumers, having read what is there, and its producer find RingClosed.

    Args:
        how: what to leave in P_ENDED.
    """
    try:
        geometry = read_geometry(name, fd)
    except (RingNotFound, ValueError):
        unlink_shared(segment_path(name))
        return
    step("replace.end")
    _mark_ended(fd, how)
    for party in (PRODUCER, *map(consumer_party, range(geometry.slots))):
        bell = Bell(fifo_path(name, geometry.instance, party))
        bell.ring()
        bell.close()
    found = os.fstat(fd)
    remove_names(name, geometry.instance, geometry.slots, found.st_dev, found.st_ino)


def living_pids(name: str, fd: int) -> tuple[int, ...]:
    """The processes that hold locks of an open segment, as they named themselves in it."""
    try:
        geometry = read_geometry(name, fd)
    except (RingNotFound, ValueError):
        return ()
    places = [(PRODUCER_PAGE, layout.P_PID)]
    places += [(slot_page(slot), layout.C_PID) for slot in range(geometry.slots)]
    pids = []
    for page, word in places:
        if is_locked(fd, page):
            raw = os.pread(fd, WORD, page + word * WORD)
            pids.append(int.from_bytes(raw, "little"))
    return tuple(pids)

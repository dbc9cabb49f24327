"""The leases that keep a frame's bytes in the ring while anybody looks at them.

A frame is either a private copy of a small payload or a lease: a view of the ring. The two behave alike. A
lease lives in one numpy array per frame, its root: every memoryview, slice, reshape or array made from the
payload keeps that root alive, numpy collapsing the bases of views no further than to it. When the last of
them dies, so does the root, and a weak reference to it tells the book.

The book keeps a consumer's leases in order of position. The cursor stands at the oldest lease that lives,
or where the consumer reads when there is none; so leases may end in any order and bytes are released in
order. It outlives the consumer for as long as a view does: only then are the space and the slot given back.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from mmap import mmap
from typing import Any

import numpy as np

from ringbuf.frame import Frame
from ringbuf.layout import C_CURSOR, C_LEASES, C_OLDEST_LEASE

__all__ = ["LeaseBook"]

_ndarray = np.ndarray
_BYTE = np.dtype(np.uint8)


class _Lease(weakref.ref[Any]):
    """A weak reference to a frame's root, and where the frame lies."""

    __slots__ = ("ended", "position", "seq")

    ended: bool
    position: int
    seq: int


# Closed books with living leases. Nothing else refers to them: a view keeps the pages, not the book.
_outliving: set[LeaseBook] = set()


class LeaseBook:
    """The leases of one consumer, in order.

    Args:
        own: words of the consumer's page.
        data: the data pages, mapped read-only.
        is_forked: whether this process is a child that inherited the book; then nothing is given back.
        released: called after the cursor has moved, to wake a waiting producer.
        last_ended: called when the book was closed and its last lease ends.
    """

    __slots__ = (
        "_closing",
        "_data",
        "_ended",
        "_is_forked",
        "_last_ended",
        "_leases",
        "_live",
        "_lock",
        "_own",
        "_released",
        "hold",
        "position",
    )

    def __init__(
        self,
        own: memoryview,
        data: mmap,
        is_forked: Callable[[], bool],
        released: Callable[[], object],
        last_ended: Callable[[], None],
    ) -> None:
        self._own = own
        self._data = data
        self._is_forked = is_forked
        self._released = released
        self._last_ended = last_ended
        self._leases: deque[_Lease] = deque()
        self._ended: deque[_Lease] = deque()
        self._lock = threading.Lock()
        self._live = 0
        self._closing = False
        # Of the body, set once it is made: where it reads, and whether it moves the cursor itself.
        self.position: Callable[[], int]
        self.hold: Callable[[bool], None]

    def lease(self, tag: int, seq: int, position: int, offset: int, nbytes: int) -> Frame:
        """A frame that is a view of the ring (or, below two bytes, of a private array).

        Args:
            position: where the frame begins, in the stream.
            offset, nbytes: where its payload lies, in the data.
        """
        frame = Frame()
        frame.tag = tag
        frame.seq = seq
        if nbytes < 2:
            # The interpreter shares one object for equal bytes this short, so counting references to it would
            # not tell whether this frame is in use.
            root = np.array(list(self._data[offset : offset + nbytes]), np.uint8)
            root.flags.writeable = False
            frame._data = root
            return frame
        # Read-only as the mapping is; np.frombuffer does the same in twice the time.
        root = _ndarray((nbytes,), _BYTE, self._data, offset)
        lease = _Lease(root, self._end)
        lease.ended = False
        lease.position = position
        lease.seq = seq
        leases, own = self._leases, self._own
        lock = self._lock
        lock.acquire()
        try:
            # Held before the lease is in the book: a cursor that stays back is safe, one that passes is not.
            self.hold(True)
            leases.append(lease)
            self._live = live = self._live + 1
            own[C_OLDEST_LEASE] = leases[0].seq
            own[C_LEASES] = live
        finally:
            lock.release()
        if self._ended:
            self._drain()
        frame._data = root
        return frame

    def _end(self, lease: _Lease) -> None:
        """A root died: anywhere, in any thread, even inside this book's own methods."""
        if self._is_forked():
            return
        self._ended.append(lease)
        self._drain()

    def _drain(self) -> None:
        # Whoever holds the lock looks again after giving it back, so a lease that finds it taken is not lost.
        while self._ended and self._lock.acquire(False):
            try:
                self._settle()
            finally:
                self._lock.release()

    def _settle(self) -> None:
        ended, leases, own = self._ended, self._leases, self._own
        while ended:
            ended.popleft().ended = True
            self._live -= 1
        while leases and leases[0].ended:
            leases.popleft()
        # SYNC: store C_CURSOR after the views that loaded these bytes are gone; pairs with the load in
        # Room.grant.
        if leases:
            own[C_CURSOR] = leases[0].position
            own[C_OLDEST_LEASE] = leases[0].seq
        else:
            # In this order: a read that is under way either sees the hold gone, or has already moved on.
            self.hold(False)
            own[C_CURSOR] = self.position()
        own[C_LEASES] = self._live
        self._released()
        if self._closing and not leases:
            self._closing = False
            _outliving.discard(self)
            self._last_ended()

    def close(self) -> None:
        """No lease is added any more; `last_ended` is called when none is left, perhaps at once."""
        with self._lock:
            self._closing = True
            _outliving.add(self)
            self._settle()
        self._drain()

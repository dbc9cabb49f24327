"""Pages of a segment in this process, without keeping a descriptor.

`mmap.mmap` on a descriptor duplicates it for as long as the object lives, which would cost a process with
many rings several descriptors each. So an anonymous `mmap` object is made first and the segment's pages are
then mapped over it at the same address: slices stay as fast as `mmap`'s, any view of them keeps the pages
mapped, and no descriptor is held.

An Anchor is a page that is mapped for one reason: a mapping holds the open file description it was made
from, and with it the lock taken there, until it is unmapped. MADV_DONTFORK keeps it out of forked children,
so the lock lives exactly as long as this process (or until close), costs no descriptor, and no child can
hold it on.
"""

from __future__ import annotations

import ctypes
import mmap
import os

import numpy as np

from ringbuf.layout import PAGE

__all__ = ["Anchor", "map_pages"]

# From <sys/mman.h> of Linux; `mmap` does not export them.
_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000
_MADV_DONTFORK = 10
_PROT_NONE = 0

_libc = ctypes.CDLL(None, use_errno=True)
_mmap = _libc.mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_longlong,
]
_munmap = _libc.munmap
_munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_madvise = _libc.madvise
_madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

_MAP_FAILED = ctypes.c_void_p(-1).value


def _system_error() -> OSError:
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code))


def map_pages(fd: int, offset: int, size: int, *, writable: bool) -> mmap.mmap:
    """Map `size` bytes of the segment from `offset`; the caller may close `fd` afterwards.

    Args:
        fd: the open segment.
        offset, size: bytes, whole pages.
        writable: else a store through the object raises, and one past Python's back is a fault.

    Returns:
        An mmap object; it is unmapped when it and every view of it are gone.
    """
    prot = mmap.PROT_READ | mmap.PROT_WRITE if writable else mmap.PROT_READ
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    pages = mmap.mmap(-1, size, flags=flags, prot=prot)
    address = np.frombuffer(pages, np.uint8).ctypes.data
    if _mmap(address, size, prot, mmap.MAP_SHARED | _MAP_FIXED, fd, offset) == _MAP_FAILED:
        raise _system_error()
    return pages


class Anchor:
    """Keeps the open file description behind `fd` open, and so its locks held, without the descriptor."""

    __slots__ = ("_address",)

    def __init__(self, fd: int) -> None:
        address = _mmap(None, PAGE, _PROT_NONE, mmap.MAP_SHARED, fd, 0)
        if address == _MAP_FAILED:
            raise _system_error()
        self._address: int | None = address
        if _madvise(address, PAGE, _MADV_DONTFORK):
            error = _system_error()
            self.release()
            raise error

    def release(self) -> None:
        """Unmap: the last reference to the description goes, and its locks with it."""
        address, self._address = self._address, None
        if address is not None:
            _munmap(address, PAGE)

    def forget(self) -> None:
        """In a forked child, where the page was never mapped and its address may be somebody else's."""
        self._address = None

"""A frame that is filled where it will lie."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from ringbuf.errors import FrameInUse
from ringbuf.layout import FRAME_HEADER, check_fits, shift_for
from ringbuf.sender import Sender

__all__ = ["Claim"]


def _references(root: npt.NDArray[Any]) -> int:
    return sys.getrefcount(root)


class Claim:
    """Room for one frame; see Producer.claim."""

    __slots__ = ("_nbytes", "_root", "_sender", "_shift", "_step", "_tag", "_timeout", "_view")

    def __init__(self, sender: Sender, tag: int, nbytes: int, timeout: float | None, align_at: int) -> None:
        if nbytes < 0:
            raise ValueError(f"nbytes must not be negative, got {nbytes}")
        self._sender = sender
        self._tag = tag
        self._nbytes = nbytes
        self._shift = shift_for(align_at)
        self._step = check_fits(sender.name, nbytes, sender.capacity, self._shift)
        self._timeout = timeout
        self._root: npt.NDArray[np.uint8] | None = None
        self._view: memoryview | None = None

    def __enter__(self) -> memoryview:
        if self._view is not None:
            raise FrameInUse(1, "this claim, which is open already")
        offset = self._sender.begin_claim(self._step, self._timeout)
        first = offset + FRAME_HEADER + self._shift
        self._root = np.frombuffer(self._sender.data, np.uint8, self._nbytes, first)
        self._view = memoryview(self._root)  # type: ignore[arg-type]  # numpy declares its buffer from 3.12 on
        return self._view

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            views = self._let_go()
            if error is None:
                if views > 0:
                    raise FrameInUse(views, "the claim")
                self._sender.commit_claim(self._tag, self._nbytes, self._shift, self._step)
        finally:
            self._sender.end_claim()

    def _let_go(self) -> int:
        """Take the views back; how many others were made from them and still live."""
        view, self._view = self._view, None
        root, self._root = self._root, None
        if view is None or root is None:
            return 0
        try:
            view.release()
        except BufferError:
            return 1
        del view
        return _references(root) - _OWN_REFERENCES


def _own_references() -> int:
    """What `_references` counts for an array that only a local variable of the caller refers to."""
    root = np.frombuffer(bytearray(1), np.uint8)
    return _references(root)


_OWN_REFERENCES = _own_references()

"""A frame in a consumer's hands."""

from __future__ import annotations

import sys
from types import TracebackType

import numpy as np
import numpy.typing as npt

from ringbuf.errors import FrameInUse

__all__ = ["Frame"]


class Frame:
    """One frame as a consumer got it.

    Attributes:
        tag: int, 1..255.
        seq: int, the number of this frame since the ring was made.
    """

    __slots__ = ("_data", "seq", "tag")

    tag: int
    seq: int
    _data: bytes | npt.NDArray[np.uint8] | None

    @property
    def payload(self) -> memoryview:
        """The frame's bytes, read-only, format "B".

        They stay as they are while this view lives, or anything made from it: a slice, a numpy array, a
        reshape. It may outlive the consumer and the ring.

        Raises:
            ValueError: the frame was released.
        """
        data = self._data
        if data is None:
            raise ValueError(f"frame {self.seq} was released")
        return memoryview(data)  # type: ignore[arg-type]  # numpy declares its buffer from 3.12 on

    def release(self) -> None:
        """Give the frame's bytes back to the producer, now instead of when its last view dies.

        Calling it again does nothing.

        Raises:
            FrameInUse: views of the payload still live; nothing was changed.
        """
        if self._data is None:
            return
        views = self._references() - _OWN_REFERENCES
        if views > 0:
            raise FrameInUse(views, f"frame {self.seq}")
        self._data = None

    def _references(self) -> int:
        return sys.getrefcount(self._data)

    def __enter__(self) -> Frame:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.release()
        except FrameInUse as in_use:
            if error is None:
                raise
            # The reason why the block was left is the one to tell; the views end their lease when they die.
            error.add_note(str(in_use))

    def __len__(self) -> int:
        data = self._data
        return 0 if data is None else len(data)

    def __repr__(self) -> str:
        state = "released" if self._data is None else f"{len(self._data)} bytes"
        return f"<Frame tag={self.tag} seq={self.seq} {state}>"


def private(frame: Frame) -> Frame:
    """A private copy of a frame, which is released."""
    copy = Frame()
    copy.tag = frame.tag
    copy.seq = frame.seq
    data = bytes(frame.payload)
    # Below two bytes the interpreter shares one object for all, and views of this one could not be counted.
    copy._data = data if len(data) > 1 else np.frombuffer(data, np.uint8)
    frame.release()
    return copy


def _own_references() -> int:
    """How many references to its bytes a frame without views counts; the interpreter's own among them."""
    frame = Frame()
    frame._data = bytes(bytearray(16))
    return frame._references()


_OWN_REFERENCES = _own_references()

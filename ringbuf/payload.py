"""What may be written: any buffer, or a sequence of buffers that become one payload."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy.typing as npt

__all__ = ["Buffer", "Payload", "gather"]

Buffer: TypeAlias = bytes | bytearray | memoryview | npt.NDArray[Any]
Payload: TypeAlias = Buffer | Sequence[Buffer]


def gather(payload: object) -> tuple[list[memoryview], int]:
    """The parts of a payload as flat byte views, and their bytes together.

    Arrays that do not lie in one piece are copied in C order.

    Raises:
        TypeError: the payload, or a part of it, has no buffer.
    """
    if isinstance(payload, (list, tuple)):
        parts = [view for part in payload if (view := _flat(part)).nbytes]
    else:
        parts = [_flat(payload)]
    return parts, sum(map(len, parts))


def _flat(part: object) -> memoryview:
    try:
        view = memoryview(part)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(
            f"payload must be a buffer or a list or tuple of buffers, not {type(part).__name__}"
        ) from None
    if view.ndim == 1 and view.format == "B" and view.c_contiguous:
        return view
    if not view.nbytes:
        return memoryview(b"")
    if not view.c_contiguous:
        return memoryview(view.tobytes())
    try:
        return view.cast("B")
    except TypeError:
        # Formats that memoryview cannot cast, big-endian or structured ones.
        return memoryview(view.tobytes())

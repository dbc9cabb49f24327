"""Packing values into one data column, with the value at fault named when one does not fit.

Lists are packed by `struct`, which checks every value's type and range as it goes; arrays of the column's own
type are joined as they are, bit for bit. Only a column that was refused is looked at value by value.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from egress.errors import EncodeError
from egress.wire.columns import F32, I32, U32_MAX

__all__ = ["pack_f32", "pack_i32", "to_u32"]

_Owners: TypeAlias = Callable[[], Iterable[int]]
_Packed: TypeAlias = tuple[list[int], bytes | memoryview]

_LIMITS = {
    "i": "an int32, -2147483648 to 2147483647",
    "f": "a float32, at most 3.4028235e+38 in size, an infinity or a NaN",
    "I": f"an integer from 0 to {U32_MAX}",
}
_REFUSALS = (struct.error, TypeError, ValueError, OverflowError)


def pack_i32(name: str, cells: Sequence[Any], owners: _Owners) -> _Packed:
    """Pack sequences of integers behind each other as i32.

    Args:
        name: the column, for the error.
        cells: sequences or int32 arrays; when all are arrays of int32 they are joined without a look at
            values.
        owners: gives each cell's request index; called only to name a culprit.

    Returns:
        Elements per cell, and all elements as bytes.

    Raises:
        EncodeError: a value is no int32, or a cell no sequence; names column, request, value and limits.
    """
    return _pack(name, cells, owners, I32, "i")


def pack_f32(name: str, cells: Sequence[Any], owners: _Owners) -> _Packed:
    """Pack sequences of numbers behind each other as f32; otherwise as pack_i32."""
    return _pack(name, cells, owners, F32, "f")


def to_u32(name: str, values: Sequence[Any]) -> list[int]:
    """Check one count per request, and give them as plain ints (a bool or a numpy integer becomes one).

    Raises:
        EncodeError: a value is no u32; names column, request, value and limit.
    """
    try:
        packed = struct.pack(f"={len(values)}I", *values)
    except _REFUSALS:
        raise _culprit(name, ((request, (value,)) for request, value in enumerate(values)), "I") from None
    return memoryview(packed).cast("I").tolist() if packed else []


def _pack(name: str, cells: Sequence[Any], owners: _Owners, dtype: np.dtype[Any], code: str) -> _Packed:
    try:
        if len(cells) > 1 and len(cells[0]) == len(cells[-1]) == 1 and type(cells[0]) is list:
            ones = _only_values(cells)
            if ones is not None:
                return [1] * len(ones), struct.pack(f"<{len(ones)}{code}", *ones)
        lens = list(map(len, cells))
        joined = _join(cells, dtype)
        if joined is not None and joined.size == sum(lens):
            return lens, joined.data.cast("B")
        values = list(chain.from_iterable(cells))
        packed = struct.pack(f"<{len(values)}{code}", *values)
    except _REFUSALS:
        raise _culprit(name, zip(owners(), cells, strict=True), code) from None
    if len(values) != sum(lens):
        raise EncodeError(f"{name}: {len(values)} values where the lengths add up to {sum(lens)}")
    return lens, packed


def _only_values(cells: Sequence[Any]) -> list[Any] | None:
    """The value of each cell, when every cell has exactly one; the usual step costs half as much so."""
    try:
        return [value for (value,) in cells]
    except ValueError:
        return None


def _join(cells: Sequence[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any] | None:
    """One flat array of all cells that are not empty, when they are arrays of this type."""
    first = next(filter(len, cells), None)
    if type(first) is not np.ndarray:
        return None
    try:
        joined = np.concatenate([cell for cell in cells if len(cell)])
    except (TypeError, ValueError):
        return None
    return joined if joined.ndim == 1 and joined.dtype == dtype else None


def _culprit(name: str, cells: Iterable[tuple[int, Any]], code: str) -> EncodeError:
    """Make the error that names the first value `struct` will not pack."""
    for request, cell in cells:
        try:
            values = list(cell)
        except TypeError:
            return EncodeError(f"{name}: request {request}: {cell!r} is no sequence")
        for value in values:
            try:
                struct.pack(f"<{code}", value)
            except _REFUSALS:
                return EncodeError(f"{name}: request {request}: {value!r} is not {_LIMITS[code]}")
    return EncodeError(f"{name}: an entry has no length")

"""The columns of a BATCH: their order, their element types, and how many bytes they take.

A BATCH is a msgpack header of columns and, behind it, data columns without gaps:

    u32 LE header length | header: up to 24 columns | token_ids | out_lp val, idx | ... | hidden val

Columns come in *families*. A flat family (out_lp, in_lp) has one count per request; a ragged one has
positions per request (`reqlens`) and a width per position (`poslens`). A family owns a val column (f32) and,
but for hidden, an idx column (i32) of the same count. Everything else about a family follows from its row in
FAMILIES.

All sizes are plain Python integers, so sums of counts from the wire cannot wrap.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from egress.errors import MalformedFrame

__all__ = [
    "COLUMN_COUNT",
    "F32",
    "FAMILIES",
    "I32",
    "NO_F32",
    "NO_I32",
    "U32",
    "U32_MAX",
    "WIDTH",
    "F32Array",
    "Family",
    "Header",
    "I32Array",
    "data_offset",
    "take_f32",
    "take_i32",
]

I32 = np.dtype("<i4")
F32 = np.dtype("<f4")
I32Array: TypeAlias = npt.NDArray[np.int32]
F32Array: TypeAlias = npt.NDArray[np.float32]

WIDTH = 4  # bytes of every element of every data column
U32_MAX = 2**32 - 1
U32: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=U32_MAX)]

# Shared by every event that lacks a column; frozen, so that no holder can change what the others see.
NO_I32: I32Array = np.empty(0, I32)
NO_F32: F32Array = np.empty(0, F32)
NO_I32.flags.writeable = False
NO_F32.flags.writeable = False


class Family(NamedTuple):
    """One family of data columns, and the header columns that give its counts.

    Args:
        name: prefix of the columns' names, in the header and in ChunkExtras.
        lens: header column with one entry per request: elements (flat) or positions (ragged).
        widths: header column with one entry per position, or None for a flat family.
        texts: header column with one string per element, or None.
        has_idx: whether an i32 column follows the f32 one.
    """

    name: str
    lens: str
    widths: str | None
    texts: str | None
    has_idx: bool


# In the order of the data columns.
FAMILIES = (
    Family("out_lp", "out_lp_lens", None, "out_lp_txt", True),
    Family("in_lp", "in_lp_lens", None, "in_lp_txt", True),
    Family("out_top", "out_top_reqlens", "out_top_poslens", "out_top_txt", True),
    Family("in_top", "in_top_reqlens", "in_top_poslens", "in_top_txt", True),
    Family("out_tid", "out_tid_reqlens", "out_tid_poslens", "out_tid_txt", True),
    Family("in_tid", "in_tid_reqlens", "in_tid_poslens", "in_tid_txt", True),
    Family("hidden", "hidden_reqlens", "hidden_poslens", None, False),
)

_Counts: TypeAlias = Sequence[U32]
_Texts: TypeAlias = Sequence[str]


class Header(msgspec.Struct, array_like=True, gc=False):
    """The header, positionally: four core columns, SGLang's twelve, and the eight a shard adds.

    The array may end anywhere after the core. `beyond` is no column: msgspec passes over what an array has in
    excess, and only a place of its own shows that there was a 25th item, which makes the frame a newer
    format.
    """

    rids: list[str]
    finish_reasons: list[dict[str, Any] | None]
    prompt_tokens: list[U32]
    tok_lens: list[U32]
    out_lp_lens: _Counts = ()
    in_lp_lens: _Counts = ()
    out_top_reqlens: _Counts = ()
    out_top_poslens: _Counts = ()
    in_top_reqlens: _Counts = ()
    in_top_poslens: _Counts = ()
    out_tid_reqlens: _Counts = ()
    out_tid_poslens: _Counts = ()
    in_tid_reqlens: _Counts = ()
    in_tid_poslens: _Counts = ()
    hidden_reqlens: _Counts = ()
    hidden_poslens: _Counts = ()
    texts: _Texts = ()
    completion_tokens: _Counts = ()
    out_lp_txt: _Texts = ()
    in_lp_txt: _Texts = ()
    out_top_txt: _Texts = ()
    in_top_txt: _Texts = ()
    out_tid_txt: _Texts = ()
    in_tid_txt: _Texts = ()
    beyond: Any = msgspec.UNSET


COLUMN_COUNT = len(Header.__struct_fields__) - 1


def data_offset(buffers: Sequence[Any]) -> int:
    """Say at which byte of an encoded body its data columns begin.

    This is what a ring's writer takes as `align_at`, so that the reader's arrays are aligned.

    Args:
        buffers: what encode_batch or frame_batch returned: header first, then the data columns.
    """
    return len(buffers[0])


def take_i32(data: Any, offset: int, count: int) -> tuple[I32Array, int]:
    """Take `count` int32 elements at byte `offset`.

    Args:
        data: any contiguous buffer; it is kept alive by the view. offset need not be aligned.
        offset: bytes from the start of data.
        count: elements.

    Returns:
        The int32 view, shape (count,), no copy; and the byte offset behind it.

    Raises:
        MalformedFrame: offset or count is negative, or data ends before the last element.

    >>> take_i32(bytes([1, 0, 0, 0, 2, 0, 0, 0]), 4, 1)
    (array([2], dtype=int32), 8)
    """
    return _take(data, offset, count, I32)


def take_f32(data: Any, offset: int, count: int) -> tuple[F32Array, int]:
    """Take `count` float32 elements at byte `offset`; otherwise as take_i32."""
    return _take(data, offset, count, F32)


def _take(data: Any, offset: int, count: int, dtype: np.dtype[Any]) -> tuple[npt.NDArray[Any], int]:
    size = memoryview(data).nbytes
    end = offset + WIDTH * count
    if offset < 0 or count < 0 or end > size:
        raise MalformedFrame(f"{count} elements of 4 bytes at byte {offset} do not lie within {size} bytes")
    if not count:
        return (NO_I32 if dtype is I32 else NO_F32), end
    return np.frombuffer(data, dtype, count, offset), end

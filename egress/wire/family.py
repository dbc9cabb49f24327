"""One family of a BATCH, both ways.

Reading: a family keeps running sums of its counts, so that the part of any request is a slice; slices are
made for the requests that are asked for, and no data byte is read. Writing: the cells of all requests are
laid behind each other, after their counts were found equal on both sides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, pairwise, repeat
from typing import Any, TypeAlias

import msgspec
import numpy as np

from egress.errors import EncodeError
from egress.wire.columns import F32, I32, F32Array, Family, Header, I32Array, take_f32, take_i32
from egress.wire.pack import pack_f32, pack_i32

__all__ = ["FamilyColumns", "encode_family", "take_family"]

_Buffer: TypeAlias = bytes | memoryview


class FamilyColumns(msgspec.Struct, eq=False, gc=False):
    """The columns of one family of a frame, for all its requests.

    Args:
        name: prefix of the names in ChunkExtras.
        lens: entries per request: elements, or positions of a ragged family.
        widths: elements per position, or None for a flat family.
        texts: a string per element, or empty.
    """

    name: str
    lens: Sequence[int]
    widths: Sequence[int] | None
    val: F32Array
    idx: I32Array | None
    texts: Sequence[str]
    # Running sums of lens and of widths, from 0, made when a part is first asked for; threads that ask at
    # once make the same.
    _bounds: list[int] | None = None
    _element_bounds: list[int] | None = None

    def columns_of(self, members: Sequence[int]) -> Iterator[tuple[str, Iterable[Any]]]:
        """Give each field of ChunkExtras this family fills, with its parts for the requests `members`."""
        if (bounds := self._bounds) is None:
            bounds = self._bounds = list(accumulate(self.lens, initial=0))
        starts = [bounds[i] for i in members]
        ends = [bounds[i + 1] for i in members]
        if self.widths is not None:
            yield f"{self.name}_lens", map(self.widths.__getitem__, map(slice, starts, ends))
            if (bounds := self._element_bounds) is None:
                bounds = self._element_bounds = list(accumulate(self.widths, initial=0))
            starts = [bounds[start] for start in starts]
            ends = [bounds[end] for end in ends]
        parts = list(map(slice, starts, ends))
        yield f"{self.name}_val", map(self.val.__getitem__, parts)
        if self.idx is not None:
            yield f"{self.name}_idx", map(self.idx.__getitem__, parts)
        if self.texts:
            yield f"{self.name}_txt", map(self.texts.__getitem__, parts)


def take_family(
    family: Family, header: Header, data: bytes | memoryview, offset: int, count: int
) -> tuple[FamilyColumns, int]:
    """Take the columns of a family whose counts were checked.

    Args:
        count: elements of its val column.
        offset: where its val column begins, in bytes of data.

    Returns:
        The columns, and the offset behind them.
    """
    lens: Sequence[int] = getattr(header, family.lens)
    widths: Sequence[int] | None = None if family.widths is None else getattr(header, family.widths)
    val, offset = take_f32(data, offset, count)
    idx = None
    if family.has_idx:
        idx, offset = take_i32(data, offset, count)
    columns = FamilyColumns(
        family.name,
        lens,
        widths,
        val,
        idx,
        () if family.texts is None else getattr(header, family.texts),
    )
    return columns, offset


def encode_family(
    family: Family, active: Mapping[str, Sequence[Any]], header: dict[str, Sequence[Any]]
) -> list[_Buffer]:
    """Add a family's counts and texts to the header, when it is active, and give its data columns.

    Args:
        active: the outer columns that are not empty, by their names as arguments of encode_batch.

    Raises:
        EncodeError: see encode_batch.
    """
    val_name = f"{family.name}_val" if family.has_idx else family.name
    idx_name = f"{family.name}_idx"
    txt_name = f"{family.name}_txt"
    vals: Any = active.get(val_name)
    if vals is None:
        for name in (idx_name, txt_name):
            if name in active:
                raise EncodeError(f"{name}: given without {val_name}")
        return []
    idxs = active.get(idx_name, [None] * len(vals))
    try:
        if type(vals) is np.ndarray and (whole := _encode_array(family, vals, idxs, header)) is not None:
            counts, data = whole
        elif family.widths is None:
            counts, data = _encode_flat(family, val_name, vals, idx_name, idxs, header)
        else:
            counts, data = _encode_ragged(family, val_name, vals, idx_name, idxs, header)
        if txt_name in active and family.texts is not None:
            header[family.texts] = _flat_texts(txt_name, active[txt_name], counts)
    except (TypeError, KeyError) as error:
        raise EncodeError(f"{family.name}: entries are not nested as they should be: {error}") from None
    return data


def _encode_array(
    family: Family, vals: Any, idxs: Any, header: dict[str, Sequence[Any]]
) -> tuple[Sequence[int], list[_Buffer]] | None:
    """Encode a family that is the same for all requests and came as whole arrays; None if it is not so."""
    depth = 2 if family.widths is None else 3
    if vals.ndim != depth or vals.dtype != F32 or not vals.size:
        return None
    arrays = [vals]
    if family.has_idx:
        if type(idxs) is not np.ndarray or idxs.shape != vals.shape or idxs.dtype != I32:
            return None
        arrays.append(idxs)
    n, entries = vals.shape[:2]
    header[family.lens] = [entries] * n
    elements = entries
    if family.widths is not None:
        header[family.widths] = [vals.shape[2]] * (n * entries)
        elements *= vals.shape[2]
    return [elements] * n, [np.ascontiguousarray(array).data.cast("B") for array in arrays]


def _encode_flat(
    family: Family,
    val_name: str,
    vals: Sequence[Any],
    idx_name: str,
    idxs: Sequence[Any],
    header: dict[str, Sequence[Any]],
) -> tuple[Sequence[int], list[_Buffer]]:
    """Encode a family of one count per request; give the elements of each request and the data."""
    requests = range(len(vals))
    lens, packed = pack_f32(val_name, _flat_cells(vals, family.name == "in_lp"), lambda: requests)
    idx_lens, idx_packed = pack_i32(idx_name, _flat_cells(idxs, False), lambda: requests)
    _check_equal(val_name, lens, idx_name, idx_lens, requests, "entries")
    header[family.lens] = lens
    return lens, [packed, idx_packed]


def _encode_ragged(
    family: Family,
    val_name: str,
    vals: Sequence[Any],
    idx_name: str,
    idxs: Sequence[Any],
    header: dict[str, Sequence[Any]],
) -> tuple[Sequence[int], list[_Buffer]]:
    """Encode a family of positions; give the elements of each request and the data."""
    rows = [_rows(family, cell) for cell in vals]
    lens = list(map(len, rows))
    widths, packed = pack_f32(val_name, list(chain.from_iterable(rows)), lambda: _owners(lens))
    data = [packed]
    if family.has_idx:
        idx_rows = [_rows(family, cell) for cell in idxs]
        idx_lens = list(map(len, idx_rows))
        _check_equal(val_name, lens, idx_name, idx_lens, range(len(lens)), "positions")
        flat = list(chain.from_iterable(idx_rows))
        idx_widths, idx_packed = pack_i32(idx_name, flat, lambda: _owners(lens))
        _check_equal(val_name, widths, idx_name, idx_widths, _owners(lens), "values at a position")
        data.append(idx_packed)
    header[family.lens] = lens
    if family.widths is not None:
        header[family.widths] = widths
    bounds = list(accumulate(lens, initial=0))
    return [sum(widths[start:end]) for start, end in pairwise(bounds)], data


def _flat_cells(cells: Sequence[Any], first_may_be_none: bool) -> list[Any]:
    """One sequence per request, None being an empty one."""
    flat: list[Any] = [() if cell is None else cell for cell in cells]
    if first_may_be_none:
        # The first token of a prompt follows nothing, so it has no probability.
        for i, cell in enumerate(flat):
            if len(cell) and cell[0] is None:
                flat[i] = [float("nan"), *cell[1:]]
    return flat


def _rows(family: Family, cell: Any) -> Sequence[Any]:
    """One sequence per position of a request."""
    if cell is None:
        return ()
    if not family.has_idx:
        if isinstance(cell, np.ndarray):
            return list(cell.reshape(len(cell), -1)) if cell.size else [()] * len(cell)
        return [_flatten(row) for row in cell]
    return [() if row is None else row for row in cell]


def _flatten(row: Any) -> Any:
    """The numbers of a row of hidden states, however they are nested."""
    if isinstance(row, np.ndarray):
        return row.reshape(-1)
    if isinstance(row, list | tuple):
        if any(isinstance(item, list | tuple | np.ndarray) for item in row):
            return [number for item in row for number in _flatten(item)]
        return row
    return (row,)


def _owners(lens: Sequence[int]) -> Iterator[int]:
    """The request of every position, given the positions of each."""
    return chain.from_iterable(map(repeat, range(len(lens)), lens))


def _check_equal(
    val_name: str, vals: list[int], idx_name: str, idxs: list[int], owners: Iterable[int], what: str
) -> None:
    """Refuse a family whose values and ids differ in number, naming the first request where they do."""
    if vals != idxs:
        owner, left, right = next(
            found for found in zip(owners, vals, idxs, strict=True) if found[1] != found[2]
        )
        raise EncodeError(f"{idx_name}: request {owner}: {right} {what} where {val_name} has {left}")


def _flat_texts(name: str, cells: Sequence[Any], per_request: Sequence[int]) -> list[str]:
    """The strings of all requests behind each other, as many for each as it has elements."""
    texts: list[str] = []
    for request, (cell, expected) in enumerate(zip(cells, per_request, strict=True)):
        before = len(texts)
        for item in () if cell is None else cell:
            texts.extend((item,) if isinstance(item, str) else () if item is None else item)
        if len(texts) - before != expected:
            found = len(texts) - before
            raise EncodeError(f"{name}: request {request}: {found} strings for {expected} ids")
        if not all(isinstance(text, str) for text in texts[before:]):
            raise EncodeError(f"{name}: request {request}: an entry is no string")
    return texts

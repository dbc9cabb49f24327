"""Cutting a frame up, so that every request takes away its own part and the frame can go.

Copying each request's few bytes array by array costs several microseconds; a frame of thousands of requests
is cut up in a few passes over whole columns instead. A request's one id is a plain integer. Where requests
carry data columns, the narrow ones are laid side by side as the words of one table, a row per request, and
the table is cut into rows of bytes; wide ones (hidden states) are cut as they are, to be copied once. A row
is read through the frame's `Cut`, which all its events share: arrays are made of it when somebody asks.

This pays when the requests that carry something all carry the same, which is what steps of many requests look
like. Others are left to ChunkEvent.detach.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import compress, repeat
from typing import Any, TypeAlias

import msgspec
import numpy as np

from egress.wire.columns import F32, I32, WIDTH, I32Array
from egress.wire.event import ChunkExtras
from egress.wire.family import FamilyColumns

__all__ = ["Cut", "cut_families", "cut_ids"]

# A column of more words than this per request is copied once, by itself, and not through the table. Up to
# here a second copy costs less than a second object.
_WIDE_WORDS = 64

_Row: TypeAlias = bytes | tuple[bytes, ...]


class _Part(msgspec.Struct, frozen=True, gc=False):
    """Where one column lies in a row.

    Args:
        name: the field of ChunkExtras.
        dtype: of its elements.
        piece: which piece of a row that is a tuple.
        offset: bytes from the piece's start. count: elements.
    """

    name: str
    dtype: np.dtype[Any]
    piece: int
    offset: int
    count: int


class Cut(msgspec.Struct, frozen=True, gc=False):
    """How the rows of one frame are read.

    Args:
        parts: the columns in a row, behind its ids.
        lens: the widths of each ragged family, by its field of ChunkExtras: the same for all requests.
    """

    parts: list[_Part]
    lens: dict[str, list[int]]

    def extras_of(self, row: _Row) -> ChunkExtras:
        """Make the extras of a row: arrays over its bytes, which nobody else holds."""
        fields: dict[str, Any] = dict(self.lens)
        for part in self.parts:
            piece = row if isinstance(row, bytes) else row[part.piece]
            fields[part.name] = np.frombuffer(piece, part.dtype, part.count, part.offset)
        return ChunkExtras(**fields)


def cut_ids(token_ids: I32Array, counts: Sequence[int] | None) -> list[Any]:
    """What each request owns of the ids: its one id as an int, or the bytes of all of them.

    Args:
        counts: ids per request; None: one each.
    """
    if counts is None:
        ids: list[Any] = token_ids.tolist()
        return ids
    data = token_ids.tobytes()
    parts = []
    start = 0
    for count in counts:
        end = start + WIDTH * count
        parts.append(data[start:end])
        start = end
    return parts


def cut_families(
    token_ids: I32Array, counts: Sequence[int] | None, n: int, families: Sequence[FamilyColumns]
) -> tuple[list[int], list[_Row], Cut] | None:
    """Cut everything that the requests with data columns carry.

    Returns:
        The places of those requests, the row of each, and how to read it; None where they do not all carry
        the same.
    """
    having = [False] * n
    for family in families:
        if family.texts:
            return None
        if family.lens.count(family.lens[0]) == n:
            if family.lens[0]:
                having = [True] * n
        else:
            having = [has or bool(count) for has, count in zip(having, family.lens, strict=True)]
    members = list(range(n)) if all(having) else list(compress(range(n), having))
    m = len(members)
    if not m:
        return members, [], Cut([], {})
    width = _shared(counts, members) if counts is not None else 1
    if width is None:
        return None
    columns: list[tuple[str, np.dtype[Any], int, Any]] = []
    lens: dict[str, list[int]] = {}
    for family in families:
        entries = _shared(family.lens, members)
        if entries is None:
            return None
        if not entries:
            continue
        elements = entries
        if family.widths is not None:
            # Whoever has none has no positions either, so all positions belong to members.
            each = family.widths[0]
            if family.widths.count(each) != len(family.widths):
                return None
            lens[f"{family.name}_lens"] = [each] * entries
            elements = entries * each
        if elements:
            columns.append((f"{family.name}_val", F32, elements, family.val))
            if family.idx is not None:
                columns.append((f"{family.name}_idx", I32, elements, family.idx))
    return members, *_rows(_ids_of(token_ids, counts, n, members, width), columns, lens)


def _shared(counts: Sequence[int], members: Sequence[int]) -> int | None:
    """The count that all members have, None if they differ."""
    first = counts[members[0]]
    if len(members) == len(counts):
        return first if counts.count(first) == len(counts) else None
    return first if all([counts[i] == first for i in members]) else None


def _ids_of(
    token_ids: I32Array, counts: Sequence[int] | None, n: int, members: Sequence[int], width: int
) -> I32Array:
    """The members' ids, a row of `width` for each."""
    m = len(members)
    if m == n:
        return token_ids.reshape(m, width)
    if counts is None:
        return token_ids[members].reshape(m, width)
    starts = np.cumsum([0, *counts[:-1]])[members]
    ids: I32Array = token_ids[starts[:, None] + np.arange(width)]
    return ids


def _rows(
    ids: I32Array, columns: Sequence[tuple[str, np.dtype[Any], int, Any]], lens: dict[str, list[int]]
) -> tuple[list[_Row], Cut]:
    """Lay the narrow columns side by side behind the ids and cut; add the wide ones as further pieces."""
    m, at = ids.shape
    words = at + sum([elements for _, _, elements, _ in columns if elements <= _WIDE_WORDS])
    table = np.empty((m, words), I32)
    table[:, :at] = ids
    parts: list[_Part] = []
    pieces: list[Iterable[bytes]] = []
    for name, dtype, elements, column in columns:
        if elements > _WIDE_WORDS:
            pieces.append(_cut(column, elements))
            parts.append(_Part(name, dtype, len(pieces), 0, elements))
        else:
            table[:, at : at + elements] = column.view(I32).reshape(m, elements)
            parts.append(_Part(name, dtype, 0, WIDTH * at, elements))
            at += elements
    rows: list[Any] = _cut(table.reshape(-1), words) if words else list(repeat(b"", m))
    if pieces:
        rows = list(zip(rows, *pieces, strict=True))
    return rows, Cut(parts, lens)


def _cut(column: Any, elements: int) -> list[bytes]:
    """Cut a column into bytes of `elements` each."""
    # A void item becomes a bytes object of its own: numpy's only loop that makes many of them.
    cut: list[bytes] = np.frombuffer(column, f"V{WIDTH * elements}").tolist()
    return cut

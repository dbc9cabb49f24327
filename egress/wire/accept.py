"""Reading a BATCH: accepted whole or not at all, before anything is routed.

The usual frame says "not ended" and "one token" for nearly everyone. Such columns are compared with the bytes
they would have if they said so for everyone, before any of them is turned into objects.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from itertools import accumulate, compress
from operator import attrgetter
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec
import numpy as np

from egress.errors import MalformedFrame
from egress.wire.batch import Batch, Place, Reasons, places_of
from egress.wire.columns import (
    COLUMN_COUNT,
    FAMILIES,
    I32,
    NO_I32,
    U32,
    WIDTH,
    Family,
    Header,
    I32Array,
    take_i32,
)
from egress.wire.family import FamilyColumns, take_family
from egress.wire.finish_reason import FinishReason, is_plain
from egress.wire.messages import UNREADABLE
from egress.wire.tags import Tag

__all__ = ["Body", "RawHeader", "accept_bulk", "byte_view", "decode_batch", "read_raw"]

# bytes are read as they are: cutting a small header out of them costs less than a view of it.
Body: TypeAlias = bytes | memoryview

_WHOLE: list[Place] = [None]
_NOTHING = b"\x90"  # msgpack: an empty array
_NO_ITEMS = msgspec.Raw(_NOTHING)


_Rids = TypeVar("_Rids")
_Prompts = TypeVar("_Prompts")


class _BulkHeader(msgspec.Struct, Generic[_Rids, _Prompts], array_like=True, gc=False):
    """The header of a large frame without the text columns of log-probabilities: columns that usually say the
    same for all requests are left as bytes, to be compared."""

    rids: _Rids
    finish_reasons: msgspec.Raw
    prompt_tokens: _Prompts
    tok_lens: msgspec.Raw
    out_lp_lens: msgspec.Raw = _NO_ITEMS
    in_lp_lens: msgspec.Raw = _NO_ITEMS
    out_top_reqlens: msgspec.Raw = _NO_ITEMS
    out_top_poslens: msgspec.Raw = _NO_ITEMS
    in_top_reqlens: msgspec.Raw = _NO_ITEMS
    in_top_poslens: msgspec.Raw = _NO_ITEMS
    out_tid_reqlens: msgspec.Raw = _NO_ITEMS
    out_tid_poslens: msgspec.Raw = _NO_ITEMS
    in_tid_reqlens: msgspec.Raw = _NO_ITEMS
    in_tid_poslens: msgspec.Raw = _NO_ITEMS
    hidden_reqlens: msgspec.Raw = _NO_ITEMS
    hidden_poslens: msgspec.Raw = _NO_ITEMS
    texts: list[str] = []
    completion_tokens: msgspec.Raw = _NO_ITEMS


_Decoded: TypeAlias = _BulkHeader[list[str], list[U32]]
RawHeader: TypeAlias = _BulkHeader[msgspec.Raw, msgspec.Raw]
"""Rids and prompt lengths left as bytes as well; see egress.wire.recall."""

# Found once: in a frame of one request every look-up shows.
_frombuffer = np.frombuffer
_header_len = struct.Struct("<I").unpack_from
_decode_header: Callable[[Any], Header] = msgspec.msgpack.Decoder(Header).decode
_decode_bulk: Callable[[Any], _Decoded] = msgspec.msgpack.Decoder(_Decoded).decode
_decode_raw: Callable[[Any], RawHeader] = msgspec.msgpack.Decoder(RawHeader).decode
_decode_reasons: Callable[[Any], list[dict[str, Any] | None]] = msgspec.msgpack.Decoder(
    list[dict[str, Any] | None]
).decode
_decode_counts: Callable[[Any], list[int]] = msgspec.msgpack.Decoder(list[U32]).decode
_decode_items: Callable[[Any], list[msgspec.Raw]] = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_decode_str: Callable[[Any], str] = msgspec.msgpack.Decoder(str).decode

_FOUR_ITEMS = 0x94  # msgpack: an array of four
# Sixteen to eighteen: with data columns, with texts, with the counts before trimming.
_BULK_ARITIES = (b"\x94", b"\xdc\x00\x10", b"\xdc\x00\x11", b"\xdc\x00\x12")
_count_columns_of = attrgetter(*_BulkHeader.__struct_fields__[4:16])
_NIL = b"\xc0"
_ONE = b"\x01"

# From here on comparing bytes beats making lists; below it, its fixed cost is the larger one
# (bench/batch_codec).
_BULK_BYTES = 512


def decode_batch(body: Any) -> Batch:
    """Read a BATCH body (no tag byte), or reject it as a whole.

    Args:
        body: any contiguous buffer, aligned or not; the batch's arrays keep it alive.

    Raises:
        MalformedFrame: with every rid that the header names. Duplicate, empty or non-ASCII rids, no requests,
            no tokens, negative ids, NaN and unknown finish reasons are no grounds.

    Mirrors: sglang, rust/sglang-server/src/message/egress.rs; egress.md section 2.
    """
    view: Body = body if type(body) is bytes else byte_view(body)
    size = len(view)
    if size < WIDTH:
        raise MalformedFrame(f"{size} bytes are too few for a header length", (), Tag.BATCH)
    data_at = WIDTH + _header_len(view)[0]
    if data_at > size:
        raise MalformedFrame(f"header of {data_at - WIDTH} bytes in a body of {size}", (), Tag.BATCH)
    header = view[WIDTH:data_at]
    try:
        if data_at > _BULK_BYTES and bytes(header[:3]).startswith(_BULK_ARITIES):
            bulk = _decode_bulk(header)
            return accept_bulk(view, data_at, bulk, bulk.rids, bulk.prompt_tokens)
        return _accept(view, data_at, _decode_header(header))
    except UNREADABLE as error:
        raise MalformedFrame(f"header: {error}", _named_rids(header), Tag.BATCH) from None


def read_raw(body: Any) -> tuple[Body, int, RawHeader] | None:
    """Open a large frame without the text columns of log-probabilities: its bytes, where its data begin, and
    its header; None for any other frame.

    Raises:
        UNREADABLE: the header is not what it should be, or less is there than it says.
    """
    view = byte_view(body)
    if len(view) <= _BULK_BYTES:
        return None
    data_at = WIDTH + _header_len(view)[0]
    if not _BULK_BYTES < data_at <= len(view):
        return None
    header = view[WIDTH:data_at]
    if not bytes(header[:3]).startswith(_BULK_ARITIES):
        return None
    return view, data_at, _decode_raw(header)


def byte_view(body: Any) -> Body:
    """Bytes as they are; of any other contiguous buffer a flat view, one item per byte."""
    if type(body) is bytes:
        return body
    view = memoryview(body)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def accept_bulk(
    view: Body, data_at: int, header: _Decoded | RawHeader, rids: list[str], prompts: list[int]
) -> Batch:
    """Check a large frame, without making integers of columns that say the same for all requests.

    Args:
        view, data_at: the frame, and where its data begin.
        rids, prompts: the columns of that name, already decoded.

    Raises:
        MalformedFrame, UNREADABLE: as decode_batch.
    """
    n = len(rids)
    reasons: Reasons | None = None
    ended: list[int] = []
    counts: list[int] | None = None
    if bytes(header.finish_reasons) != _array_of(n, _NIL):
        reasons, ended = _classify(_decode_reasons(header.finish_reasons))
        _check_core("finish_reasons", reasons, rids)
    if bytes(header.tok_lens) != _array_of(n, _ONE):
        counts = _decode_counts(header.tok_lens)
        _check_core("tok_lens", counts, rids)
    _check_core("prompt_tokens", prompts, rids)
    n_ids = n if counts is None else sum(counts)
    completions: list[int] | None = None
    families: list[FamilyColumns] = []
    if view[WIDTH] == _FOUR_ITEMS:
        token_ids = _only_ids(view, data_at, n_ids, rids)
    else:
        completions = _counts_of(header.completion_tokens, n)
        if completions == counts or (counts is None and len(completions) == n == completions.count(1)):
            completions = None
        raws: Any = _count_columns_of(header)
        if any(map(_NOTHING.__ne__, map(bytes, raws))):
            optional: Any = [_counts_of(raw, n) for raw in raws]
            columns = Header(rids, [], [], [], *(*optional, header.texts, completions or ()))
            token_ids, families = _take_data(view, data_at, n_ids, columns)
        else:
            _check_optional_len("texts", len(header.texts), n, rids)
            _check_optional_len("completion_tokens", len(completions or ()), n, rids)
            token_ids = _only_ids(view, data_at, n_ids, rids)
    texts = header.texts or None
    column = token_ids
    places: Sequence[Place]
    if counts is None:
        # Indexing a two-dimensional column by an integer makes the same view as slicing a flat one, for less.
        column, places = token_ids.reshape(n, 1), places_of(n)
    else:
        places = _slices(counts)
    return Batch(
        rids,
        token_ids,
        reasons,
        prompts,
        counts,
        column,
        places,
        texts,
        completions or None,
        families,
        ended,
        view if isinstance(view, bytes) or type(view.obj) is bytes else None,
    )


def _only_ids(view: Body, data_at: int, n_ids: int, rids: list[str]) -> I32Array:
    """Take the data of a frame without further columns."""
    if data_at + WIDTH * n_ids != len(view):
        raise _wrong_size(n_ids, len(view) - data_at, rids)
    return _frombuffer(view, I32, n_ids, data_at) if n_ids else NO_I32


def _counts_of(raw: msgspec.Raw, n: int) -> list[int]:
    """A column of counts; one that says the same for all n requests is not decoded."""
    data = bytes(raw)
    last = data[-1]
    # Below 128 an integer is the byte itself, and what ends the column is its last entry.
    if last < 128 and n and data == _array_of(n, data[-1:]):
        return [last] * n
    return _decode_counts(raw)


def _accept(view: Body, data_at: int, header: Header) -> Batch:
    """Check a frame of any columns."""
    rids = header.rids
    maps = header.finish_reasons
    prompts = header.prompt_tokens
    counts = header.tok_lens
    n = len(rids)
    if not n == len(maps) == len(prompts) == len(counts):
        _check_core("finish_reasons", maps, rids)
        _check_core("prompt_tokens", prompts, rids)
        _check_core("tok_lens", counts, rids)
    reasons: Reasons | None = None
    ended: list[int] = []
    if n == 1:
        n_ids, all_go_on, places = counts[0], maps[0] is None, _WHOLE
    else:
        n_ids, all_go_on, places = sum(counts), maps.count(None) == n, _slices(counts)
    if not all_go_on:
        reasons, ended = _classify(maps)
    if view[WIDTH] == _FOUR_ITEMS:
        if data_at + WIDTH * n_ids != len(view):
            raise _wrong_size(n_ids, len(view) - data_at, rids)
        token_ids = _frombuffer(view, I32, n_ids, data_at) if n_ids else NO_I32
        if reasons is None:
            return Batch(rids, token_ids, None, prompts, counts, token_ids, places)
        return Batch(rids, token_ids, reasons, prompts, counts, token_ids, places, None, None, (), ended)
    token_ids, families = _take_data(view, data_at, n_ids, header)
    return Batch(
        rids,
        token_ids,
        reasons,
        prompts,
        counts,
        token_ids,
        places,
        header.texts or None,
        header.completion_tokens or None,
        families,
        ended,
    )


def _take_data(view: Body, data_at: int, n_ids: int, header: Header) -> tuple[I32Array, list[FamilyColumns]]:
    """Check the columns behind the core, and take all data."""
    sizes, n_values = _check_optional(header)
    if data_at + WIDTH * (n_ids + n_values) != len(view):
        raise _wrong_size(n_ids + n_values, len(view) - data_at, header.rids)
    token_ids, offset = take_i32(view, data_at, n_ids)
    families = []
    for family, count in sizes:
        columns, offset = take_family(family, header, view, offset, count)
        families.append(columns)
    return token_ids, families


def _check_optional(header: Header) -> tuple[list[tuple[Family, int]], int]:
    """Check the columns behind the core.

    Returns:
        The families that are present with the elements of each, and the elements of all their data columns.
    """
    rids = header.rids
    if header.beyond is not msgspec.UNSET:
        reason = f"header of more than {COLUMN_COUNT} columns, a newer format"
        raise MalformedFrame(reason, rids, Tag.BATCH)
    _check_optional_len("texts", len(header.texts), len(rids), rids)
    _check_optional_len("completion_tokens", len(header.completion_tokens), len(rids), rids)
    present = []
    total = 0
    for family in FAMILIES:
        lens: Sequence[int] = getattr(header, family.lens)
        _check_optional_len(family.lens, len(lens), len(rids), rids)
        count = sum(lens)
        if family.widths is not None:
            widths: Sequence[int] = getattr(header, family.widths)
            if len(widths) != count:
                reason = f"{family.lens} add up to {count}, {family.widths} has {len(widths)} entries"
                raise MalformedFrame(reason, rids, Tag.BATCH)
            count = sum(widths)
        if family.texts is not None:
            _check_optional_len(family.texts, len(getattr(header, family.texts)), count, rids)
        if lens:
            present.append((family, count))
            total += count * (2 if family.has_idx else 1)
    return present, total


def _check_core(name: str, column: Sequence[Any], rids: list[str]) -> None:
    if len(column) != len(rids):
        raise MalformedFrame(f"{name} has {len(column)} entries for {len(rids)} requests", rids, Tag.BATCH)


def _check_optional_len(name: str, entries: int, full: int, rids: list[str]) -> None:
    if entries and entries != full:
        raise MalformedFrame(f"{name} has {entries} entries, neither 0 nor {full}", rids, Tag.BATCH)


def _wrong_size(n_elements: int, found_bytes: int, rids: list[str]) -> MalformedFrame:
    reason = f"{found_bytes} bytes of data, the header implies {WIDTH * n_elements}"
    return MalformedFrame(reason, rids, Tag.BATCH)


def _array_of(n: int, item: bytes) -> bytes:
    """The msgpack array of n times the one-byte `item`, as every encoder writes it."""
    if n < 16:
        return bytes((0x90 | n,)) + item * n
    if n < 65536:
        return b"\xdc" + n.to_bytes(2, "big") + item * n
    return b"\xdd" + n.to_bytes(4, "big") + item * n


def _slices(counts: list[int]) -> list[Place]:
    """Where each request's ids lie, given how many each has."""
    ends = list(accumulate(counts))
    return list(map(slice, [0, *ends], ends))


def _classify(maps: list[dict[str, Any] | None]) -> tuple[Reasons, list[int]]:
    """Turn reason maps into reasons, in place; most are None. And the places of those that are not."""
    reasons: Any = maps
    ended = list(compress(places_of(len(maps)), maps))
    if len(ended) + maps.count(None) != len(maps):  # an empty map counts as false
        ended = [place for place, wire in enumerate(maps) if wire is not None]
    for place in ended:
        reasons[place] = _reason(reasons[place])
    return reasons, ended


def _reason(wire: dict[str, Any]) -> FinishReason:
    if not is_plain(wire):
        # In the words of msgspec, whose decoder would say so if it could be told to allow no extension types.
        raise msgspec.ValidationError(
            "Expected a finish reason of plain data, got an extension, binary or odd key"
        )
    return FinishReason.from_wire(wire)


def _named_rids(header: Body) -> list[str]:
    """Every rid that an unreadable header names, whatever else it holds.

    The header must be one well-formed msgpack array, of any arity, and its first item an array; then every
    string in that is a rid.
    """
    try:
        rids = _decode_items(_decode_items(header)[0])
    except (*UNREADABLE, IndexError):
        return []
    named = []
    for rid in rids:
        try:
            named.append(_decode_str(rid))
        except UNREADABLE:
            continue
    return named

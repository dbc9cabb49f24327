"""Reading a BATCH: one step of many requests, accepted whole or not at all.

The header becomes Python lists in one msgspec pass, the data columns become one numpy view each, and events
are made by `map` over the columns when somebody asks for them. So a frame costs a fixed number of Python
steps, and an event about a tenth of a microsecond; nothing here loops over requests in bytecode except for
requests that end, or that carry log-probabilities or hidden states.

The usual frame says "not ended" and "one token" for nearly everyone. Its two columns are compared with the
bytes they would have if they said so for everyone, before any of it is turned into objects; columns so
compared are None here.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from itertools import accumulate, compress, repeat
from operator import index
from typing import Any, TypeAlias

import msgspec
import numpy as np

from egress.errors import MalformedFrame
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
from egress.wire.event import ChunkEvent, ChunkExtras
from egress.wire.family import FamilyColumns, take_family
from egress.wire.finish_reason import FinishReason, is_plain
from egress.wire.messages import UNREADABLE
from egress.wire.tags import Tag

__all__ = ["Batch", "decode_batch"]

_Reasons: TypeAlias = list[FinishReason | None]
_Place: TypeAlias = int | slice | None
# bytes are read as they are: cutting a small header out of them costs less than a view of it.
_Body: TypeAlias = bytes | memoryview


class _PlainHeader(msgspec.Struct, array_like=True, gc=False):
    """The header of a frame that stops after the core columns; two of them left as bytes, to be compared."""

    rids: list[str]
    finish_reasons: msgspec.Raw
    prompt_tokens: list[U32]
    tok_lens: msgspec.Raw


_header_len = struct.Struct("<I").unpack_from
_decode_header: Callable[[Any], Header] = msgspec.msgpack.Decoder(Header).decode
_decode_plain: Callable[[Any], _PlainHeader] = msgspec.msgpack.Decoder(_PlainHeader).decode
_decode_reasons: Callable[[Any], list[dict[str, Any] | None]] = msgspec.msgpack.Decoder(
    list[dict[str, Any] | None]
).decode
_decode_counts: Callable[[Any], list[int]] = msgspec.msgpack.Decoder(list[U32]).decode
_decode_items: Callable[[Any], list[msgspec.Raw]] = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_decode_str: Callable[[Any], str] = msgspec.msgpack.Decoder(str).decode

_FOUR_ITEMS = 0x94  # msgpack: an array of four
_NIL = b"\xc0"
_ONE = b"\x01"

# From here on comparing bytes beats making lists; below it, its fixed cost is the larger one
# (bench/batch_codec).
_BULK_BYTES = 512

_NO_REASONS = repeat(None)
_ONES = repeat(1)
_BLANKS = repeat("")
# Per field of ChunkExtras, what a request without that column gets. The empty lists are shared like the empty
# arrays: eleven of its own would cost an event more than all the rest, and nobody may change an event.
_NO_EXTRAS: dict[str, Iterable[Any]] = {
    name: repeat(getattr(ChunkExtras(), name)) for name in ChunkExtras.__struct_fields__
}
_WHOLE: list[_Place] = [None]
# Places of requests in a frame. Integers above 256 are objects to be made, 15 ns each; these are made once.
_PLACES = list(range(16384))


class Batch(msgspec.Struct, frozen=True, eq=False, gc=False):
    """An accepted BATCH frame: a sequence of events, made as they are asked for.

    Args:
        rids: the requests, in the frame's order; duplicates are kept.
        token_ids: the ids of all requests, one int32 view of the frame, shape (all ids,).

    `batch[i]`, `for event in batch` and `select` make new ChunkEvents, whose arrays are views of the frame
    and keep its buffer alive. A batch may be read from several threads.
    """

    rids: list[str]
    token_ids: I32Array
    _reasons: _Reasons | None
    _prompts: list[int]
    _counts: list[int] | None
    _column: I32Array  # token_ids in the shape that _places index
    _places: Sequence[_Place]
    _texts: Sequence[str] | None = None
    _completions: Sequence[int] | None = None
    _families: Sequence[FamilyColumns] = ()

    def __len__(self) -> int:
        return len(self.rids)

    def __iter__(self) -> Iterator[ChunkEvent]:
        if len(self.rids) == 1:
            return iter((self._event(0),))
        counts = _ONES if self._counts is None else self._counts
        columns: list[Iterable[Any]] = [
            self.rids,
            _NO_REASONS if self._reasons is None else self._reasons,
            self._prompts,
            counts,
            counts if self._completions is None else self._completions,
            repeat(self._column),
            self._places,
        ]
        if self._texts is not None or self._families:
            columns.append(_BLANKS if self._texts is None else self._texts)
            columns.append(self._extras(range(len(self.rids))))
        return map(ChunkEvent, *columns)

    def __getitem__(self, i: int) -> ChunkEvent:
        n = len(self.rids)
        at = index(i)
        if not -n <= at < n:
            raise IndexError(f"event {at} of {n}")
        return self._event(at % n)

    def select(self, wanted: Container[str]) -> list[ChunkEvent]:
        """Make the events of some requests only.

        Args:
            wanted: rids; best a set, a frozenset or a dict. It is asked once per request of the frame.

        Returns:
            The events whose rid is in `wanted`, in the frame's order.

        Cost: a membership test per request of the frame, an event per request wanted.
        """
        n = len(self.rids)
        places = _PLACES if n <= len(_PLACES) else range(n)
        return self._events(list(compress(places, map(wanted.__contains__, self.rids))))

    def _event(self, at: int) -> ChunkEvent:
        """Make the event of the request at this place."""
        count = 1 if self._counts is None else self._counts[at]
        return ChunkEvent(
            self.rids[at],
            None if self._reasons is None else self._reasons[at],
            self._prompts[at],
            count,
            count if self._completions is None else self._completions[at],
            self._column,
            self._places[at],
            "" if self._texts is None else self._texts[at],
            self._extras((at,))[0] if self._families else None,
        )

    def _events(self, at: list[int]) -> list[ChunkEvent]:
        """Make the events of the requests at these places."""

        def picked(column: Sequence[Any]) -> Iterator[Any]:
            return map(column.__getitem__, at)

        columns: list[Iterable[Any]] = [
            picked(self.rids),
            _NO_REASONS if self._reasons is None else picked(self._reasons),
            picked(self._prompts),
            _ONES if self._counts is None else picked(self._counts),
        ]
        if self._completions is not None:
            columns.append(picked(self._completions))
        else:
            columns.append(_ONES if self._counts is None else picked(self._counts))
        columns += (repeat(self._column), picked(self._places))
        if self._texts is not None or self._families:
            columns.append(_BLANKS if self._texts is None else picked(self._texts))
            columns.append(self._extras(at))
        return list(map(ChunkEvent, *columns))

    def _extras(self, at: Sequence[int]) -> list[ChunkExtras | None]:
        """Make the extras of the requests at these places, None for a request without any entry.

        Cost: per request that has some.
        """
        found: list[ChunkExtras | None] = [None] * len(at)
        having: set[int] = set()
        for family in self._families:
            having.update(compress(range(len(at)), map(family.lens.__getitem__, at)))
        if not having:
            return found
        slots = list(having)
        members = [at[slot] for slot in slots]
        columns = dict(_NO_EXTRAS)
        for family in self._families:
            columns.update(family.columns_of(members))
        for slot, extras in zip(slots, map(ChunkExtras, *columns.values()), strict=False):
            found[slot] = extras
        return found


def decode_batch(body: Any) -> Batch:
    """Read a BATCH body (no tag byte), or reject it as a whole.

    Args:
        body: any contiguous buffer, aligned or not; the batch's arrays keep it alive.

    Raises:
        MalformedFrame: with every rid that the header names. Duplicate, empty or non-ASCII rids, no requests,
            no tokens, negative ids, NaN and unknown finish reasons are no grounds.

    Mirrors: sglang, rust/sglang-server/src/message/egress.rs; egress.md section 2.
    """
    view: _Body = body if type(body) is bytes else _byte_view(body)
    size = len(view)
    if size < WIDTH:
        raise MalformedFrame(f"{size} bytes are too few for a header length", (), Tag.BATCH)
    data_at = WIDTH + _header_len(view)[0]
    if data_at > size:
        raise MalformedFrame(f"header of {data_at - WIDTH} bytes in a body of {size}", (), Tag.BATCH)
    header = view[WIDTH:data_at]
    try:
        if data_at > _BULK_BYTES and view[WIDTH] == _FOUR_ITEMS:
            return _accept_plain(view, data_at, _decode_plain(header))
        return _accept(view, data_at, _decode_header(header))
    except UNREADABLE as error:
        raise MalformedFrame(f"header: {error}", _named_rids(header), Tag.BATCH) from None


def _byte_view(body: Any) -> memoryview:
    """A flat view of any contiguous buffer, one item per byte."""
    view = memoryview(body)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def _accept_plain(view: _Body, data_at: int, header: _PlainHeader) -> Batch:
    """Check a large frame of core columns only."""
    rids = header.rids
    n = len(rids)
    reasons: _Reasons | None = None
    counts: list[int] | None = None
    if bytes(header.finish_reasons) != _array_of(n, _NIL):
        reasons = _classify(_decode_reasons(header.finish_reasons))
        _check_core("finish_reasons", reasons, rids)
    if bytes(header.tok_lens) != _array_of(n, _ONE):
        counts = _decode_counts(header.tok_lens)
        _check_core("tok_lens", counts, rids)
    _check_core("prompt_tokens", header.prompt_tokens, rids)
    n_ids = n if counts is None else sum(counts)
    if data_at + WIDTH * n_ids != len(view):
        raise _wrong_size(n_ids, len(view) - data_at, rids)
    token_ids = np.frombuffer(view, I32, n_ids, data_at) if n_ids else NO_I32
    if counts is not None:
        return Batch(rids, token_ids, reasons, header.prompt_tokens, counts, token_ids, _slices(counts))
    places = _PLACES if n <= len(_PLACES) else range(n)
    # Indexing a two-dimensional column by an integer makes the same view as slicing a flat one, for less.
    return Batch(rids, token_ids, reasons, header.prompt_tokens, None, token_ids.reshape(n, 1), places)


def _accept(view: _Body, data_at: int, header: Header) -> Batch:
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
    n_ids = sum(counts)
    reasons = None if maps.count(None) == n else _classify(maps)
    places = _WHOLE if n == 1 else _slices(counts)
    if view[WIDTH] == _FOUR_ITEMS:
        if data_at + WIDTH * n_ids != len(view):
            raise _wrong_size(n_ids, len(view) - data_at, rids)
        token_ids = np.frombuffer(view, I32, n_ids, data_at) if n_ids else NO_I32
        return Batch(rids, token_ids, reasons, prompts, counts, token_ids, places)
    sizes, n_values = _check_optional(header)
    if data_at + WIDTH * (n_ids + n_values) != len(view):
        raise _wrong_size(n_ids + n_values, len(view) - data_at, rids)
    token_ids, offset = take_i32(view, data_at, n_ids)
    families = []
    for family, count in sizes:
        columns, offset = take_family(family, header, view, offset, count)
        families.append(columns)
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
    )


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


def _slices(counts: list[int]) -> list[_Place]:
    """Where each request's ids lie, given how many each has."""
    ends = list(accumulate(counts))
    return list(map(slice, [0, *ends], ends))


def _classify(maps: list[dict[str, Any] | None]) -> _Reasons:
    """Turn reason maps into reasons."""
    return [None if wire is None else _reason(wire) for wire in maps]


def _reason(wire: dict[str, Any]) -> FinishReason:
    if not is_plain(wire):
        # In the words of msgspec, whose decoder would say so if it could be told to allow no extension types.
        raise msgspec.ValidationError(
            "Expected a finish reason of plain data, got an extension, binary or odd key"
        )
    return FinishReason.from_wire(wire)


def _named_rids(header: _Body) -> list[str]:
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

"""Writing a BATCH: columns of Python values or arrays into the buffers of one gathered write.

Everything is checked before the first buffer is handed out, so a refused step leaves nothing behind. What is
written is what SGLang's scheduler writes for the same step: four columns when no family is active, else
sixteen, and ours behind them only as far as they are used.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import compress
from typing import Any, TypeAlias, TypedDict, Unpack

import msgspec

from egress.errors import EncodeError
from egress.wire.columns import FAMILIES, U32_MAX, WIDTH, Header
from egress.wire.family import encode_family
from egress.wire.finish_reason import FinishReason, is_plain
from egress.wire.pack import pack_i32, to_u32

__all__ = ["HeaderBuffer", "OptionalColumns", "encode_batch", "encode_batch_into", "frame_batch"]

_Buffer: TypeAlias = bytes | bytearray | memoryview
_Cells: TypeAlias = Sequence[Any] | None

_encode_into = msgspec.msgpack.Encoder().encode_into
_header_len = struct.Struct("<I")
# A method that costs next to nothing and refuses all but strings.
_is_ascii = str.isascii

_NAMES = Header.__struct_fields__
_CORE_COLUMNS = 4
_SGLANG_COLUMNS = 16
_WITH_TEXTS = 17
# Columns of a header that has this one.
_ARITIES = {
    name: _SGLANG_COLUMNS if _CORE_COLUMNS < position <= _SGLANG_COLUMNS else max(position, _CORE_COLUMNS)
    for position, name in enumerate(_NAMES, start=1)
}


class OptionalColumns(TypedDict, total=False):
    """What a BATCH may carry besides its core; see encode_batch."""

    out_lp_val: _Cells
    out_lp_idx: _Cells
    in_lp_val: _Cells
    in_lp_idx: _Cells
    out_top_val: _Cells
    out_top_idx: _Cells
    in_top_val: _Cells
    in_top_idx: _Cells
    out_tid_val: _Cells
    out_tid_idx: _Cells
    in_tid_val: _Cells
    in_tid_idx: _Cells
    hidden: _Cells
    texts: Sequence[str] | None
    completion_tokens: Sequence[int] | None
    out_lp_txt: _Cells
    in_lp_txt: _Cells
    out_top_txt: _Cells
    in_top_txt: _Cells
    out_tid_txt: _Cells
    in_tid_txt: _Cells


# Fewer requests are encoded as they come: comparing costs a microsecond.
_FEW = 16

_OPTIONAL = frozenset(OptionalColumns.__annotations__)
_BESIDES = frozenset(("texts", "completion_tokens"))  # optional columns that belong to no family


def encode_batch(
    rids: Sequence[str],
    finish_reasons: Sequence[FinishReason | Mapping[str, Any] | None],
    prompt_tokens: Sequence[int],
    token_ids: Sequence[Any],
    **optional: Unpack[OptionalColumns],
) -> list[_Buffer]:
    """Make the body of a BATCH frame, as buffers to be written one behind the other.

    Every argument has one entry per request; an optional one may also be empty or None (it is then left out).

    Args:
        rids: the requests; order and duplicates are kept.
        finish_reasons: None while a request goes on, else a FinishReason or its map.
        prompt_tokens: tokens, 0 to 2**32 - 1.
        token_ids: per request a sequence of int32 values or a one-dimensional int32 array.
        out_lp_val, in_lp_val: per request a sequence of floats or None; the first value of an in_lp_val entry
            may be None, written as NaN. Their `_idx`: as many token ids.
        out_top_val, in_top_val, out_tid_val, in_tid_val: per request, per position, a sequence of floats or
            None (None: no data at that position; None for a request: no positions). Their `_idx`: token ids
            in the same shape.
        hidden: per request a sequence of rows, or None; a row is a number, a sequence, or nested sequences,
            which are flattened. A float32 array of shape (positions, ...) is taken as it is.
        texts: the text decoded from this step's ids.
        completion_tokens: ids produced in this step, before any were trimmed.
        out_lp_txt, ...: per request a string for each id of the family, nested like its ids or flat.

    Returns:
        The length and the header in the first buffer, then the data columns that are not empty; len() of each
        is its bytes. `data_offset` says where the data begin, which is what a ring's writer aligns.

    Raises:
        EncodeError: a column of another length, counts of values and ids that differ, a value that does not
            fit its type (named with column, request, value and limits), a string UTF-8 cannot carry, a header
            of 2**32 bytes or more.

    Cost: one pass in C over each column; arrays of the column's own type are joined, not converted.

    >>> b"".join(encode_batch(["a"], [None], [3], [[7, 8]])).hex(" ", -4)
    '0a000000 9491a161 91c09103 91020700 00000800 0000'
    """
    return encode_batch_into(HeaderBuffer(), rids, finish_reasons, prompt_tokens, token_ids, optional)


class HeaderBuffer:
    """Where the headers of one ring are made, one after another; and what the last one said.

    A buffer that held a header of this size before needs no new memory, which for a large step costs as much
    as a third of the encoding. And a header that begins as the last one did (egress.wire.repeat) is made by
    writing its texts behind what is there already.

    Attributes:
        data: the length word and the header.
    """

    __slots__ = ("_arity", "_prompts", "_rids", "_texts_at", "data")

    def __init__(self) -> None:
        self.data = bytearray(WIDTH)
        # Columns of the header in here, if it says of all that they go on and have one token; else 0.
        self._arity = 0
        self._rids: list[str] = []
        self._prompts: list[int] = []
        self._texts_at = 0

    def is_repeated(self, rids: Any, finish_reasons: Any, prompt_tokens: Any, arity: int) -> bool:
        """Whether the header in here says this of the requests, in so many columns.

        What equals the last step's rid or length passes for it, of whatever type: 7.0 for 7, which alone
        would be refused. The bytes are those of the 7.
        """
        return (
            self._arity == arity
            and type(rids) is type(prompt_tokens) is type(finish_reasons) is list
            and rids == self._rids
            and prompt_tokens == self._prompts
            and finish_reasons.count(None) == len(finish_reasons)
        )

    def repeat(self, texts: list[str] | None) -> None:
        """Make the next header of the one in here.

        Args:
            texts: one per request; None where the header has none.

        Raises:
            UnicodeEncodeError: a lone surrogate; the header in here is not whole.
            EncodeError: it is too long.
        """
        if texts is not None:
            arity, self._arity = self._arity, 0
            _encode_into(texts, self.data, self._texts_at)
            self._set_length()
            self._arity = arity

    def make(self, header: Mapping[str, Sequence[Any]], arity: int) -> None:
        """Make a header of any kind, of `arity` columns.

        Raises:
            UnicodeEncodeError, OverflowError: it cannot be said in msgpack; what is in here is not whole.
            EncodeError: it is too long.
        """
        self._arity = 0
        columns = [header.get(name, ()) for name in _NAMES[:arity]]
        texts = columns.pop() if arity == _WITH_TEXTS else None
        _encode_into(columns, self.data, WIDTH)
        if texts is not None:
            self.data[WIDTH + 2] = _WITH_TEXTS  # the last byte of the array's length
            self._texts_at = len(self.data)
            _encode_into(texts, self.data, self._texts_at)
        self._set_length()

    def keep(self, rids: Sequence[str], prompts: Sequence[int], arity: int) -> None:
        """The header in here says of these that they go on and have one token, and it has no columns but the
        core and texts."""
        self._rids, self._prompts, self._arity = list(rids), list(prompts), arity

    def _set_length(self) -> None:
        size = len(self.data) - WIDTH
        if size > U32_MAX:
            raise EncodeError(f"header: {size} bytes, the limit is {U32_MAX}")
        _header_len.pack_into(self.data, 0, size)


def encode_batch_into(
    buffer: HeaderBuffer,
    rids: Sequence[str],
    finish_reasons: Sequence[FinishReason | Mapping[str, Any] | None],
    prompt_tokens: Sequence[int],
    token_ids: Sequence[Any],
    optional: OptionalColumns,
) -> list[_Buffer]:
    """Make the body of a BATCH frame; as encode_batch.

    Args:
        buffer: becomes the first buffer of the body. To be read before the next one is made in it.
    """
    n = len(rids)
    for name, column in (
        ("finish_reasons", finish_reasons),
        ("prompt_tokens", prompt_tokens),
        ("token_ids", token_ids),
    ):
        if len(column) != n:
            raise EncodeError(f"{name}: {len(column)} entries for {n} requests")
    texts = optional.get("texts") if optional else None
    arity = _CORE_COLUMNS
    if optional:
        arity = _WITH_TEXTS if texts is not None and len(texts) and len(optional) == 1 else 0
    if arity and n >= _FEW and buffer.is_repeated(rids, finish_reasons, prompt_tokens, arity):
        lens, packed = pack_i32("token_ids", token_ids, lambda: range(n))
        if lens.count(1) == n:
            _repeat(buffer, rids, texts)
            return [buffer.data, packed]
    header: dict[str, Sequence[Any]] = {
        "rids": _check_strings("rids", rids),
        "finish_reasons": _reasons_to_wire(finish_reasons),
        "prompt_tokens": to_u32("prompt_tokens", prompt_tokens),
    }
    lens, packed = pack_i32("token_ids", token_ids, lambda: range(n))
    header["tok_lens"] = lens
    data: list[_Buffer] = [packed]
    is_plain = arity and n >= _FEW and lens.count(1) == n == header["finish_reasons"].count(None)
    arity = _CORE_COLUMNS
    if optional:
        data += _encode_optional(optional, header, n)
        arity = max(map(_ARITIES.__getitem__, header))
    _encode_header(buffer, header, arity)
    if is_plain:
        buffer.keep(rids, prompt_tokens, arity)
    return [buffer.data, *filter(len, data)]


def frame_batch(header_bytes: _Buffer, columns: Sequence[_Buffer]) -> list[_Buffer]:
    """Frame a header that is msgpack already, and data columns that are packed already.

    Neither is looked into. The body is the same however the data are divided into buffers.

    Raises:
        EncodeError: the header has 2**32 bytes or more.
    """
    size = len(header_bytes)
    if size > U32_MAX:
        raise EncodeError(f"header: {size} bytes, the limit is {U32_MAX}")
    return [_header_len.pack(size) + bytes(header_bytes), *columns]


def _encode_optional(optional: OptionalColumns, header: dict[str, Sequence[Any]], n: int) -> list[_Buffer]:
    """Add the active optional columns to the header and give their data columns, in order."""
    active: dict[str, Sequence[Any]] = {}
    for name, column in optional.items():
        if name not in _OPTIONAL:
            raise TypeError(f"encode_batch() got an unexpected keyword argument {name!r}")
        if column is None or not len(column):  # type: ignore[arg-type]  # items() of a TypedDict are objects
            continue
        if len(column) != n:  # type: ignore[arg-type]
            raise EncodeError(f"{name}: {len(column)} entries, neither 0 nor {n}")  # type: ignore[arg-type]
        active[name] = column  # type: ignore[assignment]
    data: list[_Buffer] = []
    if active.keys() - _BESIDES:
        for family in FAMILIES:
            data += encode_family(family, active, header)
    if "texts" in active:
        header["texts"] = _check_strings("texts", active["texts"])
    if "completion_tokens" in active:
        header["completion_tokens"] = to_u32("completion_tokens", active["completion_tokens"])
    return data


def _repeat(buffer: HeaderBuffer, rids: Sequence[str], texts: Sequence[str] | None) -> None:
    """Make the first buffer of a header that begins as the last one did."""
    column = None
    if texts is not None:
        if len(texts) != len(rids):
            raise EncodeError(f"texts: {len(texts)} entries, neither 0 nor {len(rids)}")
        column = _check_strings("texts", texts)
    try:
        buffer.repeat(column)
    except UnicodeEncodeError:
        raise _lone_surrogate({"rids": rids, "texts": column or ()}) from None


def _encode_header(buffer: HeaderBuffer, header: dict[str, Sequence[Any]], arity: int) -> None:
    try:
        buffer.make(header, arity)
    except UnicodeEncodeError:
        raise _lone_surrogate(header) from None
    except OverflowError as error:
        # Every other integer of the header was bounded before.
        raise EncodeError(f"finish_reasons: {error}") from None


def _reasons_to_wire(reasons: Sequence[Any]) -> Sequence[dict[str, Any] | None]:
    """Turn reasons into maps; most are None already."""
    if type(reasons) is not list:
        reasons = list(reasons)
    missing = len(reasons) - reasons.count(None)
    if not missing:
        return reasons
    places = list(compress(range(len(reasons)), reasons))
    if len(places) != missing:  # an empty map counts as false
        places = [request for request, reason in enumerate(reasons) if reason is not None]
    wires: list[Any] = reasons.copy()
    for request in places:
        reason = reasons[request]
        wire = reason.to_wire() if isinstance(reason, FinishReason) else reason
        wire = dict(wire) if isinstance(wire, Mapping) else wire
        if type(wire) is not dict or not is_plain(wire):
            raise EncodeError(f"finish_reasons: request {request}: {reason!r} is no map of plain data")
        wires[request] = wire
    return wires


def _check_strings(name: str, values: Sequence[str]) -> list[str]:
    """Check that all are strings, without looking at each in bytecode."""
    column = values if type(values) is list else list(values)
    try:
        if name == "texts":
            # Texts are of all widths, so joining them would convert most; rids are alike, and joined faster.
            deque(map(_is_ascii, column), maxlen=0)
        else:
            "".join(column)
    except TypeError:
        request, value = next((i, v) for i, v in enumerate(column) if not isinstance(v, str))
        raise EncodeError(f"{name}: request {request}: {value!r} is no string") from None
    return column


def _lone_surrogate(header: dict[str, Sequence[Any]]) -> EncodeError:
    """Make the error that names the first string UTF-8 cannot carry."""
    for name, column in header.items():
        for place, value in enumerate(column):
            try:
                msgspec.msgpack.encode(value)
            except UnicodeEncodeError as error:
                kind = "request" if len(column) == len(header["rids"]) else "entry"
                return EncodeError(f"{name}: {kind} {place}: lone surrogate in {error.object!r}")
    raise AssertionError("a header with a lone surrogate has it in some column")

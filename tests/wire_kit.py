"""What tests and fuzzers of egress.wire share: raw frames, comparable events, batches turned back into
columns."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import msgspec
import numpy as np

from egress.wire import Batch, ChunkEvent, ChunkExtras, Tag, decode, encode_batch

FLAT = ("out_lp", "in_lp")
RAGGED = ("out_top", "in_top", "out_tid", "in_tid")


def raw_body(header: Any, data: bytes = b"") -> bytes:
    """A BATCH body with any header at all: a value for msgpack, or bytes taken as they are."""
    packed = header if isinstance(header, bytes) else msgspec.msgpack.encode(header)
    return struct.pack("<I", len(packed)) + packed + data


def decode_batch(body: Any) -> Batch:
    batch = decode(Tag.BATCH, body)
    assert isinstance(batch, Batch)
    return batch


def event_key(event: ChunkEvent) -> tuple[Any, ...]:
    """All that an event says, to be compared with ==: arrays as bytes, since NaN is not equal to itself."""
    extras: Any = event.extras
    if extras is not None:
        extras = [_exactly(getattr(extras, name)) for name in ChunkExtras.__struct_fields__]
    reason = event.finish_reason
    return (
        event.rid,
        _exactly(event.token_ids),
        event.n_tokens,
        None if reason is None else repr(reason),
        event.prompt_tokens,
        event.text,
        event.completion_tokens,
        extras,
    )


def event_keys(batch: Batch) -> list[tuple[Any, ...]]:
    return [event_key(event) for event in batch]


def columns_of(batch: Batch) -> dict[str, Any]:
    """The arguments of encode_batch that give the same events, families without any entry left out."""
    events = list(batch)
    columns: dict[str, Any] = {
        "rids": [event.rid for event in events],
        "finish_reasons": [event.finish_reason for event in events],
        "prompt_tokens": [event.prompt_tokens for event in events],
        "token_ids": [event.token_ids for event in events],
    }
    if any(event.text for event in events):
        columns["texts"] = [event.text for event in events]
    if any(event.completion_tokens != event.n_tokens for event in events):
        columns["completion_tokens"] = [event.completion_tokens for event in events]
    all_extras = [event.extras for event in events]

    def column(name: str) -> list[Any]:
        return [None if extras is None else getattr(extras, name) for extras in all_extras]

    def add(arguments: dict[str, list[Any]], txt: str | None, filled: list[Any]) -> None:
        if any(entry is not None and len(entry) for entry in filled):
            columns.update(arguments)
            if txt is not None and any(column(txt)):
                columns[txt] = column(txt)

    for family in FLAT:
        val, idx = column(f"{family}_val"), column(f"{family}_idx")
        add({f"{family}_val": val, f"{family}_idx": idx}, f"{family}_txt", val)
    for family in RAGGED:
        lens = column(f"{family}_lens")
        val = _nested(column(f"{family}_val"), lens)
        idx = _nested(column(f"{family}_idx"), lens)
        add({f"{family}_val": val, f"{family}_idx": idx}, f"{family}_txt", lens)
    lens = column("hidden_lens")
    add({"hidden": _nested(column("hidden_val"), lens)}, None, lens)
    return columns


def reencode(batch: Batch) -> bytes:
    return b"".join(encode_batch(**columns_of(batch)))


def check_accepted(batch: Batch) -> None:
    """Hold what must be true of any batch that was accepted; AssertionError otherwise.

    It says the same after being written and read again, and its written form is a fixed point.
    """
    keys = event_keys(batch)
    assert len(keys) == len(batch) == len(batch.rids)
    assert [batch[i].rid for i in range(len(batch))] == batch.rids
    assert b"".join(key[1] for key in keys) == batch.token_ids.tobytes()
    written = reencode(batch)
    again = decode_batch(written)
    assert event_keys(again) == keys
    assert reencode(again) == written


def _exactly(value: Any) -> Any:
    return value.tobytes() if isinstance(value, np.ndarray) else list(value)


def _nested(flat: list[Any], lens: list[Sequence[int] | None]) -> list[Any]:
    """Values per request and position, given the widths of each request's positions."""
    nested: list[Any] = []
    for values, widths in zip(flat, lens, strict=True):
        if widths is None:
            nested.append(None)
            continue
        ends = list(accumulate(widths))
        nested.append([values[end - width : end] for end, width in zip(ends, widths, strict=True)])
    return nested

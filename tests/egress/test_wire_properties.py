"""What holds for every frame: it is refused as documented, or says the same after being written again."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import ROOT
from wire_kit import check_accepted, columns_of, decode_batch, event_key, raw_body

from egress.errors import EncodeError, MalformedFrame
from egress.wire import decode_frame, encode_batch

_spec = importlib.util.spec_from_file_location("fuzz_frames", ROOT / "tests" / "fuzz" / "fuzz_frames.py")
assert _spec is not None
assert _spec.loader is not None
fuzz_frames = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(fuzz_frames)

i32 = st.integers(-(2**31), 2**31 - 1)
u32 = st.integers(0, 2**32 - 1)
f32 = st.floats(width=32)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
scalar = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | text
plain = st.recursive(
    scalar, lambda x: st.lists(x, max_size=3) | st.dictionaries(text, x, max_size=3), max_leaves=6
)
reason = st.one_of(
    st.none(),
    st.fixed_dictionaries({"type": st.sampled_from(["stop", "length", "abort", "new"])}),
    st.fixed_dictionaries({"type": st.just("stop"), "matched": plain}),
    st.dictionaries(text, plain, max_size=3),
)


@st.composite
def batches(draw: st.DrawFn) -> dict[str, Any]:
    """Arguments of encode_batch, each family left out or given."""
    n = draw(st.integers(0, 5))

    def per_request(strategy: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(strategy, min_size=n, max_size=n))

    columns: dict[str, Any] = {
        "rids": per_request(text),
        "finish_reasons": per_request(reason),
        "prompt_tokens": per_request(u32),
        "token_ids": per_request(st.lists(i32, max_size=4)),
    }
    for family in draw(st.sets(st.sampled_from(["out_lp", "in_lp"]))):
        vals = per_request(st.none() | st.lists(f32, max_size=3))
        columns[f"{family}_val"] = vals
        columns[f"{family}_idx"] = [cell and [draw(i32) for _ in cell] for cell in vals]
        if draw(st.booleans()):
            columns[f"{family}_txt"] = [cell and [draw(text) for _ in cell] for cell in vals]
    for family in draw(st.sets(st.sampled_from(["out_top", "in_top", "out_tid", "in_tid"]))):
        vals = per_request(st.none() | st.lists(st.none() | st.lists(f32, max_size=2), max_size=3))
        columns[f"{family}_val"] = vals
        for last, kind in (("idx", i32), ("txt", text))[: draw(st.integers(1, 2))]:
            columns[f"{family}_{last}"] = [
                cell and [row and [draw(kind) for _ in row] for row in cell] for cell in vals
            ]
    if draw(st.booleans()):
        columns["hidden"] = per_request(st.none() | st.lists(f32 | st.lists(f32, max_size=2), max_size=3))
    if draw(st.booleans()):
        columns["texts"] = per_request(text)
    if draw(st.booleans()):
        columns["completion_tokens"] = per_request(u32)
    return columns


def flat(cell: Any) -> list[Any]:
    """The values of a nested cell, in order; None is an empty one."""
    if not isinstance(cell, list):
        return [] if cell is None else [cell]
    return [value for item in cell for value in flat(item)]


@settings(max_examples=100)
@given(batches())
def test_what_is_written_is_read(columns: dict[str, Any]) -> None:
    events = list(decode_batch(b"".join(encode_batch(**columns))))
    for i, event in enumerate(events):
        assert event.rid == columns["rids"][i]
        assert event.token_ids.tolist() == columns["token_ids"][i]
        assert event.prompt_tokens == columns["prompt_tokens"][i]
        assert event.text == columns.get("texts", [""] * (i + 1))[i]
        produced = columns.get("completion_tokens")
        assert event.completion_tokens == (event.n_tokens if produced is None else produced[i])
        families = {name for name in columns if name.endswith("_val") or name == "hidden"}
        has_any = any(columns[name][i] for name in families)
        assert (event.extras is not None) == has_any
        if event.extras is not None:
            for name in columns:
                value = getattr(event.extras, "hidden_val" if name == "hidden" else name, None)
                expected = flat(columns[name][i]) if value is not None else None
                if isinstance(value, np.ndarray):
                    assert value.tobytes() == np.array(expected, value.dtype).tobytes()
                elif value is not None:
                    assert list(value) == expected
    assert len(events) == len(columns["rids"])


@settings(max_examples=100)
@given(batches())
def test_an_accepted_batch_is_a_fixed_point(columns: dict[str, Any]) -> None:
    batch = decode_batch(b"".join(encode_batch(**columns)))
    check_accepted(batch)
    assert [event_key(event.detach()) for event in batch] == [event_key(event) for event in batch]
    assert columns_of(batch)["rids"] == columns["rids"]


@settings(max_examples=100)
@given(batches(), st.data())
def test_no_part_of_a_frame_can_be_missing(columns: dict[str, Any], data: st.DataObject) -> None:
    body = b"".join(encode_batch(**columns))
    cut = data.draw(st.integers(0, len(body) - 1))
    with pytest.raises(MalformedFrame):
        decode_batch(body[:cut])
    with pytest.raises(MalformedFrame):
        decode_batch(body + b"\0" * data.draw(st.integers(1, 9)))


@settings(max_examples=100)
@given(st.binary(max_size=60))
def test_random_bytes_are_refused_or_read_for_good(frame: bytes) -> None:
    fuzz_frames.try_one(frame, check=True)
    fuzz_frames.try_one(b"\x02" + frame, check=True)


@settings(max_examples=100)
@given(st.lists(plain, max_size=26), st.binary(max_size=16))
def test_any_msgpack_header_is_refused_or_read_for_good(header: list[Any], data: bytes) -> None:
    fuzz_frames.try_one(b"\x02" + raw_body(header, data), check=True)


@settings(max_examples=100)
@given(batches(), st.data())
def test_any_plain_value_for_a_column_is_written_or_refused(
    columns: dict[str, Any], data: st.DataObject
) -> None:
    n = len(columns["rids"])
    for name in data.draw(st.sets(st.sampled_from(sorted(columns)), max_size=2)):
        columns[name] = data.draw(st.lists(plain, min_size=n, max_size=n))
    try:
        body = b"".join(encode_batch(**columns))
    except EncodeError:
        return
    check_accepted(decode_batch(body))


@pytest.mark.slow
def test_short_fuzzing_finds_nothing_and_reaches_every_outcome() -> None:
    outcomes = fuzz_frames.fuzz(seed=5, seconds=None, count=8_000)
    assert outcomes.total() >= 8_000
    assert set(outcomes) == {"refused", "refused, rids named", "batch", "result", "failure"}
    assert min(outcomes.values()) > 20


def test_the_same_seed_gives_the_same_inputs() -> None:
    blocks = [fuzz_frames.inputs(fuzz_frames.random.Random(seed)) for seed in (1, 1, 2)]
    assert blocks[0] == blocks[1] != blocks[2]
    with pytest.raises(MalformedFrame):
        decode_frame(b"")

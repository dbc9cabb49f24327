"""Writing BATCH frames: what is refused, with whom and what named, and which columns are written."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from wire_kit import decode_batch, event_keys

from egress.errors import EncodeError
from egress.wire import Abort, Length, Stop, Unknown, data_offset, encode_batch, frame_batch

TWO: dict[str, Any] = {
    "rids": ["a", "b"],
    "finish_reasons": [None, None],
    "prompt_tokens": [3, 4],
    "token_ids": [[1, 2], [3]],
}
LP: dict[str, Any] = {"out_lp_val": [[-0.5], [-1.5]], "out_lp_idx": [[7], [8]]}
TOP: dict[str, Any] = {"out_top_val": [[[1.0], None], None], "out_top_idx": [[[5], []], []]}
HUGE = 2**32


def header_of(buffers: list[Any]) -> list[Any]:
    body = b"".join(buffers)
    return list(msgspec.msgpack.decode(body[4 : 4 + int.from_bytes(body[:4], "little")]))


def refusal(**columns: Any) -> str:
    with pytest.raises(EncodeError) as refused:
        encode_batch(**{**TWO, **columns})
    return str(refused.value)


@pytest.mark.parametrize("name", ["finish_reasons", "prompt_tokens", "token_ids"])
@pytest.mark.parametrize("entries", [0, 1, 3])
def test_core_columns_have_one_entry_per_request(name: str, entries: int) -> None:
    text = refusal(**{name: (TWO[name] * 2)[:entries]})
    assert name in text
    assert str(entries) in text


@pytest.mark.parametrize(
    "columns", [LP, TOP, {"hidden": [[1.0], None]}, {"texts": ["x", "y"]}, {"completion_tokens": [1, 2]}]
)
def test_optional_columns_have_none_or_one_entry_per_request(columns: dict[str, Any]) -> None:
    encode_batch(**TWO, **columns)
    for name, column in columns.items():
        assert name in refusal(**{**columns, name: column[:1]})
        assert name in refusal(**{**columns, name: [*column, None]})


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, 2**63, 2**70, 1.0, "5", None, [1]])
@pytest.mark.parametrize("shape", ["one each", "several"])
def test_a_token_id_beyond_i32_is_named(value: Any, shape: str) -> None:
    text = refusal(token_ids=[[1], [value]] if shape == "one each" else [[1, 2, 3], [4, value]])
    for part in ("token_ids", "request 1", repr(value), "-2147483648", "2147483647"):
        assert part in text


@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.float32, np.float64])
def test_a_token_id_beyond_i32_in_an_array_is_named(dtype: Any) -> None:
    array = np.array([1, 2**31], dtype)
    assert "request 1" in refusal(token_ids=[np.array([1], np.int32), array])
    assert "request 0" in refusal(token_ids=[array, array])


@pytest.mark.parametrize("name", ["prompt_tokens", "completion_tokens"])
@pytest.mark.parametrize("value", [-1, HUGE, 2**64, 1.0, "1", None])
def test_a_count_beyond_u32_is_named(name: str, value: Any) -> None:
    text = refusal(**{name: [0, value]})
    for part in (name, "request 1", repr(value), str(HUGE - 1)):
        assert part in text


def test_counts_are_written_as_integers_whatever_they_were() -> None:
    buffers = encode_batch(
        **{**TWO, "prompt_tokens": np.array([7, 8]), "token_ids": [[True, np.int64(2)], [3]]}
    )
    assert b"".join(buffers) == b"".join(encode_batch(**{**TWO, "prompt_tokens": [7, 8]}))
    assert header_of(encode_batch(**{**TWO, "prompt_tokens": [True, np.uint8(9)]}))[2] == [1, 9]


@pytest.mark.parametrize("value", [1e39, -1e300, 10**400, "x", [0.5]])
def test_a_value_beyond_f32_is_named(value: Any) -> None:
    text = refusal(out_lp_val=[[0.5], [value]], out_lp_idx=[[1], [1]])
    assert "out_lp_val" in text
    assert "request 1" in text
    text = refusal(out_top_val=[[[0.5], [0.5]], [None, [value]]], out_top_idx=[[[1], [1]], [None, [1]]])
    assert "out_top_val: request 1" in text


def test_only_the_first_input_logprob_may_be_missing() -> None:
    assert "in_lp_val" in refusal(in_lp_val=[[None, None], []], in_lp_idx=[[1, 2], []])
    assert "out_lp_val" in refusal(out_lp_val=[[None], []], out_lp_idx=[[1], []])
    assert "in_lp_idx" in refusal(in_lp_val=[[None], []], in_lp_idx=[[None], []])
    (event, _) = decode_batch(b"".join(encode_batch(**TWO, in_lp_val=[[None], []], in_lp_idx=[[1], None])))
    assert event.extras is not None
    assert event.extras.in_lp_val.tobytes() == b"\0\0\xc0\x7f"


@pytest.mark.parametrize(
    "columns",
    [
        {"out_lp_val": [[0.5], []], "out_lp_idx": [[1, 2], []]},
        {"out_lp_val": [[0.5], []], "out_lp_idx": [[], [1]]},
        {"out_lp_val": [[0.5], []]},
        {"out_lp_idx": [[1], []]},
        {"out_lp_idx": [[], []]},
        {"out_lp_txt": [["x"], []]},
        {"in_tid_val": [[[0.5]], []], "in_tid_idx": [[[1, 2]], []]},
        {"in_tid_val": [[[0.5]], []], "in_tid_idx": [[[1], []], []]},
        {"in_tid_val": [[[0.5]], []], "in_tid_idx": [[], [[1]]]},
        {"in_tid_val": [[[0.5]], []]},
        {"in_tid_idx": [[[1]], []]},
        {**LP, "out_lp_txt": [["x", "y"], []]},
        {**LP, "out_lp_txt": [["x"], None]},
        {**LP, "out_lp_txt": [["x"], [5]]},
        {**TOP, "out_top_txt": [[["x"], ["y"]], None]},
        {"hidden": [[[1.0, None]], None]},
        {"hidden": [["x"], None]},
        {"in_lp_val": [{"": 0.5}, None], "in_lp_idx": [[1], None]},
        {"in_lp_val": [5, None], "in_lp_idx": [[1], None]},
        {"hidden": [5, None]},
        {"token_ids": [None, [1]]},
        {"token_ids": [5, [1]]},
        {"token_ids": [np.zeros((1, 2), np.int32), [1]]},
        {"out_lp_val": [0.5, None], "out_lp_idx": [[1], None]},
        {"rids": ["a", 5]},
        {"rids": [b"a", "b"]},
        {"texts": ["a", None]},
        {"finish_reasons": [None, 5]},
        {"finish_reasons": [None, "stop"]},
        {"finish_reasons": [{1: 2}, None]},
        {"finish_reasons": [{"type": "x", "v": b"bin"}, None]},
        {"finish_reasons": [{"type": "x", "v": object()}, None]},
        {"finish_reasons": [{"type": "x", "v": 2**64}, None]},
    ],
)
def test_columns_that_make_no_frame_are_refused_by_name(columns: dict[str, Any]) -> None:
    text = refusal(**columns)
    assert any(text.startswith(name.rsplit("_", 1)[0]) for name in columns)


@pytest.mark.parametrize(
    "columns",
    [{"rids": ["a", "\ud83d"]}, {"texts": ["", "\udcff"]}, {**LP, "out_lp_txt": [["\ud800"], ["x"]]}],
)
def test_a_lone_surrogate_is_refused(columns: dict[str, Any]) -> None:
    text = refusal(**columns)
    assert "surrogate" in text
    assert text.split(":")[0] in columns
    assert "surrogate" in refusal(finish_reasons=[{"type": "stop", "matched": "\ud83d"}, None])


class Long:
    """A sequence that says it has more items than u32 can count."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Any:
        return iter((1, 2))


class LongBytes(bytes):
    def __len__(self) -> int:
        return HUGE


def test_lengths_beyond_u32_are_refused_before_anything_is_written() -> None:
    for length in (HUGE, 2**31, 3):
        assert "token_ids" in refusal(token_ids=[Long(length), [1]])
    with pytest.raises(EncodeError, match=str(HUGE - 1)):
        frame_batch(LongBytes(b"x"), [])


def test_an_unknown_column_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(TypeError, match="out_lp_vals"):
        encode_batch(**TWO, out_lp_vals=[[], []])  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("columns", "arity"),
    [
        ({}, 4),
        ({"out_lp_val": [], "out_lp_idx": None, "texts": []}, 4),
        (LP, 16),
        ({"hidden": [None, None]}, 16),
        ({"texts": ["", ""]}, 17),
        ({"completion_tokens": [0, 0]}, 18),
        ({**LP, "texts": ["x", "y"]}, 17),
        ({**LP, "out_lp_txt": [["x"], ["y"]]}, 19),
        ({**TOP, "out_top_txt": [[["x"], None], None]}, 21),
        ({**TOP, "out_top_txt": [["x"], None]}, 21),
    ],
)
def test_no_more_columns_are_written_than_are_needed(columns: dict[str, Any], arity: int) -> None:
    header = header_of(encode_batch(**TWO, **columns))
    assert len(header) == arity
    assert header[:4] == [["a", "b"], [None, None], [3, 4], [2, 1]]


def test_the_buffers_are_bytes_and_the_data_begin_where_said() -> None:
    ids = [np.array([1, 2], np.int32), np.array([3], np.int32)]
    for columns in (TWO, {**TWO, "token_ids": ids}, {**TWO, **LP}):
        buffers = encode_batch(**columns)
        body = b"".join(buffers)
        assert sum(map(len, buffers)) == len(body)
        assert body[data_offset(buffers) :][:12] == np.array([1, 2, 3], "<i4").tobytes()


def test_arrays_lists_and_tuples_write_the_same_bytes() -> None:
    def shaped(sequence: Any, array: Any) -> bytes:
        return b"".join(
            encode_batch(
                ["a", "b", "c"],
                (None, Length(1), None),
                (1, 2, 3),
                [sequence([1]), array([2, 3], np.int32), sequence([])],
                out_lp_val=[array([0.5, -np.inf], np.float32), None, sequence([1.5])],
                out_lp_idx=[array([4, 5], np.int32), None, sequence([6])],
                out_top_val=[[array([0.5, 1.5], np.float32), None], None, array([[2.5], [3.5]], np.float32)],
                out_top_idx=[[array([1, 2], np.int32), sequence([])], None, array([[3], [4]], np.int32)],
                hidden=[array([[1, 2], [3, 4]], np.float32), None, sequence([])],
            )
        )

    def as_list(values: Any, _dtype: Any) -> Any:
        return [list(v) if np.ndim(v) else v for v in values]

    expected = shaped(list, as_list)
    assert shaped(tuple, as_list) == shaped(list, np.array) == shaped(np.array, np.array) == expected
    batch = decode_batch(expected)
    assert batch[0].extras is not None
    assert batch[0].extras.hidden_lens == [2, 2]
    assert batch[0].extras.out_top_lens == [2, 0]


def test_float_bits_survive() -> None:
    bits = np.array([0x7FC00001, 0x7F800001, 0xFFC00000, 0x7F800000, 0xFF800000, 0x80000000, 1], np.uint32)
    values = bits.view(np.float32)
    ids = list(range(len(bits)))
    body = b"".join(encode_batch(["a"], [None], [0], [[1]], out_lp_val=[values], out_lp_idx=[ids]))
    (event,) = decode_batch(body)
    assert event.extras is not None
    assert event.extras.out_lp_val.tobytes() == bits.tobytes()


def test_hidden_rows_flatten_however_they_nest() -> None:
    rows: list[Any] = [[1.0, 2.0], [[3.0], [[4.0, 5.0]]], 6.0, [], np.array([[7, 8]], np.float32)]
    (event, other) = decode_batch(
        b"".join(encode_batch(**TWO, hidden=[rows, np.ones((2, 3, 2), np.float32)]))
    )
    assert event.extras is not None
    assert other.extras is not None
    assert event.extras.hidden_lens == [2, 3, 1, 0, 2]
    assert event.extras.hidden_val.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert other.extras.hidden_lens == [6, 6]
    empty = np.ones((2, 0), np.float32)
    assert [
        e.extras and e.extras.hidden_lens
        for e in decode_batch(b"".join(encode_batch(**TWO, hidden=[empty, None])))
    ] == [[0, 0], None]


def test_reasons_are_written_as_they_are() -> None:
    reasons = [
        Stop("x"),
        Length(None),
        Abort("m", 400, None),
        Unknown({"type": "new", "deep": [{"a": None}]}),
        {"type": "stop"},
    ]
    n = len(reasons)
    header = header_of(encode_batch([""] * n, reasons, [0] * n, [[]] * n))
    assert header[1] == [*(reason.to_wire() for reason in reasons[:4]), {"type": "stop"}]


def test_the_framing_does_not_depend_on_how_the_data_are_divided() -> None:
    data = bytes(range(24))
    whole = b"".join(frame_batch(b"\x01\x02\x03", [data]))
    for cut in range(0, 25, 5):
        assert b"".join(frame_batch(b"\x01\x02\x03", [data[:cut], memoryview(data)[cut:]])) == whole
    assert data_offset(frame_batch(b"\x01\x02\x03", [data])) == 7


def test_one_token_each_in_any_shape_writes_the_same_bytes() -> None:
    n = 300
    rids = [str(i) for i in range(n)]
    ids = list(range(n))
    shapes = [
        [[i] for i in ids],
        [(i,) for i in ids],
        [np.array([i], np.int32) for i in ids],
        [[i] for i in ids[:-1]] + [(n - 1,)],
    ]
    bodies = [b"".join(encode_batch(rids, [None] * n, ids, shape)) for shape in shapes]
    assert len(set(bodies)) == 1
    odd = [[i] for i in ids]
    odd[5] = []
    assert event_keys(decode_batch(b"".join(encode_batch(rids, [None] * n, ids, odd))))[5][2] == 0

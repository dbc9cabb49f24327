"""The codec against tests/vectors: bytes in, values out, and back."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from support import load_vectors

from egress.errors import EncodeError, MalformedFrame
from egress.wire import (
    Batch,
    ChunkEvent,
    Failure,
    FinishReason,
    Result,
    decode,
    decode_frame,
    encode_batch,
    frame_batch,
)

FRAMES = load_vectors("batch_frames")
REASONS = load_vectors("finish_reasons")["cases"]

# The producer's names for encode_batch's columns.
ARGUMENTS = {
    "finished_reasons": "finish_reasons",
    "output_ids": "token_ids",
    "output_token_logprobs": "out_lp",
    "input_token_logprobs": "in_lp",
    "output_top_logprobs": "out_top",
    "input_top_logprobs": "in_top",
    "output_token_ids_logprobs": "out_tid",
    "input_token_ids_logprobs": "in_tid",
    "output_hidden_states": "hidden",
}


def named(cases: list[dict[str, Any]]) -> Any:
    return pytest.mark.parametrize("case", cases, ids=[case["name"] for case in cases])


def plain(value: Any) -> Any:
    """A decoded value in the vectors' notation: lists, and non-finite floats as strings."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    return value


def plain_event(event: ChunkEvent, expected: dict[str, Any]) -> dict[str, Any]:
    extras = event.extras
    return {
        "rid": event.rid,
        "token_ids": plain(event.token_ids),
        "finish_reason": None if event.finish_reason is None else event.finish_reason.to_wire(),
        "prompt_tokens": event.prompt_tokens,
        "extras": extras and {name: plain(getattr(extras, name)) for name in expected["extras"] or ()},
    }


@named(FRAMES["cases"])
def test_batch_frame_decodes_as_the_vector_says(case: dict[str, Any]) -> None:
    frame, expect = bytes.fromhex(case["frame_hex"]), case["expect"]
    if not expect["ok"]:
        with pytest.raises(MalformedFrame) as refused:
            decode_frame(frame)
        assert refused.value.rids == expect["rids"]
        return
    batch = decode_frame(frame)
    assert isinstance(batch, Batch)
    assert batch.rids == expect["rids"]
    for event, expected in zip(batch, expect["events"], strict=True):
        assert plain_event(event, expected) == expected
        assert plain_event(event.detach(), expected) == expected
        assert event.n_tokens == event.completion_tokens == len(event.token_ids)
        assert event.text == ""
    again = [plain_event(batch[i], e) for i, e in enumerate(expect["events"])]
    selected = batch.select(set(expect["rids"]))
    assert again == expect["events"] == [plain_event(*pair) for pair in zip(selected, again, strict=True)]


@named(FRAMES["other_frames"])
def test_other_frame_decodes_as_the_vector_says(case: dict[str, Any]) -> None:
    frame, expect = bytes.fromhex(case["frame_hex"]), case["expect"]
    if expect["kind"] == "dropped":
        with pytest.raises(MalformedFrame):
            decode_frame(frame)
        return
    message = decode(frame[0], frame[1:])
    if expect["kind"] == "result":
        assert message == Result(expect["rid"], bytes.fromhex(expect["payload_hex"]))
    else:
        assert message == Failure(expect["rid"], expect["message"], expect.get("status_code", 500))


@named(FRAMES["encode_cases"])
def test_framing_gives_the_vectors_bytes(case: dict[str, Any]) -> None:
    columns = [bytes.fromhex(column) for column in case["data_cols_hex"]]
    buffers = frame_batch(bytes.fromhex(case["header_hex"]), columns)
    assert b"\x02" + b"".join(buffers) == bytes.fromhex(case["frame_hex"])


@named(FRAMES["producer_cases"])
def test_encoding_gives_the_vectors_columns(case: dict[str, Any]) -> None:
    arguments = {}
    for name, column in case["payload"].items():
        stem, _, last = name.rpartition("_")
        argument = f"{ARGUMENTS[stem]}_{last}" if last in ("val", "idx") else ARGUMENTS.get(name, name)
        arguments[argument] = column
    if case["expect"].get("raises"):
        with pytest.raises(EncodeError):
            encode_batch(**arguments)
        return
    body = b"".join(encode_batch(**arguments))
    data_at = 4 + int.from_bytes(body[:4], "little")
    assert msgspec.msgpack.decode(body[4:data_at]) == case["expect"]["header"]
    assert body[data_at:].hex() == case["expect"]["data_hex"]


@named(REASONS)
def test_finish_reason_classifies_as_the_vector_says(case: dict[str, Any]) -> None:
    expect = case["expect"]
    reason = FinishReason.from_wire(case["wire"])
    assert type(reason).__name__.lower() == expect["kind"]
    assert reason.matched == expect["matched"]
    assert reason.to_wire() == expect["roundtrip"]
    status = reason.abort_status()
    assert (None if status is None else list(status)) == expect["abort_status"]
    assert FinishReason.from_wire(reason.to_wire()) == reason


@named(REASONS)
def test_finish_reason_survives_a_frame(case: dict[str, Any]) -> None:
    body = b"".join(encode_batch(["a"], [case["wire"]], [0], [[1]]))
    batch = decode(2, body)
    assert isinstance(batch, Batch)
    assert batch[0].finish_reason == FinishReason.from_wire(case["wire"])

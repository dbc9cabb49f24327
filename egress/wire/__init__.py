"""Bytes to values and back: the frames that carry answers.

This room knows no process, no clock and no tokenizer; it takes any buffer and gives back views of it.
"""

from __future__ import annotations

from egress.wire.batch import Batch
from egress.wire.columns import data_offset, take_f32, take_i32
from egress.wire.encode import OptionalColumns, encode_batch, frame_batch
from egress.wire.event import ChunkEvent, ChunkExtras
from egress.wire.finish_reason import Abort, FinishReason, Length, Stop, Unknown
from egress.wire.frame import decode, decode_frame
from egress.wire.messages import Failure, Result, encode_error, encode_result
from egress.wire.tags import Tag

__all__ = [
    "Abort",
    "Batch",
    "ChunkEvent",
    "ChunkExtras",
    "Failure",
    "FinishReason",
    "Length",
    "OptionalColumns",
    "Result",
    "Stop",
    "Tag",
    "Unknown",
    "data_offset",
    "decode",
    "decode_frame",
    "encode_batch",
    "encode_error",
    "encode_result",
    "frame_batch",
    "take_f32",
    "take_i32",
]

"""The token egress layer: everything spoken over a ring between an engine and its HTTP clients.

Rooms, from the ground up: `egress.wire` (bytes and values), `egress.request` (what a client may ask),
`egress.text` (ids and text), `egress.engine` (what produces ids), `egress.stream` (where events go). All of
them work without processes, for anyone who has frames in a buffer. `egress.serve` and the `egress` command
run shards, API workers and the rings between them, and need the extra of that name.
"""

from __future__ import annotations

from egress.engine import Engine, EngineRequest, TokenBatch, load_engine
from egress.errors import (
    DetokenizeError,
    EgressError,
    EncodeError,
    MalformedFrame,
    SinkClosed,
    SinkError,
    SinkFull,
    Truncated,
    ValidationError,
)
from egress.request import RegexPattern, SamplingParams, admission_cache_info
from egress.stream import EgressItem, EgressSink, EgressSource, channel, item
from egress.text import Delta, Detokenizer, Tokenizer, load_tokenizer
from egress.wire import (
    Abort,
    Batch,
    ChunkEvent,
    ChunkExtras,
    Failure,
    FinishReason,
    Length,
    Result,
    Stop,
    Tag,
    Unknown,
    decode,
    encode_batch,
    encode_error,
    encode_result,
    frame_batch,
    take_f32,
    take_i32,
)

__all__ = [  # noqa: RUF022 - grouped by room
    # wire
    "Abort",
    "Batch",
    "ChunkEvent",
    "ChunkExtras",
    "Failure",
    "FinishReason",
    "Length",
    "Result",
    "Stop",
    "Tag",
    "Unknown",
    "decode",
    "encode_batch",
    "encode_error",
    "encode_result",
    "frame_batch",
    "take_f32",
    "take_i32",
    # request
    "RegexPattern",
    "SamplingParams",
    "admission_cache_info",
    # text
    "Delta",
    "Detokenizer",
    "Tokenizer",
    "load_tokenizer",
    # engine
    "Engine",
    "EngineRequest",
    "TokenBatch",
    "load_engine",
    # stream
    "EgressItem",
    "EgressSink",
    "EgressSource",
    "channel",
    "item",
    # errors
    "DetokenizeError",
    "EgressError",
    "EncodeError",
    "MalformedFrame",
    "SinkClosed",
    "SinkError",
    "SinkFull",
    "Truncated",
    "ValidationError",
]

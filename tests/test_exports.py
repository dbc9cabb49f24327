"""The doors offer every name users type, documented, and nothing by accident."""

from __future__ import annotations

import inspect
import types

import pytest

import egress
import ringbuf

RINGBUF = [
    "create",
    "resume",
    "attach",
    "rings",
    "inspect",
    "unlink",
    "reap",
    "Producer",
    "Consumer",
    "Frame",
    "RingInfo",
    "RingError",
    "RingNotFound",
    "RingExists",
    "RingFull",
    "RingClosed",
    "PeerDead",
    "RingCorrupt",
    "RingVersion",
    "ProducerAlive",
    "NoFreeSlot",
    "FrameTooLarge",
    "FrameInUse",
    "SharedMemoryFull",
    "UseAfterFork",
]

EGRESS = [
    "Tag",
    "encode_batch",
    "frame_batch",
    "encode_result",
    "encode_error",
    "decode",
    "Batch",
    "Result",
    "Failure",
    "ChunkEvent",
    "ChunkExtras",
    "take_f32",
    "take_i32",
    "FinishReason",
    "Stop",
    "Length",
    "Abort",
    "Unknown",
    "SamplingParams",
    "RegexPattern",
    "admission_cache_info",
    "channel",
    "EgressSink",
    "EgressSource",
    "EgressItem",
    "item",
    "Tokenizer",
    "load_tokenizer",
    "Detokenizer",
    "Delta",
    "Engine",
    "EngineRequest",
    "TokenBatch",
    "load_engine",
    "EgressError",
    "MalformedFrame",
    "EncodeError",
    "ValidationError",
    "SinkError",
    "SinkFull",
    "SinkClosed",
    "Truncated",
    "DetokenizeError",
]

RING_ERRORS = {
    "RingNotFound": FileNotFoundError,
    "RingExists": FileExistsError,
    "RingFull": TimeoutError,
    "RingClosed": EOFError,
    "PeerDead": ConnectionError,
    "RingCorrupt": ValueError,
    "RingVersion": ValueError,
    "ProducerAlive": RuntimeError,
    "NoFreeSlot": RuntimeError,
    "FrameTooLarge": ValueError,
    "FrameInUse": BufferError,
    "SharedMemoryFull": OSError,
    "UseAfterFork": RuntimeError,
}


@pytest.mark.parametrize(
    ("package", "names"), [(ringbuf, RINGBUF), (egress, EGRESS)], ids=["ringbuf", "egress"]
)
def test_door_offers_the_contract(package: types.ModuleType, names: list[str]) -> None:
    missing = [name for name in names if not hasattr(package, name)]
    assert not missing
    assert set(names) <= set(package.__all__)
    assert len(package.__all__) == len(set(package.__all__))
    assert all(hasattr(package, name) for name in package.__all__)


@pytest.mark.parametrize("package", [ringbuf, egress], ids=["ringbuf", "egress"])
def test_public_names_are_documented(package: types.ModuleType) -> None:
    bare = [
        name
        for name in package.__all__
        if (inspect.isclass(thing := getattr(package, name)) or inspect.isfunction(thing))
        and not (thing.__doc__ or "").strip()
    ]
    assert not bare


@pytest.mark.parametrize(("name", "base"), RING_ERRORS.items())
def test_ring_errors_are_also_the_builtin_kind(name: str, base: type[BaseException]) -> None:
    error = getattr(ringbuf, name)
    assert issubclass(error, ringbuf.RingError)
    assert issubclass(error, base)


def test_impl_says_which_body_runs() -> None:
    assert ringbuf.__impl__ in ("c", "python")

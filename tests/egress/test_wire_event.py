"""Events: views that keep their frame alive, events that own their bytes, and takes with bounds."""

from __future__ import annotations

import gc
import sys
import weakref
from typing import Any

import numpy as np
import pytest
from wire_kit import decode_batch, event_key

from egress.errors import MalformedFrame
from egress.wire import ChunkEvent, ChunkExtras, Length, encode_batch, take_f32, take_i32

FULL: dict[str, Any] = {
    "rids": ["a", "b", "c"],
    "finish_reasons": [None, None, Length(2)],
    "prompt_tokens": [1, 2, 3],
    "token_ids": [[1, 2], [], [3]],
    "out_lp_val": [[-0.5, -1.5], None, [-2.5]],
    "out_lp_idx": [[1, 2], None, [3]],
    "in_top_val": [[None, [0.25]], None, None],
    "in_top_idx": [[None, [9]], None, None],
    "hidden": [None, None, [[1.0, 2.0]]],
    "texts": ["é", "", "x"],
    "out_lp_txt": [["p", "q"], None, ["r"]],
}


class Memory(bytearray):
    """A buffer that can be watched dying."""


def arrays_of(event: ChunkEvent) -> list[np.ndarray[Any, Any]]:
    values = [] if event.extras is None else [getattr(event.extras, n) for n in ChunkExtras.__struct_fields__]
    return [event.token_ids, *(v for v in values if isinstance(v, np.ndarray))]


@pytest.mark.parametrize("n", [1, 3, 300])
def test_views_keep_the_buffer_alive_and_detached_events_let_it_go(n: int) -> None:
    memory = Memory(
        b"".join(encode_batch([str(i) for i in range(n)], [None] * n, [0] * n, [[i] for i in range(n)]))
    )
    gone = weakref.ref(memory)
    batch = decode_batch(memory)
    event = batch[n - 1]
    ids = event.token_ids
    own = event.detach()
    del memory, batch, event
    gc.collect()
    assert gone() is not None
    assert ids.tolist() == own.token_ids.tolist() == [n - 1]
    del ids
    gc.collect()
    assert gone() is None
    assert own.token_ids.tolist() == [n - 1]


def test_every_array_is_a_view_of_the_frame_until_detached() -> None:
    memory = bytearray(b"".join(encode_batch(**FULL)))
    frame = np.frombuffer(memory, np.uint8)
    for event in decode_batch(memory):
        own = event.detach()
        before = event_key(event)
        assert event_key(own) == before
        for array in arrays_of(event):
            assert not array.size or np.shares_memory(array, frame)
        for array in arrays_of(own):
            assert not np.shares_memory(array, frame)
    kept = [event.detach() for event in decode_batch(memory)]
    keys = list(map(event_key, kept))
    frame[:] = 0
    assert list(map(event_key, kept)) == keys


def test_a_detached_event_holds_its_own_few_bytes_only() -> None:
    n = 4096
    batch = decode_batch(b"".join(encode_batch(["a"] * n, [None] * n, [0] * n, [[i] for i in range(n)])))
    own = batch[7].detach()
    assert own.token_ids.base is None
    assert sys.getsizeof(own.token_ids) < 200


def test_fields_of_a_full_event() -> None:
    first, second, third = decode_batch(b"".join(encode_batch(**FULL)))
    assert (first.rid, first.text, first.n_tokens, first.completion_tokens) == ("a", "é", 2, 2)
    assert first.extras is not None
    assert first.extras.out_lp_val.dtype == np.float32
    assert first.extras.out_lp_idx.dtype == first.token_ids.dtype == np.int32
    assert first.extras.out_lp_txt == ["p", "q"]
    assert first.extras.in_top_lens == [0, 1]
    assert first.extras.hidden_lens == first.extras.in_lp_txt == []
    assert second.extras is None
    assert third.finish_reason == Length(2)
    assert third.extras is not None
    assert third.extras.hidden_val.tolist() == [1.0, 2.0]
    assert "token_ids=[3]" in repr(third)


def test_events_do_not_change() -> None:
    event = ChunkEvent.make("a", [1])
    with pytest.raises(AttributeError):
        event.rid = "b"  # type: ignore[misc]
    assert event != ChunkEvent.make("a", [1])


def test_make_takes_sequences_and_arrays() -> None:
    array = np.array([4, 5], np.int32)
    event = ChunkEvent.make("a", array, completion_tokens=3, text="t", prompt_tokens=8)
    assert event.token_ids is array
    assert (event.n_tokens, event.completion_tokens, event.prompt_tokens, event.text) == (2, 3, 8, "t")
    empty = ChunkEvent.make("a")
    assert empty.n_tokens == empty.completion_tokens == 0
    with pytest.raises(OverflowError):
        ChunkEvent.make("a", [2**31])


def test_what_events_share_cannot_be_written() -> None:
    extras = ChunkExtras()
    for array in (extras.out_lp_val, extras.out_lp_idx, ChunkEvent.make("a").token_ids):
        assert not array.flags.writeable


@pytest.mark.parametrize("take", [take_f32, take_i32])
def test_take_gives_a_view_and_the_next_offset(take: Any) -> None:
    data = bytearray(3) + np.arange(5, dtype="<i4" if take is take_i32 else "<f4").tobytes()
    view, offset = take(data, 7, 3)
    assert (view.tolist(), offset) == ([1, 2, 3], 19)
    assert np.shares_memory(view, np.frombuffer(data, np.uint8))
    assert take(data, 23, 0)[0].tolist() == []
    assert take(b"", 0, 0)[1] == 0


@pytest.mark.parametrize("take", [take_f32, take_i32])
@pytest.mark.parametrize(
    ("offset", "count"), [(0, 3), (5, 2), (9, 1), (12, 1), (13, 0), (-1, 1), (0, -1), (0, 2**62), (2**70, 0)]
)
def test_take_past_the_end_is_malformed(take: Any, offset: int, count: int) -> None:
    with pytest.raises(MalformedFrame):
        take(bytes(11), offset, count)

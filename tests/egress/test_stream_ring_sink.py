"""The shard's end: one frame per worker and step, split where it must be, and never a wait."""

from __future__ import annotations

import pytest

from egress.stream.ring_sink import RingSink
from egress.wire import Batch, Failure, Result, Tag, decode, encode_batch


class Ring:
    """A ring that is full when told so."""

    def __init__(self, room: int = 10**9) -> None:
        self.room = room
        self.frames: list[tuple[int, bytes]] = []
        self.aligned: list[int] = []

    def try_write(self, tag, payload, *, align_at=0):
        if self.room <= 0:
            return False
        self.room -= 1
        body = payload if isinstance(payload, bytes) else b"".join(payload)
        self.frames.append((tag, body))
        self.aligned.append(align_at)
        return True

    def read(self):
        """All frames decoded."""
        frames, self.frames = self.frames, []
        return [decode(tag, body) for tag, body in frames]


def make_sink(ring, **limits):
    limits = {"max_frame": 1 << 20, "backlog_bytes": 1 << 20, "backlog_frames": 64, **limits}
    return RingSink(ring, name="ring", **limits)


def columns(*rids, ids=(5,), text="t"):
    n = len(rids)
    return {
        "rids": list(rids),
        "finish_reasons": [None] * n,
        "prompt_tokens": [1] * n,
        "token_ids": [list(ids)] * n,
        "texts": [text] * n,
        "completion_tokens": [len(ids)] * n,
    }


def rids_of(messages):
    return [message.rids for message in messages]


def test_a_step_is_one_frame_with_its_columns_aligned():
    ring = Ring()
    sink = make_sink(ring)
    assert sink.send_batch(columns("a", "b", "c")) == []
    ((tag, body),) = ring.frames
    assert tag == Tag.BATCH
    buffers = encode_batch(**columns("a", "b", "c"))
    assert body == b"".join(buffers)
    assert ring.aligned == [len(buffers[0])]


def test_a_step_over_the_limit_is_split_by_requests_in_order():
    ring = Ring()
    names = [f"request-{i}" for i in range(100)]
    sink = make_sink(ring, max_frame=600)
    assert sink.send_batch(columns(*names)) == []
    assert all(len(body) <= 600 for _, body in ring.frames)
    batches = ring.read()
    assert len(batches) >= 4
    assert [rid for batch in batches for rid in batch.rids] == names


def test_a_request_too_large_for_a_frame_fails_alone_with_both_sizes():
    ring = Ring()
    sink = make_sink(ring, max_frame=600)
    rows = columns("a", "big", "c")
    rows["token_ids"][1] = list(range(1000))
    rows["completion_tokens"][1] = 1000
    assert sink.send_batch(rows) == ["big"]
    messages = ring.read()
    (failure,) = [m for m in messages if isinstance(m, Failure)]
    assert failure.rid == "big"
    assert "600" in failure.message
    assert any(str(size) in failure.message for size in range(4000, 4100))
    assert [r for m in messages if isinstance(m, Batch) for r in m.rids] == ["a", "c"]


def test_a_row_that_cannot_be_encoded_fails_alone():
    ring = Ring()
    sink = make_sink(ring)
    rows = columns("a", "bad", "c", "d")
    rows["token_ids"][1] = [2**40]
    assert sink.send_batch(rows) == ["bad"]
    messages = ring.read()
    assert [m.rid for m in messages if isinstance(m, Failure)] == ["bad"]
    assert [r for m in messages if isinstance(m, Batch) for r in m.rids] == ["a", "c", "d"]


def test_what_a_full_ring_does_not_take_goes_out_later_in_order():
    ring = Ring(room=1)
    sink = make_sink(ring)
    for rid in "abc":
        assert sink.send_batch(columns(rid)) == []
    sink.send_error("c", "oh", 400)
    sink.send_result("q", b"{}")
    assert rids_of(ring.read()) == [["a"]]
    assert sink.has_backlog
    assert not sink.flush()
    ring.room = 2
    assert not sink.flush()
    assert rids_of(ring.read()) == [["b"], ["c"]]
    ring.room = 9
    assert sink.send_batch(columns("d")) == []
    assert not sink.has_backlog
    assert sink.backlog_bytes == 0
    failure, result, batch = ring.read()
    assert failure == Failure("c", "oh", 400)
    assert result == Result("q", b"{}")
    assert batch.rids == ["d"]


def test_frames_from_the_backlog_keep_their_alignment():
    ring = Ring(room=0)
    sink = make_sink(ring)
    sink.send_batch(columns("a"))
    ring.room = 1
    assert sink.flush()
    assert ring.aligned == [len(encode_batch(**columns("a"))[0])]


@pytest.mark.parametrize(
    "limits", [{"backlog_frames": 2}, {"backlog_bytes": 2 * len(b"".join(encode_batch(**columns("a"))))}]
)
def test_past_the_bound_batches_are_refused_until_there_is_room(limits):
    ring = Ring(room=0)
    sink = make_sink(ring, **limits)
    assert sink.send_batch(columns("a")) == []
    assert sink.send_batch(columns("b")) == []
    assert not sink.is_over
    assert sink.send_batch(columns("c")) == ["c"]
    assert sink.is_over
    held = sink.backlog_bytes
    assert sink.send_batch(columns("d", "e")) == ["d", "e"]
    assert sink.backlog_bytes == held
    assert sink.refused == 3
    ring.room = 99
    assert sink.flush()
    assert not sink.is_over
    assert sink.send_batch(columns("f")) == []
    messages = ring.read()
    assert rids_of([m for m in messages if isinstance(m, Batch)]) == [["a"], ["b"], ["f"]]
    failures = [m for m in messages if isinstance(m, Failure)]
    assert [(f.rid, f.status_code) for f in failures] == [("c", 503), ("d", 503), ("e", 503)]
    assert "ring 'ring'" in failures[0].message
    assert "bytes" in failures[0].message


def test_a_lost_worker_s_backlog_is_forgotten():
    ring = Ring(room=0)
    sink = make_sink(ring, backlog_frames=1)
    sink.send_batch(columns("a"))
    sink.send_batch(columns("b"))
    sink.discard()
    assert not sink.has_backlog
    assert not sink.is_over
    ring.room = 9
    sink.send_batch(columns("c"))
    assert rids_of(ring.read()) == [["c"]]


def test_an_answer_too_large_for_a_frame_is_an_error():
    ring = Ring()
    sink = make_sink(ring, max_frame=600)
    sink.send_result("q", bytes(601))
    (failure,) = ring.read()
    assert failure.rid == "q"
    assert "600" in failure.message


def test_a_long_message_is_cut():
    ring = Ring()
    sink = make_sink(ring, max_frame=600)
    sink.send_error("q", "x" * 10**6)
    ((_, body),) = ring.frames
    assert len(body) < 2100

"""Headers that repeat the last one: written byte by byte as any other, and read as any other."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_kit import event_keys

from egress.errors import EncodeError, MalformedFrame
from egress.wire import Batch, Length, Tag, decode, encode_batch
from egress.wire.encode import HeaderBuffer, encode_batch_into
from egress.wire.recall import Recall

WORDS = ["", "a", "你好", " word", "x" * 300]


def objects(column: list[Any]) -> Any:
    array = np.empty(len(column), object)
    array[:] = column
    return array


class Steps:
    """The columns of step after step; what changes from one to the next is asked for by name."""

    def __init__(self, seed: int, n: int) -> None:
        self.draw = random.Random(seed)
        self.rids = [f"{self.draw.getrandbits(128):032x}" for _ in range(n)]
        self.prompts = [self.draw.randrange(5000) for _ in range(n)]
        self.made = n

    def columns(self, change: str) -> dict[str, Any]:
        draw = self.draw
        if change == "new lists":
            self.rids, self.prompts = list(self.rids), list(self.prompts)
        elif change == "other order, same list":
            self.rids.reverse()
        elif change == "other prompt, same list":
            self.prompts[draw.randrange(len(self.prompts))] += 1
        elif change == "somebody comes":
            self.made += 1
            self.rids.append(f"n{self.made}")
            self.prompts.append(7)
        elif change == "equal strings":
            self.rids = ["".join([rid[:1], rid[1:]]) for rid in self.rids]
        n = len(self.rids)
        columns: dict[str, Any] = {
            "rids": self.rids,
            "finish_reasons": [None] * n,
            "prompt_tokens": self.prompts,
            "token_ids": [[draw.randrange(-5, 150_000)] for _ in range(n)],
            "texts": [draw.choice(WORDS) for _ in range(n)],
        }
        if change == "somebody ends":
            columns["finish_reasons"][n // 2] = Length(5)
        elif change == "two tokens":
            columns["token_ids"][n // 3] = [5, 6]
        elif change == "no token":
            columns["token_ids"][-1] = []
        elif change == "no texts":
            del columns["texts"]
        elif change == "empty texts":
            columns["texts"] = []
        elif change == "log-probabilities":
            columns["out_lp_val"], columns["out_lp_idx"] = [[-0.5]] * n, [[3]] * n
        elif change == "counts before trimming":
            columns["completion_tokens"] = [2] * n
        elif change == "tuples":
            columns = {name: tuple(column) for name, column in columns.items()}
        elif change == "arrays":
            columns = {name: objects(column) for name, column in columns.items()}
        return columns


CHANGES = [
    "",
    "new lists",
    "other order, same list",
    "other prompt, same list",
    "somebody comes",
    "equal strings",
    "somebody ends",
    "two tokens",
    "no token",
    "no texts",
    "empty texts",
    "log-probabilities",
    "counts before trimming",
    "tuples",
    "arrays",
]


def encode(buffer: HeaderBuffer, columns: dict[str, Any]) -> bytes:
    core = [columns[name] for name in ("rids", "finish_reasons", "prompt_tokens", "token_ids")]
    optional: Any = {name: column for name, column in columns.items() if name not in ENCODED_BY_PLACE}
    return b"".join(encode_batch_into(buffer, *core, optional))


ENCODED_BY_PLACE = {"rids", "finish_reasons", "prompt_tokens", "token_ids"}


def outcome(read: Callable[[Any], Any], body: Any) -> Any:
    try:
        batch = read(body)
    except MalformedFrame as error:
        return error.reason, error.rids
    return event_keys(batch), list(batch.endings)


@settings(max_examples=120, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    n=st.sampled_from([1, 15, 16, 17, 40, 300]),
    changes=st.lists(st.sampled_from([*CHANGES, "", "", ""]), min_size=3, max_size=14),
)
def test_steps_in_a_row_are_written_and_read_as_each_alone(seed: int, n: int, changes: list[str]) -> None:
    steps, buffer, recall = Steps(seed, n), HeaderBuffer(), Recall()
    for change in changes:
        columns = steps.columns(change)
        body = encode(buffer, columns)
        assert body == b"".join(encode_batch(**columns))
        assert outcome(recall.decode, memoryview(body)) == outcome(lambda b: decode(Tag.BATCH, b), body)


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32), n=st.sampled_from([16, 40]), texts=st.booleans())
def test_a_frame_that_was_tampered_with_is_read_as_if_it_came_first(seed: int, n: int, texts: bool) -> None:
    steps, recall = Steps(seed, n), Recall()
    change = "" if texts else "no texts"
    for _ in range(4):
        recall.decode(b"".join(encode_batch(**steps.columns(change))))
    draw = steps.draw
    body = bytearray(b"".join(encode_batch(**steps.columns(change))))
    for _ in range(draw.randrange(1, 3)):
        kind, at = draw.randrange(4), draw.randrange(len(body))
        if kind == 0:
            body[at] = draw.randrange(256)
        elif kind == 1:
            del body[at:]
        elif kind == 2:
            body += bytes(draw.randrange(1, 9))
        else:
            body[:4] = (int.from_bytes(body[:4], "little") + draw.choice((-1, 1, 4))).to_bytes(4, "little")
        if len(body) < 5:
            break
    assert outcome(recall.decode, bytes(body)) == outcome(lambda b: decode(Tag.BATCH, b), bytes(body))
    after = b"".join(encode_batch(**steps.columns(change)))
    assert outcome(recall.decode, after) == outcome(lambda b: decode(Tag.BATCH, b), after)


@pytest.mark.parametrize(
    ("name", "spoil", "says"),
    [
        ("texts", lambda column: [*column[:-1], 5], "texts: request 39: 5 is no string"),
        ("texts", lambda column: [*column[:-1], "\ud800"], "texts: request 39: lone surrogate in '\\ud800'"),
        ("texts", lambda column: column[:-1], "texts: 39 entries, neither 0 nor 40"),
        ("token_ids", lambda column: [*column[:-1], [2**31]], "token_ids: request 39: 2147483648 is not"),
        ("token_ids", lambda column: [*column[:-1], [1.5]], "token_ids: request 39: 1.5 is not"),
        ("token_ids", lambda column: column[:-1], "token_ids: 39 entries for 40 requests"),
        ("prompt_tokens", lambda column: [*column[:-1], -1], "prompt_tokens: request 39: -1 is not"),
        ("rids", lambda column: [*column[:-1], 5], "rids: request 39: 5 is no string"),
    ],
)
def test_a_step_that_is_refused_leaves_the_next_as_it_is(name: str, spoil: Any, says: str) -> None:
    steps, buffer = Steps(1, 40), HeaderBuffer()
    for _ in range(3):
        encode(buffer, steps.columns(""))
    columns = steps.columns("")
    with pytest.raises(EncodeError) as refused:
        encode(buffer, columns | {name: spoil(columns[name])})
    assert str(refused.value).startswith(says)
    for _ in range(3):
        columns = steps.columns("")
        assert encode(buffer, columns) == b"".join(encode_batch(**columns))


def test_a_repeated_header_is_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    steps, buffer, recall = Steps(2, 40), HeaderBuffer(), Recall()
    bodies = [encode(buffer, steps.columns("")) for _ in range(2)]
    monkeypatch.setattr(HeaderBuffer, "make", lambda *_: pytest.fail("made again"))
    bodies += [encode(buffer, steps.columns("new lists")) for _ in range(3)]
    for body in bodies[:2]:
        recall.decode(body)
    monkeypatch.setattr(Recall, "_end_of", lambda *_: pytest.fail("decoded again"))
    for body in bodies[2:]:
        batch = recall.decode(body)
        assert isinstance(batch, Batch)
        assert batch.rids == steps.rids


def test_columns_may_be_arrays() -> None:
    columns = Steps(3, 40).columns("arrays")
    assert encode(HeaderBuffer(), columns) == b"".join(
        encode_batch(**{k: list(v) for k, v in columns.items()})
    )


class Interrupted(Recall):
    """Is interrupted before one of its stores."""

    __slots__ = ()
    left = 10**9

    def __setattr__(self, name: str, value: Any) -> None:
        Interrupted.left -= 1
        if not Interrupted.left:
            raise KeyboardInterrupt
        super().__setattr__(name, value)


@pytest.mark.parametrize("texts", ["", "no texts"])
def test_a_read_that_is_interrupted_leaves_the_next_as_it_is(texts: str) -> None:
    stores, done = 0, False
    while not done:
        stores += 1
        steps, recall = Steps(4, 40), Interrupted()
        bodies = [b"".join(encode_batch(**steps.columns(texts))) for _ in range(4)]
        for body in bodies[:3]:
            recall.decode(body)
        steps.columns("somebody comes")
        other = b"".join(encode_batch(**steps.columns(texts)))
        Interrupted.left = stores
        try:
            recall.decode(other)
            done = True
        except KeyboardInterrupt:
            pass
        finally:
            Interrupted.left = 10**9
        for body in (other, other, bodies[3]):
            assert outcome(recall.decode, body) == outcome(lambda b: decode(Tag.BATCH, b), body)
    assert stores > 3


def test_a_cut_that_is_interrupted_leaves_the_next_as_it_is() -> None:
    class Once(list[Any]):
        def __iter__(self) -> Any:
            if self.pop():
                raise KeyboardInterrupt
            self.append(True)
            return iter([(0, 37)])

    steps, recall = Steps(5, 40), Recall()
    bodies = [b"".join(encode_batch(**steps.columns("no texts"))) for _ in range(4)]
    for body in bodies[:3]:
        recall.decode(body)
    with pytest.raises(KeyboardInterrupt):
        recall.keep(Once([False]))
    for body in (bodies[3][:-12], bodies[3]):  # as long as if it had the data of those 37
        assert outcome(recall.decode, body) == outcome(lambda b: decode(Tag.BATCH, b), body)

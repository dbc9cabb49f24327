"""Frames read by one who knows the last: the same batches and rejections, the right people taken over."""

from __future__ import annotations

import random
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egress.errors import MalformedFrame
from egress.wire import Batch, Length, Stop, Tag, decode, encode_batch
from egress.wire.recall import Recall, Stretches, cut


def body_of(rids: list[str], rng: random.Random, **more: Any) -> bytes:
    n = len(rids)
    columns: dict[str, Any] = {
        "rids": rids,
        "finish_reasons": [None] * n,
        # A request's own, as of any engine, and of every width msgpack has.
        "prompt_tokens": [crc32(rid.encode()) >> (len(rid) * 5 % 32) for rid in rids],
        "token_ids": [[rng.randrange(150_000)] for _ in rids],
    }
    return b"".join(encode_batch(**(columns | more)))


def facts(batch: Batch) -> list[Any]:
    """Everything of every event."""
    return [
        (
            event.rid,
            event.finish_reason,
            event.prompt_tokens,
            event.n_tokens,
            event.completion_tokens,
            event.token_ids.tolist(),
            event.text,
            None if event.extras is None else event.extras.out_lp_val.tolist(),
        )
        for event in batch
    ]


def read_both(recall: Recall, body: bytes) -> Batch:
    """Read with and without memory: all that was taken over is in the place it is said to have."""
    known = list(recall._rids)
    batch = recall.decode(body)
    plain = decode(Tag.BATCH, body)
    assert isinstance(plain, Batch)
    assert facts(batch) == facts(plain)
    kept = cut(known, recall.kept)
    assert kept == batch.rids[: len(kept)]
    assert list(batch.endings) == [at for at, event in enumerate(plain) if event.finish_reason is not None]
    return batch


def around(places: set[int], n: int) -> Stretches:
    return [(at, at + 1) for at in range(n) if at not in places]


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32), n=st.sampled_from([0, 1, 15, 16, 17, 40, 300, 1100]))
def test_a_running_batch_is_read_as_by_decode(seed: int, n: int) -> None:
    rng = random.Random(seed)
    names = iter(range(10**6))

    def newcomer() -> str:
        return f"{'é' * (rng.random() < 0.05)}{next(names):x}{'-long' * rng.randrange(12)}"

    rids = [newcomer() for _ in range(n)]
    recall = Recall()
    for _ in range(12):
        kind = rng.randrange(8)
        more: dict[str, Any] = {}
        size = len(rids)
        if kind < 6:
            more["texts"] = [rng.choice(["", "a", "你好", " word"]) for _ in rids]
        reasons: list[Any] = [None] * size
        ended = set(rng.sample(range(size), rng.choice([0, 0, 1, size // 50, size]) if size else 0))
        for at in ended:
            reasons[at] = rng.choice([Stop(matched=5), Length(3), {}, {"type": "new"}])
        if kind == 4:
            more["token_ids"] = [[1] * rng.randrange(4) for _ in rids]
        if kind == 5:
            more["out_lp_val"] = [[-0.5] if rng.random() < 0.5 else None for _ in rids]
            more["out_lp_idx"] = [value and [7] for value in more["out_lp_val"]]
        if kind == 6 and size:
            more["prompt_tokens"] = [rng.randrange(2**32) for _ in rids]
        read_both(recall, body_of(rids, rng, finish_reasons=reasons, **more))
        if rng.random() < 0.8:
            recall.keep(around(ended, size))
        rids = [rid for at, rid in enumerate(rids) if at not in ended]
        # Some leave without a word, some come, and now and then everything is different.
        for _ in range(rng.choice([0, 0, 0, 1, 3, 40])):
            if rids:
                rids.pop(rng.randrange(len(rids)))
        rids += [newcomer() for _ in range(rng.choice([0, 0, 1, 5, 30]))]
        change = rng.randrange(12)
        if change == 0:
            rng.shuffle(rids)
        elif change == 1:
            rids.insert(rng.randrange(len(rids) + 1), newcomer())
        elif change == 2 and rids:
            rids.append(rng.choice(rids))
        elif change == 3:
            rids = rids[: len(rids) // 3]


def test_who_stayed_is_taken_over_and_who_left_is_found() -> None:
    rng = random.Random(1)
    rids = [f"request-{i}" for i in range(1000)]
    recall = Recall()
    recall.decode(body_of(rids, rng))
    assert recall.kept == ()
    same = read_both(recall, body_of(rids, rng))
    assert recall.kept == ((0, 1000),)
    assert same.rids is read_both(recall, body_of(rids, rng)).rids
    recall.keep([(0, 10), (11, 1000)])
    read_both(recall, body_of(rids[:10] + rids[11:] + ["new"], rng))
    assert recall.kept == ((0, 999),)
    left = {0, 1, 300, 301, 700, 999}
    read_both(recall, body_of([rid for at, rid in enumerate(recall._rids) if at not in left] + ["x"], rng))
    assert recall.kept == [(2, 300), (302, 700), (701, 999)]


def test_two_turns_of_different_people_are_not_compared_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(2)
    halves = [body_of([f"{half}-{i}" for i in range(500)], rng) for half in "ab"]
    recall = Recall()
    searches = 0
    search = Recall._search

    def counted(self: Recall, raw: bytes) -> Any:
        nonlocal searches
        searches += 1
        return search(self, raw)

    monkeypatch.setattr(Recall, "_search", counted)
    for turn in range(400):
        read_both(recall, halves[turn % 2])
    assert 4 <= searches < 40
    for _ in range(70):
        read_both(recall, halves[0])
    assert recall.kept == ((0, 500),)


def error_of(read: Any, body: bytes) -> tuple[str, tuple[str, ...]] | Batch:
    try:
        batch: Batch = read(body)
        return batch
    except MalformedFrame as error:
        return error.reason, tuple(error.rids)


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_damaged_frame_is_rejected_as_by_decode_and_nothing_is_forgotten(seed: int) -> None:
    rng = random.Random(seed)
    rids = [f"request-{i}" for i in range(rng.choice([16, 60, 400]))]
    good = body_of(rids, rng, texts=["x"] * len(rids))
    recall = Recall()
    recall.decode(good)
    for _ in range(8):
        bad = bytearray(good)
        for _ in range(rng.randrange(1, 4)):
            # Near the seams of columns more often than elsewhere.
            at = rng.choice(
                [rng.randrange(len(bad)), rng.randrange(16), bad.find(b"\xdc", rng.randrange(len(bad)))]
            )
            bad[at] = rng.randrange(256)
        if rng.random() < 0.3:
            del bad[rng.randrange(len(bad)) :]
        known = list(recall._rids)
        plain = error_of(lambda body: decode(Tag.BATCH, body), bytes(bad))
        got = error_of(recall.decode, bytes(bad))
        if isinstance(plain, Batch):
            assert isinstance(got, Batch)
            assert facts(got) == facts(plain)
        else:
            assert got == plain
            assert recall._rids == known
    assert facts(recall.decode(good)) == facts(decode(Tag.BATCH, good))  # type: ignore[arg-type]

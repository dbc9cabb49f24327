"""Selecting few of many: what the bytes say and what the strings say must be the same requests."""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from egress.wire import Batch, Tag, decode, encode_batch
from egress.wire.sieve import sieve

N = 1500


def body_of(rids: list[str], **columns: Any) -> bytes:
    n = len(rids)
    return b"".join(encode_batch(rids, [None] * n, [7] * n, [[i] for i in range(n)], **columns))


def batch_of(body: Any) -> Batch:
    batch = decode(Tag.BATCH, body)
    assert isinstance(batch, Batch)
    return batch


def selected(body: Any, wanted: Any) -> list[tuple[str, int]]:
    return [(event.rid, int(event.token_ids[0])) for event in batch_of(body).select(wanted)]


def expected(rids: list[str], wanted: Any) -> list[tuple[str, int]]:
    return [(rid, i) for i, rid in enumerate(rids) if rid in wanted]


def hexes(length: int) -> Callable[[random.Random], str]:
    return lambda draw: f"{draw.getrandbits(4 * length):0{length}x}"


@pytest.mark.parametrize("length", [1, 7, 8, 9, 30, 31, 32, 33, 255, 256, 300])
@pytest.mark.parametrize("columns", [{}, {"texts": ["x"] * N}], ids=["core", "texts"])
def test_every_length_is_selected_rightly(length: int, columns: dict[str, Any]) -> None:
    draw = random.Random(length)
    rids = [hexes(length)(draw) for _ in range(N)]
    body = body_of(rids, **columns)
    for wanted in (
        frozenset(rids[::8]),
        set(rids[:1]),
        dict.fromkeys(rids[-3:]),
        frozenset(rids[::2]),
        set(),
    ):
        assert selected(body, wanted) == expected(rids, wanted)
    found = sieve(body, N, frozenset(rids[::8]))
    if 8 <= length <= 255:
        assert found is not None
        assert len(found) < N // 4
    else:
        assert found is None


@pytest.mark.parametrize(
    "make",
    [
        lambda draw: hexes(draw.choice((31, 32)))(draw),
        lambda draw: hexes(draw.randrange(20, 40))(draw),
        lambda draw: "é" * 16 + hexes(32)(draw),
        lambda draw: draw.choice(("é" * 16, "e" * 32)),
        lambda draw: f"{draw.randrange(10**4):024d}-the-same-end",
        lambda draw: f"request-{draw.randrange(200):010d}",
    ],
    ids=["two lengths", "any length", "two-byte letters", "some of them", "one tail", "often the same"],
)
def test_odd_rids_are_selected_rightly(make: Callable[[random.Random], str]) -> None:
    draw = random.Random(1)
    rids = [make(draw) for _ in range(N)]
    body = body_of(rids)
    for some in (rids[::8], rids[:1], rids[-5:], [make(draw) for _ in range(50)]):
        assert selected(body, frozenset(some)) == expected(rids, frozenset(some))


@pytest.mark.parametrize(
    "other", [5, None, ("a",), b"a" * 32, "short", "é" * 32, "é" * 16, "\ud800" * 32, ""]
)
def test_other_things_in_the_container_change_nothing(other: Any) -> None:
    draw = random.Random(2)
    rids = [hexes(32)(draw) for _ in range(N)]
    wanted = {*rids[::9], other}
    assert selected(body_of(rids), wanted) == expected(rids, wanted)


class Odd:
    """A container that is asked, and can't be gone through."""

    def __contains__(self, rid: object) -> bool:
        return isinstance(rid, str) and rid.endswith("7")


class Folding(frozenset[str]):
    """A set that takes either case."""

    def __contains__(self, rid: object) -> bool:
        return isinstance(rid, str) and super().__contains__(rid.lower())


class Caseless(str):
    """Equals every spelling of itself."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and self.lower() == other.lower()

    def __hash__(self) -> int:
        return hash(self.lower())


class Long(str):
    """Says that it is longer than it is."""

    def __len__(self) -> int:
        return 32


def test_strings_of_a_derived_class_are_asked() -> None:
    draw = random.Random(7)
    rids = [hexes(32)(draw) for _ in range(N)]
    for wanted in (
        {Caseless(rid.upper()) for rid in rids[::9]},
        {Long("short")},
        {*rids[::9], Long("short")},
    ):
        assert selected(body_of(rids), wanted) == expected(rids, wanted)


def test_any_container_is_asked() -> None:
    draw = random.Random(3)
    rids = [hexes(32)(draw) for _ in range(N)]
    assert selected(body_of(rids), Odd()) == expected(rids, Odd())
    for kind in (list, tuple):
        assert selected(body_of(rids), kind(rids[:20])) == expected(rids, rids[:20])
    either = [rid.upper() for rid in rids]
    assert selected(body_of(either), Folding(rids[:20])) == expected(either, either[:20])


@pytest.mark.parametrize("array", [b"\xdc\x05\xdc", b"\xdd\x00\x00\x05\xdc"])
@pytest.mark.parametrize("arity", [4, 16])
@pytest.mark.parametrize("head", [b"\xd9\x20", b"\xda\x00\x20"])
def test_other_spellings_of_the_header_are_read(array: bytes, arity: int, head: bytes) -> None:
    draw = random.Random(4)
    rids = [hexes(32)(draw) for _ in range(N)]
    opening = b"\x94" if arity == 4 else b"\xdc\x00\x10"
    columns = [array + b"".join(head + rid.encode() for rid in rids)]
    columns += map(msgspec.msgpack.encode, [[None] * N, [7] * N, [1] * N, *[[]] * (arity - 4)])
    header = opening + b"".join(columns)
    ids = b"".join(i.to_bytes(4, "little") for i in range(N))
    body = len(header).to_bytes(4, "little") + header + ids
    wanted = frozenset(rids[::10])
    assert selected(body, wanted) == expected(rids, wanted)


def test_a_string_that_is_spelt_longer_moves_nothing() -> None:
    # As long as two of the others with their heads: the distances are right, the places are not.
    draw = random.Random(5)
    rids = [hexes(31)(draw) for _ in range(N)]
    rids[700:702] = [rids[700][:30] + "\xbf" + rids[701]]
    body = body_of(rids)
    wanted = frozenset(rids[::8])
    assert selected(body, wanted) == expected(rids, wanted)


def test_bytes_that_may_change_are_not_looked_at_again() -> None:
    draw = random.Random(6)
    rids = [hexes(32)(draw) for _ in range(N)]
    wanted = frozenset(rids[::8])
    buffer = bytearray(body_of(rids))
    batch = batch_of(memoryview(buffer))
    buffer[8 : 8 + 34 * N] = bytes(34 * N)
    assert [event.rid for event in batch.select(wanted)] == rids[::8]
    # A view of bytes is as good as these; one that is given back is not needed any more.
    view = memoryview(body_of(rids))
    batch = batch_of(view)
    assert [event.rid for event in batch.select(wanted)] == rids[::8]


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda body: memoryview(b"#" + body)[1:]])
def test_a_batch_is_pickled_and_copied_without_the_frame(kind: Callable[[bytes], Any]) -> None:
    draw = random.Random(8)
    rids = [hexes(32)(draw) for _ in range(N)]
    wanted = frozenset(rids[::8])
    batch = batch_of(kind(body_of(rids, texts=["x"] * N)))
    pickled = pickle.dumps(batch)
    assert pickled.count(rids[5].encode()) == 1
    for other in (pickle.loads(pickled), copy.deepcopy(batch), copy.copy(batch)):
        assert [(event.rid, event.text) for event in other.select(wanted)] == [
            (rid, "x") for rid in rids[::8]
        ]
        assert other.token_ids.tolist() == batch.token_ids.tolist()

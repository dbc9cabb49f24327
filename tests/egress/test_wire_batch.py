"""Reading BATCH frames: the rules of acceptance, rids named on refusal, and the ways to get at events."""

from __future__ import annotations

import random
import sys
from typing import Any

import msgspec
import numpy as np
import pytest
from wire_kit import decode_batch, event_key, event_keys, raw_body

from egress.errors import MalformedFrame
from egress.wire import Stop, Tag, Unknown, encode_batch, frame

CORE = [["a", "b", "c"], [None] * 3, [0] * 3, [1] * 3]
DATA = bytes(12)
RAGGED_AT = [6, 8, 10, 12, 14]
REQLENS_AT = [4, 5, *RAGGED_AT]
TEXTS_AT = range(18, 24)


@pytest.fixture(params=["as small", "as bulk"], autouse=True)
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every rule holds on both ways through the decoder, whatever the frame's size."""
    bulk_bytes = 0 if request.param == "as bulk" else 2**32
    monkeypatch.setattr(sys.modules[frame.decode_batch.__module__], "_BULK_BYTES", bulk_bytes)


def header_with(columns: dict[int, Any], arity: int | None = None) -> list[Any]:
    """CORE with other columns put in at their places."""
    header: list[Any] = [*CORE, *([[]] * 20)]
    for place, column in columns.items():
        header[place] = column
    return header[: arity or max(4, *(place + 1 for place in columns), 4)]


def refusal(body: Any) -> MalformedFrame:
    with pytest.raises(MalformedFrame) as refused:
        decode_batch(body)
    assert refused.value.tag == Tag.BATCH
    return refused.value


@pytest.mark.parametrize("place", [1, 2, 3])
@pytest.mark.parametrize("entries", [0, 1, 2, 4])
@pytest.mark.parametrize("bulk", [1, 100])
def test_core_column_of_another_length_is_refused(place: int, entries: int, bulk: int) -> None:
    header = [column * bulk for column in CORE]
    header[place] = (CORE[place] * 2)[:1] * (entries * bulk)
    for data in (DATA * bulk, bytes(4 * entries * bulk)):
        assert refusal(raw_body(header, data)).rids == CORE[0] * bulk


@pytest.mark.parametrize("place", [*REQLENS_AT, 16, 17])
@pytest.mark.parametrize("excess", [-2, -1, 1])
@pytest.mark.parametrize("n", [3, 300])
@pytest.mark.parametrize("value", [0, 1, 200])
def test_per_request_column_of_another_length_is_refused(place: int, excess: int, n: int, value: int) -> None:
    rids = [str(i) for i in range(n)]
    for last in (0, value):
        column = [""] * (n + excess) if place == 16 else [value] * (n + excess - 1) + [last]
        header = [rids, [None] * n, [0] * n, [1] * n, *([[]] * 12), [], []]
        header[place] = column
        assert refusal(raw_body(header, bytes(4 * n))).rids == rids


@pytest.mark.parametrize("place", RAGGED_AT)
@pytest.mark.parametrize("widths", [[], [0], [0, 0, 0], [1, 0, 0]])
def test_widths_that_do_not_match_positions_are_refused(place: int, widths: list[int]) -> None:
    body = raw_body(header_with({place: [1, 0, 1], place + 1: widths}), DATA + bytes(8))
    assert refusal(body).rids == CORE[0]


@pytest.mark.parametrize("place", RAGGED_AT)
def test_widths_without_positions_are_refused(place: int) -> None:
    assert refusal(raw_body(header_with({place + 1: [0]}), DATA)).rids == CORE[0]


@pytest.mark.parametrize("place", TEXTS_AT)
def test_id_texts_must_be_as_many_as_ids(place: int) -> None:
    family = {18: 4, 19: 5, 20: 6, 21: 8, 22: 10, 23: 12}[place]
    columns: dict[int, Any] = {family: [1, 0, 1], place: ["x", "y"]}
    if family >= 6:
        columns[family + 1] = [1, 1]
    body = raw_body(header_with(columns), DATA + bytes(16))
    name = ["out_lp", "in_lp", "out_top", "in_top", "out_tid", "in_tid"][place - 18]
    batch = decode_batch(body)
    assert [e.extras and getattr(e.extras, f"{name}_txt") for e in batch] == [["x"], None, ["y"]]
    for wrong in (["x"], ["x", "y", "z"]):
        assert refusal(raw_body(header_with({**columns, place: wrong}), DATA + bytes(16))).rids == CORE[0]
    assert refusal(raw_body(header_with({place: ["x"]}), DATA)).rids == CORE[0]


@pytest.mark.parametrize("excess", [-12, -5, -4, -1, 1, 3, 4, 64])
@pytest.mark.parametrize("bulk", [1, 100])
def test_data_of_another_size_is_refused(excess: int, bulk: int) -> None:
    header = [column * bulk for column in CORE]
    body = raw_body(header, (DATA * bulk + bytes(64))[: 12 * bulk + excess])
    assert refusal(body).rids == CORE[0] * bulk


@pytest.mark.parametrize("arity", range(25))
def test_the_array_may_end_anywhere_after_the_core(arity: int) -> None:
    body = raw_body(header_with({}, max(arity, 1))[:arity], DATA)
    if arity >= 4:
        assert decode_batch(body).rids == CORE[0]
    else:
        assert refusal(body).rids == (CORE[0] if arity else [])


@pytest.mark.parametrize("arity", [25, 26, 40, 70000])
@pytest.mark.parametrize("filling", [[], None, 5, ["x"]])
def test_more_than_24_columns_is_a_newer_format(arity: int, filling: Any) -> None:
    header = [*header_with({}, 24), *([filling] * (arity - 24))]
    assert refusal(raw_body(header, DATA)).rids == CORE[0]


@pytest.mark.parametrize("arity", range(1, 30))
def test_rids_are_named_at_every_arity(arity: int) -> None:
    header = [["a", 1, "b", None, ["c"], "a"], *[{"no": "column"}] * (arity - 1)]
    assert refusal(raw_body(header)).rids == ["a", "b", "a"]


@pytest.mark.parametrize(
    "header", [b"", b"\xc0", b"\xa1a", b"\x81\xa1a\x01", b"\x90", b"\x91\xa1a", b"\x91\xc1", b"\x92\x91\xa1a"]
)
def test_a_header_without_a_readable_rid_array_names_nobody(header: bytes) -> None:
    assert refusal(raw_body(header)).rids == []


def test_bad_utf8_is_a_malformed_frame_and_the_readable_rids_are_named() -> None:
    for bad in (b"\xff", b"\xed\xa0\x80", b"\xf0\x9f\x98", b"\xc0\xaf"):
        rid = bytes((0xA0 | len(bad),)) + bad
        body = raw_body(b"\x94\x93\xa1a" + rid + b"\xa1b\x93\xc0\xc0\xc0\x93\0\0\0\x93\0\0\0")
        assert refusal(body).rids == ["a", "b"]
        in_reason = b"\x94\x91\xa1a\x91\x81\xa4type" + rid + b"\x91\0\x91\0"
        assert refusal(raw_body(in_reason)).rids == ["a"]


@pytest.mark.parametrize("place", [2, 3, 4, 5, *range(6, 16), 17])
@pytest.mark.parametrize("value", [-1, 2**32, 2**63, True, None, 1.0, "1", [1]])
def test_counts_are_u32(place: int, value: Any) -> None:
    header = header_with({place: [value, 0, 0]})
    assert refusal(raw_body(header, DATA)).rids == CORE[0]


@pytest.mark.parametrize("bulk", [1, 100])
@pytest.mark.parametrize("value", [-1, 2**32, True, None, 1.0, "1"])
def test_one_bad_count_among_many_is_found(bulk: int, value: Any) -> None:
    for place in (2, 3):
        header = [column * bulk for column in CORE]
        header[place][1] = value
        assert refusal(raw_body(header, DATA * bulk)).rids == CORE[0] * bulk


@pytest.mark.parametrize("place", [3, 4, 5])
def test_sums_of_counts_do_not_wrap(place: int) -> None:
    for counts in ([2**32 - 1, 1, 0], [2**31, 2**31, 0], [2**30, 0, 0], [2**32 - 1] * 3):
        assert refusal(raw_body(header_with({place: counts}), DATA)).rids == CORE[0]


@pytest.mark.parametrize("bulk", [1, 100])
@pytest.mark.parametrize(
    "reason",
    [
        "stop",
        1,
        True,
        [],
        {1: 2},
        {"type": "x", "deep": {1: 2}},
        {"type": "x", "raw": b"bin"},
        {"type": "x", "ext": msgspec.msgpack.Ext(5, b"gASVBQAAAAAAAACMAWGULg==")},
        {"type": "x", "in": [{"list": msgspec.msgpack.Ext(-5, b"")}]},
        msgspec.msgpack.Ext(1, b"x"),
        msgspec.Raw(b"\x81\xa1t\xd6\xff\0\0\0\0"),  # a timestamp
    ],
)
def test_a_reason_that_is_no_map_of_plain_data_is_refused(reason: Any, bulk: int) -> None:
    header = [column * bulk for column in CORE]
    header[1][1] = reason
    assert refusal(raw_body(header, DATA * bulk)).rids == CORE[0] * bulk


@pytest.mark.parametrize("bulk", [1, 100])
def test_unknown_reasons_end_their_request_only(bulk: int) -> None:
    header = [column * bulk for column in CORE]
    header[1][0], header[1][2] = {}, {"type": "stop", "matched": 7}
    reasons = [event.finish_reason for event in decode_batch(raw_body(header, DATA * bulk))]
    assert reasons == [Unknown({}), None, Stop(7), *[None] * (3 * bulk - 3)]


def test_nesting_without_end_is_a_malformed_frame() -> None:
    deep = b"\x91" * 100_000 + b"\xc0"
    assert refusal(raw_body(b"\x94\x91\xa1a\x91" + deep + b"\x91\0\x91\0")).rids == []
    assert refusal(raw_body(deep)).rids == []
    in_reason = b"\x94\x91\xa1a\x91\x81\xa1x" + b"\x91" * 400 + b"\xc0" + b"\x91\0\x91\0"
    assert isinstance(decode_batch(raw_body(in_reason))[0].finish_reason, Unknown)


@pytest.mark.parametrize(
    "header", ["ddffffffff", "dfffffffff", "94ddffffffff", "9491dbffffffff", "9491c6ffffffff"]
)
def test_a_length_without_its_bytes_costs_nothing(header: str) -> None:
    assert refusal(raw_body(bytes.fromhex(header))).rids == []


def test_no_grounds_for_refusal() -> None:
    rids = ["", "a", "a", "naïve ✓ 终", "\0", " x "]
    ids: list[Any] = [[], [-1], [-(2**31)], [2**31 - 1], [], [0]]
    batch = decode_batch(b"".join(encode_batch(rids, [None] * 6, [0] * 5 + [2**32 - 1], ids)))
    assert [event.rid for event in batch] == rids
    assert [event.token_ids.tolist() for event in batch] == ids
    assert batch[5].prompt_tokens == 2**32 - 1
    assert list(decode_batch(raw_body([[], [], [], []]))) == []


def mixed_batch(n: int, seed: int) -> bytes:
    """A frame in which everything varies."""
    rng = random.Random(seed)
    ids = [[rng.randrange(9)] * rng.choice((0, 1, 1, 3)) for _ in range(n)]
    lps = [[rng.random()] * rng.choice((0, 0, 2)) for _ in range(n)]
    tops = [rng.choice((None, [], [None, [0.5, 0.25]], [[1.0]])) for _ in range(n)]
    return b"".join(
        encode_batch(
            [f"r{rng.randrange(n)}" for _ in range(n)],
            [rng.choice((None, {"type": "stop", "matched": i})) for i in range(n)],
            [rng.randrange(2**32) for _ in range(n)],
            ids,
            out_lp_val=lps,
            out_lp_idx=[[i] * len(cell) for i, cell in enumerate(lps)],
            out_top_val=tops,
            out_top_idx=[cell and [row and [i] * len(row) for row in cell] for i, cell in enumerate(tops)],
            hidden=[rng.choice((None, [[1.5, 2.5], 3.5])) for _ in range(n)],
            texts=[rng.choice(("", "é", "ab")) for _ in range(n)],
            completion_tokens=[len(cell) + rng.randrange(2) for cell in ids],
        )
    )


@pytest.mark.parametrize("n", [0, 1, 2, 7, 50, pytest.param(20_000, marks=pytest.mark.slow)])
def test_all_ways_to_get_at_events_agree(n: int) -> None:
    plain = encode_batch([str(i) for i in range(n)], [None] * n, [5] * n, [[i] for i in range(n)])
    for body in (b"".join(plain), mixed_batch(n, seed=n)):
        batch = decode_batch(body)
        keys = event_keys(batch)
        some = range(0, n, max(1, n // 50))
        assert [event_key(batch[i]) for i in some] == [keys[i] for i in some]
        assert [event_key(batch[i - n]) for i in some] == [keys[i] for i in some]
        for wanted in (set(batch.rids), set(batch.rids[::8]), dict.fromkeys(batch.rids[:1]), frozenset("r")):
            assert list(map(event_key, batch.select(wanted))) == [key for key in keys if key[0] in wanted]
        assert batch.token_ids.tobytes() == b"".join(key[1] for key in keys)
        for beyond in (n, -n - 1):
            with pytest.raises(IndexError):
                batch[beyond]


def test_a_batch_is_indexed_by_integers_only() -> None:
    batch = decode_batch(raw_body(CORE, DATA))
    assert batch[np.int64(1)].rid == "b"
    with pytest.raises(TypeError):
        batch["a"]  # type: ignore[index]


@pytest.mark.parametrize("shift", range(8))
def test_any_buffer_at_any_alignment_decodes_to_the_same(shift: int) -> None:
    body = mixed_batch(20, seed=3)
    expected = event_keys(decode_batch(body))
    memory = bytearray(shift) + body + b"?"
    window = memoryview(memory)[shift:-1]
    for buffer in (window, window.toreadonly(), np.frombuffer(memory, np.uint8)[shift:-1], bytes(window)):
        assert event_keys(decode_batch(buffer)) == expected
    padded = bytes(window) + bytes(-len(body) % 4)
    if len(padded) == len(body):
        assert event_keys(decode_batch(memoryview(padded).cast("i"))) == expected


def test_a_family_of_zeros_decodes_like_none() -> None:
    filled = header_with({4: [0] * 3, 5: [0] * 3, **{place: [0] * 3 for place in RAGGED_AT}}, 24)
    assert [e.extras for e in decode_batch(raw_body(filled, DATA))] == [None] * 3
    one = decode_batch(raw_body(header_with({6: [0, 2, 0], 7: [0, 0]}), DATA))
    assert [e.extras and e.extras.out_top_lens for e in one] == [None, [0, 0], None]

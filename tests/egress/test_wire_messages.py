"""RESULT, ERROR, the tag and the frame as a whole."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from egress.errors import EncodeError, MalformedFrame
from egress.wire import Failure, Result, Tag, decode, decode_frame, encode_error, encode_result

pack = msgspec.msgpack.encode


def refusal(tag: int, body: Any) -> MalformedFrame:
    with pytest.raises(MalformedFrame) as refused:
        decode(tag, body)
    assert refused.value.tag == tag
    return refused.value


@pytest.mark.parametrize("payload", [b"", b"{}", bytes(range(256)), bytearray(b"x"), memoryview(b"yz")])
@pytest.mark.parametrize("rid", ["", "42", "réq ✓"])
def test_result_round_trip(rid: str, payload: Any) -> None:
    assert decode(Tag.RESULT, encode_result(rid, payload)) == Result(rid, bytes(payload))


def test_a_str_payload_is_taken_as_utf8() -> None:
    assert decode(1, pack(["a", "naïve"])) == Result("a", "naïve".encode())


@pytest.mark.parametrize("status", [None, 100, 400, 503, 599])
def test_error_round_trip(status: int | None) -> None:
    body = encode_error("a", "naïve ✓", status)
    assert decode(Tag.ERROR, memoryview(body)) == Failure("a", "naïve ✓", status or 500)
    assert len(msgspec.msgpack.decode(body)) == (2 if status is None else 3)


@pytest.mark.parametrize("status", [None, 0, 99, 600, -1, 2**64 - 1, "400", 400.0, True, [400], {}, b"400"])
def test_a_third_item_that_is_no_status_counts_as_500(status: Any) -> None:
    assert decode(3, pack(["a", "m", status])) == Failure("a", "m", 500)


@pytest.mark.parametrize(
    ("tag", "items"),
    [
        (1, ["a"]),
        (1, ["a", 5]),
        (1, ["a", None]),
        (1, ["a", [b"x"]]),
        (1, ["a", msgspec.msgpack.Ext(3, b"x")]),
        (1, ["a", b"x", None]),
        (3, ["a"]),
        (3, ["a", 5]),
        (3, ["a", b"m"]),
        (3, ["a", "m", 400, 1]),
    ],
)
def test_malformed_messages_name_their_rid(tag: int, items: list[Any]) -> None:
    assert refusal(tag, pack(items)).rids == ["a"]


@pytest.mark.parametrize("tag", [1, 3])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc0",
        pack([]),
        pack([5, b"x"]),
        pack({"a": 1}),
        pack("a"),
        pack(["a", "b"])[:-1],
        b"\x92\xa1\xff\xa1x",
        b"\x91" * 5000,
    ],
)
def test_unreadable_messages_name_nobody(tag: int, body: bytes) -> None:
    assert refusal(tag, body).rids == []


@pytest.mark.parametrize("tag", [1, 3])
def test_bad_utf8_behind_the_rid_names_it(tag: int) -> None:
    assert refusal(tag, b"\x92\xa1a\xa1\xff").rids == ["a"]


@pytest.mark.parametrize("tag", [0, 4, 15, 16, 255, -1])
def test_unknown_tags_are_malformed(tag: int) -> None:
    assert refusal(tag, b"\x92\xa1a\xa1x").rids == []


def test_a_frame_begins_with_its_tag() -> None:
    assert decode_frame(b"\x03" + encode_error("a", "m", 400)) == Failure("a", "m", 400)
    assert decode_frame(bytearray(b"\x01") + encode_result("a", b"x")) == Result("a", b"x")
    with pytest.raises(MalformedFrame, match="empty frame") as refused:
        decode_frame(b"")
    assert refused.value.tag is None
    with pytest.raises(MalformedFrame, match="unknown tag"):
        decode_frame(b"\x00")


def test_what_cannot_be_written_is_refused() -> None:
    for call in (
        lambda: encode_result(5, b""),  # type: ignore[arg-type]
        lambda: encode_result("a", "text"),  # type: ignore[arg-type]
        lambda: encode_result("\ud83d", b""),
        lambda: encode_error("a", None),  # type: ignore[arg-type]
        lambda: encode_error("a", "\udc00"),
        lambda: encode_error("a", "m", 99),
        lambda: encode_error("a", "m", 600),
        lambda: encode_error("a", "m", True),
        lambda: encode_error("a", "m", "400"),  # type: ignore[arg-type]
    ):
        with pytest.raises(EncodeError):
            call()

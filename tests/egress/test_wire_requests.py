"""Requests on their way to a shard: what is written is read, and nothing else is."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from egress.errors import MalformedFrame
from egress.wire.requests import (
    VERSION,
    Abort,
    AbortClient,
    Control,
    Generate,
    Hello,
    RequestTag,
    decode_request,
    encode_request,
)

GENERATE = Generate(
    rid="r#1",
    epoch="e",
    input_ids=[0, 2**31 - 1],
    sampling=[128, ["stop"], None, {"1": 0.5}],
    client_rid="r",
    return_logprob=True,
    logprob_start_len=0,
    top_logprobs_num=3,
    token_ids_logprob=[7],
    return_text_in_logprobs=True,
    return_hidden_states=True,
)
ALL = [
    GENERATE,
    Generate(rid="x", epoch="", input_ids=[], sampling=[]),
    Abort(rids=["a", "", "\u2028 \U0001f600"]),
    AbortClient(client_rid="r"),
    Control(rid="c", op="server_info"),
    Hello(epoch="e", peer="p", pid=7),
]


@pytest.mark.parametrize("request_", ALL, ids=lambda r: type(r).__name__)
def test_what_was_encoded_is_decoded_from_any_buffer(request_):
    tag, body = encode_request(request_)
    assert tag >= 16
    for buffer in (body, memoryview(body), memoryview(b"xyz" + body)[3:]):
        assert decode_request(tag, buffer) == request_


def test_each_kind_has_a_tag_of_its_own():
    assert len({encode_request(request)[0] for request in ALL}) == len(RequestTag) == 5


def test_items_appended_by_a_newer_writer_are_ignored():
    tag, body = encode_request(GENERATE)
    items = msgspec.msgpack.decode(body)
    assert decode_request(tag, msgspec.msgpack.encode([*items, {"new": 1}])) == GENERATE


@pytest.mark.parametrize("tag", [0, 1, 2, 3, 15, 21, 255])
def test_an_unknown_tag_is_refused(tag):
    with pytest.raises(MalformedFrame, match="unknown request tag"):
        decode_request(tag, b"\x90")


def test_another_version_is_refused_by_name():
    items = msgspec.msgpack.decode(encode_request(GENERATE)[1])
    items[0] = VERSION + 1
    with pytest.raises(MalformedFrame, match=f"version {VERSION + 1}, expected {VERSION}") as caught:
        decode_request(RequestTag.GENERATE, msgspec.msgpack.encode(items))
    assert caught.value.rids == ["r#1"]


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (2, 5),
        (3, [1, -1]),
        (3, [2**31]),
        (3, [[1]]),
        (3, [True]),
        (3, [8.0]),
        (4, "no list"),
        (5, 5),
        (6, 1),
        (8, -1),
        (9, ["x"]),
    ],
)
def test_a_wrongly_typed_field_is_refused_and_the_rid_still_named(at, value):
    items = msgspec.msgpack.decode(encode_request(GENERATE)[1])
    items[at] = value
    with pytest.raises(MalformedFrame) as caught:
        decode_request(RequestTag.GENERATE, msgspec.msgpack.encode(items))
    assert caught.value.rids == ["r#1"]


@pytest.mark.parametrize(
    "body",
    [b"", b"\xc1", b"\x80", b"\x90", b"\x93\x01\xa1\xff\x90", b"\x91" * 100_000, b"\xdd\xff\xff\xff\xff"],
)
def test_what_names_nobody_is_refused_without_a_name(body):
    for tag in RequestTag:
        with pytest.raises(MalformedFrame) as caught:
            decode_request(tag, body)
        assert caught.value.rids == []


def test_a_lone_surrogate_is_refused_where_it_is_written():
    with pytest.raises(ValueError, match="surrogates"):
        encode_request(Control(rid="\ud800", op="x"))


@given(st.binary(max_size=200), st.sampled_from(RequestTag))
def test_random_bytes_are_a_request_or_malformed(body, tag):
    try:
        request = decode_request(tag, body)
    except MalformedFrame:
        return
    assert decode_request(*encode_request(request)) == request

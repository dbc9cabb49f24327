"""RESULT and ERROR: the frames that speak of a single request.

RESULT is msgpack `[rid, payload]`, ERROR `[rid, message]` or `[rid, message, status]`. Both are small and
rare, so they are read strictly: another count of items or another type rejects the frame, under the rid's
name where that can still be read.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from egress.errors import EncodeError, MalformedFrame
from egress.wire.tags import Tag

__all__ = [
    "UNREADABLE",
    "Failure",
    "Result",
    "decode_error",
    "decode_result",
    "encode_error",
    "encode_result",
]

# All that msgspec raises on bytes it cannot read: not msgpack or not the type asked for; bad UTF-8 (in some
# versions an error of its own, msgspec#714); nesting beyond the interpreter's limit.
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

_DEFAULT_STATUS = 500
_STATUSES = range(100, 600)  # RFC 9110, section 15: everything else is no status

_encode = msgspec.msgpack.Encoder().encode
_result_items = msgspec.msgpack.Decoder(tuple[str, Any])
# A fourth item makes an ERROR malformed, which a union of two fixed arrays would say; msgspec has no such
# union.
_error_items = msgspec.msgpack.Decoder(list[Any])

_Buffer: TypeAlias = Any


class Result(msgspec.Struct, frozen=True):
    """The one answer to a control request; `payload` is bytes of its own."""

    rid: str
    payload: bytes


class Failure(msgspec.Struct, frozen=True):
    """The terminal failure of one request, to be answered with `status_code`."""

    rid: str
    message: str
    status_code: int = _DEFAULT_STATUS


def encode_result(rid: str, payload: bytes | bytearray | memoryview) -> bytes:
    """Make the body of a RESULT frame.

    Raises:
        EncodeError: rid is no string or has a lone surrogate, or payload is no buffer.

    >>> encode_result("42", b"ok").hex()
    '92a23432c4026f6b'
    """
    if not isinstance(payload, bytes | bytearray | memoryview):
        raise EncodeError(f"payload: expected bytes, got {type(payload).__name__}")
    return _encode((_text("rid", rid), payload))


def encode_error(rid: str, message: str, status_code: int | None = None) -> bytes:
    """Make the body of an ERROR frame.

    Args:
        rid: the request that failed.
        message: for the client.
        status_code: HTTP status, 100 to 599; None leaves it out, and the reader takes 500.

    Raises:
        EncodeError: a value of the wrong type, a lone surrogate, or a number that is no status.
    """
    items = (_text("rid", rid), _text("message", message))
    if status_code is None:
        return _encode(items)
    if type(status_code) is bool or status_code not in _STATUSES:
        raise EncodeError(f"status_code: expected 100 to 599, got {status_code!r}")
    return _encode((*items, int(status_code)))


def decode_result(body: _Buffer) -> Result:
    """Read a RESULT body; a str payload is taken as its UTF-8 bytes."""
    try:
        rid, payload = _result_items.decode(body)
    except UNREADABLE as error:
        raise _malformed(Tag.RESULT, str(error), body) from None
    if type(payload) is str:
        payload = payload.encode()
    if type(payload) is not bytes:
        raise MalformedFrame(f"payload is {type(payload).__name__}, not bin or str", [rid], Tag.RESULT)
    return Result(rid, payload)


def decode_error(body: _Buffer) -> Failure:
    """Read an ERROR body; a third item that is no HTTP status counts as 500."""
    try:
        items = _error_items.decode(body)
    except UNREADABLE as error:
        raise _malformed(Tag.ERROR, str(error), body) from None
    match items:
        case [str(rid), str(message)]:
            return Failure(rid, message)
        case [str(rid), str(message), status]:
            is_status = type(status) is int and status in _STATUSES
            return Failure(rid, message, status if is_status else _DEFAULT_STATUS)
    raise _malformed(Tag.ERROR, "expected [rid, message] or [rid, message, status]", body)


def _text(name: str, value: str) -> str:
    """Check that `value` is a string UTF-8 can carry."""
    if not isinstance(value, str):
        raise EncodeError(f"{name}: expected str, got {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise EncodeError(f"{name}: lone surrogate at character {error.start}") from None
    return value


def _malformed(tag: Tag, reason: str, body: _Buffer) -> MalformedFrame:
    """Make the error for an unreadable body, naming its rid if the first item is a readable string."""
    rids: list[str] = []
    try:
        items = msgspec.msgpack.decode(body, type=list[msgspec.Raw])
        rids.append(msgspec.msgpack.decode(items[0], type=str))
    except (*UNREADABLE, IndexError):
        pass
    return MalformedFrame(reason, rids, tag)

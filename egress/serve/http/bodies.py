"""Request bodies: JSON objects read strictly, field by field, so that every refusal names its field.

A body's type is a msgspec.Struct. Each of its fields is decoded on its own from the field's raw JSON: a wrong
type names the field and shows the value, and large arrays are parsed once, straight into what they become.
Null means the same as leaving a field out. Fields nobody knows are refused, and so is a field given twice.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from typing import Any, ClassVar, TypeAlias, TypeVar

import msgspec

from egress.errors import ValidationError
from egress.request.sampling import SamplingParams
from egress.serve.config import MAX_RID_BYTES
from egress.serve.http.faults import cut, shown, unreadable, wrong_type

__all__ = [
    "Body",
    "Ids",
    "check_interval",
    "check_range",
    "check_rid",
    "decode_ids",
    "new_rid",
    "read_body",
    "spread",
    "words",
]

_KEY = re.compile(rb'[ \t\r\n]*"((?:[^"\\]|\\.)*)"[ \t\r\n]*:[ \t\r\n]*', re.DOTALL)
_COMMA = re.compile(rb"[ \t\r\n]*,")
_IDS = msgspec.json.Decoder(list[int])
_BATCH = msgspec.json.Decoder(list[list[int]])
Ids: TypeAlias = list[int] | list[list[int]]
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Body(msgspec.Struct, kw_only=True):
    """A body's fields; a subclass adds them, each with its default.

    Attributes:
        ignored: fields taken whatever they hold, because no answer could depend on them.
        unsupported: fields of the API whose effect does not exist here; only null is taken.
        allowed: values besides null that some unsupported fields may have, for they ask for nothing.
    """

    ignored: ClassVar[frozenset[str]] = frozenset()
    unsupported: ClassVar[frozenset[str]] = frozenset()
    allowed: ClassVar[dict[str, tuple[bytes, ...]]] = {}


def words(text: str) -> frozenset[str]:
    """A set of field names, written as one text."""
    return frozenset(text.split())


T = TypeVar("T", bound=Body)

# None: the handler reads the field's raw JSON itself.
_decoders: dict[type[Body], dict[str, msgspec.json.Decoder[Any] | None]] = {}


def read_body(kind: type[T], data: bytes) -> T:
    """Read a request's body.

    Args:
        kind: the body's type.
        data: the bytes of the body.

    Raises:
        ValidationError: no JSON object; a field unknown, unsupported, given twice, missing, of a wrong type.
    """
    decoders = _decoders.get(kind)
    if decoders is None:
        decoders = _decoders[kind] = {
            # msgspec takes Raw alone, not in a union with None.
            field.encode_name: None
            if field.type in (msgspec.Raw, msgspec.Raw | None)
            else msgspec.json.Decoder(field.type)
            for field in msgspec.structs.fields(kind)
        }
    members = _members(data)
    values: dict[str, Any] = {}
    for name, raw in members.items():
        text = bytes(raw)
        if text == b"null" and (name in decoders or name in kind.unsupported):
            continue
        if name in decoders:
            decoder = decoders[name]
            values[name] = raw if decoder is None else _decoded(decoder, name, text)
        elif name in kind.unsupported:
            if text not in kind.allowed.get(name, ()):
                raise ValidationError(f"{name} is not supported by this server, got {shown(text)}", name)
        elif name not in kind.ignored:
            raise ValidationError(f"{cut(name)!r} is no field of this request", cut(name))
    try:
        return kind(**values)
    except TypeError:
        missing = next(
            field.encode_name
            for field in msgspec.structs.fields(kind)
            if field.required and field.encode_name not in values
        )
        raise ValidationError(f"{missing} is required", missing) from None


def _members(data: bytes) -> dict[str, msgspec.Raw]:
    try:
        members = _OBJECT.decode(data)
    except RecursionError:
        raise ValidationError("the body is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise unreadable(data, error) from None
    # The parser keeps the last of two equal keys. Walking the members in order finds that out: with no key
    # repeated, the body is exactly these keys and values, one after the other.
    place = data.index(b"{") + 1
    for name, raw in members.items():
        key = _KEY.match(data, place)
        text = bytes(raw)
        if key is None or not data.startswith(text, key.end()):
            raise ValidationError(f"{cut(name)} is given more than once", cut(name))
        place = key.end() + len(text)
        if comma := _COMMA.match(data, place):
            place = comma.end()
    if (extra := _KEY.match(data, place)) is not None:
        name = cut(extra[1].decode(errors="replace"))
        raise ValidationError(f"{name} is given more than once", name)
    return members


def _decoded(decoder: msgspec.json.Decoder[Any], name: str, text: bytes) -> Any:
    try:
        return decoder.decode(text)
    except RecursionError:
        raise ValidationError(f"{name} is nested too deeply", name) from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise wrong_type(name, decoder.type, text) from None


def decode_ids(name: str, raw: msgspec.Raw, kind: Any = Ids) -> tuple[list[list[int]], bool]:
    """Read one prompt's ids, or a batch of them; whether it was a batch.

    Args:
        name, raw: the field.
        kind: all that it may be, where that is more than ids; for the message.

    Raises:
        ValidationError: neither.
    """
    text = bytes(raw)
    is_batch = text[1:].lstrip()[:1] == b"["
    try:
        return (_BATCH.decode(text), True) if is_batch else ([_IDS.decode(text)], False)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise wrong_type(name, kind, text) from None


def check_interval(params: SamplingParams) -> None:
    """Refuse a stream_interval of no tokens.

    Raises:
        ValidationError: with the range.
    """
    if params.stream_interval is not None:
        check_range("stream_interval", params.stream_interval, 1, 2**31 - 1)


def check_range(name: str, value: int | float, low: int, high: int) -> None:
    """Hold a number to its range, both ends included.

    Raises:
        ValidationError: names the field, the range and the value.
    """
    if not low <= value <= high:
        got = value if -(1 << 64) < value < 1 << 64 else "a number of more than 64 bits"
        raise ValidationError(f"{name} must be in [{low}, {high}], got {got}", name)


def check_rid(rid: str) -> None:
    """Hold a client's request id to its length.

    Raises:
        ValidationError: it is empty or too long.
    """
    size = len(rid.encode())
    if not 1 <= size <= MAX_RID_BYTES:
        raise ValidationError(f"rid must have 1 to {MAX_RID_BYTES} bytes of UTF-8, got {size}", "rid")


def new_rid(prefix: str = "") -> str:
    """Draw an id for a request that brings none: shown in its answer, taken by `/abort_request`."""
    return prefix + secrets.token_hex(8)


def spread(name: str, value: Any, count: int, is_batch: bool) -> Sequence[Any]:
    """Give one value per prompt: a single one counts for all of them.

    Raises:
        ValidationError: an array of another length than there are prompts, or an array for a single prompt.
    """
    if not isinstance(value, list):
        return [value] * count
    if not is_batch:
        raise ValidationError(f"{name} must be a single value for a single prompt, got an array", name)
    if len(value) != count:
        raise ValidationError(f"{name} must have one value per prompt ({count}), got {len(value)}", name)
    return value

"""Why a body was refused, in the client's terms: the field, what it may be, what it is.

A parser knows that something is wrong, and says it in its own words or not at all. What is refused is read
again here, with the slower parser that keeps lone surrogates and NaN, to find the value at fault and its
place. Pure, and only ever called on the way to a 400; nothing here depends on another's error text.
"""

from __future__ import annotations

import types
from collections import deque
from typing import Any, Union, get_args, get_origin

import msgspec

from egress.errors import ValidationError
from egress.request.values import INFINITY, check_unicode, field_of, load_json, named

__all__ = ["cut", "shown", "unreadable", "wrong_type"]

# Errors quote what they got, but never more of it than a line holds.
_SHOWN = 64

# Reading 256 KiB again takes up to 10 ms of the event loop; of a longer body only the field is named.
_MAX_AGAIN_BYTES = 1 << 18

# What can be, or hold, a bad value.
_HELD = (str, float, list, dict)

# One, and many.
_WORDS: dict[Any, tuple[str, str]] = {
    str: ("a string", "strings"), bool: ("true or false", "booleans"), int: ("an integer", "integers"),
    float: ("a number", "numbers"), dict: ("an object", "objects"), list: ("an array", "arrays"),
    Any: ("a value", "values"),
}  # fmt: skip


def shown(text: bytes) -> str:
    """JSON as errors show it: cut to what a line holds."""
    return cut(text[: 4 * _SHOWN + 4].decode(errors="replace"))


def cut(text: str) -> str:
    """Text cut to what a line holds."""
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def wrong_type(name: str, kind: Any, text: bytes) -> ValidationError:
    """Say why a field's JSON is not of its type.

    Args:
        name: the field.
        kind: its type: JSON's own, arrays of those, and unions.
        text: what a decoder of that type refused.
    """
    if len(text) > _MAX_AGAIN_BYTES:
        return ValidationError(f"{name} must be {_wanted(kind)}, got {shown(text)}", name)
    try:
        value = load_json(text, name)
        _check_values(name, value)
    except ValidationError as error:
        return ValidationError(error.message, name)
    place, inner, bad = _at_fault(name, kind, value)
    return ValidationError(f"{place} must be {_wanted(inner)}, got {shown(msgspec.json.encode(bad))}", name)


def unreadable(data: bytes, said: object) -> ValidationError:
    """Say why a body is no JSON object.

    Args:
        data: the body.
        said: what the parser that refused it said, for want of anything better.
    """
    if len(data) <= _MAX_AGAIN_BYTES:
        try:
            value = load_json(data, "the body")
            if not isinstance(value, dict):
                return ValidationError(f"the body must be a JSON object, got {shown(data)}")
            _check_values("", value)
        except ValidationError as error:
            return error
    return ValidationError(f"the body must be a JSON object: {said}")


def _check_values(name: str, value: Any) -> None:
    """Refuse what JSON's text can spell and its values cannot be: half a character, an infinite number."""
    todo = deque([(name, value)])
    while todo:
        place, value = todo.popleft()
        if isinstance(value, str):
            check_unicode(place, value)
        elif isinstance(value, float):
            if not -INFINITY < value < INFINITY:
                raise ValidationError(f"{place} must be a finite number, got {value}", field_of(place))
        elif isinstance(value, list):
            todo.extend((f"{place}[{i}]", item) for i, item in enumerate(value) if isinstance(item, _HELD))
        elif isinstance(value, dict):
            for key, item in value.items():
                inner = f"{place}.{named(key)}".removeprefix(".")
                check_unicode(inner, key)
                todo.append((inner, item))


def _choices(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def _wanted(kind: Any) -> str:
    """A type in words; null is not mentioned, since leaving the field out is the same."""
    *most, last = [_in_words(choice) for choice in _choices(kind) if choice is not type(None)]
    return f"{', '.join(most)} or {last}" if most else last


def _in_words(kind: Any, number: int = 0) -> str:
    origin = get_origin(kind) or kind
    words = _WORDS[origin][number]
    return f"{words} of {_in_words(get_args(kind)[0], 1)}" if origin is list else words


def _at_fault(place: str, kind: Any, value: Any) -> tuple[str, Any, Any]:
    """The innermost place at which a value is not of its type: place, type, value there."""
    arrays = [choice for choice in _choices(kind) if get_origin(choice) is list]
    if isinstance(value, list) and arrays:
        # Of two kinds of arrays the client means the one that its first item fits.
        [item_kind] = get_args(next((c for c in arrays if value and _fits(value[0], c)), arrays[0]))
        for index, item in enumerate(value):
            try:
                msgspec.convert(item, item_kind)
            except msgspec.ValidationError:
                return _at_fault(f"{place}[{index}]", item_kind, item)
    return place, kind, value


def _fits(item: Any, array: Any) -> bool:
    return isinstance(item, get_origin(get_args(array)[0]) or get_args(array)[0])

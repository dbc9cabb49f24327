"""What a JSON value may be: strict readers, one per kind, each naming the key at fault.

Nothing is coerced. A bool is no number, `"0.5"` is no number, `8.0` is no integer, NaN and the infinities are
no numbers at all (JSON has none; Python's parser and in-process callers do), and text that UTF-8 cannot carry
(a lone surrogate) is refused here, at the door, and not by an encoder three processes later.

The parser is the standard library's. It keeps what a faster one loses: an integer of any size stays an
integer, NaN reaches the reader of its own key, and repeated keys are seen.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeAlias

from egress.errors import ValidationError

__all__ = [
    "Reader",
    "check_unicode",
    "field_of",
    "load_json",
    "named",
    "quoted",
    "read_bias",
    "read_bool",
    "read_custom",
    "read_float",
    "read_int",
    "read_int_list",
    "read_str",
    "read_str_list",
    "read_str_or_list",
    "shown",
]

Reader: TypeAlias = Callable[[str, Any], Any]
"""Takes the key and its value (never None), gives the typed value; ValidationError names the key."""

I64_MIN, I64_MAX = -(1 << 63), (1 << 63) - 1
INFINITY = float("inf")

# A tuple made once: isinstance with `list | tuple` makes a union each time, for half a microsecond.
ARRAY = (list, tuple)

# Errors quote what they got, but never more of it than a line holds.
SHOWN_CHARS = 64


def shown(value: Any) -> str:
    """A value as errors print it: 3.0 as 3, text quoted and cut, containers by kind."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        # str() of an integer of more than 4,300 digits is an error of its own in CPython.
        return str(value) if value.bit_length() <= 128 else f"an integer of {value.bit_length()} bits"
    if isinstance(value, float):
        return repr(float(value)).removesuffix(".0")
    if isinstance(value, str):
        return repr(value) if len(value) <= SHOWN_CHARS else f"{value[:SHOWN_CHARS]!r}..."
    if isinstance(value, ARRAY):
        return "an array"
    return "an object" if isinstance(value, dict) else f"a {type(value).__name__}"


def quoted(text: str) -> str:
    """Text as it was sent, in quotes: backslashes are not doubled, only what does not print is escaped."""
    if not text.isprintable():
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return f"'{text}'"


def named(key: Any) -> str:
    """A client's key as a field name: valid Unicode of bounded length."""
    text = key if isinstance(key, str) else shown(key)
    return text[:SHOWN_CHARS].encode("utf-8", "backslashreplace").decode()


def field_of(place: str) -> str:
    """The field that a place like `stop[1]` or `logit_bias.7` is in."""
    return place.partition(".")[0].partition("[")[0]


def check_unicode(name: str, value: str) -> None:
    """Refuse text that UTF-8 cannot carry."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        got = f"{shown(value)} with a lone surrogate at character {error.start}"
        raise ValidationError(f"{name} must be valid Unicode, got {got}", field_of(name)) from None


def _wrong(name: str, wanted: str, value: Any) -> ValidationError:
    return ValidationError(f"{name} must be {wanted}, got {shown(value)}", field_of(name))


def read_int(name: str, value: Any) -> int:
    """An integer of 64 bits."""
    if not isinstance(value, int) or isinstance(value, bool):
        if isinstance(value, float):
            # In full: "must be an integer, got 8" would be no help to who sent 8.0.
            raise ValidationError(f"{name} must be an integer, got {float(value)!r}", field_of(name))
        raise _wrong(name, "an integer", value)
    if not I64_MIN <= value <= I64_MAX:
        raise _wrong(name, "an integer in [-2^63, 2^63 - 1]", value)
    return value if type(value) is int else int(value)


def read_float(name: str, value: Any) -> float:
    """A finite number; an integer will do."""
    if isinstance(value, float):
        # False for NaN as well.
        if not -INFINITY < value < INFINITY:
            raise _wrong(name, "a finite number", value)
        return value if type(value) is float else float(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise _wrong(name, "a number", value)
    return float(read_int(name, value))


def read_bool(name: str, value: Any) -> bool:
    """True or false."""
    if isinstance(value, bool):
        return value
    raise _wrong(name, "true or false", value)


def read_str(name: str, value: Any) -> str:
    """Text that UTF-8 can carry."""
    if not isinstance(value, str):
        raise _wrong(name, "a string", value)
    if not value.isascii():
        check_unicode(name, value)
    return value


def read_str_or_list(name: str, value: Any) -> str | list[str]:
    """A string, or an array of strings."""
    if isinstance(value, str):
        return read_str(name, value)
    if not isinstance(value, ARRAY):
        raise _wrong(name, "a string or an array of strings", value)
    return read_str_list(name, value)


def read_str_list(name: str, value: Any) -> list[str]:
    """An array of strings."""
    if not isinstance(value, ARRAY):
        raise _wrong(name, "an array of strings", value)
    for index, item in enumerate(value):
        if type(item) is not str or not item.isascii():
            read_str(f"{name}[{index}]", item)
    return list(value)


def read_int_list(name: str, value: Any) -> list[int]:
    """An array of integers."""
    if not isinstance(value, ARRAY):
        raise _wrong(name, "an array of integers", value)
    try:
        return [read_int(name, item) for item in value]
    except ValidationError:
        return [read_int(f"{name}[{index}]", item) for index, item in enumerate(value)]


def read_bias(name: str, value: Any) -> dict[str, float]:
    """An object of finite numbers; whether its keys are token ids needs the vocabulary."""
    if not isinstance(value, dict):
        raise _wrong(name, "an object of numbers", value)
    return {read_str(name, key): read_float(f"{name}.{named(key)}", number) for key, number in value.items()}


def _read_scalar(name: str, value: Any) -> str | int | float | bool | None:
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        return read_str(name, value)
    if isinstance(value, int):
        return read_int(name, value)
    if isinstance(value, float):
        return read_float(name, value)
    raise _wrong(name, "a scalar, an array of scalars or an object of scalars", value)


def read_custom(name: str, value: Any) -> dict[str, Any]:
    """An object whose values are scalars, arrays of scalars, or objects of scalars."""
    if not isinstance(value, dict):
        raise _wrong(name, "an object", value)
    read: dict[str, Any] = {}
    for key, item in value.items():
        inner = f"{name}.{named(key)}"
        if isinstance(item, ARRAY):
            read[read_str(name, key)] = [
                _read_scalar(f"{inner}[{i}]", scalar) for i, scalar in enumerate(item)
            ]
        elif isinstance(item, dict):
            read[read_str(name, key)] = {
                read_str(inner, k): _read_scalar(f"{inner}.{named(k)}", scalar) for k, scalar in item.items()
            }
        else:
            read[read_str(name, key)] = _read_scalar(inner, item)
    return read


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    read = dict(pairs)
    if len(read) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValidationError(f"{named(key)!r} is given more than once", named(key))
            seen.add(key)
    return read


def _int_of_any_size(digits: str) -> int:
    # 20 characters hold every integer of 64 bits with its sign; int() refuses a few thousand.
    return int(digits) if len(digits) <= 20 else 1 << 200


_decoder = json.JSONDecoder(object_pairs_hook=_unique)
_decoder_of_any_int = json.JSONDecoder(object_pairs_hook=_unique, parse_int=_int_of_any_size)


def _decode(text: str, decoder: json.JSONDecoder) -> Any:
    # As decoder.decode, whose two searches for white space cost as much as reading a small object.
    text = text.strip(" \t\n\r")
    value, end = decoder.raw_decode(text)
    if end != len(text):
        raise json.JSONDecodeError("Extra data", text, end)
    return value


def load_json(data: str | bytes | bytearray | memoryview, what: str) -> Any:
    """The JSON value in `data`, read strictly.

    Args:
        data: text, or UTF-8 bytes.
        what: what errors call it.

    Raises:
        ValidationError: no UTF-8, no JSON, nested too deeply, or a key given twice (which `.field` names).
    """
    try:
        text = data if isinstance(data, str) else str(data, "utf-8")
        try:
            return _decode(text, _decoder)
        except (json.JSONDecodeError, ValidationError):
            raise
        except ValueError:
            # An integer of thousands of digits: read again, so that the error can name its key.
            return _decode(text, _decoder_of_any_int)
    except UnicodeDecodeError as error:
        raise ValidationError(f"{what} must be UTF-8, got {error.reason} at byte {error.start}") from None
    except json.JSONDecodeError as error:
        said = error.msg.removesuffix(" at")
        raise ValidationError(f"{what} must be JSON: {said} at character {error.pos}") from None
    except RecursionError:
        raise ValidationError(f"{what} must be JSON that is not nested this deeply") from None

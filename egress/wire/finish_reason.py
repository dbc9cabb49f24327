"""Why a request ended: three known reasons, and whatever a newer scheduler may send.

On the wire a reason is a map with a `type`. A map that is not exactly one of the three known shapes (an
unheard-of type, a member of the wrong type or out of range) is `Unknown`: it ends the request all the same,
and goes on to the client as it came. A closed enumeration here would let one new reason reject every request
of its frame.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

import msgspec

__all__ = ["Abort", "FinishReason", "Length", "Stop", "Unknown"]

# msgspec takes integers of any size unless it is told the bounds; these are the wire's (egress.md section 4).
_I64: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_U16: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**16 - 1)]
_Unsigned: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
_U64_MAX = 2**64 - 1  # beyond what Meta can bound: the largest integer msgpack has


class FinishReason(msgspec.Struct, frozen=True, tag_field="type"):
    """Why a request ended; one of `Stop`, `Length`, `Abort` and `Unknown`."""

    @property
    def matched(self) -> int | str | list[int] | None:
        """What stopped the request: a token id, a stop string or pattern, a list of ids, or None."""
        return None

    @staticmethod
    def from_wire(mapping: Mapping[str, Any]) -> FinishReason:
        """Classify a reason map as it came off the wire.

        Args:
            mapping: the decoded map; an Unknown keeps it (not a copy), a known reason drops keys it lacks.

        Raises:
            TypeError: mapping is no mapping. No content of a mapping is an error.

        Mirrors: sglang, rust/sglang-server/src/message/finish_reason.rs.

        >>> FinishReason.from_wire({"type": "stop", "matched": 5})
        Stop(matched=5)
        >>> FinishReason.from_wire({"type": "stop", "matched": True})
        Unknown(raw={'type': 'stop', 'matched': True})
        """
        if type(mapping) is not dict and not isinstance(mapping, Mapping):
            raise TypeError(f"a finish reason is a mapping, not {type(mapping).__name__}")
        kind = mapping.get("type")
        try:
            # One type of the union at a time: msgspec keeps what it needs to know of that, and not of unions.
            reason: FinishReason = msgspec.convert(mapping, _KNOWN[kind])
        except (msgspec.ValidationError, KeyError, TypeError):
            return Unknown(dict(mapping) if type(mapping) is not dict else mapping)
        if type(reason) is Length and reason.length is not None and reason.length > _U64_MAX:
            return Unknown(dict(mapping))
        return reason

    def to_wire(self) -> dict[str, Any]:
        """Give the map that says this reason, every key of a known one included, nulls too."""
        wire: dict[str, Any] = msgspec.to_builtins(self)
        return wire

    def abort_status(self) -> tuple[int, str] | None:
        """Give the (HTTP status, message) of an abort that has a status, else None."""
        return None


class Stop(FinishReason, frozen=True, tag="stop"):
    """A stop condition was met; `matched` is the token id, string, pattern or ids that met it."""

    matched: _I64 | str | list[_I64] | None = None


class Length(FinishReason, frozen=True, tag="length"):
    """The token limit was reached; `length` is the limit, in tokens."""

    length: _Unsigned | None = None


class Abort(FinishReason, frozen=True, tag="abort"):
    """The request was ended from outside: by its client, by a limit, by a fault."""

    message: str | None = None
    status_code: _U16 | None = None
    err_type: str | None = None

    def abort_status(self) -> tuple[int, str] | None:
        if self.status_code is None:
            return None
        return self.status_code, "request aborted" if self.message is None else self.message


class Unknown(FinishReason, frozen=True):
    """A reason this version does not know: terminal, kept and echoed as `raw`."""

    raw: dict[str, Any]

    def to_wire(self) -> dict[str, Any]:
        return self.raw


_KNOWN: dict[Any, type[FinishReason]] = {"stop": Stop, "length": Length, "abort": Abort}
_SCALARS = frozenset((str, int, float, bool, type(None)))


def is_plain(value: Any) -> bool:
    """Whether a value is what JSON has too, apart from NaN: a reason goes on to clients, unchanged."""
    if type(value) is dict:
        for key, item in value.items():
            if type(key) is not str or not (type(item) in _SCALARS or is_plain(item)):
                return False
        return True
    if type(value) is list:
        return all(map(is_plain, value))
    return type(value) in _SCALARS

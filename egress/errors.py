"""Every exception of the egress layer.

EgressError
├── MalformedFrame   (ValueError)   the peer wrote bytes that are no frame of ours
├── EncodeError      (ValueError)   our caller handed columns that make no frame
├── ValidationError  (ValueError)   the client asked for something that cannot be: a 400
├── SinkError
│   ├── SinkFull                    the reader of this sink is too slow
│   └── SinkClosed                  the reader of this sink is gone
├── Truncated                       the sink went away before its terminal item
└── DetokenizeError                 one request's ids could not be turned into text
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "DetokenizeError",
    "EgressError",
    "EncodeError",
    "MalformedFrame",
    "SinkClosed",
    "SinkError",
    "SinkFull",
    "Truncated",
    "ValidationError",
]


class EgressError(Exception):
    """The root of everything this layer raises on purpose."""


class MalformedFrame(EgressError, ValueError):
    """A frame that breaks a rule of the wire format; nothing of it was delivered.

    Args:
        reason: the broken rule, lower case, with the sizes that disagree.
        rids: every request the frame names, in order; each must be failed by the caller.
        tag: the frame's tag, or None when there was no byte to read it from.
    """

    def __init__(self, reason: str, rids: Sequence[str] = (), tag: int | None = None) -> None:
        super().__init__(reason, tuple(rids), tag)
        self.reason = reason
        self.rids = list(rids)
        self.tag = tag

    def __str__(self) -> str:
        named = f" (rids: {', '.join(map(repr, self.rids[:8]))})" if self.rids else ""
        tag = "" if self.tag is None else f" with tag {self.tag}"
        return f"malformed frame{tag}: {self.reason}{named}"


class EncodeError(EgressError, ValueError):
    """Columns that make no frame; raised before anything is written."""


class ValidationError(EgressError, ValueError):
    """A request that cannot be admitted, for reasons its client can mend.

    Args:
        message: names the field, its range and the value that was got.
        field: the field at fault, or None when the body as a whole is.
    """

    status_code = 400

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message, field)
        self.message = message
        self.field = field

    def __str__(self) -> str:
        return self.message


class SinkError(EgressError):
    """An item could not be taken by a sink."""


class SinkFull(SinkError):
    """The sink's bound is reached: its reader is too slow.

    Args:
        items: items waiting, against max_items.
        tokens: tokens waiting, against max_tokens.
    """

    def __init__(self, items: int, max_items: int, tokens: int, max_tokens: int) -> None:
        super().__init__(items, max_items, tokens, max_tokens)
        self.items = items
        self.max_items = max_items
        self.tokens = tokens
        self.max_tokens = max_tokens

    def __str__(self) -> str:
        return (
            f"sink is full: {self.items} of {self.max_items} items and "
            f"{self.tokens} of {self.max_tokens} tokens are waiting"
        )


class SinkClosed(SinkError):
    """The sink's reader is gone, or its terminal item was already sent."""

    def __init__(self, reason: str = "the source was closed") -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"sink is closed: {self.reason}"


class Truncated(EgressError):
    """The sink went away without a terminal item: the answer is incomplete."""

    def __init__(self, reason: str = "response truncated before completion") -> None:
        super().__init__(reason)


class DetokenizeError(EgressError):
    """Turning one request's ids into text failed; other requests are untouched.

    Args:
        reason: what failed, with the token id where one is at fault.
        rid: the request, when known.
    """

    def __init__(self, reason: str, rid: str | None = None) -> None:
        super().__init__(reason, rid)
        self.reason = reason
        self.rid = rid

    def __str__(self) -> str:
        return self.reason if self.rid is None else f"request {self.rid!r}: {self.reason}"

"""What the tokenizer bodies share: whole decoding of bytes, and the check on text from clients."""

from __future__ import annotations

from collections.abc import Iterable

from egress.errors import ValidationError

__all__ = ["checked_text", "decode_bytes"]


def decode_bytes(pieces: Iterable[bytes]) -> str:
    """The text of all pieces at once, what is no UTF-8 as U+FFFD."""
    return b"".join(pieces).decode("utf-8", "replace")


def checked_text(text: str) -> str:
    """`text`, unless it holds a lone surrogate (JSON can spell one): no tokenizer can take it.

    Raises:
        ValidationError: with the place of the surrogate.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValidationError(
            f"text holds a lone surrogate (U+{ord(text[error.start]):04X}) at character {error.start}"
        ) from error
    return text

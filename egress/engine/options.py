"""An engine's options, read one by one with their type and range; what is left over is an error.

On the command line an option is `name=value` text, in a program it may have its own type already.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from egress.errors import ValidationError

__all__ = ["OptionReader"]

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})


class OptionReader:
    """Takes options out of a mapping; `finish` refuses those nobody asked for.

    >>> options = OptionReader("ngram", {"order": "4"})
    >>> options.integer("order", 5, 2, 8), options.number("novelty", 0.1, 0.0, 1.0)
    (4, 0.1)
    >>> options.finish()
    """

    def __init__(self, engine: str, options: Mapping[str, Any]) -> None:
        self._engine = engine
        self._left = dict(options)
        self._known: list[str] = []

    def text(self, name: str) -> str | None:
        """A string as it stands, or None when it is not given."""
        self._known.append(name)
        value = self._left.pop(name, None)
        return None if value is None else str(value)

    def integer(self, name: str, default: int, low: int, high: int) -> int:
        """An integer of [low, high].

        Raises:
            ValidationError: the option is none, or out of range.
        """
        value = self.text(name)
        if value is None:
            return default
        try:
            number = int(value)
        except ValueError:
            number = low - 1
        if not low <= number <= high:
            raise self._refusal(name, f"an integer in [{low}, {high}]", value)
        return number

    def number(self, name: str, default: float, low: float, high: float) -> float:
        """A finite number of [low, high].

        Raises:
            ValidationError: the option is none, or out of range.
        """
        value = self.text(name)
        if value is None:
            return default
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not low <= number <= high:
            raise self._refusal(name, f"a number in [{low}, {high}]", value)
        return number

    def flag(self, name: str, default: bool) -> bool:
        """A yes or no.

        Raises:
            ValidationError: neither.
        """
        value = self.text(name)
        if value is None:
            return default
        word = value.lower()
        if word not in _TRUE | _FALSE:
            raise self._refusal(name, "true or false", value)
        return word in _TRUE

    def finish(self) -> None:
        """Refuse options that were given and never read.

        Raises:
            ValidationError: names the first of them and the options there are.
        """
        for name in self._left:
            raise ValidationError(
                f"engine {self._engine} has no option {name!r}; it has {', '.join(self._known)}", name
            )

    def _refusal(self, name: str, expected: str, value: str) -> ValidationError:
        return ValidationError(
            f"option {name} of engine {self._engine} must be {expected}, got {value!r}", name
        )

"""StopMatcher: tells an engine that a request's output holds one of its stop strings or regexes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from egress.errors import ValidationError
from egress.request import RegexPattern
from egress.text.decoders import Decoder, plan_for
from egress.text.stop import Scan, listed, stop_strings
from egress.wire import FinishReason, Stop

__all__ = ["MAX_REGEX_TAIL", "StopMatcher"]

# Characters of output a pattern may see before the newest: an admitted search is at worst quadratic, and at
# 1,024 stays in milliseconds (measured for the admission: 4,096 already take 64 ms for `\n+$`).
MAX_REGEX_TAIL = 1024


class _Regex:
    """One stop regex over the end of a growing text."""

    __slots__ = ("_compiled", "_is_bounded", "pattern", "reach")

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        bound = RegexPattern.build(pattern).max_len
        self.reach = min(bound, MAX_REGEX_TAIL)  # characters a match may have
        self._is_bounded = bound <= MAX_REGEX_TAIL
        self._compiled = re.compile(pattern)

    def matches(self, text: str, n_new: int) -> bool:
        """Whether there is a match in reach of the last `n_new` characters, which `text` ends in.

        A match of no characters is none: `a*` stops at an `a`, not at once.
        """
        n_seen = self.reach + n_new - 1 if self._is_bounded else MAX_REGEX_TAIL
        # With a start position `^`, `\b` and lookbehinds still see the real text before it.
        start = max(0, len(text) - n_seen)
        match = self._compiled.search(text, start)
        if match is None or match.end() > match.start():
            return match is not None
        return any(match.end() > match.start() for match in self._compiled.finditer(text, start))


class StopMatcher:
    """Says when one request's output holds one of its stop strings or regexes; for engines.

    Token ids (eos, stop_token_ids) are the engine's own affair. Special tokens count as their text, as
    clients write them in stop strings. Works on complete characters only. A regex sees the characters its
    longest match may have, at most 1,024: a longer match may go unseen.

    Args:
        params: SamplingParams, normalized or not; stop_strs/stop and stop_regex_strs/stop_regex are read.
        tokenizer: any object of the Tokenizer protocol; None only without stops.

    Raises:
        ValidationError: stops without a tokenizer, or a regex that is not admitted.
    """

    __slots__ = ("_decoder", "_keep", "_regexes", "_scans", "_tail")

    def __init__(self, params: Any, tokenizer: Any) -> None:
        self._scans = [Scan(stop) for stop in stop_strings(params)]
        self._regexes = [_Regex(text) for text in listed(params, "stop_regex_strs", "stop_regex") if text]
        self._keep = max((regex.reach for regex in self._regexes), default=0) + 1
        self._tail = ""
        self._decoder: Decoder | None = None
        if self.is_active:
            if tokenizer is None:
                field = "stop" if self._scans else "stop_regex"
                raise ValidationError(f"{field} needs a tokenizer, and none is loaded", field)
            self._decoder = plan_for(tokenizer, skip_special_tokens=False).open()

    @property
    def is_active(self) -> bool:
        """Whether there is anything to match; without it `push` always returns None."""
        return bool(self._scans or self._regexes)

    def push(self, token_ids: Sequence[int]) -> FinishReason | None:
        """The reason to stop that these ids complete, or None.

        Of several the one that ends first, then the one that begins first; strings before regexes.

        Args:
            token_ids: the new output ids, in order; best one step's.

        Returns:
            Stop(matched=) with the stop string or the regex's pattern text, or None.

        Raises:
            DetokenizeError: an id outside the vocabulary.
        """
        if self._decoder is None:
            return None
        for token_id in token_ids:
            matched = self._match(self._decoder.feed((token_id,)))
            if matched is not None:
                return Stop(matched=matched)
        return None

    def _match(self, text: str) -> str | None:
        if not text:
            return None
        ends = [(scan.feed(text), -len(scan.stop), scan.stop) for scan in self._scans]
        found = min((end for end in ends if end[0] >= 0), default=None)
        if self._regexes:
            self._tail = self._tail[-self._keep :] + text
            if found is None:
                for regex in self._regexes:
                    if regex.matches(self._tail, len(text)):
                        return regex.pattern
        return None if found is None else found[2]

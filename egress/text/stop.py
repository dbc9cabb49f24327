"""Stop strings: where they stand in a growing text, what is held back from clients, what is cut.

`Scan` finds one stop string in text that arrives in parts, in time linear in the text whatever the stop
looks like (Knuth-Morris-Pratt), so that no client's stop can slow a step down. `HoldBack` keeps the longest
end of the text that could begin a stop, and no more. `matcher.py` uses the same scan for engines.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["HoldBack", "Scan", "cut_text", "listed", "stop_strings", "trim_ids"]


def trim_ids(token_ids: list[int], matched: object, no_stop_trim: bool) -> list[int]:
    """The ids without the last, which matched an int other than 0; all of them with `no_stop_trim`."""
    if isinstance(matched, int) and matched and not no_stop_trim:
        return token_ids[:-1]
    return token_ids


def cut_text(text: str, matched: str, no_stop_trim: bool) -> str:
    """`text` up to the first `matched`, or just after it with `no_stop_trim`; "" cuts nothing."""
    at = text.find(matched) if matched else -1
    if at < 0:
        return text
    return text[: at + len(matched)] if no_stop_trim else text[:at]


def stop_strings(params: Any) -> list[str]:
    """The stop strings of SamplingParams, normalized or not, without empty ones."""
    return [text for text in listed(params, "stop_strs", "stop") if text]


def listed(params: Any, normalized: str, alias: str) -> Sequence[str]:
    """A field of SamplingParams as a list, from its normalized name or else from the client's."""
    found = getattr(params, normalized, None) or getattr(params, alias, None) or ()
    return [found] if isinstance(found, str) else found


class Scan:
    """Where one stop string stands in a growing text.

    Args:
        stop: the string to find; not empty.
    """

    __slots__ = ("_borders", "n_begun", "stop")

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.n_begun = 0  # characters at the end of the text that begin the stop, fewer than all
        self._borders = [0]  # of each prefix: its longest proper prefix that is also its end; made as needed

    def feed(self, text: str) -> int:
        """The end, in `text`, of the first occurrence that `text` completes; -1 without one."""
        stop, begun, found = self.stop, self.n_begun, -1
        at, n = 0, len(text)
        while at < n:
            if not begun:
                at = text.find(stop[0], at)
                if at < 0:
                    break
            char = text[at]
            while begun and stop[begun] != char:
                begun = self._border(begun)
            if stop[begun] == char:
                begun += 1
            at += 1
            if begun == len(stop):
                if found < 0:
                    found = at
                begun = self._border(begun)
        self.n_begun = begun
        return found

    def _border(self, length: int) -> int:
        """The longest proper prefix of the stop that also ends its prefix of this length."""
        stop, borders = self.stop, self._borders
        while len(borders) < length:
            end = len(borders)
            k = borders[-1]
            while k and stop[k] != stop[end]:
                k = borders[k - 1]
            borders.append(k + 1 if stop[k] == stop[end] else k)
        return borders[length - 1]


class HoldBack:
    """Text that may still turn out to be (part of) a stop string, and so waits.

    Held is the longest end of the text that is a prefix of a stop. A whole stop in a chunk that does not
    end the request is held with all behind it for one more chunk, because an engine may report a stop one
    step late; if that chunk does not end the request either, the engine chose to go on (min_new_tokens).
    """

    __slots__ = ("_heads", "_held", "_scans")

    def __init__(self, stops: Sequence[str]) -> None:
        self._scans = [Scan(stop) for stop in stops]
        self._heads = frozenset(stop[0] for stop in stops)
        self._held = ""

    def feed(self, text: str) -> str:
        """Take `text` and return what can no longer begin a stop."""
        held = self._held
        if not held and self._heads.isdisjoint(text):
            return text
        whole = held + text
        safe = len(whole)
        for scan in self._scans:
            end = scan.feed(text)
            start = len(whole) - scan.n_begun
            if end >= 0:
                start = min(start, len(held) + end - len(scan.stop))
            safe = min(safe, start)
        self._held = whole[safe:]
        return whole[:safe]

    def drain(self, text: str) -> str:
        """Everything held, then `text`: the request ends."""
        whole, self._held = self._held + text, ""
        return whole

"""A recorder of loads and stores: which shared word, in which order, with which value.

The recorder takes the place of the memoryview a body works on. The C body wants real memory, so handles that
are opened to be recorded have the Python body, whichever was chosen.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast
from unittest import mock

from ringbuf import _hooks, _ops, _pyops

__all__ = ["Access", "Log", "RecordingWords", "recording"]


class Access(NamedTuple):
    """One load or store of a shared word.

    Attributes:
        words: which page or area: "producer", "wake", "data", or "c0", "c1" ... for a consumer's page.
        kind: "load" or "store".
        word: which word of it.
        value: what was loaded or stored.
    """

    words: str
    kind: str
    word: int
    value: int


class Log(list[Access]):
    """Accesses in the order in which they happened."""

    def stores(self, words: str | None = None) -> list[Access]:
        """The stores, of one area or of all."""
        return [a for a in self if a.kind == "store" and words in (None, a.words)]

    def first(self, words: str, kind: str, word: int) -> int:
        """At which place of the log a word was first accessed so; ValueError if never."""
        for place, access in enumerate(self):
            if access[:3] == (words, kind, word):
                return place
        raise ValueError(f"no {kind} of {words}[{word}] among {len(self)} accesses")


class RecordingWords:
    """Stands in for a memoryview of words.

    Args:
        label: the area, as Access.words.
        words: the memoryview it stands for.
        before: called with each access before it is made; may raise, and then it is not made.
    """

    __slots__ = ("_before", "_label", "_words")

    def __init__(self, label: str, words: memoryview, before: Callable[[Access], None]) -> None:
        self._label = label
        self._words = words
        self._before = before

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self._words[index]
        value = self._words[index]
        self._before(Access(self._label, "load", index, value))
        # Once more, because whoever looked may have waited here.
        return self._words[index]

    def __setitem__(self, index: int, value: int) -> None:
        self._before(Access(self._label, "store", index, value))
        self._words[index] = value

    def __len__(self) -> int:
        return len(self._words)


@contextlib.contextmanager
def watching(before: Callable[[Access], None]) -> Iterator[None]:
    """Call `before` ahead of each access of handles that are opened in this block."""

    def wrap(label: str, words: memoryview) -> memoryview:
        return cast(memoryview, RecordingWords(label, words, before))

    with (
        mock.patch.object(_hooks, "on_words", wrap),
        mock.patch.object(_ops, "make_writer", _pyops.make_writer),
        mock.patch.object(_ops, "make_reader", _pyops.make_reader),
    ):
        yield


@contextlib.contextmanager
def recording() -> Iterator[Log]:
    """Record the accesses of every handle that is opened in this block, for as long as it lives.

    >>> from ringbuf import layout
    >>> from ringbuf.testing import open_pair
    >>> with recording() as log, open_pair() as (producer, consumer):
    ...     log.clear()
    ...     _ = producer.try_write(1, b"hello")
    ...     last = log.stores()[-1]
    >>> last.words, last.word == layout.P_POS
    ('producer', True)
    """
    log = Log()
    with watching(log.append):
        yield log

"""Events into the cumulative answer.

Text, ids and output families append; input families and hidden states replace (an engine sends them whole, so
the newest are the answer's); completion_tokens add up; of everything else the newest counts. An event that
lacks a family leaves it as it was. Folding a fold's result is the same as folding what went into it, which
is what allows a sink to merge events that wait.

Mirrors: the response accumulators of SGLang's tokenizer manager, without their quadratic list sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from egress.wire.columns import F32, FAMILIES, I32, Family
from egress.wire.event import ChunkEvent, ChunkExtras
from egress.wire.finish_reason import FinishReason

__all__ = ["Fold", "merge_events"]


class _Column:
    """A growing array: elements once appended stay where they are, so views of them stay true."""

    __slots__ = ("_count", "_room")

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._room = np.empty(0, dtype)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def append(self, values: np.ndarray[Any, Any]) -> None:
        start, self._count = self._count, self._count + len(values)
        if self._count > len(self._room):
            # Doubling: every element is copied twice at most, whatever the number of appends.
            room = np.empty(max(16, 2 * self._count), self._room.dtype)
            room[:start] = self._room[:start]
            self._room = room
        self._room[start : self._count] = values

    def view(self) -> np.ndarray[Any, Any]:
        view = self._room[: self._count]
        view.flags.writeable = False
        return view


class _Names(NamedTuple):
    """The ChunkExtras fields of one family; None where it has no such column."""

    val: str
    idx: str | None
    lens: str | None
    txt: str | None

    def all(self) -> list[str]:
        return [name for name in self if name is not None]

    def is_present(self, extras: ChunkExtras) -> bool:
        """It has elements, or at least positions ([0, 0])."""
        if len(getattr(extras, self.val)):
            return True
        return self.lens is not None and len(getattr(extras, self.lens)) > 0


def _names(family: Family) -> _Names:
    return _Names(
        f"{family.name}_val",
        f"{family.name}_idx" if family.has_idx else None,
        f"{family.name}_lens" if family.widths is not None else None,
        f"{family.name}_txt" if family.texts is not None else None,
    )


_APPENDED = [_names(family) for family in FAMILIES if family.name.startswith("out_")]
_REPLACED = [_names(family) for family in FAMILIES if not family.name.startswith("out_")]


class _Family:
    """What one output family has grown to."""

    __slots__ = ("idx", "lens", "names", "texts", "val")

    def __init__(self, names: _Names) -> None:
        self.names = names
        self.val = _Column(F32)
        self.idx = _Column(I32)
        self.lens: list[int] = []
        self.texts: list[str] = []

    def append(self, extras: ChunkExtras) -> None:
        val, idx, lens, txt = self.names
        if txt is not None and len(texts := getattr(extras, txt)):
            self._pad()
            self.texts.extend(texts)
        self.val.append(getattr(extras, val))
        if idx is not None:
            self.idx.append(getattr(extras, idx))
        if lens is not None:
            self.lens.extend(getattr(extras, lens))

    def _pad(self) -> None:
        # Texts stand beside their ids: elements that came without any read as "".
        self.texts.extend([""] * (len(self.val) - len(self.texts)))

    def columns(self) -> dict[str, Any]:
        if self.texts:
            self._pad()
        grown = (self.val.view(), self.idx.view(), self.lens.copy(), self.texts.copy())
        return {name: column for name, column in zip(self.names, grown, strict=True) if name is not None}


class Fold:
    """The answer so far of one request.

    Cost: linear in what is pushed, also when `result` is read after every push, except for the text, which
    each reading joins.

    >>> fold = Fold()
    >>> fold.push(ChunkEvent.make("a", [1, 2], text="he"))
    >>> fold.push(ChunkEvent.make("a", [3], text="llo"))
    >>> fold.result.text, fold.result.token_ids.tolist(), fold.result.completion_tokens
    ('hello', [1, 2, 3], 3)
    """

    __slots__ = ("_completion_tokens", "_finish_reason", "_grown", "_last", "_texts", "_token_ids", "_whole")

    def __init__(self) -> None:
        self._last: ChunkEvent | None = None
        self._finish_reason: FinishReason | None = None
        self._completion_tokens = 0
        self._texts: list[str] = []
        self._token_ids = _Column(I32)
        self._grown: dict[_Names, _Family] = {}
        self._whole: dict[str, Any] = {}

    def push(self, event: ChunkEvent) -> None:
        """Take the next event.

        Args:
            event: must own its columns (`ChunkEvent.detach`) if its frame ends before this fold does.
        """
        self._last = event
        if event.finish_reason is not None:
            self._finish_reason = event.finish_reason
        self._completion_tokens += event.completion_tokens
        if event.text:
            self._texts.append(event.text)
        if event.n_tokens:
            self._token_ids.append(event.token_ids)
        if event.extras is not None:
            self._push_extras(event.extras)

    def _push_extras(self, extras: ChunkExtras) -> None:
        for names in _REPLACED:
            if names.is_present(extras):
                for name in names.all():
                    self._whole[name] = getattr(extras, name)
        for names in _APPENDED:
            if names.is_present(extras):
                family = self._grown.get(names)
                if family is None:
                    family = self._grown[names] = _Family(names)
                family.append(extras)

    @property
    def text(self) -> str:
        """All text so far."""
        if len(self._texts) > 1:
            self._texts = ["".join(self._texts)]
        return self._texts[0] if self._texts else ""

    @property
    def completion_tokens(self) -> int:
        """Ids produced so far, before any were trimmed."""
        return self._completion_tokens

    @property
    def result(self) -> ChunkEvent:
        """The answer so far as one event, with views that stay true when more is pushed.

        Raises:
            ValueError: nothing was pushed.
        """
        last = self._last
        if last is None:
            raise ValueError("no event was pushed")
        return ChunkEvent.make(
            last.rid,
            self._token_ids.view(),
            self._finish_reason,
            last.prompt_tokens,
            self.text,
            self._completion_tokens,
            self._extras(),
        )

    def _extras(self) -> ChunkExtras | None:
        if not self._grown and not self._whole:
            return None
        columns = dict(self._whole)
        for family in self._grown.values():
            columns |= family.columns()
        return ChunkExtras(**columns)


def merge_events(events: Sequence[ChunkEvent]) -> ChunkEvent:
    """One event with everything `events` of one request bring, as `Fold` defines it.

    Raises:
        ValueError: there are none.
    """
    if not events or any([event.extras is not None for event in events]):
        fold = Fold()
        for event in events:
            fold.push(event)
        return fold.result
    # The same in a few sweeps: text and ids alone are what a burst is nearly always made of.
    return ChunkEvent.make(
        events[-1].rid,
        np.concatenate([event.token_ids for event in events]),
        next((event.finish_reason for event in reversed(events) if event.finish_reason is not None), None),
        events[-1].prompt_tokens,
        "".join([event.text for event in events]),
        sum([event.completion_tokens for event in events]),
    )

"""A BATCH that was accepted: one step of many requests, as a sequence of events.

The header has become Python lists, the data columns one numpy view each, and events are made by `map` over
the columns when somebody asks for them. So a frame costs a fixed number of Python steps, and an event about a
tenth of a microsecond; nothing here loops over requests in bytecode, except over those that carry
log-probabilities or hidden states. egress.wire.accept makes batches.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from itertools import compress, repeat
from operator import index, itemgetter
from typing import Any, TypeAlias

import msgspec

from egress.wire.columns import I32Array
from egress.wire.event import ChunkEvent, ChunkExtras, WholeEvent
from egress.wire.family import FamilyColumns
from egress.wire.finish_reason import FinishReason
from egress.wire.owned import cut_families, cut_ids
from egress.wire.sieve import sieve

__all__ = ["Batch", "Place", "Reasons", "places_of"]

Reasons: TypeAlias = list[FinishReason | None]
Place: TypeAlias = int | slice | None

_NONES = repeat(None)
_ONES = repeat(1)
_BLANKS = repeat("")
# Per field of ChunkExtras, what a request without that column gets. The empty lists are shared like the empty
# arrays: eleven of its own would cost an event more than all the rest, and nobody may change an event.
_NO_EXTRAS: dict[str, Iterable[Any]] = {
    name: repeat(getattr(ChunkExtras(), name)) for name in ChunkExtras.__struct_fields__
}
# Places of requests in a frame. Integers above 256 are objects to be made, 15 ns each; these are made once.
_PLACES = list(range(16384))


class Batch(msgspec.Struct, frozen=True, eq=False, gc=False):
    """An accepted BATCH frame: a sequence of events, made as they are asked for.

    Args:
        rids: the requests, in the frame's order; duplicates are kept.
        token_ids: the ids of all requests, one int32 view of the frame, shape (all ids,).
        endings: the places of the requests that end with this frame, ascending.

    `batch[i]`, `for event in batch` and `select` make new ChunkEvents, whose arrays are views of the frame
    and keep its buffer alive. A batch may be read from several threads.
    """

    rids: list[str]
    token_ids: I32Array
    _reasons: Reasons | None
    _prompts: list[int]
    _counts: list[int] | None
    _column: I32Array  # token_ids in the shape that _places index
    _places: Sequence[Place]
    _texts: Sequence[str] | None = None
    _completions: Sequence[int] | None = None
    _families: Sequence[FamilyColumns] = ()
    endings: Sequence[int] = ()
    _body: Any = None  # the frame, if it is large and can't change

    def __len__(self) -> int:
        return len(self.rids)

    def __reduce__(self) -> tuple[type[Batch], tuple[Any, ...]]:
        # The frame stays behind: a view of it can't be pickled, and all that it says is in the columns.
        return Batch, msgspec.structs.astuple(self)[:-1]

    def __iter__(self) -> Iterator[ChunkEvent]:
        n = len(self.rids)
        if n == 1:
            return iter((self._event(0),))
        extras = self._extras(range(n)) if self._families else None
        columns = self._columns(_whole, repeat(self._column), self._places, extras)
        return map(WholeEvent, *columns)

    def __getitem__(self, i: int) -> ChunkEvent:
        n = len(self.rids)
        at = index(i)
        if not -n <= at < n:
            raise IndexError(f"event {at} of {n}")
        return self._event(at % n)

    def select(self, wanted: Container[str]) -> list[ChunkEvent]:
        """Make the events of some requests only.

        Args:
            wanted: rids; best a set, a frozenset or a dict. It is asked once per request of the frame.

        Returns:
            The events whose rid is in `wanted`, in the frame's order.

        Cost: a membership test per request of the frame, less for a set or dict of few; an event per request
        wanted.
        """
        n = len(self.rids)
        if n == 1:
            return [self._event(0)] if self.rids[0] in wanted else []
        rids: Iterable[str] = self.rids
        places: Sequence[int] | None = None if self._body is None else sieve(self._body, n, wanted)
        if places is None:
            places = places_of(n)
        else:
            rids = map(self.rids.__getitem__, places)
        return self._events(list(compress(places, map(wanted.__contains__, rids))))

    def own(self, at: Sequence[int] | None = None) -> list[ChunkEvent]:
        """Make events that own what they carry, so that they may outlive the frame.

        Args:
            at: the places of the requests wanted, ascending; None: all.

        Returns:
            As `[self[i].detach() for i in at]`, for a fraction of its cost: the columns are cut as a whole.
        """
        n = len(self.rids)
        cells: list[Any] = []
        readers: list[Any] | None = None
        if self._families:
            cut = cut_families(self.token_ids, self._counts, n, self._families)
            if cut is None:
                return [event.detach() for event in (self if at is None else self._events(list(at)))]
            members, rows, reader = cut
            if len(members) == n:
                cells, readers = rows, [reader] * n
            else:
                cells, readers = cut_ids(self.token_ids, self._counts), [None] * n
                for member, row in zip(members, rows, strict=True):
                    cells[member], readers[member] = row, reader
        else:
            cells = cut_ids(self.token_ids, self._counts)

        def wanted(column: Sequence[Any]) -> Iterable[Any]:
            return column if at is None else map(column.__getitem__, at)

        if readers is not None or self._counts is not None or self._completions is not None:
            owned = None if readers is None else wanted(readers)
            return list(map(WholeEvent, *self._columns(wanted, _NONES, wanted(cells), owned)))
        columns = [wanted(self.rids), wanted(self._prompts), wanted(cells)]
        if self._texts is not None:
            columns.append(wanted(self._texts))
        events = list(map(ChunkEvent, *columns))
        if self._reasons is not None:
            reasons = self._reasons if at is None else list(map(self._reasons.__getitem__, at))
            for slot in self.endings if at is None else compress(places_of(len(at)), reasons):
                event = events[slot]
                events[slot] = WholeEvent(
                    event.rid, event.prompt_tokens, event._place, event.text, None, reasons[slot]
                )
        return events

    @property
    def prompts(self) -> list[int]:
        """Tokens of each request's prompt."""
        return self._prompts

    @property
    def most_tokens(self) -> int:
        """Ids of the request that has most of them in this frame."""
        return 1 if self._counts is None else max(self._counts, default=0)

    @property
    def is_usual(self) -> bool:
        """Whether nobody ends and everybody has one token, and at most a text with it."""
        return (
            self._reasons is None
            and self._counts is None
            and self._completions is None
            and not self._families
        )

    def _event(self, at: int) -> ChunkEvent:
        """Make the event of the request at this place."""
        count = 1 if self._counts is None else self._counts[at]
        if self._texts is None and self._reasons is None and self._completions is None and not self._families:
            place = self._places[at]
            return WholeEvent(self.rids[at], self._prompts[at], place, "", self._column, None, count, count)
        return WholeEvent(
            self.rids[at],
            self._prompts[at],
            self._places[at],
            "" if self._texts is None else self._texts[at],
            self._column,
            None if self._reasons is None else self._reasons[at],
            count,
            count if self._completions is None else self._completions[at],
            self._extras((at,))[0] if self._families else None,
        )

    def _events(self, at: list[int]) -> list[ChunkEvent]:
        """Make the events of the requests at these places."""

        if len(at) > 1:
            # One call per column, and a third of what `map` costs per entry.
            picked: Callable[[Sequence[Any]], Iterable[Any]] = itemgetter(*at)
        else:

            def picked(column: Sequence[Any]) -> Iterable[Any]:
                return [column[place] for place in at]

        extras = self._extras(at) if self._families else None
        columns = self._columns(picked, repeat(self._column), picked(self._places), extras)
        return list(map(WholeEvent, *columns))

    def _columns(
        self,
        picked: Callable[[Sequence[Any]], Iterable[Any]],
        column: Iterable[Any],
        places: Iterable[Any],
        extras: Iterable[Any] | None,
    ) -> list[Iterable[Any]]:
        """The columns WholeEvents are made of, as far as any of the frame's events differs from the defaults.

        Args:
            picked: gives the entries wanted of a column with one entry per request.
            column, places, extras: of these events; extras None: they have none.
        """
        counts, completions = self._counts, self._completions
        texts = _BLANKS if self._texts is None else picked(self._texts)
        columns = [picked(self.rids), picked(self._prompts), places, texts, column]
        differ = extras is not None or counts is not None or completions is not None
        if differ or self._reasons is not None:
            columns.append(_NONES if self._reasons is None else picked(self._reasons))
        if differ:
            columns.append(_ONES if counts is None else picked(counts))
            if completions is not None:
                columns.append(picked(completions))
            else:
                columns.append(_ONES if counts is None else picked(counts))
        if extras is not None:
            columns.append(extras)
        return columns

    def _extras(self, at: Sequence[int]) -> list[ChunkExtras | None]:
        """Make the extras of the requests at these places, None for a request without any entry.

        Cost: per request that has some.
        """
        found: list[ChunkExtras | None] = [None] * len(at)
        having: set[int] = set()
        for family in self._families:
            having.update(compress(range(len(at)), map(family.lens.__getitem__, at)))
        if not having:
            return found
        slots = list(having)
        members = [at[slot] for slot in slots]
        columns = dict(_NO_EXTRAS)
        for family in self._families:
            columns.update(family.columns_of(members))
        for slot, extras in zip(slots, map(ChunkExtras, *columns.values()), strict=False):
            found[slot] = extras
        return found


def _whole(column: Sequence[Any]) -> Sequence[Any]:
    return column


def places_of(n: int) -> Sequence[int]:
    """0 to n - 1, without making integers where it can be helped."""
    return _PLACES if n <= len(_PLACES) else range(n)

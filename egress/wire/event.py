"""What one request got in one step.

A decoded event is a window on its frame: it holds the frame's token column and its own place in it, and makes
its `token_ids` array when asked, since most readers only pass on text and counts. Whoever keeps an event
longer than its frame detaches it: a queued event must never pin a ring.

An event that owns what it carries has it in one of two forms: arrays of its own, or plain values, of which
arrays are made when asked (egress.wire.owned makes those, for all requests of a frame at once).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import msgspec
import numpy as np

from egress.wire.columns import I32, NO_F32, NO_I32, F32Array, I32Array
from egress.wire.finish_reason import FinishReason

__all__ = ["ChunkEvent", "ChunkExtras", "WholeEvent"]


class ChunkExtras(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Log-probabilities, alternatives and hidden states of one request in one step.

    A `_val` is a float32 view and an `_idx` an int32 view of as many elements. In the ragged families (top,
    tid) and in hidden, `_lens` has one width per position, and the elements of all positions follow each
    other; width 0 means no data at that position. A `_txt` has one string per element, or is empty. What a
    request lacks is empty, never None. Views live as long as the frame; see ChunkEvent.detach.
    """

    out_lp_val: F32Array = NO_F32
    out_lp_idx: I32Array = NO_I32
    in_lp_val: F32Array = NO_F32
    in_lp_idx: I32Array = NO_I32
    out_top_val: F32Array = NO_F32
    out_top_idx: I32Array = NO_I32
    out_top_lens: Sequence[int] = []
    in_top_val: F32Array = NO_F32
    in_top_idx: I32Array = NO_I32
    in_top_lens: Sequence[int] = []
    out_tid_val: F32Array = NO_F32
    out_tid_idx: I32Array = NO_I32
    out_tid_lens: Sequence[int] = []
    in_tid_val: F32Array = NO_F32
    in_tid_idx: I32Array = NO_I32
    in_tid_lens: Sequence[int] = []
    hidden_val: F32Array = NO_F32
    hidden_lens: Sequence[int] = []
    out_lp_txt: Sequence[str] = []
    in_lp_txt: Sequence[str] = []
    out_top_txt: Sequence[str] = []
    in_top_txt: Sequence[str] = []
    out_tid_txt: Sequence[str] = []
    in_tid_txt: Sequence[str] = []

    def detach(self) -> ChunkExtras:
        """Give the same extras over arrays of their own."""
        own: dict[str, Any] = {}
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if len(value):
                own[name] = value.copy() if isinstance(value, np.ndarray) else value
        return ChunkExtras(**own)


class _Reader(Protocol):
    """What makes extras of an event's own bytes; see egress.wire.owned."""

    def extras_of(self, row: Any) -> ChunkExtras:
        """The extras in `row`."""


class ChunkEvent(msgspec.Struct, frozen=True, eq=False, gc=False):
    """One request's part of one step.

    Args:
        rid: the request.
        finish_reason: None while the request goes on; anything else makes this its last event.
        prompt_tokens: tokens of its prompt.
        n_tokens: ids in this event.
        completion_tokens: ids this step produced, before any were trimmed; n_tokens where the frame says
            nothing.
        text: the text these ids completed, "" where the frame has none.
        extras: ChunkExtras, or None when this request has none in this step.

    Events are compared by identity and never change. Make one by hand with ChunkEvent.make.
    """

    # The batch codec fills these by position, one `map` over the columns; see egress.wire.batch. In a step of
    # thousands of requests nearly all events are of this class and not of WholeEvent: one id, nothing ended,
    # nothing besides. What they have in common is the class's, and they take half the memory, which is most
    # of what making and keeping them costs.
    rid: str
    prompt_tokens: int
    # Of a window: where its ids lie in the frame's, None being all of them. Without a column the place is the
    # event's own: one id, or bytes (first of several, maybe) that begin with its ids.
    _place: Any
    text: str = ""
    if TYPE_CHECKING:
        _column: I32Array | None = None  # of a window: the frame's ids
        finish_reason: FinishReason | None = None
        n_tokens: int = 1
        completion_tokens: int = 1
        _extras: ChunkExtras | _Reader | None = None
    else:
        _column: ClassVar[None] = None
        finish_reason: ClassVar[None] = None
        n_tokens: ClassVar[int] = 1
        completion_tokens: ClassVar[int] = 1
        _extras: ClassVar[None] = None

    @property
    def token_ids(self) -> I32Array:
        """The ids of this step: int32, shape (n_tokens,), read-only; of a window on a frame a view that keeps
        the frame's buffer alive.

        Cost: one small array object per access, unless the event owns an array or is alone in its frame.
        """
        place = self._place
        if self._column is not None:
            return self._column if place is None else self._column[place]
        if type(place) is int:
            ids: I32Array = np.array((place,), I32)
            return ids
        return np.frombuffer(place if type(place) is bytes else place[0], I32, self.n_tokens)

    @property
    def ids(self) -> list[int]:
        """The ids of this step as plain integers: for one id that the event owns, cheaper than an array."""
        if self._column is None and type(self._place) is int:
            return [self._place]
        ids: list[int] = self.token_ids.tolist()
        return ids

    @property
    def extras(self) -> ChunkExtras | None:
        """What this request has besides ids and text in this step, or None.

        Cost: of an event whose frame was cut up, a ChunkExtras and its arrays per access.
        """
        extras = self._extras
        if extras is None or isinstance(extras, ChunkExtras):
            return extras
        return extras.extras_of(self._place)

    @staticmethod
    def make(
        rid: str,
        token_ids: Sequence[int] | I32Array = NO_I32,
        finish_reason: FinishReason | None = None,
        prompt_tokens: int = 0,
        text: str = "",
        completion_tokens: int | None = None,
        extras: ChunkExtras | None = None,
    ) -> ChunkEvent:
        """Make an event that owns its ids, from an int32 array (taken as it is) or any sequence (copied).

        >>> event = ChunkEvent.make("a", [5, 6], text="hi")
        >>> event.token_ids, event.n_tokens, event.completion_tokens
        (array([5, 6], dtype=int32), 2, 2)
        """
        column: I32Array = np.asarray(token_ids, I32)
        count = len(column)
        produced = count if completion_tokens is None else completion_tokens
        return WholeEvent(rid, prompt_tokens, None, text, column, finish_reason, count, produced, extras)

    def detach(self) -> ChunkEvent:
        """Give the same event over arrays of its own, so that it may outlive the frame.

        Cost: its own few bytes are copied, never the frame; nothing of an event that owns what it carries.
        """
        if self._column is None:
            return self
        extras = self.extras
        return WholeEvent(
            self.rid,
            self.prompt_tokens,
            None,
            self.text,
            self.token_ids.copy(),
            self.finish_reason,
            self.n_tokens,
            self.completion_tokens,
            None if extras is None else extras.detach(),
        )

    def __repr__(self) -> str:
        shown: list[tuple[str, Any]] = [("token_ids", self.token_ids.tolist())]
        shown += [(name, getattr(self, name)) for name in ("finish_reason", "prompt_tokens", "text")]
        return f"ChunkEvent({self.rid!r}, {', '.join(f'{name}={value!r}' for name, value in shown)})"


class WholeEvent(ChunkEvent, frozen=True, eq=False, gc=False):
    """An event that may differ from the usual one in anything; what is a window on a frame always is one."""

    _column: I32Array | None = None
    finish_reason: FinishReason | None = None
    n_tokens: int = 1
    completion_tokens: int = 1
    _extras: ChunkExtras | _Reader | None = None

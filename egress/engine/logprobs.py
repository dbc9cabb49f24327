"""Log-probability columns of a step, for the rows that want them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from egress.engine.distribution import Distribution
from egress.engine.protocol import EngineRequest, TokenBatch

__all__ = ["LogprobColumns", "LogprobWants", "logs"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_FAMILIES = ("out_lp", "in_lp", "out_top", "in_top", "out_tid", "in_tid")


class LogprobWants(msgspec.Struct, frozen=True):
    """What one request wants to know of each position.

    Attributes:
        top: alternatives per position.
        ids: ids to look up at each position.
        prompt: the prompt, until its columns were written; then None.
        start: first position of the prompt that is wanted.
    """

    top: int
    ids: Sequence[int]
    prompt: Sequence[int] | None
    start: int

    @classmethod
    def of(cls, request: EngineRequest) -> LogprobWants | None:
        """What this request wants; None when it wants no log-probabilities at all."""
        if not request.return_logprob:
            return None
        prompt = request.input_ids if request.logprob_start_len >= 0 else None
        return cls(
            request.top_logprobs_num, request.token_ids_logprob or (), prompt, request.logprob_start_len
        )

    def after_prompt(self) -> LogprobWants:
        """The same without the prompt."""
        return self if self.prompt is None else msgspec.structs.replace(self, prompt=None)


class _Model(Protocol):
    def advance(self, contexts: Ints, tokens: Ints) -> tuple[Ints, Floats]: ...
    def read(self, context: Ints, tokens: Sequence[int]) -> tuple[Ints, Floats]: ...


class LogprobColumns:
    """The six families of one step, filled row by row, then written into its batch.

    Args:
        model: scores tokens in contexts.
        distribution: the whole distribution after one context.
        blank: the context that prompts begin in, shape (1, order - 1).
    """

    def __init__(self, model: _Model, distribution: Callable[[Ints], Distribution], blank: Ints) -> None:
        self._model = model
        self._distribution = distribution
        self._blank = blank
        self._cells: dict[str, dict[int, tuple[list[Any], list[Any]]]] = {}

    def add(
        self, row: int, wants: LogprobWants, context: Ints, tokens: Sequence[int], logprob: float
    ) -> None:
        """Fill one row.

        Args:
            row: its place in the batch.
            wants: what it wants.
            context: where its token was drawn, shape (order - 1,).
            tokens: that token, or nothing on a row without one.
            logprob: of that token, by the model.
        """
        if wants.prompt is not None:
            self._add_prompt(row, wants)
        self._put("out_lp", row, [logprob] * len(tokens), list(tokens))
        self._add_alternatives("out", row, wants, np.repeat(context[None], len(tokens), axis=0), [])

    def write(self, batch: TokenBatch) -> None:
        """Set the columns of every family that has a row; the others stay empty."""
        n = len(batch.rids)
        for family in _FAMILIES:
            cells = self._cells.get(family)
            if cells:
                rows = [cells.get(i) for i in range(n)]
                setattr(batch, f"{family}_val", [row and row[0] for row in rows])
                setattr(batch, f"{family}_idx", [row and row[1] for row in rows])

    def _add_prompt(self, row: int, wants: LogprobWants) -> None:
        prompt = wants.prompt or ()
        contexts, p = self._model.read(self._blank, prompt)
        values: list[float | None] = logs(p[wants.start :])
        # Nothing stands before position 0, so there is nothing to predict it from.
        unknown = [None] if wants.start == 0 and values else []
        values[: len(unknown)] = unknown
        self._put("in_lp", row, values, list(prompt[wants.start :]))
        self._add_alternatives("in", row, wants, contexts[wants.start + len(unknown) : len(prompt)], unknown)

    def _add_alternatives(
        self, side: str, row: int, wants: LogprobWants, contexts: Ints, unknown: list[None]
    ) -> None:
        if wants.top:
            tops = [self._distribution(context).top(wants.top) for context in contexts]
            self._put(f"{side}_top", row, unknown + [t[1] for t in tops], unknown + [t[0] for t in tops])
        if wants.ids:
            ids = np.array(wants.ids, np.int64)
            everywhere = np.repeat(contexts, len(ids), axis=0)
            p = self._model.advance(everywhere, np.tile(ids, len(contexts)))[1]
            values = logs(p.reshape(len(contexts), len(ids)))
            self._put(f"{side}_tid", row, unknown + values, unknown + [list(wants.ids)] * len(contexts))

    def _put(self, family: str, row: int, values: list[Any], ids: list[Any]) -> None:
        self._cells.setdefault(family, {})[row] = (values, ids)


def logs(probabilities: Floats) -> list[Any]:
    """Natural logarithms, nested lists in the shape of the array."""
    with np.errstate(divide="ignore"):  # an id that names no token: minus infinity
        values: list[Any] = np.log(probabilities).tolist()
    return values

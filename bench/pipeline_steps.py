"""What an engine makes in one step, the same for every transport of `pipeline_end_to_end`.

Both processes build the same steps from the same seed, so the receiver knows what every sink must hold. In
most kinds the same requests run all the time; in "churn" every step ends some of them and the next one begins
with as many others, at the end of its rows, as in an engine that is kept full.
Log-probabilities and hidden states are arrays, as they come off a device; a transport that ships lists makes
them itself, as servers do (`tolist`).
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import numpy as np

KINDS = ("plain", "churn", "logprobs", "hidden")
# Answers of 200 tokens: of 200 requests one ends in a step.
CHURN = 200
TOP = 5
HIDDEN = 4096

_WORDS = (
    " the",
    " of",
    "ing",
    " a",
    ".",
    " Tag",
    "er",
    "\n",
    " schön",
    "你好",
    " token",
    "s",
    " 1",
    " quickly",
)


class Step(NamedTuple):
    """One step, by columns; an array's first dimension is the request, its second the position."""

    rids: list[str]
    finish_reasons: list[Any]
    prompt_tokens: list[int]
    token_ids: list[list[int]]
    texts: list[str]
    completion_tokens: list[int]
    out_lp_val: Any = None
    out_lp_idx: Any = None
    out_top_val: Any = None
    out_top_idx: Any = None
    hidden: Any = None


class Script:
    """The steps of one case, `n` requests and one token each, without an end."""

    def __init__(self, kind: str, n: int) -> None:
        self._draw = random.Random(n)
        self._kind = kind
        self._n = n
        self._at = 0
        self._rids = [self._rid() for _ in range(n)]
        self._prompts = [self._draw.randrange(1, 4000) for _ in range(n)]
        # Made once where nothing changes but the tokens: to be sent in turns.
        self._made = [] if kind == "churn" else [self._step(at) for at in range(4)]

    def take(self, count: int, rows_only: bool = False) -> list[Step]:
        """The next steps.

        Args:
            rows_only: the tokens are not needed: where they are made anew for each step, they are left out.
        """
        start, self._at = self._at, self._at + count
        if self._kind == "churn":
            return [self._turn_over(at, rows_only) for at in range(start, self._at)]
        return [self._made[at % len(self._made)] for at in range(start, self._at)]

    def _rid(self) -> str:
        return f"{self._draw.getrandbits(128):032x}"

    def _rows(self) -> Step:
        # Distinct lists, as from an engine: pickle would write a shared one once.
        return Step(list(self._rids), [None] * self._n, list(self._prompts), [], [], [])

    def _step(self, at: int) -> Step:
        n = self._n
        draw, arrays = random.Random(n * 1_000_003 + at), np.random.default_rng([n, at])
        step = self._rows()._replace(
            token_ids=[[draw.randrange(150_000)] for _ in range(n)],
            texts=[draw.choice(_WORDS) for _ in range(n)],
            completion_tokens=[1] * n,
        )
        if self._kind == "logprobs":
            step = step._replace(
                out_lp_val=-arrays.random((n, 1), np.float32),
                out_lp_idx=np.array(step.token_ids, np.int32),
                out_top_val=-arrays.random((n, 1, TOP), np.float32),
                out_top_idx=arrays.integers(0, 150_000, (n, 1, TOP), np.int32),
            )
        elif self._kind == "hidden":
            step = step._replace(hidden=arrays.random((n, 1, HIDDEN), np.float32))
        return step

    def _turn_over(self, at: int, rows_only: bool) -> Step:
        """A step that ends some requests; others take their places from the next one on."""
        step = self._rows() if rows_only else self._step(at)
        ending = sorted(self._draw.sample(range(self._n), max(1, self._n // CHURN)), reverse=True)
        for row in ending:
            step.finish_reasons[row] = {"type": "length", "length": 200}
            del self._rids[row], self._prompts[row]
        for _ in ending:
            self._rids.append(self._rid())
            self._prompts.append(self._draw.randrange(1, 4000))
        return step

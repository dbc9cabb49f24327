"""What an engine makes in one step, the same for every transport of `pipeline_end_to_end`.

Both processes build the same steps from the same seed, so the receiver knows what every sink must hold.
Log-probabilities and hidden states are arrays, as they come off a device; a transport that ships lists makes
them itself, as servers do (`tolist`).
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import numpy as np

KINDS = ("plain", "logprobs", "hidden")
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


def make_steps(kind: str, n: int, count: int = 4) -> list[Step]:
    """The steps of one case, to be sent in turns: `n` requests, one token each."""
    draw = random.Random(n)
    arrays = np.random.default_rng(n)
    rids = [f"{draw.getrandbits(128):032x}" for _ in range(n)]
    prompts = [draw.randrange(1, 4000) for _ in range(n)]
    steps = []
    for _ in range(count):
        ids = [[draw.randrange(150_000)] for _ in range(n)]
        texts = [draw.choice(_WORDS) for _ in range(n)]
        # Distinct lists, as from an engine: pickle would write a shared one once.
        step = Step(list(rids), [None] * n, list(prompts), ids, texts, [1] * n)
        if kind == "logprobs":
            step = step._replace(
                out_lp_val=-arrays.random((n, 1), np.float32),
                out_lp_idx=np.array(ids, np.int32),
                out_top_val=-arrays.random((n, 1, TOP), np.float32),
                out_top_idx=arrays.integers(0, 150_000, (n, 1, TOP), np.int32),
            )
        elif kind == "hidden":
            step = step._replace(hidden=arrays.random((n, 1, HIDDEN), np.float32))
        steps.append(step)
    return steps

"""The requests an n-gram engine runs: one `Run` each, and their rows in one `Table` of arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from egress.engine.logprobs import LogprobWants
from egress.engine.protocol import EngineRequest
from egress.engine.sampler import Adjuster
from egress.request.sampling import TOP_K_ALL
from egress.text import StopMatcher, Tokenizer
from egress.wire import FinishReason, Stop

__all__ = ["Run", "Table"]

_NO_LIMIT = int(np.iinfo(np.int64).max)


class Run:
    """One running request: what its row in the table does not hold.

    `min_new_tokens` delays every end but the length: until it is reached the ending ids are masked, and
    the text generated so far is never searched for stop strings and regexes (vLLM's reading of min_tokens).

    Args:
        request: verified.
        ends: the tokenizer's end tokens.
        tokenizer: gives the text that stop strings and regexes are looked for in.
        key: of the request's random numbers.
    """

    def __init__(self, request: EngineRequest, ends: Iterable[int], tokenizer: Tokenizer, key: int) -> None:
        sampling = request.sampling
        self.rid = request.rid
        self.prompt = request.input_ids
        self.prompt_tokens = len(request.input_ids)
        self.sampling = sampling
        self.key = key
        self.is_gone = False
        self.wants = LogprobWants.of(request)
        self.hidden: list[NDArray[np.float32]] | None = [] if request.return_hidden_states else None
        self.filters = (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p)
        self.stop_ids = frozenset(sampling.stop_token_ids or ())
        endings = {i for i in self.stop_ids if 0 <= i < tokenizer.vocab_size}
        if not sampling.ignore_eos:
            endings.update(ends)
        self.adjuster = Adjuster(sampling, endings)
        self._matcher: StopMatcher | None = None
        if sampling.stop_strs or sampling.stop_regex_strs:
            self._matcher = StopMatcher(sampling, tokenizer)

    @property
    def is_shaped(self) -> bool:
        """Whether its distribution is another than the model's own at every step."""
        sampling = self.sampling
        filtered = sampling.temperature != 1.0 or sampling.top_p < 1.0 or sampling.min_p > 0.0
        return filtered or sampling.top_k < TOP_K_ALL or self.adjuster.changes_always

    @property
    def is_watched(self) -> bool:
        """Whether each of its tokens has to be looked at one by one."""
        looks = self.stop_ids or self._matcher is not None or self.hidden is not None
        return bool(looks) or self.adjuster.penalizes

    def reason(self, token: int, produced: int) -> FinishReason | None:
        """Note one generated token and say whether it ends the request, by an id or by its text.

        Args:
            token: the id.
            produced: how many tokens the request has with it.
        """
        if self.adjuster.penalizes:
            self.adjuster.count(token)
        if produced <= self.sampling.min_new_tokens:
            return None
        if token in self.stop_ids:
            return Stop(matched=token)
        return None if self._matcher is None else self._matcher.push([token])


class Table(msgspec.Struct):
    """One row per running request, in the order of the runs.

    Attributes:
        contexts: int64 (rows, order - 1), where each stands in the model.
        keys: uint64, of its random numbers.
        produced: int64, tokens so far.
        limit: int64, `max_new_tokens`, or the largest int64.
        ends_after: int64, `min_new_tokens`.
        shaped, watched, stops_at_end: bool; see `Run`, and whether end tokens end it.
    """

    contexts: NDArray[np.int64]
    keys: NDArray[np.uint64]
    produced: NDArray[np.int64]
    limit: NDArray[np.int64]
    ends_after: NDArray[np.int64]
    shaped: NDArray[np.bool_]
    watched: NDArray[np.bool_]
    stops_at_end: NDArray[np.bool_]

    @classmethod
    def of(cls, runs: Sequence[Run], contexts: NDArray[np.int64]) -> Table:
        """The rows of new requests, which stand in `contexts`."""
        limits = [run.sampling.max_new_tokens for run in runs]
        return cls(
            contexts,
            np.array([run.key for run in runs], np.uint64),
            np.zeros(len(runs), np.int64),
            np.array([_NO_LIMIT if limit is None else limit for limit in limits], np.int64),
            np.array([run.sampling.min_new_tokens for run in runs], np.int64),
            np.array([run.is_shaped for run in runs], np.bool_),
            np.array([run.is_watched for run in runs], np.bool_),
            np.array([not run.sampling.ignore_eos for run in runs], np.bool_),
        )

    def plus(self, other: Table) -> Table:
        """These rows, then the others."""
        mine, theirs = msgspec.structs.astuple(self), msgspec.structs.astuple(other)
        return Table(*(np.concatenate(pair) for pair in zip(mine, theirs, strict=True)))

    def where(self, mask: NDArray[np.bool_]) -> Table:
        """The rows where `mask` is true."""
        return Table(*(column[mask] for column in msgspec.structs.astuple(self)))

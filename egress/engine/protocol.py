"""What an engine is: three methods, the request they take, the batch they return.

A shard calls `submit` and `abort` between steps and `step` in a loop, all from one thread. The protocol
knows nothing of text, rings or processes, and an engine never sleeps: pace and waiting are the shard's.

A `TokenBatch` has one row per request that made tokens in this step, as columns of the names and shapes
that `egress.encode_batch` takes, so a shard passes them on as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec

from egress.errors import ValidationError
from egress.request import SamplingParams
from egress.wire import FinishReason

__all__ = ["Engine", "EngineRequest", "TokenBatch", "verify_batch", "verify_request"]

Row = Sequence[Any] | None


class EngineRequest(msgspec.Struct):
    """One request as an engine gets it: validated, normalized, its prompt already token ids.

    Attributes:
        rid: unique among the requests that run in this engine.
        input_ids: the prompt; may be empty.
        sampling: normalized and verified parameters.
        top_logprobs_num: alternatives per position; 0 = none. Needs `return_logprob`.
        token_ids_logprob: ids whose log-probabilities are wanted at every position. Needs `return_logprob`.
        return_logprob: log-probabilities of the sampled tokens.
        return_hidden_states: one vector per generated token.
        logprob_start_len: first prompt position whose log-probability is wanted; -1 = none of the prompt.
    """

    rid: str
    input_ids: Sequence[int]
    sampling: SamplingParams
    top_logprobs_num: int = 0
    token_ids_logprob: list[int] | None = None
    return_logprob: bool = False
    return_hidden_states: bool = False
    logprob_start_len: int = -1


class TokenBatch(msgspec.Struct, kw_only=True):
    """The rows of one step, column by column.

    Every column is empty or has one entry per rid. The lists and what is in them belong to the engine
    and may be shared between rows and steps: read them before the next call of `step`, never change them.

    Attributes:
        rids, finish_reasons, prompt_tokens: one each; a reason of None means that the request goes on.
        token_ids: the ids of this step; may be empty on a terminal row.
        out_lp_val, out_lp_idx: per row one float and one id per token, or None.
        in_lp_val, in_lp_idx: the same for the prompt, once, in the request's first row; the value of
            position 0 is None, for nothing stands before it.
        out_top_*, in_top_*: per row, per position, the alternatives, most likely first, or None.
        out_tid_*, in_tid_*: per row, per position, the values of `token_ids_logprob` in its order, or None.
        hidden: per row the vectors of all its generated tokens, once, in its terminal row; else None.
    """

    rids: Sequence[str]
    finish_reasons: Sequence[FinishReason | None]
    prompt_tokens: Sequence[int]
    token_ids: Sequence[Sequence[int]]
    out_lp_val: Sequence[Row] = ()
    out_lp_idx: Sequence[Row] = ()
    in_lp_val: Sequence[Row] = ()
    in_lp_idx: Sequence[Row] = ()
    out_top_val: Sequence[Row] = ()
    out_top_idx: Sequence[Row] = ()
    in_top_val: Sequence[Row] = ()
    in_top_idx: Sequence[Row] = ()
    out_tid_val: Sequence[Row] = ()
    out_tid_idx: Sequence[Row] = ()
    in_tid_val: Sequence[Row] = ()
    in_tid_idx: Sequence[Row] = ()
    hidden: Sequence[Row] = ()


@runtime_checkable
class Engine(Protocol):
    """What a shard needs of an engine.

    When a request ends is the engine's to say, by a finish reason: it honours the length, stop ids, strings
    and regexes and the end of sequence, or refuses in `submit` what it cannot do.

    Three attributes are optional, and read with a default where they are missing: `step_s` (float, the
    least seconds from the start of one step to the start of the next), `info()` (a dict for `/server_info`)
    and `hidden_size` (int or None, the width of its hidden states).
    """

    def submit(self, request: EngineRequest) -> None:
        """Take a request into the next step.

        Raises:
            ValidationError: this engine cannot do what a field asks for; a 400 for this request alone.
        """

    def abort(self, rid: str) -> None:
        """Forget a request; it has no row in any later batch. An unknown rid is no error."""

    def step(self) -> TokenBatch | None:
        """Decode one step of every running request; None when none runs. Never sleeps."""


# Columns with an entry in every row; the others may be empty instead.
_ROWS = frozenset(("finish_reasons", "prompt_tokens", "token_ids"))


def verify_batch(batch: object) -> None:
    """Refuse what no step may return.

    Raises:
        TypeError: it is no TokenBatch, or a column of it is no sequence.
        ValueError: a column has another number of entries than there are rids; names it and both.
    """
    if not isinstance(batch, TokenBatch):
        raise TypeError(f"step() must return a TokenBatch or None, got {type(batch).__name__}")
    rows = len(batch.rids)
    for name in TokenBatch.__struct_fields__:
        size = len(getattr(batch, name))
        if size != rows and (size or name in _ROWS):
            raise ValueError(f"{name} has {size} entries for {rows} rids")


# SamplingParams fields that only a constrained decoder could honour.
_GRAMMARS = ("json_schema", "regex", "ebnf", "structural_tag")


def verify_request(
    request: EngineRequest, vocab_size: int, *, has_logprobs: bool = True, hidden_size: int | None = None
) -> None:
    """Refuse what an engine without grammars, beams and custom processors cannot do.

    Args:
        request: as submitted.
        vocab_size: every id in the request must be in [0, vocab_size).
        has_logprobs: whether the engine has log-probabilities to give.
        hidden_size: width of its hidden states; None or 0 when it has none.

    Raises:
        ValidationError: names the field, what it may be and what it is. First failure wins.
    """
    sampling = request.sampling
    for field in _GRAMMARS:
        if getattr(sampling, field) is not None:
            raise ValidationError(f"{field} is not supported: this engine has no constrained decoding", field)
    if sampling.beam_width is not None and sampling.beam_width != 1:
        raise ValidationError(
            f"beam_width must be 1: this engine has no beam search, got {sampling.beam_width}", "beam_width"
        )
    if sampling.custom_params:
        raise ValidationError(
            "custom_params is not supported: this engine has no custom processors", "custom_params"
        )
    _verify_ids("input_ids", request.input_ids, vocab_size)
    _verify_ids("token_ids_logprob", request.token_ids_logprob or (), vocab_size)
    _verify_ids("logit_bias", map(int, sampling.logit_bias or ()), vocab_size)
    if not 0 <= request.top_logprobs_num <= vocab_size:
        raise ValidationError(
            f"top_logprobs_num must be in [0, {vocab_size}], got {request.top_logprobs_num}",
            "top_logprobs_num",
        )
    if not -1 <= request.logprob_start_len <= len(request.input_ids):
        raise ValidationError(
            f"logprob_start_len must be in [-1, {len(request.input_ids)}], got {request.logprob_start_len}",
            "logprob_start_len",
        )
    if request.return_logprob and not has_logprobs:
        raise ValidationError(
            "return_logprob is not supported: this engine has no log-probabilities", "return_logprob"
        )
    if request.return_hidden_states and not hidden_size:
        raise ValidationError(
            "return_hidden_states is not supported: this engine has no hidden states", "return_hidden_states"
        )


def _verify_ids(field: str, ids: Any, vocab_size: int) -> None:
    ids = list(ids)
    for token_id in (min(ids, default=0), max(ids, default=0)):
        if not 0 <= token_id < vocab_size:
            raise ValidationError(f"{field} must hold ids in [0, {vocab_size - 1}], got {token_id}", field)

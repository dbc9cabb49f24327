"""Detokenizer: each request's ids become text deltas, trimmed at its stop.

Pure: no process, clock or log. A shard opens one `DetokenizerState` per request, pushes each step's ids,
and drops the state when the request ends; there is no table of states here that could overflow or keep
something for the next request of the same id.

The order on a chunk, as in SGLang's response layer: count the ids; on a terminal chunk that matched a
token id drop the last id; decode; on a terminal chunk flush what is held and cut at a matched string.
For every request the deltas joined are the text of the ids decoded at once, however they were cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any

import msgspec

from egress.errors import DetokenizeError
from egress.text.decoders import Decoder, Plan, plan_for
from egress.text.stop import HoldBack, cut_text, stop_strings, trim_ids
from egress.wire import FinishReason

__all__ = ["Delta", "Detokenizer", "DetokenizerState", "push_batch"]


class Delta(msgspec.Struct, frozen=True, gc=False):
    """What one chunk adds to a request's answer.

    Attributes:
        text: new text, complete characters only; never taken back later.
        token_ids: the chunk's ids without a trimmed stop token; the list that was pushed where nothing was.
        completion_tokens: ids in the chunk before trimming.
        token_texts: with `logprob_text`, each pushed id decoded alone (before trimming), else None.
    """

    text: str
    token_ids: list[int]
    completion_tokens: int
    token_texts: list[str] | None = None


class Detokenizer:
    """Opens decoding states that share one tokenizer's tables.

    Args:
        tokenizer: any object with vocab_size, token_bytes(id) and is_special(id), decoded as bytes; or one
            whose `decoding` says "pieces" or "window" (see `egress.text.decoders`); or None, and ids pass
            through without text.

    >>> class Letters:
    ...     vocab_size, eos_token_ids = 26, ()
    ...     def token_bytes(self, token_id): return bytes([97 + token_id])
    ...     def is_special(self, token_id): return False
    >>> state = Detokenizer(Letters()).open()
    >>> state.push([4, 6, 6]).text
    'egg'
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._plans: dict[tuple[bool, bool], Plan] = {}
        self._token_texts: dict[int, str] = {}

    def open(
        self, params: Any = None, logprob_text: bool = False, prompt_ids: Sequence[int] = ()
    ) -> DetokenizerState:
        """Start one request.

        Args:
            params: its SamplingParams; read are skip_special_tokens, spaces_between_special_tokens,
                no_stop_trim and the stop strings. None: the defaults.
            logprob_text: whether deltas carry each id's text alone.
            prompt_ids: the prompt, when the text shall continue it: a character the prompt began is
                completed, a first word keeps its leading space; nothing of the prompt is emitted. Without
                them the text is that of the output ids alone.

        Returns:
            A state for this request only; drop it when the request ends.

        Raises:
            DetokenizeError: a prompt id outside the vocabulary.
        """
        decoder: Decoder | None = None
        if self._tokenizer is not None:
            flags = (
                bool(getattr(params, "skip_special_tokens", True)),
                bool(getattr(params, "spaces_between_special_tokens", True)),
            )
            plan = self._plans.get(flags)
            if plan is None:
                plan = self._plans[flags] = plan_for(self._tokenizer, *flags)
            decoder = plan.open(prompt_ids)
        return DetokenizerState(self, decoder, params, logprob_text)

    def token_texts(self, token_ids: Iterable[int]) -> list[str]:
        """Each id decoded alone, special tokens kept, "" for one that cannot be; for logprob texts.

        A token that is part of a character becomes U+FFFD, as everywhere. Never raises for an id.
        """
        known = self._token_texts
        texts = []
        for token_id in token_ids:
            text = known.get(token_id)
            texts.append(self._alone(token_id) if text is None else text)
        return texts

    def _alone(self, token_id: int) -> str:
        """One id's text, remembered unless it has none: a client may name any number as an id."""
        if self._tokenizer is None:
            return ""
        plan = self._plans.get((False, True))
        if plan is None:
            plan = self._plans[False, True] = plan_for(self._tokenizer, skip_special_tokens=False)
        try:
            decoder = plan.open()
            text = decoder.feed((token_id,)) + decoder.flush()
        except BaseException as error:
            if not _is_failure(error):
                raise
            return ""
        self._token_texts[token_id] = text
        return text


class DetokenizerState:
    """One request's incremental text; opened by `Detokenizer.open`."""

    __slots__ = (
        "_decoder",
        "_hold",
        "_is_ended",
        "_is_flowing",
        "_n_tokens",
        "_no_stop_trim",
        "_owner",
        "_with_texts",
    )

    def __init__(self, owner: Detokenizer, decoder: Decoder | None, params: Any, logprob_text: bool) -> None:
        self._owner = owner
        self._decoder = decoder
        stops = stop_strings(params) if decoder is not None else ()
        self._hold = HoldBack(stops) if stops else None
        self._no_stop_trim = bool(getattr(params, "no_stop_trim", False))
        self._with_texts = logprob_text
        self._is_flowing = decoder is not None and not logprob_text
        self._n_tokens = 0
        self._is_ended = False

    def push(
        self, token_ids: Sequence[int], finish_reason: FinishReason | Mapping[str, Any] | None = None
    ) -> Delta:
        """Turn one chunk into its delta.

        Args:
            token_ids: the request's new output ids, in order; a list, or anything that makes one.
            finish_reason: a FinishReason (or its wire mapping) on the last chunk, else None.

        Returns:
            The delta. After a terminal one the state is spent.

        Raises:
            DetokenizeError: an id is outside the vocabulary or the tokenizer failed; names id and position.
                Only this request is hurt: its state is spent, others are untouched.

        Cost: amortized linear in the ids; for one ordinary token a table look-up.
        """
        decoder = self._decoder
        if (
            finish_reason is not None
            or not self._is_flowing
            or type(token_ids) is not list
            or decoder is None
        ):
            return self._push(token_ids, finish_reason)
        try:
            table = decoder.fast
            text = None if table is None or len(token_ids) != 1 else table[token_ids[0]]
            if text is None:
                text = decoder.feed(token_ids)
        except BaseException as error:
            raise self._failure(decoder, token_ids, error) from error
        if self._hold is not None:
            text = self._hold.feed(text)
        self._n_tokens += len(token_ids)
        return Delta(text, token_ids, len(token_ids))

    def _push(
        self, token_ids: Sequence[int], finish_reason: FinishReason | Mapping[str, Any] | None
    ) -> Delta:
        """Push what is out of the ordinary: a last chunk, logprob texts, arrays, no tokenizer."""
        if self._is_ended:
            raise DetokenizeError("the request has already ended")
        pushed = token_ids if type(token_ids) is list else _listed(token_ids)
        kept, matched, is_last = pushed, None, finish_reason is not None
        if finish_reason is not None:
            self._end()
            matched = _matched(finish_reason)
            kept = trim_ids(pushed, matched, self._no_stop_trim)
        text = ""
        if self._decoder is not None:
            try:
                text = self._decoder.feed(kept)
                if is_last:
                    text += self._decoder.flush()
            except BaseException as error:
                raise self._failure(self._decoder, kept, error) from error
        if self._hold is not None:
            text = self._hold.drain(text) if is_last else self._hold.feed(text)
        if isinstance(matched, str):
            text = cut_text(text, matched, self._no_stop_trim)
        texts = self._owner.token_texts(pushed) if self._with_texts else None
        self._n_tokens += len(pushed)
        return Delta(text, kept, len(pushed), texts)

    def _end(self) -> None:
        self._is_ended, self._is_flowing = True, False

    def _failure(self, decoder: Decoder, token_ids: list[int], error: BaseException) -> DetokenizeError:
        """End the request; the error names the first id that fails by itself, if one does."""
        if not _is_failure(error):
            raise error
        self._end()
        for place, token_id in enumerate(token_ids, self._n_tokens):
            try:
                decoder.check(token_id)
            except BaseException as cause:
                if not _is_failure(cause):
                    raise
                said = (
                    str(cause) if isinstance(cause, DetokenizeError) else f"token id {token_id!r}: {cause!r}"
                )
                return DetokenizeError(f"{said}, at output position {place}")
        where = f"{len(token_ids)} ids from output position {self._n_tokens}"
        return DetokenizeError(f"the tokenizer failed on {where}: {error!r}")


def push_batch(
    states: Sequence[DetokenizerState],
    token_ids: Sequence[Sequence[int]],
    finish_reasons: Iterable[FinishReason | Mapping[str, Any] | None] | None = None,
) -> list[Delta | DetokenizeError]:
    """Push one step of many requests; a failure takes its own place and touches no other.

    Args:
        states: one per request.
        token_ids: each request's new ids, in the same order.
        finish_reasons: each request's reason or None; None: no request ends.

    Returns:
        Per request its Delta, or the DetokenizeError that ends it.
    """
    results: list[Delta | DetokenizeError] = []
    reasons = repeat(None, len(states)) if finish_reasons is None else finish_reasons
    for state, ids, reason in zip(states, token_ids, reasons, strict=True):
        try:
            results.append(state.push(ids, reason))
        except DetokenizeError as error:
            results.append(error)
    return results


def _listed(token_ids: Any) -> list[int]:
    """`token_ids` as a list: arrays as plain ints."""
    to_list = getattr(token_ids, "tolist", None)
    try:
        found = list(token_ids) if to_list is None else to_list()
    except TypeError as error:
        raise DetokenizeError(f"token ids must be a sequence of integers, not {token_ids!r}") from error
    if not isinstance(found, list):
        raise DetokenizeError(f"token ids must be a sequence of integers, not {token_ids!r}")
    return found


def _is_failure(error: BaseException) -> bool:
    """Whether an error is one request's: a panic in a Rust tokenizer is, though it is no Exception."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def _matched(finish_reason: FinishReason | Mapping[str, Any]) -> int | str | list[int] | None:
    """What a finish reason matched: an int, a str, a list, or None."""
    reason = FinishReason.from_wire(finish_reason) if isinstance(finish_reason, Mapping) else finish_reason
    return reason.matched

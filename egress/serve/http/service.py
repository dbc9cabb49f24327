"""What every handler is given, and what they all do with a prompt before it goes down to a shard."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from egress.errors import ValidationError
from egress.request.sampling import SamplingParams
from egress.serve.config import Settings
from egress.serve.dispatch import Dispatch
from egress.serve.http.bodies import check_range
from egress.serve.http.stalls import Stalls
from egress.serve.metrics import WorkerMetrics

__all__ = ["Service"]

# Encoding runs at a few MB/s: up to here it is done before a thread would have started (about 50 us).
_INLINE_CHARS = 512


class Service(msgspec.Struct, frozen=True):
    """The server as handlers see it.

    Attributes:
        dispatch: where generations go.
        tokenizer: an egress.text tokenizer, or None on a server that speaks ids only.
        settings: names and limits.
        vocab_size: ids are below it.
        metrics: this worker's.
        started: Unix time of this worker's start, in seconds.
        stalls: where exchanges tell of sockets that take no more.
    """

    dispatch: Dispatch
    tokenizer: Any
    settings: Settings
    vocab_size: int
    metrics: WorkerMetrics
    started: int
    stalls: Stalls

    async def encode(self, name: str, text: str) -> list[int]:
        """Turn a prompt into ids, off the event loop where it is long.

        Raises:
            ValidationError: it has no tokens, or more than the context holds.
        """
        if len(text) <= _INLINE_CHARS:
            ids: list[int] = self.tokenizer.encode(text)
        else:
            ids = await asyncio.to_thread(self.tokenizer.encode, text)
        self.check_length(name, len(ids))
        return ids

    async def render_chat(self, render: Callable[[], str]) -> str:
        """Run a chat template, off the event loop: it is a program, and its input a client's."""
        return await asyncio.to_thread(render)

    def check_ids(self, name: str, ids: Sequence[int]) -> None:
        """Hold token ids to the vocabulary.

        Raises:
            ValidationError: one is outside it; the text says which.
        """
        if ids and not (min(ids) >= 0 and max(ids) < self.vocab_size):
            place, bad = next((i, v) for i, v in enumerate(ids) if not 0 <= v < self.vocab_size)
            check_range(f"{name}[{place}]", bad, 0, self.vocab_size - 1)

    def check_length(self, name: str, count: int) -> None:
        """Hold a prompt's length to the context, which must leave room for an answer.

        Raises:
            ValidationError: it has no tokens, or fills the context.
        """
        most = self.settings.max_context - 1
        if not 1 <= count <= most:
            raise ValidationError(f"{name} must have 1 to {most} tokens, got {count}", name)

    def fit(self, sampling: SamplingParams, prompt_tokens: int, name: str, is_given: bool) -> None:
        """Settle how many tokens an answer may have; no limit means what the context has left.

        Args:
            sampling: normalized and verified; its max_new_tokens is set.
            prompt_tokens: tokens of the prompt.
            name: what the client calls max_new_tokens.
            is_given: the limit is the client's own, and not a default that may be lowered.

        Raises:
            ValidationError: prompt and answer together are longer than the context.
        """
        room = self.settings.max_context - prompt_tokens
        limit = sampling.max_new_tokens
        if limit is not None and limit <= room:
            return
        if limit is not None and is_given:
            raise ValidationError(
                f"{name} must be in [0, {room}] after a prompt of {prompt_tokens} tokens "
                f"(the context holds {self.settings.max_context}), got {limit}",
                name,
            )
        if sampling.min_new_tokens > room:
            raise ValidationError(
                f"min_new_tokens must be in [0, {room}] after a prompt of {prompt_tokens} tokens, "
                f"got {sampling.min_new_tokens}",
                "min_new_tokens",
            )
        sampling.max_new_tokens = room

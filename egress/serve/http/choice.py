"""What one choice of a completion and one of a chat have in common: the text that waits to be shown."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from egress.serve.dispatch import Generation
from egress.serve.http import sse
from egress.serve.http.errors import Failure
from egress.serve.http.exchange import encode
from egress.serve.http.openai import Head, failure_event, reason_name
from egress.wire.event import ChunkEvent, ChunkExtras
from egress.wire.finish_reason import FinishReason

__all__ = ["TextChoice"]


class TextChoice(ABC):
    """One choice of a response; see `openai.Choice`.

    Args:
        head: of its response.
        index: its place among the choices.
        asked: what was asked for; says whether log-probabilities are shown.
        around: what stands around the text of an event that has nothing else to tell; see `Head.around`.
    """

    __slots__ = (
        "_around",
        "_asked",
        "_head",
        "_is_plain",
        "_text",
        "completion_tokens",
        "index",
        "prompt_tokens",
        "reason",
    )

    def __init__(self, head: Head, index: int, asked: Generation, around: tuple[bytes, bytes]) -> None:
        self._head = head
        self._asked = asked
        self._around = around
        # Whether an event's text is all there is to tell while it goes on.
        self._is_plain = not asked.return_logprob
        self._text: list[str] = []
        self.index = index
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.reason: FinishReason | None = None

    def push(self, event: ChunkEvent) -> None:
        """Take the next part of the answer."""
        if event.text:
            self._text.append(event.text)
        self.prompt_tokens = event.prompt_tokens
        self.completion_tokens += event.completion_tokens
        self.reason = event.finish_reason
        if event.extras is not None and self._asked.return_logprob:
            self._push_logprobs(event.extras)

    def pass_on(self, event: ChunkEvent) -> bytes:
        """One event in, one out; see reader.Answer."""
        text = event.text
        if not text or self._text or not self._is_plain or event.finish_reason is not None:
            self.push(event)
            return self.take()
        self.prompt_tokens = event.prompt_tokens
        self.completion_tokens += event.completion_tokens
        start, end = self._around
        return b"".join((start, sse.safe(encode(text)), end))

    @abstractmethod
    def take(self) -> bytes:
        """What is new as one event; see reader.Answer."""

    @abstractmethod
    def body(self) -> dict[str, Any]:
        """The whole choice as the unary response shows it."""

    def fail(self, failure: Failure) -> bytes:
        """The event that tells how this choice failed."""
        return failure_event(failure, self, self._head)

    @abstractmethod
    def _push_logprobs(self, extras: ChunkExtras) -> None:
        """Take the log-probabilities that came with an event."""

    def _take_text(self) -> str:
        text = self._text[0] if len(self._text) == 1 else "".join(self._text)
        self._text = []
        return text

    def _reason_json(self) -> bytes:
        """The value of finish_reason, and of matched_stop behind it once there is one."""
        reason = self.reason
        if reason is None:
            return b"null"
        return encode(reason_name(reason)) + b',"matched_stop":' + encode(reason.matched)

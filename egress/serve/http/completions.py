"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from egress.serve.dispatch import Generation
from egress.serve.http.bodies import Ids, check_range, decode_ids, read_body
from egress.serve.http.choice import TextChoice
from egress.serve.http.exchange import Exchange, encode
from egress.serve.http.faults import wrong_type
from egress.serve.http.native import ragged, tuples
from egress.serve.http.openai import (
    MAX_TOP_LOGPROBS,
    Head,
    OpenAIBody,
    deliver,
    expand,
    sampling_of,
)
from egress.serve.http.service import Service
from egress.wire.event import ChunkExtras

__all__ = ["CompletionBody", "completions"]

# OpenAI's own default.
DEFAULT_MAX_TOKENS = 16

_PROMPT: Any = str | list[str] | Ids


class CompletionBody(OpenAIBody, kw_only=True):
    """What `/v1/completions` takes.

    Attributes:
        prompt: text, ids, or a list of one of the two.
        echo: the answer begins with the prompt.
        logprobs: so many alternatives per token; 0 = the chosen tokens only.
    """

    unsupported: ClassVar[frozenset[str]] = frozenset(
        {"best_of", "suffix", "return_hidden_states", "lora_path"}
    )
    allowed: ClassVar[dict[str, tuple[bytes, ...]]] = {
        "best_of": (b"1",),
        "suffix": (b'""',),
        "return_hidden_states": (b"false",),
    }

    prompt: msgspec.Raw
    echo: bool = False
    logprobs: int | None = None


async def completions(service: Service, exchange: Exchange) -> None:
    """Serve one `/v1/completions` request."""
    body = read_body(CompletionBody, await exchange.read(service.settings.max_body))
    head = Head.make(service, body, "cmpl", "text_completion")
    if body.logprobs is not None:
        check_range("logprobs", body.logprobs, 0, MAX_TOP_LOGPROBS)
    limit = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    sampling = sampling_of(service, body, limit, "max_tokens")
    async with exchange.connected():
        prompts, texts = await _prompts(service, body)
        wants_logprobs = body.logprobs is not None
        generations = expand(
            service,
            head,
            prompts,
            body.n,
            sampling,
            "max_tokens",
            body.max_tokens is not None,
            return_logprob=wants_logprobs,
            logprob_start_len=0 if body.echo and wants_logprobs else -1,
            top_logprobs_num=body.logprobs or 0,
            return_text_in_logprobs=wants_logprobs,
        )

        def make_choice(index: int, asked: Generation) -> _Completion:
            return _Completion(head, index, asked, texts[index // body.n] if body.echo else "")

        await deliver(service, exchange, body, head, generations, make_choice)


async def _prompts(service: Service, body: CompletionBody) -> tuple[list[list[int]], list[str]]:
    """The prompts as ids, and, for `echo`, as text."""
    raw = bytes(body.prompt)
    if raw[:1] == b'"':
        text = _read(raw, str)
        return [await service.encode("prompt", text)], [text]
    if raw[:1] == b"[" and raw[1:].lstrip()[:1] == b'"':
        texts = _read(raw, list[str])
        check_range("prompts in prompt", len(texts), 1, service.settings.max_prompts)
        return [await service.encode(f"prompt[{i}]", text) for i, text in enumerate(texts)], texts
    prompts, is_batch = decode_ids("prompt", body.prompt, _PROMPT)
    check_range("prompts in prompt", len(prompts), 1, service.settings.max_prompts)
    for place, ids in enumerate(prompts):
        name = f"prompt[{place}]" if is_batch else "prompt"
        service.check_length(name, len(ids))
        service.check_ids(name, ids)
    texts = [service.tokenizer.decode(ids, skip_special_tokens=False) for ids in prompts] if body.echo else []
    return prompts, texts


def _read(raw: bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise wrong_type("prompt", _PROMPT, raw) from None


class _Completion(TextChoice):
    """One choice of a completion."""

    __slots__ = ("_echo", "_logprobs", "_offset")

    def __init__(self, head: Head, index: int, asked: Generation, echo: str) -> None:
        around = head.around(b'{"index":%d,"text":' % index, b',"logprobs":null,"finish_reason":null}')
        super().__init__(head, index, asked, around)
        self._echo = echo
        if echo:
            self._text.append(echo)
        self._logprobs = _Logprobs()
        self._offset = 0

    def _push_logprobs(self, extras: ChunkExtras) -> None:
        if self._echo and len(extras.in_lp_val):
            self._logprobs.push(extras, "in")
        self._logprobs.push(extras, "out")

    def take(self) -> bytes:
        """What is new as one event; see reader.Answer."""
        if not self._text and self.reason is None and not self._logprobs.tokens:
            return b""
        return self._head.event(self._json())

    def _json(self) -> bytes:
        return b'{"index":%d,"text":%b,"logprobs":%b,"finish_reason":%b}' % (
            self.index,
            encode(self._take_text()),
            encode(self._take_logprobs()) if self._asked.return_logprob else b"null",
            self._reason_json(),
        )

    def _take_logprobs(self) -> dict[str, Any]:
        taken, self._logprobs = self._logprobs, _Logprobs()
        offsets = []
        for token in taken.tokens:
            offsets.append(self._offset)
            self._offset += len(token)
        return {
            "tokens": taken.tokens,
            "token_logprobs": taken.logprobs,
            "top_logprobs": taken.top if self._asked.top_logprobs_num else None,
            "text_offset": offsets,
        }

    def body(self) -> dict[str, Any]:
        """The whole choice."""
        whole: dict[str, Any] = msgspec.json.decode(self._json())
        return whole


class _Logprobs:
    """Tokens that were not shown yet, with their log-probabilities."""

    __slots__ = ("logprobs", "tokens", "top")

    def __init__(self) -> None:
        self.tokens: list[str] = []
        self.logprobs: list[float | None] = []
        self.top: list[dict[str, float | None] | None] = []

    def push(self, extras: ChunkExtras, side: str) -> None:
        def column(name: str) -> Any:
            return getattr(extras, f"{side}_{name}")

        for logprob, token_id, text in tuples(column("lp_val"), column("lp_idx"), column("lp_txt")):
            self.tokens.append(_shown(text, token_id))
            self.logprobs.append(logprob)
        for position in ragged(column("top_val"), column("top_idx"), column("top_lens"), column("top_txt")):
            self.top.append(_by_text(position))


def _by_text(position: Sequence[tuple[float, int, str | None]] | None) -> dict[str, float | None] | None:
    if position is None:
        return None
    return {_shown(text, token_id): logprob for logprob, token_id, text in position}


def _shown(text: str | None, token_id: int) -> str:
    """A token as OpenAI shows it; one without text of its own goes by its id, as SGLang and vLLM do."""
    return text or f"token_id:{token_id}"

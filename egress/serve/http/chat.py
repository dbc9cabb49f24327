"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from egress.errors import EgressError, ValidationError
from egress.serve.dispatch import Generation
from egress.serve.http.bodies import check_range, read_body, words
from egress.serve.http.choice import TextChoice
from egress.serve.http.exchange import Exchange, encode
from egress.serve.http.native import ragged, tuples
from egress.serve.http.openai import (
    MAX_TOP_LOGPROBS,
    Head,
    OpenAIBody,
    deliver,
    expand,
    reason_name,
    sampling_of,
)
from egress.serve.http.service import Service
from egress.wire.event import ChunkExtras

__all__ = ["ChatBody", "chat"]

_ROLES = ("system", "developer", "user", "assistant")

# What an assistant's message, handed back as it was answered, may carry besides: nothing, that is.
_EMPTY_KEYS = ("refusal", "annotations", "audio", "function_call", "tool_calls", "reasoning_content")


class ChatBody(OpenAIBody, kw_only=True):
    """What `/v1/chat/completions` takes.

    Attributes:
        messages: role, content (text, or text parts) and, optionally, name.
        max_completion_tokens: the same as max_tokens; both must agree.
        logprobs, top_logprobs: log-probabilities, with so many alternatives per token.
        chat_template_kwargs: more names for the tokenizer's chat template.
        add_generation_prompt: the prompt ends with the opening of the assistant's turn.
    """

    unsupported: ClassVar[frozenset[str]] = words("""
        tools tool_choice functions function_call parallel_tool_calls modalities audio prediction
        reasoning_effort web_search_options verbosity return_hidden_states lora_path
        continue_final_message separate_reasoning stream_reasoning
    """)
    allowed: ClassVar[dict[str, tuple[bytes, ...]]] = {
        "tools": (b"[]",),
        "tool_choice": (b'"none"',),
        "functions": (b"[]",),
        "function_call": (b'"none"',),
        "parallel_tool_calls": (b"true", b"false"),
        "modalities": (b'["text"]',),
        "return_hidden_states": (b"false",),
        "continue_final_message": (b"false",),
        "separate_reasoning": (b"false",),
        "stream_reasoning": (b"false",),
    }

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool = True


async def chat(service: Service, exchange: Exchange) -> None:
    """Serve one `/v1/chat/completions` request."""
    body = read_body(ChatBody, await exchange.read(service.settings.max_body))
    head = Head.make(service, body, "chatcmpl", "chat.completion.chunk" if body.stream else "chat.completion")
    limit, limit_name = _limit(body)
    _check_logprobs(body)
    messages = _messages(body.messages)
    sampling = sampling_of(service, body, limit, limit_name)
    context = body.chat_template_kwargs or {}
    for name in ("messages", "add_generation_prompt", "self"):
        if name in context:
            raise ValidationError(
                f"chat_template_kwargs.{name} is set by the request itself", "chat_template_kwargs"
            )
    async with exchange.connected():
        text = await service.render_chat(
            lambda: service.tokenizer.chat(messages, body.add_generation_prompt, **context)
        )
        ids = await service.encode("messages", text)
        generations = expand(
            service,
            head,
            [ids],
            body.n,
            sampling,
            limit_name,
            limit is not None,
            return_logprob=body.logprobs,
            top_logprobs_num=body.top_logprobs or 0,
            return_text_in_logprobs=body.logprobs,
        )
        await deliver(
            service,
            exchange,
            body,
            head,
            generations,
            lambda index, asked: _ChatChoice(head, index, asked, service.tokenizer),
        )


def _limit(body: ChatBody) -> tuple[int | None, str]:
    if body.max_completion_tokens is None:
        return body.max_tokens, "max_tokens"
    if body.max_tokens is not None and body.max_tokens != body.max_completion_tokens:
        raise ValidationError(
            f"max_completion_tokens must equal max_tokens ({body.max_tokens}) where both are given, "
            f"got {body.max_completion_tokens}",
            "max_completion_tokens",
        )
    return body.max_completion_tokens, "max_completion_tokens"


def _check_logprobs(body: ChatBody) -> None:
    if body.top_logprobs is None:
        return
    check_range("top_logprobs", body.top_logprobs, 0, MAX_TOP_LOGPROBS)
    if not body.logprobs and body.top_logprobs:
        raise ValidationError("top_logprobs needs logprobs to be true", "top_logprobs")


def _messages(given: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    if not given:
        raise ValidationError("messages must have at least 1 message, got 0", "messages")
    messages = []
    for place, message in enumerate(given):
        name = f"messages[{place}]"
        for key, value in message.items():
            if key in _EMPTY_KEYS:
                if value:
                    raise ValidationError(f"{name}.{key} is not supported by this server", f"{name}.{key}")
            elif key not in ("role", "content", "name"):
                raise ValidationError(f"{name}.{key[:64]} is no field of a message", f"{name}.{key[:64]}")
        role = message.get("role")
        if role not in _ROLES:
            raise ValidationError(
                f"{name}.role must be one of {', '.join(_ROLES)}, got {role!r:.64}", f"{name}.role"
            )
        # "developer" is OpenAI's newer word; templates know the older one.
        kept = {"role": "system" if role == "developer" else role, "content": _content(name, message)}
        if (own := message.get("name")) is not None:
            if not isinstance(own, str):
                raise ValidationError(f"{name}.name must be a string", f"{name}.name")
            kept["name"] = own
        messages.append(kept)
    return messages


def _content(name: str, message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    if content is None and message["role"] == "assistant":
        return ""
    if not isinstance(content, list):
        raise ValidationError(f"{name}.content must be a string or an array of text parts", f"{name}.content")
    texts = []
    for place, part in enumerate(content):
        field = f"{name}.content[{place}]"
        if not isinstance(part, dict) or part.get("type") != "text":
            raise ValidationError(
                f"{field}.type must be text: nothing else is supported by this server", field
            )
        if not isinstance(part.get("text"), str) or len(part) != 2:
            raise ValidationError(f"{field} must have a type and a text, and nothing else", field)
        texts.append(part["text"])
    return "".join(texts)


class _ChatChoice(TextChoice):
    """One choice of a chat."""

    __slots__ = ("_has_role", "_logprobs", "_tokenizer")

    def __init__(self, head: Head, index: int, asked: Generation, tokenizer: Any) -> None:
        before = b'{"index":%d,"delta":{"content":' % index
        around = head.around(before, b'},"logprobs":null,"finish_reason":null}')
        super().__init__(head, index, asked, around)
        self._tokenizer = tokenizer
        self._logprobs: list[dict[str, Any]] = []
        self._has_role = self._is_plain = False

    def _push_logprobs(self, extras: ChunkExtras) -> None:
        chosen = tuples(extras.out_lp_val, extras.out_lp_idx, extras.out_lp_txt)
        positions = ragged(extras.out_top_val, extras.out_top_idx, extras.out_top_lens, extras.out_top_txt)
        for place, one in enumerate(chosen):
            alternatives = positions[place] if place < len(positions) else None
            self._logprobs.append(
                {**self._token(*one), "top_logprobs": [self._token(*other) for other in alternatives or ()]}
            )

    def _token(self, logprob: float, token_id: int, text: str | None) -> dict[str, Any]:
        try:
            spelled = list(self._tokenizer.token_bytes(token_id))
        except EgressError:
            spelled = None
        return {"token": text or "", "logprob": logprob, "bytes": spelled}

    def take(self) -> bytes:
        """What is new as one event, the role before anything else; see reader.Answer."""
        if not self._text and self.reason is None and not self._logprobs and self._has_role:
            return b""
        first = b""
        if not self._has_role:
            self._has_role = True
            self._is_plain = not self._asked.return_logprob
            first = self._head.event(
                b'{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}'
                % self.index
            )
            if not self._text and self.reason is None and not self._logprobs:
                return first
        text = self._take_text()
        return first + self._head.event(
            b'{"index":%d,"delta":%b,"logprobs":%b,"finish_reason":%b}'
            % (
                self.index,
                b'{"content":%b}' % encode(text) if text else b"{}",
                self._take_logprobs(),
                self._reason_json(),
            )
        )

    def _take_logprobs(self) -> bytes:
        if not self._asked.return_logprob:
            return b"null"
        taken, self._logprobs = self._logprobs, []
        return b'{"content":%b,"refusal":null}' % encode(taken)

    def body(self) -> dict[str, Any]:
        """The whole choice."""
        return {
            "index": self.index,
            "message": {"role": "assistant", "content": "".join(self._text), "refusal": None},
            "logprobs": msgspec.Raw(self._take_logprobs()),
            "finish_reason": reason_name(self.reason),
            "matched_stop": None if self.reason is None else self.reason.matched,
        }

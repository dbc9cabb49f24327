"""What `/v1/completions` and `/v1/chat/completions` share: fields, sampling, usage, the way to an answer."""

from __future__ import annotations

import copy
import re
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol, TypeVar

import msgspec

from egress.errors import ValidationError
from egress.request.sampling import SamplingParams
from egress.serve.dispatch import Generation
from egress.serve.http import sse
from egress.serve.http.bodies import Body, check_interval, check_range, check_rid, new_rid, words
from egress.serve.http.delivery import Delivery
from egress.serve.http.errors import Failure, HttpError, openai
from egress.serve.http.exchange import Exchange, encode
from egress.serve.http.reader import Answer
from egress.serve.http.service import Service
from egress.wire.finish_reason import FinishReason, Unknown

__all__ = [
    "MAX_CHOICES",
    "MAX_TOP_LOGPROBS",
    "Choice",
    "Head",
    "OpenAIBody",
    "deliver",
    "expand",
    "failure_event",
    "reason_name",
    "sampling_of",
]

# OpenAI's own limits; a choice costs as much as a request of its own.
MAX_CHOICES = 128
MAX_TOP_LOGPROBS = 20

# Field of the body -> sampling parameter. Types and ranges are SamplingParams' to check.
_SAMPLING = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "repetition_penalty": "repetition_penalty",
    "min_tokens": "min_new_tokens",
    "stop": "stop",
    "stop_token_ids": "stop_token_ids",
    "stop_regex": "stop_regex",
    "ignore_eos": "ignore_eos",
    "skip_special_tokens": "skip_special_tokens",
    "spaces_between_special_tokens": "spaces_between_special_tokens",
    "no_stop_trim": "no_stop_trim",
    "logit_bias": "logit_bias",
    "seed": "sampling_seed",
    "regex": "regex",
    "ebnf": "ebnf",
    "json_schema": "json_schema",
    "structural_tag": "structural_tag",
    "custom_params": "custom_params",
    "stream_interval": "stream_interval",
}


class OpenAIBody(Body, kw_only=True):
    """The fields both routes take; those after `logit_bias` are SGLang's."""

    ignored: ClassVar[frozenset[str]] = words("""
        user metadata store service_tier safety_identifier prompt_cache_key prompt_cache_retention
    """)

    model: str | None = None
    stream: bool = False
    stream_options: dict[str, Any] | None = None
    n: int = 1
    max_tokens: int | None = None
    temperature: Any = None
    top_p: Any = None
    frequency_penalty: Any = None
    presence_penalty: Any = None
    stop: Any = None
    seed: Any = None
    logit_bias: Any = None
    top_k: Any = None
    min_p: Any = None
    repetition_penalty: Any = None
    min_tokens: Any = None
    stop_token_ids: Any = None
    stop_regex: Any = None
    ignore_eos: Any = None
    skip_special_tokens: Any = None
    spaces_between_special_tokens: Any = None
    no_stop_trim: Any = None
    regex: Any = None
    ebnf: Any = None
    json_schema: Any = None
    structural_tag: Any = None
    custom_params: Any = None
    stream_interval: Any = None
    response_format: dict[str, Any] | None = None
    rid: str | None = None

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with its usage."""
        return bool(self.stream_options and self.stream_options.get("include_usage"))


B = TypeVar("B", bound=OpenAIBody)


class Head(msgspec.Struct, frozen=True):
    """What every object of one response begins with.

    Attributes:
        id: the response's id; `/abort_request` takes it, and it ends all its choices.
        json: the object up to its choices, without the closing brace.
        wants_usage: events say `"usage": null` until the last says it.
    """

    id: str
    json: bytes
    wants_usage: bool

    @classmethod
    def make(cls, service: Service, body: OpenAIBody, prefix: str, kind: str) -> Head:
        """Draw the id and note the time.

        Raises:
            ValidationError: the client's own id is too long, or an option is not known.
            HttpError: 404, the model is not the one served.
        """
        _check_common(service, body)
        own = body.rid if body.rid is not None else new_rid(f"{prefix}-")
        start = {
            "id": own,
            "object": kind,
            "created": int(time.time()),
            "model": service.settings.model_name,
        }
        return cls(own, encode(start)[:-1], body.wants_usage)

    def event(self, choices: bytes, usage: bytes = b"null") -> bytes:
        """One framed event; `choices` is the inside of the array."""
        tail = b',"usage":' + usage if self.wants_usage else b""
        return sse.event(b'%b,"choices":[%b]%b}' % (self.json, choices, tail))

    def around(self, before: bytes, after: bytes) -> tuple[bytes, bytes]:
        """What stands around the one varying part of an event whose choice begins with `before` and ends with
        `after`: `event` of the three joined is `start + sse.safe(part) + end`."""
        # No JSON holds a NUL.
        start, end = self.event(before + b"\0" + after).split(b"\0")
        return start, end


class Choice(Answer, Protocol):
    """One choice of a response.

    Attributes:
        index: its place among the choices.
        prompt_tokens, completion_tokens: so far.
        reason: why it ended, once it has.
    """

    index: int
    prompt_tokens: int
    completion_tokens: int
    reason: FinishReason | None

    def body(self) -> dict[str, Any]:
        """The whole choice as the unary response shows it."""


def _check_common(service: Service, body: OpenAIBody) -> None:
    if service.tokenizer is None:
        raise ValidationError("this server has no tokenizer: use /generate with input_ids")
    if body.model is not None and body.model != service.settings.model_name:
        raise HttpError(
            404,
            f"model {body.model[:64]!r} does not exist, this server has {service.settings.model_name!r}",
            "model",
            "model_not_found",
        )
    if body.rid is not None:
        check_rid(body.rid)
    check_range("n", body.n, 1, MAX_CHOICES)
    options = body.stream_options
    if options is None:
        return
    if not body.stream:
        raise ValidationError("stream_options needs stream to be true", "stream_options")
    for name, value in options.items():
        field = f"stream_options.{name[:64]}"
        if name == "include_usage":
            if not isinstance(value, bool | None):
                raise ValidationError(f"{field} must be true or false", field)
        elif name != "include_obfuscation" or value not in (None, False):
            raise ValidationError(f"{field} is not supported by this server", field)


def sampling_of(service: Service, body: OpenAIBody, limit: int | None, limit_name: str) -> SamplingParams:
    """Read, settle and check the sampling parameters of a body.

    Args:
        limit: tokens of the answer at most; None = what the context has left.
        limit_name: what the client calls that.

    Raises:
        ValidationError: as SamplingParams says it, in the client's own words.
    """
    wire: dict[str, Any] = {"max_new_tokens": limit}
    for field, name in _SAMPLING.items():
        value = getattr(body, field)
        if value is not None:
            wire[name] = value
    if body.response_format is not None:
        schema = _schema_of(body.response_format)
        if schema is not None:
            wire["json_schema"] = schema
    try:
        params = SamplingParams.parse(wire)
        params.normalize()
        params.verify(service.vocab_size)
        check_interval(params)
    except ValidationError as error:
        raise _in_clients_words(error, limit_name) from None
    for value in (params.logit_bias or {}).values():
        check_range("logit_bias values", value, -100, 100)
    return params


def _in_clients_words(error: ValidationError, limit_name: str) -> ValidationError:
    words = {"max_new_tokens": limit_name, "min_new_tokens": "min_tokens", "sampling_seed": "seed"}
    message = re.sub(
        r"\b(?:max_new_tokens|min_new_tokens|sampling_seed)\b", lambda m: words[m[0]], error.message
    )
    return ValidationError(message, words.get(error.field or "", error.field))


def _schema_of(given: dict[str, Any]) -> str | None:
    kind = given.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return '{"type":"object"}'
    schema = given.get("json_schema")
    if kind == "json_schema" and isinstance(schema, dict) and isinstance(schema.get("schema"), dict):
        return encode(schema["schema"]).decode()
    raise ValidationError(
        "response_format.type must be text, json_object, or json_schema with a json_schema.schema",
        "response_format",
    )


def expand(
    service: Service,
    head: Head,
    prompts: Sequence[list[int]],
    n: int,
    sampling: SamplingParams,
    limit_name: str,
    limit_is_given: bool,
    **asked: Any,
) -> list[Generation]:
    """One generation per prompt and choice, prompt by prompt, as OpenAI numbers choices.

    With a seed choice i of n draws from seed + i, or all would be the same. They share one client rid:
    aborting the response's id ends all of them.

    Raises:
        ValidationError: too many of them, or prompt and answer do not fit the context.
    """
    check_range("prompts times n", len(prompts) * n, 1, service.settings.max_prompts)
    generations = []
    for ids in prompts:
        for choice in range(n):
            params = copy.copy(sampling)
            if params.sampling_seed is not None:
                # Seeds are 64-bit and signed on the wire.
                params.sampling_seed = (params.sampling_seed + choice + (1 << 63)) % (1 << 64) - (1 << 63)
            service.fit(params, len(ids), limit_name, limit_is_given)
            generations.append(Generation(input_ids=ids, sampling=params, client_rid=head.id, **asked))
    return generations


C = TypeVar("C", bound=Choice)


async def deliver(
    service: Service,
    exchange: Exchange,
    body: OpenAIBody,
    head: Head,
    generations: Sequence[Generation],
    make_choice: Callable[[int, Generation], C],
) -> None:
    """Run the generations and answer, as a stream or as one object."""
    with service.dispatch.call(generations) as call:
        choices = [make_choice(index, asked) for index, asked in enumerate(generations)]
        delivery = Delivery(exchange, call, choices, generations, service.metrics)
        if body.stream:
            await delivery.stream(
                lambda: head.event(b"", encode(_usage(choices, body.n))) if head.wants_usage else b""
            )
            return
        await delivery.collect()
    answer = {"choices": [choice.body() for choice in choices], "usage": _usage(choices, body.n)}
    await exchange.answer(200, head.json + b"," + encode(answer)[1:])


def _usage(choices: Sequence[Choice], n: int) -> dict[str, int]:
    prompt_tokens = sum(choice.prompt_tokens for choice in choices[::n])
    completion_tokens = sum(choice.completion_tokens for choice in choices)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def reason_name(reason: FinishReason | None) -> str | None:
    """OpenAI's word for a finish reason; "abort", and what is unknown, by their own."""
    if reason is None:
        return None
    if isinstance(reason, Unknown):
        kind = reason.raw.get("type")
        return kind if isinstance(kind, str) else "unknown"
    return type(reason).__name__.lower()


def failure_event(failure: Failure, choice: Choice, head: Head) -> bytes:
    """The event that tells how a choice failed, and, where usage was wanted, how far it had come."""
    told = openai(failure)
    if head.wants_usage:
        told["usage"] = {**_usage([choice], 1), "partial": True}
    return sse.event(encode(told))

"""POST /generate: SGLang's native request and answer."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import msgspec

from egress.errors import ValidationError
from egress.request.sampling import SamplingParams
from egress.request.values import shown
from egress.serve.dispatch import Generation
from egress.serve.http.bodies import (
    Body,
    check_interval,
    check_range,
    check_rid,
    decode_ids,
    new_rid,
    read_body,
    spread,
    words,
)
from egress.serve.http.delivery import Delivery
from egress.serve.http.exchange import Exchange
from egress.serve.http.native import NativeAnswer
from egress.serve.http.service import Service

__all__ = ["GenerateBody", "generate"]

# Ids of one token_ids_logprob, and of one top_logprobs_num: at 8 bytes each, for every token, in every frame.
MAX_LOGPROB_IDS = 1024

_NO_PARAMS = msgspec.Raw(b"{}")


class GenerateBody(Body, kw_only=True):
    """What `/generate` takes. A list where one value is usual gives one value per prompt.

    Attributes:
        text, input_ids: the prompt or prompts; exactly one of the two.
        sampling_params: an object, or one per prompt; `egress.SamplingParams` says what is in it.
        rid: the client's own id, or one per prompt; answers show it and `/abort_request` takes it.
        return_logprob: log-probabilities of the answer's tokens, in meta_info.
        logprob_start_len: those of the prompt too, from this position on; -1 = none.
        top_logprobs_num: so many alternatives at each position.
        token_ids_logprob: these ids' log-probabilities at each position.
        return_text_in_logprobs: tuples carry their token's text.
        return_hidden_states: where the engine has them.
        stream: server-sent events, ending in [DONE]; each holds all of the answer so far.
        incremental: each event holds only what is new.
    """

    ignored: ClassVar[frozenset[str]] = frozenset({"log_metrics"})
    unsupported: ClassVar[frozenset[str]] = words("""
        input_embeds image_data video_data audio_data modalities lora_path session_params
        custom_logit_processor bootstrap_host bootstrap_port bootstrap_room data_parallel_rank
        background conversation_id priority extra_key no_logs return_bytes
    """)

    text: str | list[str] | None = None
    input_ids: msgspec.Raw | None = None
    sampling_params: msgspec.Raw = _NO_PARAMS
    rid: str | list[str] | None = None
    return_logprob: bool | list[bool] = False
    logprob_start_len: int | list[int] = -1
    top_logprobs_num: int | list[int] = 0
    token_ids_logprob: msgspec.Raw | None = None
    return_text_in_logprobs: bool = False
    return_hidden_states: bool | list[bool] = False
    stream: bool = False
    incremental: bool = False


async def generate(service: Service, exchange: Exchange) -> None:
    """Serve one `/generate` request."""
    body = read_body(GenerateBody, await exchange.read(service.settings.max_body))
    if body.incremental and not body.stream:
        raise ValidationError("incremental needs stream to be true", "incremental")
    async with exchange.connected():
        prompts, is_batch = await _prompts(service, body)
        generations = _generations(service, body, prompts, is_batch)
        with service.dispatch.call(generations) as call:
            answers = [
                NativeAnswer(stream.client_rid, asked, index if is_batch else None, body.incremental)
                for index, (stream, asked) in enumerate(zip(call.streams, generations, strict=True))
            ]
            delivery = Delivery(exchange, call, answers, generations, service.metrics)
            if body.stream:
                await delivery.stream(tail=bytes)
                return
            await delivery.collect()
        bodies = [answer.body() for answer in answers]
        await exchange.answer(200, b"[%b]" % b",".join(bodies) if is_batch else bodies[0])


async def _prompts(service: Service, body: GenerateBody) -> tuple[list[list[int]], bool]:
    if (body.text is None) == (body.input_ids is None):
        got = "neither" if body.text is None else "both"
        raise ValidationError(f"exactly one of text and input_ids must be given, got {got}", "text")
    if body.input_ids is not None:
        prompts, is_batch = decode_ids("input_ids", body.input_ids)
        check_range("prompts in input_ids", len(prompts), 1, service.settings.max_prompts)
        for place, ids in enumerate(prompts):
            name = f"input_ids[{place}]" if is_batch else "input_ids"
            service.check_length(name, len(ids))
            service.check_ids(name, ids)
        return prompts, is_batch
    if service.tokenizer is None:
        raise ValidationError("text needs a tokenizer, and this server has none: send input_ids", "text")
    if isinstance(body.text, str):
        return [await service.encode("text", body.text)], False
    texts = body.text or []
    check_range("prompts in text", len(texts), 1, service.settings.max_prompts)
    return [await service.encode(f"text[{place}]", text) for place, text in enumerate(texts)], True


def _generations(
    service: Service, body: GenerateBody, prompts: Sequence[list[int]], is_batch: bool
) -> list[Generation]:
    count = len(prompts)
    sampling = _sampling(service, body.sampling_params, count, is_batch)
    columns = [
        spread(name, getattr(body, name), count, is_batch)
        for name in ("return_logprob", "logprob_start_len", "top_logprobs_num", "return_hidden_states")
    ]
    rids = _rids(body.rid, count, is_batch)
    token_ids = _token_ids_logprob(service, body.token_ids_logprob, count, is_batch)
    generations = []
    for place, ids in enumerate(prompts):
        wants_logprob, start, top, wants_hidden = (column[place] for column in columns)
        params = sampling[place]
        with _telling_which("prompt {}", place, is_batch):
            check_range("logprob_start_len", start, -1, len(ids))
            check_range("top_logprobs_num", top, 0, min(MAX_LOGPROB_IDS, service.vocab_size))
            if not wants_logprob and (top or start >= 0 or token_ids[place] is not None):
                name = (
                    "top_logprobs_num" if top else "logprob_start_len" if start >= 0 else "token_ids_logprob"
                )
                raise ValidationError(f"{name} needs return_logprob to be true", name)
            limit_is_given = params.max_new_tokens != 128 or _gives_limit(body.sampling_params, place)
            service.fit(params, len(ids), "max_new_tokens", limit_is_given)
        generations.append(
            Generation(
                input_ids=ids,
                sampling=params,
                client_rid=rids[place],
                return_logprob=wants_logprob,
                logprob_start_len=start,
                top_logprobs_num=top,
                token_ids_logprob=token_ids[place],
                return_text_in_logprobs=body.return_text_in_logprobs,
                return_hidden_states=wants_hidden,
            )
        )
    return generations


def _sampling(service: Service, raw: msgspec.Raw, count: int, is_batch: bool) -> list[SamplingParams]:
    parsed = SamplingParams.parse_many(raw)
    is_list = bytes(raw).startswith(b"[")
    if is_list and not is_batch:
        raise ValidationError(
            f"sampling_params must be an object for a single prompt, got an array of {len(parsed)}",
            "sampling_params",
        )
    if is_list and len(parsed) != count:
        raise ValidationError(
            f"sampling_params must have one object per prompt ({count}), got {len(parsed)}", "sampling_params"
        )
    for place, params in enumerate(parsed):
        with _telling_which("sampling_params[{}]", place, is_list):
            params.normalize(service.tokenizer is None)
            params.verify(service.vocab_size)
            check_interval(params)
    # Each prompt's own, for its limit depends on the prompt's length.
    return parsed if is_list else [copy.copy(parsed[0]) for _ in range(count)]


@contextlib.contextmanager
def _telling_which(form: str, place: int, is_one_of_many: bool) -> Iterator[None]:
    """Let a refusal say which of many it is about."""
    try:
        yield
    except ValidationError as error:
        if not is_one_of_many:
            raise
        raise ValidationError(f"{form.format(place)}: {error.message}", error.field) from None


def _gives_limit(raw: msgspec.Raw, place: int) -> bool:
    """Whether the client wrote max_new_tokens; asked only where 128 is too many."""
    params: Any = msgspec.json.decode(raw)
    return "max_new_tokens" in (params[place] if isinstance(params, list) else params)


def _rids(rid: str | list[str] | None, count: int, is_batch: bool) -> Sequence[str]:
    if rid is None:
        return [new_rid() for _ in range(count)]
    if isinstance(rid, str) and is_batch and count > 1:
        raise ValidationError(f"rid must have one value per prompt ({count}), got one", "rid")
    rids = spread("rid", rid, count, is_batch)
    for place, own in enumerate(rids):
        with _telling_which("prompt {}", place, is_batch):
            check_rid(own)
    if len(set(rids)) != count:
        second = next(place for place, own in enumerate(rids) if own in rids[:place])
        raise ValidationError(
            f"rid must be different for each prompt, got {shown(rids[second])} for prompts "
            f"{rids.index(rids[second])} and {second}",
            "rid",
        )
    return rids


def _token_ids_logprob(
    service: Service, raw: msgspec.Raw | None, count: int, is_batch: bool
) -> Sequence[list[int] | None]:
    if raw is None:
        return [None] * count
    lists, is_list = decode_ids("token_ids_logprob", raw)
    for place, ids in enumerate(lists):
        name = f"token_ids_logprob[{place}]" if is_list else "token_ids_logprob"
        check_range(f"the number of {name}", len(ids), 1, MAX_LOGPROB_IDS)
        service.check_ids(name, ids)
    return spread("token_ids_logprob", lists, count, is_batch) if is_list else lists * count

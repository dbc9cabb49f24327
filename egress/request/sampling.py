"""SamplingParams: what a client may ask of the sampler, how it is read, settled and checked.

Three steps, in this order, each a method so that a caller can put its own between them:

* `parse` reads JSON or a dict strictly (`egress.request.values`) and applies the rewrites of `__post_init__`:
  a stop becomes a list, greedy decoding becomes top_k 1, -1 becomes "the whole vocabulary".
* `normalize` derives what the pipeline needs (`stop_strs`, longest stop, admitted regexes) and happens once.
* `verify` compares every field with its range, in a fixed order, the first failure winning.

On the wire the struct is a positional array, field by field in the order below: that order is the format, so
fields are only ever appended. The last five belong to the pipeline; a client that sends one is refused.
Mirrors: SGLang, `sampling/sampling_params.py` and its Rust server's admission of the same fields.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from egress.errors import ValidationError
from egress.request.admission import RegexPattern
from egress.request.values import (
    ARRAY,
    INFINITY,
    Reader,
    load_json,
    named,
    read_bias,
    read_bool,
    read_custom,
    read_float,
    read_int,
    read_int_list,
    read_str,
    read_str_list,
    read_str_or_list,
    shown,
)

__all__ = ["MAX_STOPS", "MAX_STOP_REGEXES", "TOP_K_ALL", "SamplingParams"]

# "Every token": larger than any vocabulary, and what SGLang puts on the wire for top_k -1.
TOP_K_ALL = 1 << 30

# Each stop is searched for in every request at every step.
MAX_STOPS = 32
MAX_STOP_REGEXES = 32

# Admission walks the parse tree of every new pattern; its step budget is set for this size.
MAX_STOP_REGEX_BYTES = 256

# Below this a temperature would overflow the softmax; SGLang's _SAMPLING_EPS.
GREEDY_BELOW = 1e-6

Json: TypeAlias = str | bytes | bytearray | memoryview | msgspec.Raw


class SamplingParams(msgspec.Struct, array_like=True, kw_only=True):
    """One request's sampling parameters.

    Make it with `parse` or `parse_many` from what a client sent, with `from_wire` from what another process
    sent; then `normalize` and `verify`. The constructor takes typed values and does not check them.

    Attributes:
        max_new_tokens: tokens at most; None = no limit of its own.
        stop, stop_regex: as the client gave them, as lists; None once normalized (see stop_strs).
        stop_token_ids: ids that end the answer, never empty.
        temperature, top_p, top_k, min_p: as everywhere; greedy is temperature 1 with top_k 1.
        frequency_penalty, presence_penalty, repetition_penalty, logit_bias: logit_bias maps decimal ids.
        min_new_tokens: no stop of any kind before so many tokens.
        n, beam_width: only 1 is served; the fields keep their place on the wire.
        json_schema, regex, ebnf, structural_tag: a grammar, at most one of them.
        ignore_eos, skip_special_tokens, spaces_between_special_tokens, no_stop_trim: as SGLang.
        stream_interval: tokens per streamed chunk, a wish; None = the server's.
        sampling_seed: 64 bits; None = any.
        custom_params: scalars, arrays of scalars, objects of scalars, handed to the engine untouched.
        stop_strs, stop_regex_strs: the stops that are looked for; an empty string among them never matches.
        stop_str_max_len: bytes of the longest stop string in UTF-8.
        stop_regex_max_len: characters of the longest match any stop regex can have; 2^30 = unbounded.
        is_normalized: normalize has run.

    >>> params = SamplingParams.parse(b'{"temperature": 0, "stop": "END"}')
    >>> params.normalize()
    >>> params.verify(vocab_size=1000)
    >>> params.top_k, params.stop_strs, params.stop_str_max_len
    (1, ['END'], 3)
    """

    max_new_tokens: int | None = 128
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    stop_regex: str | list[str] | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = TOP_K_ALL
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_new_tokens: int = 0
    n: int = 1
    beam_width: int | None = None
    json_schema: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: str | None = None
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    no_stop_trim: bool = False
    stream_interval: int | None = None
    logit_bias: dict[str, float] | None = None
    sampling_seed: int | None = None
    custom_params: dict[str, Any] | None = None
    stop_strs: list[str] = []
    stop_regex_strs: list[str] = []
    stop_str_max_len: int = 0
    stop_regex_max_len: int = 0
    is_normalized: bool = False

    def __post_init__(self) -> None:
        """Rewrite shorthands; nothing here fails. Skipped for what another process already normalized."""
        if self.is_normalized:
            return
        if self.stop is not None:
            self.stop = [self.stop] if isinstance(self.stop, str) else list(self.stop)
        if self.stop_regex is not None:
            self.stop_regex = [self.stop_regex] if isinstance(self.stop_regex, str) else list(self.stop_regex)
        if not self.stop_token_ids:
            self.stop_token_ids = None
        # Greedy first: it also hides a top_k that would have been refused.
        if 0.0 <= self.temperature < GREEDY_BELOW:
            self.temperature = 1.0
            self.top_k = 1
        if self.top_k == -1:
            self.top_k = TOP_K_ALL
        if "" in (self.json_schema, self.regex, self.ebnf, self.structural_tag):
            for grammar in _GRAMMARS:
                setattr(self, grammar, getattr(self, grammar) or None)

    @classmethod
    def parse(cls, data: Json | dict[str, Any]) -> SamplingParams:
        """Read one client's object.

        Absent and null mean the default, except max_new_tokens, where null means no limit.

        Args:
            data: JSON (text, or any buffer of UTF-8), or the object already decoded; it is copied, not kept.

        Raises:
            ValidationError: no object, an unknown key, a key that belongs to the pipeline, a key given twice,
                or a value of the wrong type; `.field` is the key.
        """
        value = _decoded(data)
        if not isinstance(value, dict):
            raise ValidationError(f"sampling_params must be an object, got {shown(value)}")
        return cls._from_object(value)

    @classmethod
    def parse_many(cls, data: Json | dict[str, Any] | Sequence[Any]) -> list[SamplingParams]:
        """Read one object, or an array of objects, into a list.

        Raises:
            ValidationError: as `parse`; the text says which item of an array.
        """
        value = _decoded(data)
        if isinstance(value, dict):
            return [cls._from_object(value)]
        if not isinstance(value, ARRAY):
            raise ValidationError(
                f"sampling_params must be an object or an array of objects, got {shown(value)}"
            )
        parsed = []
        for index, item in enumerate(value):
            try:
                if not isinstance(item, dict):
                    raise ValidationError(f"must be an object, got {shown(item)}")
                parsed.append(cls._from_object(item))
            except ValidationError as error:
                raise ValidationError(f"sampling_params[{index}]: {error.message}", error.field) from None
        return parsed

    @classmethod
    def _from_object(cls, value: dict[str, Any]) -> SamplingParams:
        fields: dict[str, Any] = {}
        for key, item in value.items():
            reader = _CLIENT_READERS.get(key)
            if reader is None:
                raise _refused_key(key)
            if item is not None:
                fields[key] = reader(key, item)
            elif key == "max_new_tokens":
                fields[key] = None
        return cls(**fields)

    def normalize(self, skip_tokenizer_init: bool = False) -> None:
        """Derive what the pipeline needs, in place; a second call changes nothing.

        Args:
            skip_tokenizer_init: the server has no tokenizer, so nothing that needs text or the end-of-text id
                can be honoured.

        Raises:
            ValidationError: too many stops, a regex that is not admitted, or one of them without a tokenizer.
        """
        if self.is_normalized:
            return
        stops = self.stop_strs if self.stop is None else list(self.stop)
        regexes = self.stop_regex_strs if self.stop_regex is None else list(self.stop_regex)
        if len(stops) > MAX_STOPS:
            raise ValidationError(f"at most {MAX_STOPS} stop strings are allowed, got {len(stops)}", "stop")
        stop_str_max_len = max([len(read_str("stop", stop).encode()) for stop in stops]) if stops else 0
        if len(regexes) > MAX_STOP_REGEXES:
            raise ValidationError(
                f"at most {MAX_STOP_REGEXES} stop_regex patterns are allowed, got {len(regexes)}",
                "stop_regex",
            )
        stop_regex_max_len = max([_bound_of(pattern) for pattern in regexes]) if regexes else 0
        if skip_tokenizer_init:
            for field, given in (("stop", stops), ("stop_regex", regexes)):
                if given:
                    raise ValidationError(f"{field} is unavailable when skip_tokenizer_init=True", field)
            if self.min_new_tokens > 0:
                raise ValidationError(
                    f"min_new_tokens={self.min_new_tokens} is unavailable when skip_tokenizer_init=True",
                    "min_new_tokens",
                )
        # Only now, so that a refusal leaves everything as it was.
        self.stop_strs, self.stop_str_max_len = stops, stop_str_max_len
        self.stop_regex_strs, self.stop_regex_max_len = regexes, stop_regex_max_len
        self.stop = self.stop_regex = None
        self.is_normalized = True

    def verify(self, vocab_size: int) -> None:
        """Hold every field to its range; the first failure wins, and NaN fails every range.

        Args:
            vocab_size: ids of logit_bias and stop_token_ids are below it.

        Raises:
            ValidationError: names the field, its range and the value.
        """
        if self.beam_width is not None and self.beam_width < 1:
            raise _outside("beam_width", "at least 1", self.beam_width)
        if not 0.0 <= self.temperature < INFINITY:
            wanted = "non-negative" if self.temperature < 0 else "finite and non-negative"
            raise _outside("temperature", wanted, self.temperature)
        if not 0.0 < self.top_p <= 1.0:
            raise _outside("top_p", "in (0, 1]", self.top_p)
        if not 0.0 <= self.min_p <= 1.0:
            raise _outside("min_p", "in [0, 1]", self.min_p)
        if not self.top_k >= 1:
            raise _outside("top_k", "-1 (disable) or at least 1", self.top_k)
        if not -2.0 <= self.frequency_penalty <= 2.0:
            raise _outside("frequency_penalty", "in [-2, 2]", self.frequency_penalty)
        if not -2.0 <= self.presence_penalty <= 2.0:
            raise _outside("presence_penalty", "in [-2, 2]", self.presence_penalty)
        if not 0.0 < self.repetition_penalty <= 2.0:
            raise _outside("repetition_penalty", "in (0, 2]", self.repetition_penalty)
        if not self.min_new_tokens >= 0:
            raise _outside("min_new_tokens", "in [0, max_new_tokens]", self.min_new_tokens)
        if self.max_new_tokens is not None:
            if not self.max_new_tokens >= 0:
                raise _outside("max_new_tokens", "at least 0", self.max_new_tokens)
            if self.min_new_tokens > self.max_new_tokens:
                raise _outside(
                    "min_new_tokens", f"in [0, max_new_tokens({self.max_new_tokens})]", self.min_new_tokens
                )
        if self.logit_bias:
            _verify_bias(self.logit_bias, vocab_size)
        grammars = (self.json_schema, self.regex, self.ebnf, self.structural_tag)
        if grammars.count(None) < 3:
            given = [name for name in _GRAMMARS if getattr(self, name) is not None]
            raise ValidationError(
                f"Only one of {', '.join(_GRAMMARS)} can be set, got {' and '.join(given)}", given[1]
            )
        if self.n != 1:
            raise _outside("n", "1", self.n)
        if self.beam_width is not None and self.beam_width != 1:
            raise _outside("beam_width", "1", self.beam_width)
        # Last: the order of the others is SGLang's, which lets these through to the engine.
        for token_id in self.stop_token_ids or ():
            if not 0 <= token_id < vocab_size:
                raise _outside("stop_token_ids", f"ids in [0, {vocab_size - 1}]", token_id)

    def to_wire(self) -> list[Any]:
        """All fields by position, unset as None; its lists and dicts are the struct's own, not copies."""
        return list(msgspec.structs.astuple(self))

    @classmethod
    def from_wire(cls, items: Sequence[Any]) -> SamplingParams:
        """Read `to_wire`'s list; items missing at the end, and None, mean the default.

        Raises:
            ValidationError: more items than fields, or one of the wrong type; `.field` names it.
        """
        if not isinstance(items, ARRAY) or len(items) > len(_WIRE_READERS):
            got = len(items) if isinstance(items, ARRAY) else shown(items)
            raise ValidationError(
                f"sampling parameters must be an array of at most {len(_WIRE_READERS)}, got {got}"
            )
        fields: dict[str, Any] = {}
        for (name, reader), item in zip(_WIRE_READERS.items(), items, strict=False):
            if item is not None:
                fields[name] = reader(name, item)
            elif name == "max_new_tokens":
                fields[name] = None
        return cls(**fields)


_GRAMMARS = ("json_schema", "regex", "ebnf", "structural_tag")

_CLIENT_READERS: dict[str, Reader] = {
    "max_new_tokens": read_int,
    "stop": read_str_or_list,
    "stop_token_ids": read_int_list,
    "stop_regex": read_str_or_list,
    "temperature": read_float,
    "top_p": read_float,
    "top_k": read_int,
    "min_p": read_float,
    "frequency_penalty": read_float,
    "presence_penalty": read_float,
    "repetition_penalty": read_float,
    "min_new_tokens": read_int,
    "n": read_int,
    "beam_width": read_int,
    "json_schema": read_str,
    "regex": read_str,
    "ebnf": read_str,
    "structural_tag": read_str,
    "ignore_eos": read_bool,
    "skip_special_tokens": read_bool,
    "spaces_between_special_tokens": read_bool,
    "no_stop_trim": read_bool,
    "stream_interval": read_int,
    "logit_bias": read_bias,
    "sampling_seed": read_int,
    "custom_params": read_custom,
}

_PIPELINE_READERS: dict[str, Reader] = {
    "stop_strs": read_str_list,
    "stop_regex_strs": read_str_list,
    "stop_str_max_len": read_int,
    "stop_regex_max_len": read_int,
    "is_normalized": read_bool,
}

_WIRE_READERS = _CLIENT_READERS | _PIPELINE_READERS


_TEXT = (str, bytes, bytearray, memoryview)


def _decoded(data: Any) -> Any:
    if isinstance(data, _TEXT):
        return load_json(data, "sampling_params")
    if isinstance(data, msgspec.Raw):
        return load_json(bytes(data), "sampling_params")
    return data


def _refused_key(key: Any) -> ValidationError:
    if key in _PIPELINE_READERS:
        return ValidationError(f"{key} is set by the server, not by a request", key)
    field = named(key)
    return ValidationError(f"{field!r} is no sampling parameter", field)


def _bound_of(pattern: str) -> int:
    """The longest match of an admitted stop regex, in characters."""
    size = len(read_str("stop_regex", pattern).encode())
    if size > MAX_STOP_REGEX_BYTES:
        # Before anything looks at the pattern itself.
        raise ValidationError(
            f"stop_regex pattern is {size} bytes, over the {MAX_STOP_REGEX_BYTES}-byte limit", "stop_regex"
        )
    return RegexPattern.build(pattern).max_len


def _outside(field: str, wanted: str, value: int | float) -> ValidationError:
    return ValidationError(f"{field} must be {wanted}, got {shown(value)}", field)


def _verify_bias(bias: Mapping[str, float], vocab_size: int) -> None:
    for key in bias:
        # isdigit alone also takes digits of other scripts, int() also spaces, signs and underscores.
        if not (key.isascii() and key.isdigit()):
            raise ValidationError(
                f"logit_bias keys must be token ids, got {shown(key)} for one in [0, {vocab_size - 1}]",
                "logit_bias",
            )
        # A million digits would be refused by int(), not by us; no vocabulary has ids of 20.
        if len(key) > 20 or int(key) >= vocab_size:
            raise ValidationError(
                f"logit_bias must have keys in [0, {vocab_size - 1}], got {shown(key)}", "logit_bias"
            )

"""The `/generate` family's answers: SGLang's native shape, assembled as JSON bytes.

An answer grows as bytes: each event's text and ids are encoded once and appended. A cumulative stream
copies the answer so far per event instead of encoding it anew, and its last event is, byte for byte, the
unary answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from time import perf_counter
from typing import Any

from egress.serve.dispatch import Generation
from egress.serve.http import sse
from egress.serve.http.errors import Failure, native
from egress.serve.http.exchange import encode
from egress.wire.event import ChunkEvent, ChunkExtras
from egress.wire.finish_reason import FinishReason

__all__ = ["NativeAnswer", "ragged", "tuples"]

# As SGLang names them: (columns' prefix, input key, output key).
_TOKEN = ("lp", b"input_token_logprobs", b"output_token_logprobs")
_TOP = ("top", b"input_top_logprobs", b"output_top_logprobs")
_TID = ("tid", b"input_token_ids_logprobs", b"output_token_ids_logprobs")


def tuples(val: Any, idx: Any, txt: Sequence[str]) -> list[tuple[float, int, str | None]]:
    """Logprob tuples (logprob, id, text or None); encoded as JSON a non-finite logprob becomes null."""
    return list(zip(val.tolist(), idx.tolist(), txt or repeat(None), strict=False))


def ragged(
    val: Any, idx: Any, lens: Sequence[int], txt: Sequence[str]
) -> list[list[tuple[float, int, str | None]] | None]:
    """Logprob tuples by position; None where there are none."""
    flat = tuples(val, idx, txt)
    positions: list[list[tuple[float, int, str | None]] | None] = []
    start = 0
    for width in lens:
        positions.append(flat[start : start + width] if width else None)
        start += width
    return positions


class NativeAnswer:
    """One generation in SGLang's shape.

    Args:
        rid: the id to show.
        asked: what was asked for; says which logprobs appear.
        index: the prompt's place in a streamed batch, or None for a single prompt.
        incremental: events carry only what is new, instead of everything so far.
    """

    __slots__ = (
        "_asked",
        "_completion_tokens",
        "_families",
        "_hidden",
        "_ids",
        "_incremental",
        "_index",
        "_inputs",
        "_is_plain",
        "_meta",
        "_outputs",
        "_plain",
        "_prompt_tokens",
        "_reason",
        "_started",
        "_text",
    )

    def __init__(
        self, rid: str, asked: Generation, index: int | None = None, incremental: bool = False
    ) -> None:
        self._asked = asked
        self._incremental = incremental
        self._index = b"" if index is None else b',"index":%d' % index
        self._meta = b'],"meta_info":{"id":' + sse.safe(encode(rid)) + b',"finish_reason":'
        self._started = perf_counter()
        # JSON so far, without the quotes and brackets around it. Like all parts it is made safe on coming in,
        # not with every event that shows it again.
        self._text = bytearray()
        self._ids = bytearray()
        self._prompt_tokens = 0
        self._completion_tokens = 0
        self._reason: FinishReason | None = None
        self._families: tuple[tuple[str, bytes, bytes], ...] = ()
        if asked.return_logprob:
            self._families = (_TOKEN,)
            if asked.top_logprobs_num:
                self._families += (_TOP,)
            if asked.token_ids_logprob is not None:
                self._families += (_TID,)
        self._inputs = dict.fromkeys((family[0] for family in self._families), b"")
        self._outputs = {family[0]: bytearray() for family in self._families}
        self._hidden = b"[]"
        self._is_plain = incremental and not self._families and not asked.return_hidden_states
        # The constant parts of a plain event, once the number of prompt tokens is known.
        self._plain: tuple[bytes, ...] = ()

    def push(self, event: ChunkEvent) -> None:
        """Take the next part of the answer."""
        if event.text:
            self._text += sse.safe(encode(event.text))[1:-1]
        if event.n_tokens:
            _append(self._ids, encode(event.ids)[1:-1])
        self._prompt_tokens = event.prompt_tokens
        self._completion_tokens += event.completion_tokens
        self._reason = event.finish_reason
        if event.extras is not None:
            self._push_extras(event.extras)

    def _push_extras(self, extras: ChunkExtras) -> None:
        for name, _, _ in self._families:
            if inputs := _positions(extras, f"in_{name}"):
                self._inputs[name] = sse.safe(encode(inputs))[1:-1]
            if outputs := _positions(extras, f"out_{name}"):
                _append(self._outputs[name], sse.safe(encode(outputs))[1:-1])
        if self._asked.return_hidden_states and len(extras.hidden_lens):
            flat = extras.hidden_val.tolist()
            rows, start = [], 0
            for width in extras.hidden_lens:
                rows.append(flat[start : start + width])
                start += width
            self._hidden = encode(rows)

    def pass_on(self, event: ChunkEvent) -> bytes:
        """One event in, one out; see reader.Answer."""
        is_plain = self._is_plain and event.finish_reason is None and self._plain
        if not is_plain or self._ids or self._text or event.prompt_tokens != self._prompt_tokens:
            self.push(event)
            data = self.take()
            if self._is_plain:
                self._plain = self._constants()
            return data
        self._completion_tokens = count = self._completion_tokens + event.completion_tokens
        start, middle, meta, end = self._plain
        text = sse.safe(encode(event.text))
        return b"".join((start, text, middle, encode(event.ids), meta, encode(count), end))

    def _constants(self) -> tuple[bytes, ...]:
        """What stands around text, ids and count of a plain event, as `take` has it."""
        meta = b'%bnull,"prompt_tokens":%d,"completion_tokens":' % (self._meta[1:], self._prompt_tokens)
        return b'data: {"text":', b',"output_ids":', meta, b"}%b}\n\n" % self._index

    def body(self) -> bytes:
        """The answer as one JSON object: all of it, or, incremental, what `take` has not given yet."""
        return b"".join(self._parts())

    def _parts(self) -> list[bytes | bytearray]:
        reason = self._reason
        parts: list[bytes | bytearray] = [
            b'{"text":"',
            self._text,
            b'","output_ids":[',
            self._ids,
            self._meta,
            b"null" if reason is None else sse.safe(encode(reason.to_wire())),
            b',"prompt_tokens":%d,"completion_tokens":%d' % (self._prompt_tokens, self._completion_tokens),
        ]
        for name, input_key, output_key in self._families:
            parts += (b',"', input_key, b'":[', self._inputs[name], b"]")
            parts += (b',"', output_key, b'":[', self._outputs[name], b"]")
        if self._asked.return_hidden_states:
            parts += (b',"hidden_states":', self._hidden)
        if reason is not None:
            parts.append(b',"e2e_latency":%.6f' % (perf_counter() - self._started))
        parts += (b"}", self._index, b"}")
        return parts

    def take(self) -> bytes:
        """What is new as one event; see reader.Answer."""
        data = b"".join((b"data: ", *self._parts(), b"\n\n"))
        if self._incremental:
            self._text.clear()
            self._ids.clear()
            self._hidden = b"[]"
            for name in self._outputs:
                self._inputs[name] = b""
                self._outputs[name].clear()
        return data

    def fail(self, failure: Failure) -> bytes:
        """The event that tells how this generation failed."""
        return sse.event(encode(native(failure))[:-1] + self._index + b"}")


def _append(grown: bytearray, items: bytes) -> None:
    if grown:
        grown += b","
    grown += items


def _positions(extras: ChunkExtras, name: str) -> Sequence[Any]:
    val = getattr(extras, f"{name}_val")
    idx = getattr(extras, f"{name}_idx")
    txt = getattr(extras, f"{name}_txt")
    if name.endswith("_lp"):
        return tuples(val, idx, txt) if len(val) else ()
    return ragged(val, idx, getattr(extras, f"{name}_lens"), txt)

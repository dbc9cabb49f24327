"""What users may write: every public name, used as documented. `make check` has mypy read this, strictly.

It is never run. What a name gives is pinned with `assert_type` wherever a looser type would pass unseen.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, assert_type

import numpy as np
import numpy.typing as npt

import egress
import ringbuf
from egress.testing import check_sink

F32Array = npt.NDArray[np.float32]
I32Array = npt.NDArray[np.int32]
Lags = list[tuple[int, bool, int, int, int]]


def produce(ids: I32Array) -> None:
    with ringbuf.create("typing", capacity=1 << 20, slots=4, replace=True) as producer:
        assert_type(producer, ringbuf.Producer)
        assert_type(producer.try_write(1, b"payload"), bool)
        producer.try_write(1, [b"gathered ", bytearray(b"from "), memoryview(b"buffers")], align_at=4)
        producer.try_write(1, ids)
        producer.write(1, b"payload", timeout=None)
        assert_type(producer.write_many([(1, b"a"), (2, b"b")]), int)
        with producer.claim(3, 8, timeout=0.0) as room:
            assert_type(room, memoryview)
            room[:] = bytes(8)
        producer.close(unlink=False)
    assert_type(ringbuf.resume("typing"), ringbuf.Producer)


def consume() -> Iterator[memoryview]:
    with ringbuf.attach("typing", start="oldest", timeout=5.0) as consumer:
        assert_type(consumer, ringbuf.Consumer)
        assert_type(consumer.try_read(), ringbuf.Frame | None)
        assert_type(consumer.read_many(max_frames=16, timeout=0.0), list[ringbuf.Frame])
        assert_type(consumer.fileno(), int)
        with consumer.read(timeout=None) as frame:
            assert_type((frame.tag, frame.seq), tuple[int, int])
            assert_type(frame.payload, memoryview)
        for frame in consumer:
            yield frame.payload
            frame.release()


async def consume_on_a_loop() -> AsyncIterator[int]:
    with ringbuf.attach("typing", start="latest") as consumer:
        async for frame in consumer:
            yield frame.seq


def look_at_rings() -> None:
    assert_type(ringbuf.rings(), list[ringbuf.RingInfo])
    assert_type(ringbuf.reap(), list[str])
    info = ringbuf.inspect("typing")
    assert_type(info.producer, ringbuf.ProducerInfo)
    assert_type(info.consumers, tuple[ringbuf.ConsumerInfo, ...])
    assert_type(
        [(one.pid, one.alive, one.lag_bytes, one.lag_frames, one.leases) for one in info.consumers], Lags
    )
    assert_type(ringbuf.__impl__, str)
    ringbuf.unlink("typing")


def tell_ring_errors_apart(error: ringbuf.RingError) -> Exception:
    kinds: list[type[ringbuf.RingError]] = [
        ringbuf.RingForbidden,
        ringbuf.RingCorrupt,
        ringbuf.RingClosed,
        ringbuf.UseAfterFork,
    ]
    assert kinds
    if isinstance(error, ringbuf.RingNotFound):
        missing: FileNotFoundError = error
        return missing
    if isinstance(error, ringbuf.RingExists):
        present: FileExistsError = error
        return present
    if isinstance(error, ringbuf.RingFull):
        late: TimeoutError = error
        assert_type(error.waited, float)
        return late
    if isinstance(error, ringbuf.PeerDead):
        gone: ConnectionError = error
        assert_type(error.pid, int)
        return gone
    if isinstance(error, ringbuf.RingVersion):
        assert_type((error.found, error.expected), tuple[int, int])
    if isinstance(error, ringbuf.ProducerAlive):
        assert_type(error.pid, int)
    if isinstance(error, ringbuf.NoFreeSlot):
        assert_type(error.slots, int)
    if isinstance(error, ringbuf.FrameTooLarge):
        assert_type((error.size, error.limit), tuple[int, int])
    if isinstance(error, ringbuf.FrameInUse):
        assert_type(error.views, int)
    if isinstance(error, ringbuf.SharedMemoryFull):
        assert_type((error.needed, error.free, error.remedy), tuple[int, int, str])
    return error


def encode(producer: ringbuf.Producer, hidden: F32Array) -> None:
    body = egress.encode_batch(
        rids=["a", "b"],
        finish_reasons=[egress.Stop(matched=7), {"type": "length", "length": 1}],
        prompt_tokens=[3, 4],
        token_ids=[np.array([1, 2], np.int32), [3]],
        out_lp_val=[[-0.5, -0.25], None],
        out_lp_idx=[[1, 2], None],
        out_top_val=[[[-0.5], None], None],
        out_top_idx=[[[1], None], None],
        hidden=[hidden, None],
        texts=["text", ""],
        completion_tokens=[2, 1],
    )
    producer.try_write(egress.Tag.BATCH, body)
    producer.try_write(egress.Tag.BATCH, egress.frame_batch(b"header", [b"column"]))
    producer.try_write(egress.Tag.RESULT, egress.encode_result("a", b"payload"))
    producer.try_write(egress.Tag.ERROR, egress.encode_error("a", "went wrong", status_code=503))


def decode(frame: ringbuf.Frame) -> list[egress.ChunkEvent]:
    try:
        value = egress.decode(frame.tag, frame.payload)
    except egress.MalformedFrame as error:
        assert_type((error.reason, error.rids, error.tag), tuple[str, list[str], int | None])
        raise
    if isinstance(value, egress.Result):
        assert_type((value.rid, value.payload), tuple[str, bytes])
        return []
    if isinstance(value, egress.Failure):
        assert_type((value.rid, value.message, value.status_code), tuple[str, str, int])
        return []
    assert_type(value, egress.Batch)
    assert_type(value.rids, list[str])
    assert_type(len(value), int)
    assert_type(value.token_ids, I32Array)
    assert_type(value[0], egress.ChunkEvent)
    for event in value:
        look_at_event(event)
    return [event.detach() for event in value.select({"a", "b"})]


def try_to_encode(rids: list[str]) -> int:
    try:
        return sum(map(len, egress.encode_batch(rids, [None], [1], [[1]])))
    except egress.EncodeError as error:
        misuse: ValueError = error
        raise misuse from None


def look_at_event(event: egress.ChunkEvent) -> None:
    assert_type((event.rid, event.n_tokens, event.prompt_tokens), tuple[str, int, int])
    assert_type((event.text, event.completion_tokens), tuple[str, int])
    assert_type(event.token_ids, I32Array)
    assert_type(event.finish_reason, egress.FinishReason | None)
    extras = event.extras
    assert_type(extras, egress.ChunkExtras | None)
    if extras is not None:
        assert_type(
            [extras.out_lp_val, extras.in_lp_val, extras.out_top_val, extras.in_tid_val], list[F32Array]
        )
        assert_type([extras.out_lp_idx, extras.in_top_idx, extras.out_tid_idx], list[I32Array])
        assert_type([extras.out_top_lens, extras.in_tid_lens, extras.hidden_lens], list[Sequence[int]])
        assert_type(extras.hidden_val, F32Array)
        assert_type(extras.out_lp_txt, Sequence[str])


def take(data: bytes) -> F32Array:
    ids, offset = egress.take_i32(data, 0, 4)
    assert_type(ids, I32Array)
    values, offset = egress.take_f32(data, offset, 4)
    assert_type(offset, int)
    return values


def finish(mapping: dict[str, Any]) -> dict[str, Any]:
    reason = egress.FinishReason.from_wire(mapping)
    assert_type(reason, egress.FinishReason)
    assert_type(reason.matched, int | str | list[int] | None)
    assert_type(reason.abort_status(), tuple[int, str] | None)
    known: list[type[egress.FinishReason]] = [egress.Stop, egress.Length, egress.Abort, egress.Unknown]
    assert known
    return reason.to_wire()


def ask(body: bytes) -> egress.SamplingParams | None:
    try:
        params = egress.SamplingParams.parse(body)
        assert_type(egress.SamplingParams.parse_many([{"temperature": 0.5}]), list[egress.SamplingParams])
        params.normalize(skip_tokenizer_init=False)
        params.verify(vocab_size=32_000)
    except egress.ValidationError as error:
        assert_type((error.status_code, error.field), tuple[int, str | None])
        return None
    assert_type(egress.SamplingParams.from_wire(params.to_wire()), egress.SamplingParams)
    pattern = egress.RegexPattern.build(r"\d+\.")
    assert_type((pattern.pattern, pattern.max_len), tuple[str, int])
    info = egress.admission_cache_info()
    assert_type((info.hits, info.misses, info.size, info.capacity), tuple[int, int, int, int])
    return params


async def stream(event: egress.ChunkEvent) -> list[egress.ChunkEvent]:
    sink, source = egress.channel(capacity=64, max_tokens=4096)
    sending: egress.EgressSink = sink
    taking: egress.EgressSource = source
    try:
        sending.try_send(egress.item.Frame(event))
        sending.try_send(egress.item.Done(event))
    except (egress.SinkFull, egress.SinkClosed) as refused:
        either: egress.SinkError = refused
        raise either from None
    sending.close()
    assert_type(taking.try_recv(), egress.EgressItem | None)
    assert_type(taking.recv_sync(timeout=1.0), egress.EgressItem)
    assert_type(await taking.recv(), egress.EgressItem)
    got: list[egress.ChunkEvent] = []
    try:
        async for item in source:
            match item:
                case egress.item.Frame(event=part) | egress.item.Done(event=part):
                    got.append(part)
                case egress.item.Control(payload=payload):
                    assert_type(payload, bytes)
                case egress.item.Error(message=message, status_code=status_code):
                    assert_type((message, status_code), tuple[str, int])
    except egress.Truncated as error:
        ours: egress.EgressError = error
        raise ours from None
    finally:
        source.close()
    return got


def conform() -> None:
    check_sink(lambda: egress.channel(capacity=2, max_tokens=64))


def detokenize(params: egress.SamplingParams) -> str:
    tokenizer: egress.Tokenizer = egress.load_tokenizer("qwen")
    assert_type((tokenizer.vocab_size, tokenizer.encode("text")), tuple[int, list[int]])
    assert_type((tokenizer.token_bytes(0), tokenizer.is_special(0)), tuple[bytes, bool])
    assert 0 in tokenizer.eos_token_ids
    loaded = egress.load_tokenizer("qwen")
    assert_type((loaded.name, loaded.decode([0], skip_special_tokens=False)), tuple[str, str])
    assert_type((loaded.token_text(0), loaded.chat([], add_generation_prompt=True)), tuple[str, str])
    state = egress.Detokenizer(tokenizer).open(params, logprob_text=False)
    egress.Detokenizer(None).open(params)
    try:
        delta = state.push([1, 2, 3], finish_reason=None)
    except egress.DetokenizeError:
        return ""
    assert_type(delta, egress.Delta)
    assert_type(delta.completion_tokens, int)
    assert len(delta.token_ids) <= delta.completion_tokens
    return delta.text


class Parrot:
    """The least an engine is."""

    def __init__(self) -> None:
        self.running: dict[str, egress.EngineRequest] = {}

    def submit(self, request: egress.EngineRequest) -> None:
        self.running[request.rid] = request

    def abort(self, rid: str) -> None:
        self.running.pop(rid, None)

    def step(self) -> egress.TokenBatch | None:
        rows = list(self.running)
        return egress.TokenBatch(
            rids=rows,
            finish_reasons=[None for _ in rows],
            prompt_tokens=[len(self.running[rid].input_ids) for rid in rows],
            token_ids=[[1] for _ in rows],
        )


def make(tokenizer: egress.Tokenizer, options: dict[str, Any]) -> egress.Engine:
    assert_type(egress.load_engine("ngram", tokenizer, options), egress.Engine)
    return Parrot()


class Relay:
    """A sink of somebody else's."""

    def __init__(self, onward: egress.EgressSink) -> None:
        self.onward = onward

    def try_send(self, item: egress.EgressItem) -> None:
        self.onward.try_send(item)

    def close(self) -> None:
        self.onward.close()


def relay(onward: egress.EgressSink) -> egress.EgressSink:
    return Relay(onward)

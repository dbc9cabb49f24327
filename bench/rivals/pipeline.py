"""How servers carry a step from the detokenizer to the API process today, rebuilt for `pipeline_end_to_end`.

The receiving side mirrors SGLang's tokenizer manager (python/sglang/srt/managers/tokenizer_manager.py,
`_handle_batch_output`): a loop over the rids, a state looked up, a `meta_info` and an output dict made,
appended to the state's `out_list`, its asyncio.Event set; who has finished is forgotten. It is leaner than
the original (no cumulative text, no metrics, no logprob tuples: values are handed on as they came), and so
are the objects sent.

Each transport ships the columns in the form its servers do: lists, made from the engine's arrays by `tolist`;
the rows called "arrays" keep numpy arrays instead, which pickle 5 copies whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import tempfile
import time
from typing import Any

import msgspec
import numpy as np
import uvloop
import zmq
import zmq.asyncio

from bench.pipeline_steps import Step
from bench.rivals.vllm_queue import MessageQueue

# A step of hidden states as a pickled list: 9 bytes a number. vLLM's own default is 10 MiB.
CHUNK_BYTES = 12 << 20

_ARRAYS = ("out_lp_val", "out_lp_idx", "out_top_val", "out_top_idx", "hidden")


def columns_of(step: Step, keep_arrays: bool) -> dict[str, Any]:
    """The dict that travels."""
    columns = {name: column for name, column in step._asdict().items() if column is not None}
    if not keep_arrays:
        for name in _ARRAYS:
            if name in columns:
                columns[name] = columns[name].tolist()
    return columns


class State:
    """SGLang's ReqState, as far as it takes part."""

    __slots__ = ("event", "finished", "out_list")

    def __init__(self) -> None:
        self.out_list: list[dict[str, Any]] = []
        self.finished = False
        self.event = asyncio.Event()


class Table:
    """rid -> State, and the loop that fills them; and the handlers' hold on the same states."""

    def __init__(self) -> None:
        self._states: dict[str, State] = {}
        self._handlers: dict[str, State] = {}

    def open(self) -> None:
        """Forget all requests."""
        self._states, self._handlers = {}, {}

    def admit(self, rid: str) -> bool:
        """Make a request's state; whether it is new."""
        if rid in self._handlers:
            return False
        self._states[rid] = self._handlers[rid] = State()
        return True

    def route(self, columns: dict[str, Any]) -> None:
        """Lead one step's rows to their states."""
        states = self._states
        reasons, prompts = columns["finish_reasons"], columns["prompt_tokens"]
        ids, texts, completions = columns["token_ids"], columns["texts"], columns["completion_tokens"]
        lp_val, top_val, hidden = columns.get("out_lp_val"), columns.get("out_top_val"), columns.get("hidden")
        for i, rid in enumerate(columns["rids"]):
            state = states.get(rid)
            if state is None:
                continue
            meta_info = {
                "id": rid,
                "finish_reason": reasons[i],
                "prompt_tokens": prompts[i],
                "completion_tokens": completions[i],
            }
            if lp_val is not None:
                meta_info["output_token_logprobs_val"] = lp_val[i]
                meta_info["output_token_logprobs_idx"] = columns["out_lp_idx"][i]
            if top_val is not None:
                meta_info["output_top_logprobs_val"] = top_val[i]
                meta_info["output_top_logprobs_idx"] = columns["out_top_idx"][i]
            if hidden is not None:
                meta_info["hidden_states"] = hidden[i]
            out_dict = {"text": texts[i], "output_ids": ids[i], "meta_info": meta_info}
            state.finished = reasons[i] is not None
            state.out_list.append(out_dict)
            state.event.set()
            if state.finished:
                del states[rid]

    def drain(self) -> int:
        """Take everything and look at its text, as handlers do; how many events that were."""
        taken = 0
        ended = []
        for rid, state in self._handlers.items():
            out_list, state.out_list = state.out_list, []
            state.event.clear()
            for out in out_list:
                out["text"]
                taken += 1
            if state.finished:
                ended.append(rid)
        for rid in ended:
            del self._handlers[rid]
        return taken

    def check(self, step: Step) -> str | None:
        """What is wrong with the events that wait, one per request, of this step."""
        for i, rid in enumerate(step.rids):
            out = self._handlers[rid].out_list
            if len(out) != 1:
                return f"{rid}: not exactly one event"
            meta = out[0]["meta_info"]
            got = (
                meta["id"],
                meta["finish_reason"],
                meta["prompt_tokens"],
                out[0]["output_ids"],
                out[0]["text"],
            )
            if got != (
                rid,
                step.finish_reasons[i],
                step.prompt_tokens[i],
                step.token_ids[i],
                step.texts[i],
            ):
                return f"{rid}: {out[0]}"
            for name, key in (
                ("out_lp_val", "output_token_logprobs_val"),
                ("out_lp_idx", "output_token_logprobs_idx"),
                ("out_top_val", "output_top_logprobs_val"),
                ("out_top_idx", "output_top_logprobs_idx"),
                ("hidden", "hidden_states"),
            ):
                if (sent := getattr(step, name)) is not None and not np.array_equal(meta[key], sent[i]):
                    return f"{rid}: {name}"
        return None


class _Receiver(Table):
    """A receiver that blocks in its transport for each step."""

    def receive(self, count: int, n: int) -> int:
        for _ in range(count):
            self.route(self._next())
        return time.monotonic_ns()

    def _next(self) -> dict[str, Any]:
        raise AssertionError("a transport says how it receives")


# ZeroMQ


def _path(name: str) -> str:
    return os.path.join(tempfile.gettempdir(), name)


def _socket(context: Any, kind: int) -> Any:
    socket = context.socket(kind)
    socket.setsockopt(zmq.SNDHWM if kind == zmq.PUSH else zmq.RCVHWM, 0)
    return socket


class ZmqSender:
    keep_arrays = False
    dumps = staticmethod(lambda columns: pickle.dumps(columns, pickle.HIGHEST_PROTOCOL))

    def __init__(self, name: str, queue: Any) -> None:
        self._context = zmq.Context()
        self._socket = _socket(self._context, zmq.PUSH)
        self._socket.connect(f"ipc://{_path(name)}")

    def send(self, step: Step) -> None:
        self._socket.send(self.dumps(columns_of(step, self.keep_arrays)), copy=False)

    def close(self) -> None:
        self._socket.close(linger=0)
        self._context.term()


class ZmqReceiver(_Receiver):
    loads = staticmethod(pickle.loads)

    def __init__(self, name: str, queue: Any) -> None:
        super().__init__()
        self._path = _path(name)
        self._context = zmq.Context()
        self._socket = _socket(self._context, zmq.PULL)
        self._socket.bind(f"ipc://{self._path}")

    def _next(self) -> dict[str, Any]:
        return self.loads(self._socket.recv(copy=False).buffer)

    def close(self) -> None:
        self._socket.close(linger=0)
        self._context.term()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)


class ZmqLoopReceiver(Table):
    """On an event loop, as in SGLang: zmq.asyncio under uvloop."""

    def __init__(self, name: str, queue: Any) -> None:
        super().__init__()
        self._path = _path(name)
        self._loop = uvloop.new_event_loop()
        self._loop.run_until_complete(self._bind())

    async def _bind(self) -> None:
        self._context = zmq.asyncio.Context()
        self._socket = _socket(self._context, zmq.PULL)
        self._socket.bind(f"ipc://{self._path}")

    def receive(self, count: int, n: int) -> int:
        return self._loop.run_until_complete(self._receive(count))

    async def _receive(self, count: int) -> int:
        for _ in range(count):
            self.route(await self._socket.recv_pyobj())
        return time.monotonic_ns()

    def close(self) -> None:
        self._socket.close(linger=0)
        self._context.term()
        self._loop.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)


class ZmqArraysSender(ZmqSender):
    keep_arrays = True


class MsgpackSender(ZmqSender):
    dumps = staticmethod(msgspec.msgpack.encode)


class MsgpackReceiver(ZmqReceiver):
    loads = staticmethod(msgspec.msgpack.decode)


# multiprocessing.Queue


class QueueSender:
    def __init__(self, name: str, queue: Any) -> None:
        self._queue = queue

    def send(self, step: Step) -> None:
        self._queue.put(columns_of(step, False))

    def close(self) -> None:
        self._queue.close()
        self._queue.join_thread()


class QueueReceiver(_Receiver):
    def __init__(self, name: str, queue: Any) -> None:
        super().__init__()
        self._next = queue.get  # type: ignore[method-assign]
        self._queue = queue

    def close(self) -> None:
        self._queue.close()


# vLLM's shared-memory queue: it spins, so the processor time it takes while nothing comes is its own.


class VllmSender:
    def __init__(self, name: str, queue: Any) -> None:
        self._queue = MessageQueue(name, CHUNK_BYTES, 1, None)

    def send(self, step: Step) -> None:
        self._queue.enqueue(columns_of(step, False))

    def close(self) -> None:
        self._queue.close()


class VllmReceiver(_Receiver):
    def __init__(self, name: str, queue: Any) -> None:
        super().__init__()
        self._queue = MessageQueue(name, CHUNK_BYTES, 1, 0)
        self._next = self._queue.dequeue  # type: ignore[method-assign]

    def close(self) -> None:
        self._queue.close()

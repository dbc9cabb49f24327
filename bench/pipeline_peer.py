"""The two processes of one transport in `pipeline_end_to_end`, and what the program asks of them.

Steps go in groups: the receiver drains every sink, says go, and the clock runs from the sender's first step
to the last event of the group in its sink; or, where the order says so, until every handler has taken its
events out again and looked at each one's text. Making steps and opening sinks is outside it, for all
transports alike. Processor time is that of the whole process, its helper threads included, over the same
spans.
"""

from __future__ import annotations

import gc
import importlib
import multiprocessing
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from bench.harness import pin
from bench.pipeline_steps import Script, Step

OURS = "ringbuf + egress"
SGLANG = "ZeroMQ + pickle"
# name: (module, sender, receiver, which kinds it takes part in)
TRANSPORTS: dict[str, tuple[str, str, str, tuple[str, ...]]] = {
    OURS: ("bench.pipeline_ours", "Sender", "Receiver", ("plain", "churn", "logprobs", "hidden")),
    SGLANG: (
        "bench.rivals.pipeline",
        "ZmqSender",
        "ZmqLoopReceiver",
        ("plain", "churn", "logprobs", "hidden"),
    ),
    "ZeroMQ + pickle, blocking": (
        "bench.rivals.pipeline",
        "ZmqSender",
        "ZmqReceiver",
        ("plain", "churn", "logprobs", "hidden"),
    ),
    "ZeroMQ + pickle, arrays": (
        "bench.rivals.pipeline",
        "ZmqArraysSender",
        "ZmqReceiver",
        ("logprobs", "hidden"),
    ),
    "ZeroMQ + msgpack": (
        "bench.rivals.pipeline",
        "MsgpackSender",
        "MsgpackReceiver",
        ("plain", "churn", "logprobs", "hidden"),
    ),
    "multiprocessing.Queue": (
        "bench.rivals.pipeline",
        "QueueSender",
        "QueueReceiver",
        ("plain", "churn", "logprobs", "hidden"),
    ),
    "vLLM's queue": (
        "bench.rivals.pipeline",
        "VllmSender",
        "VllmReceiver",
        ("plain", "churn", "logprobs", "hidden"),
    ),
}


class Group(NamedTuple):
    """One group as measured."""

    seconds: float
    cpu_s: float


class Order(NamedTuple):
    """What the program asks of both processes."""

    groups: int
    steps: int
    gap_s: float = 0.0
    check: bool = False
    takes: bool = False


def _peer(role: str, transport: str, name: str, queue: Any, orders: Connection, other: Connection) -> None:
    pin(0 if role == "sender" else 1)
    module, sender, receiver, _ = TRANSPORTS[transport]
    end = getattr(importlib.import_module(module), sender if role == "sender" else receiver)(name, queue)
    orders.send("ready")
    script: Script | None = None
    while (order := orders.recv()) is not None:
        if isinstance(order, tuple) and not isinstance(order, Order):
            script = Script(*order)
            if role == "receiver":
                end.open()
            # What lives as long as the case is not looked at by every collection in it, as servers do it.
            gc.collect()
            gc.freeze()
            orders.send("ready")
        else:
            assert script is not None
            orders.send((_send if role == "sender" else _receive)(end, script, order, other))
    end.close()


def _send(end: Any, script: Script, order: Order, other: Connection) -> list[tuple[int, int]]:
    spans = []
    for _ in range(order.groups):
        steps = script.take(order.steps)
        gc.freeze()
        other.recv_bytes()
        if order.gap_s:
            time.sleep(order.gap_s)
        cpu = time.process_time_ns()
        started = time.monotonic_ns()
        for step in steps:
            end.send(step)
        other.recv_bytes()
        spans.append((started, time.process_time_ns() - cpu))
    return spans


def _receive(end: Any, script: Script, order: Order, other: Connection) -> list[tuple[int, int]] | str:
    spans = []
    wrong: str | None = None
    for _ in range(order.groups):
        # Making tokens here, too, would scatter the memory that events are made in.
        steps = script.take(order.steps, rows_only=not order.check)
        _admit(end, steps)
        n = len(steps[0].rids)
        taken = None
        cpu = time.process_time_ns()
        other.send_bytes(b"go")
        ended = end.receive(order.steps, n)
        if order.takes:
            taken = end.drain()
            ended = time.monotonic_ns()
        spans.append((ended, time.process_time_ns() - cpu))
        other.send_bytes(b"done")
        if order.check:
            wrong = wrong or end.check(steps[0])
            end.drain()
            continue
        if taken is None:
            taken = end.drain()
        if taken != order.steps * n:
            wrong = f"{taken} events in the sinks, {order.steps * n} were sent"
    return spans if wrong is None else wrong


def _admit(end: Any, steps: Sequence[Step]) -> None:
    """Open a sink for every request that is new in these steps."""
    for step in steps:
        for rid in reversed(step.rids):
            # Newcomers stand at the end.
            if not end.admit(rid):
                break
    # As for the case: steps are not to be looked at by collections within the clock.
    gc.freeze()


class Pair:
    """Both processes of one transport, waiting for orders."""

    def __init__(self, transport: str, name: str) -> None:
        self.transport = transport
        context = multiprocessing.get_context("spawn")
        queue = context.Queue() if transport == "multiprocessing.Queue" else None
        here, there = context.Pipe()
        self._orders: list[Any] = []
        self._processes: list[Any] = []
        for role, link in (("sender", here), ("receiver", there)):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_peer, args=(role, transport, name, queue, theirs, link), daemon=True
            )
            process.start()
            theirs.close()
            self._orders.append(ours)
            self._processes.append(process)
            self._answer(ours)
        here.close()
        there.close()

    def _answer(self, orders: Any) -> Any:
        if not orders.poll(120):
            raise RuntimeError(f"{self.transport}: no answer in 120 s")
        try:
            return orders.recv()
        except EOFError:
            raise RuntimeError(f"{self.transport}: a process died") from None

    def _ask(self, order: Any) -> list[Any]:
        for orders in self._orders:
            orders.send(order)
        return [self._answer(orders) for orders in self._orders]

    def case(self, kind: str, n: int) -> None:
        """Make the steps, open a sink for every request, and check that one step arrives whole."""
        self._ask((kind, n))
        _, received = self._ask(Order(groups=1, steps=1, check=True))
        if isinstance(received, str):
            raise RuntimeError(f"{self.transport}, {kind}, {n} requests: {received}")

    def run(self, order: Order) -> list[Group]:
        """Carry the order out; one measurement per group."""
        sent, received = self._ask(order)
        if isinstance(received, str):
            raise RuntimeError(f"{self.transport}: {received}")
        return [
            Group((ended - started) / 1e9, (cpu_sent + cpu_received) / 1e9)
            for (started, cpu_sent), (ended, cpu_received) in zip(sent, received, strict=True)
        ]

    def close(self) -> None:
        """End both processes."""
        for orders in self._orders:
            orders.send(None)
        for process in self._processes:
            process.join(10)
            if process.is_alive():
                process.kill()

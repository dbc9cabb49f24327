"""Two-way links for the latency benchmarks: each end has send(bytes) and receive() -> something or None.

`kind` is "spin" (receive answers at once) or "block" (receive sleeps in the kernel until something came).
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

import ringbuf

SIDES = ("ping", "pong")


class RingLink:
    """Two rings, one each way."""

    KINDS = frozenset({"spin", "block"})

    def __init__(self, name: str, side: str, kind: str) -> None:
        other = SIDES[1 - SIDES.index(side)]
        self.producer = ringbuf.create(f"{name}-{side}", capacity=1 << 16, slots=2)
        self.consumer_name, self.kind = f"{name}-{other}", kind

    def connect(self) -> None:
        self.consumer = ringbuf.attach(self.consumer_name, start="oldest", timeout=10)
        try_write = self.producer.try_write
        self.send = lambda data: try_write(1, data)
        self.receive = self.consumer.try_read if self.kind == "spin" else self.consumer.read

    def close(self) -> None:
        self.consumer.close()
        self.producer.close()


class SubethaLink:
    KINDS = frozenset({"spin"})

    def __init__(self, name: str, side: str, kind: str) -> None:
        import subetha  # noqa: PLC0415 - each rival is optional

        self.rings = subetha.SpscRing
        other = SIDES[1 - SIDES.index(side)]
        self.path, self.other = f"/dev/shm/{name}-{side}", f"/dev/shm/{name}-{other}"
        self.out = self.rings(self.path, 1024)

    def connect(self) -> None:
        self.send = self.out.push
        self.receive = self.rings.open(self.other, 1024).pop

    def close(self) -> None:
        os.unlink(self.path)


class CloudtoidLink:
    KINDS = frozenset({"spin", "block"})

    def __init__(self, name: str, side: str, kind: str) -> None:
        from cloudtoid_interprocess import Publisher, Subscriber  # noqa: PLC0415

        other = SIDES[1 - SIDES.index(side)]
        self.inbox = Subscriber(f"{name}-{other}", 1 << 16, "/dev/shm")
        self.outbox = Publisher(f"{name}-{side}", 1 << 16, "/dev/shm")
        self.kind = kind

    def connect(self) -> None:
        self.send = self.outbox.try_send
        self.receive = self.inbox.try_receive if self.kind == "spin" else self.inbox.receive

    def close(self) -> None:
        self.inbox.close()
        self.outbox.close()


class PosixQueueLink:
    """posix_ipc.MessageQueue: the kernel's own queue."""

    KINDS = frozenset({"block"})

    def __init__(self, name: str, side: str, kind: str) -> None:
        import posix_ipc  # noqa: PLC0415

        other = SIDES[1 - SIDES.index(side)]
        self.out = posix_ipc.MessageQueue(
            f"/{name}-{side}", posix_ipc.O_CREAT, max_messages=8, max_message_size=128
        )
        self.inbox = posix_ipc.MessageQueue(
            f"/{name}-{other}", posix_ipc.O_CREAT, max_messages=8, max_message_size=128
        )

    def connect(self) -> None:
        self.send, self.receive = self.out.send, self.inbox.receive

    def close(self) -> None:
        self.out.close()
        self.inbox.close()
        self.out.unlink()


class IceoryxLink:
    """Samples by publish-subscribe, sleep and wake-up by iceoryx2's event service."""

    KINDS = frozenset({"spin", "block"})

    def __init__(self, name: str, side: str, kind: str) -> None:
        import ctypes  # noqa: PLC0415

        import iceoryx2 as iox2  # noqa: PLC0415

        iox2.set_log_level(iox2.LogLevel.Error)
        self.node = iox2.NodeBuilder.new().create(iox2.ServiceType.Ipc)
        self.kind, self.memmove = kind, ctypes.memmove
        other = SIDES[1 - SIDES.index(side)]

        def data(direction: str) -> Any:
            builder = self.node.service_builder(iox2.ServiceName.new(f"{name}-{direction}"))
            return builder.publish_subscribe(iox2.Slice[ctypes.c_uint8]).open_or_create()

        def event(direction: str) -> Any:
            builder = self.node.service_builder(iox2.ServiceName.new(f"{name}-{direction}-event"))
            return builder.event().open_or_create()

        self.out, self.inbox = data(side), data(other)
        self.publisher = self.out.publisher_builder().initial_max_slice_len(128).create()
        self.subscriber = self.inbox.subscriber_builder().create()
        if kind == "block":
            self.bell_out, self.bell_in = event(side), event(other)
            self.notifier = self.bell_out.notifier_builder().create()
            self.listener = self.bell_in.listener_builder().create()

    def connect(self) -> None:
        self.publisher.update_connections()
        self.receive = self._receive_blocking if self.kind == "block" else self._receive

    def send(self, payload: bytes) -> None:
        sample = self.publisher.loan_slice_uninit(len(payload))
        self.memmove(sample.payload_ptr, payload, len(payload))
        sample.assume_init().send()
        if self.kind == "block":
            self.notifier.notify()

    def _receive(self) -> Any:
        sample = self.subscriber.receive()
        if sample is None:
            return None
        return bytes(sample.payload().as_memory_view().cast("B"))

    def _receive_blocking(self) -> Any:
        while (sample := self._receive()) is None:
            self.listener.blocking_wait()
        return sample

    def close(self) -> None:
        self.publisher.delete()
        self.subscriber.delete()
        if self.kind == "block":
            self.notifier.delete()
            self.listener.delete()


class ZeromqLink:
    KINDS = frozenset({"block"})

    def __init__(self, name: str, side: str, kind: str) -> None:
        import zmq  # noqa: PLC0415

        self.context, self.path = zmq.Context(), os.path.join(tempfile.gettempdir(), name)
        self.socket = self.context.socket(zmq.PAIR)
        self.side = side
        if side == "ping":
            self.socket.bind(f"ipc://{self.path}")
        else:
            self.socket.connect(f"ipc://{self.path}")

    def connect(self) -> None:
        self.send, self.receive = self.socket.send, self.socket.recv

    def close(self) -> None:
        self.socket.close(linger=0)
        self.context.term()
        if self.side == "ping":
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)


class ConnectionLink:
    """multiprocessing.connection over a Unix socket: what mp.Queue and mp.Pipe are made of."""

    KINDS = frozenset({"block"})

    def __init__(self, name: str, side: str, kind: str) -> None:
        self.path, self.side = os.path.join(tempfile.gettempdir(), name), side
        self.listener = Listener(self.path, family="AF_UNIX") if side == "ping" else None

    def connect(self) -> None:
        connection: Connection[Any, Any] = (
            self.listener.accept() if self.listener else Client(self.path, family="AF_UNIX")
        )
        self.connection, self.send, self.receive = connection, connection.send, connection.recv

    def close(self) -> None:
        self.connection.close()
        if self.listener:
            self.listener.close()


class VllmLink:
    KINDS = frozenset({"spin"})

    def __init__(self, name: str, side: str, kind: str) -> None:
        from bench.rivals.vllm_queue import MessageQueue  # noqa: PLC0415

        self.other = f"{name}-{SIDES[1 - SIDES.index(side)]}"
        self.queue, self.queues = MessageQueue(f"{name}-{side}", 4096, 1, None), MessageQueue

    def connect(self) -> None:
        self.inbox = self.queues(self.other, 4096, 1, 0)
        self.send, self.receive = self.queue.enqueue, self.inbox.dequeue

    def close(self) -> None:
        self.inbox.close()
        self.queue.close()


LINKS: dict[str, Any] = {
    "ringbuf": RingLink,
    "subetha": SubethaLink,
    "cloudtoid": CloudtoidLink,
    "iceoryx2": IceoryxLink,
    "posix_ipc.MessageQueue": PosixQueueLink,
    "pyzmq ipc": ZeromqLink,
    "mp connection": ConnectionLink,
    "vLLM's design": VllmLink,
}

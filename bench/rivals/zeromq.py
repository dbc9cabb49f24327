"""pyzmq over an ipc:// PUSH/PULL pair; batches as one multipart message; large frames uncopied."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time

import zmq

from bench.rivals import looping

MODES = {"one", "many", "view"}
FIRST = "consumer"
BATCH = 64


def _path(name: str) -> str:
    return os.path.join(tempfile.gettempdir(), name)


class Producer:
    def __init__(self, name: str, size: int, mode: str) -> None:
        self.mode = mode
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.PUSH)
        self.socket.connect(f"ipc://{_path(name)}")

    def run(self, payloads: list[bytes], count: int, check: bool) -> None:
        if self.mode == "many":
            send = self.socket.send_multipart

            def send_many(batch: list[bytes]) -> int:
                send(batch)
                return len(batch)

            looping.send_batches(send_many, payloads, count, BATCH)
            return
        send_one, copy, done, n = self.socket.send, self.mode == "one", 0, len(payloads)
        while done < count:
            for payload in payloads[: min(n, count - done)]:
                send_one(payload, copy=copy)
            done += n

    def close(self) -> None:
        self.socket.close(linger=0)
        self.context.term()


class Consumer:
    def __init__(self, name: str, size: int, mode: str) -> None:
        self.mode, self.path = mode, _path(name)
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.PULL)
        self.socket.bind(f"ipc://{self.path}")

    def run(self, payloads: list[bytes], count: int, check: bool) -> float:
        if self.mode == "many":
            many = self.socket.recv_multipart
            return (
                looping.check_batches(many, payloads, count)
                if check
                else looping.receive_batches(many, count)
            )
        receive = self.socket.recv
        if self.mode == "one" or check:
            return (
                looping.check_each(receive, payloads, count)
                if check
                else looping.receive_each(receive, count)
            )
        receive(copy=False)
        started = time.perf_counter()
        for _ in range(count - 1):
            view = receive(copy=False).buffer
            view[0], view[-1]
        return time.perf_counter() - started

    def close(self) -> None:
        self.socket.close(linger=0)
        self.context.term()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)

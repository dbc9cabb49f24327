"""iceoryx2's publish-subscribe over byte slices: loan, fill, send; receive a sample and view it in place."""

from __future__ import annotations

import ctypes
import time

import iceoryx2 as iox2

MODES = {"one", "view"}
FIRST = "producer"
DEPTH = 64


def _service(name: str, depth: int):  # type: ignore[no-untyped-def]
    iox2.set_log_level(iox2.LogLevel.Error)
    node = iox2.NodeBuilder.new().create(iox2.ServiceType.Ipc)
    service = (
        node.service_builder(iox2.ServiceName.new(name))
        .publish_subscribe(iox2.Slice[ctypes.c_uint8])
        .enable_safe_overflow(False)
        .subscriber_max_buffer_size(depth)
        .max_publishers(1)
        .max_subscribers(1)
        .open_or_create()
    )
    return node, service


def _depth(size: int) -> int:
    return 8 if size > 1 << 17 else DEPTH if size > 4096 else 1024


class Producer:
    def __init__(self, name: str, size: int, mode: str) -> None:
        self.size = size
        self.node, self.service = _service(name, _depth(size))
        self.publisher = (
            self.service.publisher_builder()
            .initial_max_slice_len(size)
            .backpressure_strategy(iox2.BackpressureStrategy.RetryUntilDelivered)
            .create()
        )

    def run(self, payloads: list[bytes], count: int, check: bool) -> None:
        while self.service.dynamic_config.number_of_subscribers == 0:
            pass
        self.publisher.update_connections()
        loan, size, memmove = self.publisher.loan_slice_uninit, self.size, ctypes.memmove
        done, n = 0, len(payloads)
        while done < count:
            for payload in payloads[: min(n, count - done)]:
                sample = loan(size)
                memmove(sample.payload_ptr, payload, size)
                sample.assume_init().send()
            done += n

    def close(self) -> None:
        self.publisher.delete()


class Consumer:
    def __init__(self, name: str, size: int, mode: str) -> None:
        self.size = size
        self.node, self.service = _service(name, _depth(size))
        self.subscriber = self.service.subscriber_builder().create()

    def run(self, payloads: list[bytes], count: int, check: bool) -> float:
        receive = self.subscriber.receive
        started, got = 0.0, 0
        while got < count:
            sample = receive()
            if sample is None:
                continue
            view = sample.payload().as_memory_view().cast("B")
            if check:
                if bytes(view) != payloads[got % len(payloads)]:
                    raise SystemExit(f"frame {got} is not what was sent")
            else:
                view[0], view[-1]
            sample.delete()
            got += 1
            if got == 1:
                started = time.perf_counter()
        return time.perf_counter() - started

    def close(self) -> None:
        self.subscriber.delete()

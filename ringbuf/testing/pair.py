"""A producer and its consumers, back to back in one process."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator

from ringbuf.consumer import Consumer
from ringbuf.opening import attach, create
from ringbuf.producer import Producer

__all__ = ["open_pair"]

_serial = itertools.count()


@contextlib.contextmanager
def open_pair(
    capacity: int = 4096, consumers: int = 1, *, name: str | None = None, position: int = 0
) -> Iterator[tuple[Producer, *tuple[Consumer, ...]]]:
    """A ring of its own for one block: the producer, then its consumers.

    Args:
        capacity: bytes, as for create.
        consumers: how many to attach, at least 0; the ring has one slot more.
        name: of the ring; one that no other process uses by default.
        position: where the stream begins, a multiple of 8 below 2**64.

    >>> with open_pair() as (producer, consumer):
    ...     _ = producer.try_write(1, b"hello")
    ...     bytes(consumer.read(timeout=1).payload)
    b'hello'
    """
    name = name or f"pair-{os.getpid()}-{next(_serial)}"
    with contextlib.ExitStack() as stack:
        producer = stack.enter_context(create(name, capacity, consumers + 1, _position=position))
        attached = [stack.enter_context(attach(name, timeout=0)) for _ in range(consumers)]
        yield (producer, *attached)

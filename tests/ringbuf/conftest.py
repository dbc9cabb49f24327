"""Rings with names of their own, both bodies, and a guard against what a test might leave behind."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import files_of, unique_name

import ringbuf
from ringbuf import _ops, _pyops

BODIES: dict[str, Any] = {"py": _pyops}
if importlib.util.find_spec("ringbuf._cops") is not None:
    BODIES["c"] = importlib.import_module("ringbuf._cops")
PAIRS = [(writer, reader) for writer in BODIES for reader in BODIES]


@pytest.fixture(params=PAIRS, ids=[w if w == r else f"{w}-{r}" for w, r in PAIRS])
def body(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Handles opened in this test use this writing and this reading body."""
    writer, reader = request.param
    monkeypatch.setattr(_ops, "make_writer", BODIES[writer].make_writer)
    monkeypatch.setattr(_ops, "make_reader", BODIES[reader].make_reader)
    monkeypatch.setattr(_ops, "private", BODIES[reader].private)
    return writer, reader


@pytest.fixture
def name() -> Iterator[str]:
    """A ring name; whatever bears it is gone after the test."""
    name = unique_name("ring")
    yield name
    gc.collect()
    for file in files_of(name):
        # A thread of the test may be taking it away at this very moment.
        Path("/dev/shm", file).unlink(missing_ok=True)


@pytest.fixture
def producer(name: str, body: tuple[str, str]) -> Iterator[ringbuf.Producer]:
    """A producer of a 4 KiB ring with 3 slots."""
    with ringbuf.create(name, capacity=4096, slots=3) as producer:
        yield producer


@pytest.fixture
def consumer(producer: ringbuf.Producer) -> Iterator[ringbuf.Consumer]:
    """A consumer of the producer's ring."""
    with ringbuf.attach(producer.name) as consumer:
        yield consumer

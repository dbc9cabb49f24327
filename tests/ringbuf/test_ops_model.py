"""The ring against a deque: any operations, small rings, positions around every power that matters."""

from __future__ import annotations

import itertools
from collections import deque
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from support import unique_name

import ringbuf
from ringbuf import layout

EDGES = (0, 1 << 31, 1 << 32, 1 << 63)
ORIGINS = st.builds(lambda edge, words: max(0, edge - 8 * words), st.sampled_from(EDGES), st.integers(0, 64))
CAPACITIES = st.sampled_from([64, 128, 256, 512, 1024, 2048, 4096])


class Reader:
    """A consumer, and what it must still be given."""

    def __init__(self, consumer: ringbuf.Consumer, expected: deque[tuple[int, int, bytes]]) -> None:
        self.consumer = consumer
        self.expected = expected
        self.held: list[tuple[ringbuf.Frame, Any, bytes]] = []


class RingMachine(RuleBasedStateMachine):
    """Writes, claims, joins, reads, holds and leaves in any order."""

    @initialize(capacity=CAPACITIES, origin=ORIGINS, slots=st.integers(1, 10))
    def create(self, capacity: int, origin: int, slots: int) -> None:
        self.name = unique_name("model")
        self.capacity = capacity
        self.slots = slots
        self.producer = ringbuf.create(self.name, capacity, slots, _position=origin)
        self.limit = capacity // 2 - layout.FRAME_HEADER
        self.seq = 0
        self.history: list[tuple[int, int, bytes]] = []
        self.readers: list[Reader] = []
        self.fill = itertools.count()

    def make(self, size: int) -> bytes:
        return bytes(next(self.fill) % 256 for _ in range(size))

    def sent(self, tag: int, payload: bytes) -> None:
        item = (tag, self.seq, payload)
        self.seq += 1
        self.history.append(item)
        for reader in self.readers:
            reader.expected.append(item)

    def room(self) -> int:
        """Bytes that are surely writable: the least that padding can leave."""
        used = ringbuf.inspect(self.name).used_bytes
        return self.capacity - used

    @rule(data=st.data(), tag=st.integers(1, 255), align_at=st.sampled_from([0, 0, 0, 1, 5]))
    def write(self, data: st.DataObject, tag: int, align_at: int) -> None:
        shift = layout.shift_for(align_at)
        payload = self.make(data.draw(st.integers(0, max(0, self.limit - shift))))
        room = self.room()
        step = layout.frame_bytes(len(payload), shift)
        if step > self.capacity // 2:
            with pytest.raises(ringbuf.FrameTooLarge):
                self.producer.try_write(tag, payload, align_at)
            return
        written = self.producer.try_write(tag, payload, align_at)
        if written:
            self.sent(tag, payload)
            assert step <= room or not self.readers
        elif self.readers:
            gap = self.capacity - ringbuf.inspect(self.name).position % self.capacity
            assert room < (step if step <= gap else step + gap)

    @rule(sizes=st.lists(st.integers(0, 40), max_size=8))
    def write_many(self, sizes: list[int]) -> None:
        frames = [(1 + size, self.make(min(size, self.limit))) for size in sizes]
        for tag, payload in frames[: self.producer.write_many(frames)]:
            self.sent(tag, payload)

    @rule(size=st.integers(0, 48), fail=st.booleans())
    def claim(self, size: int, fail: bool) -> None:
        payload = self.make(min(size, self.limit))
        try:
            with self.producer.claim(3, len(payload)) as buf:
                buf[:] = payload
                if fail:
                    raise ZeroDivisionError
            self.sent(3, payload)
        except (ZeroDivisionError, ringbuf.RingFull):
            pass

    @precondition(lambda self: len(self.readers) < self.slots)
    @rule(start=st.sampled_from(["oldest", "latest"]))
    def attach(self, start: Any) -> None:
        consumer = ringbuf.attach(self.name, start=start, timeout=0)
        expected: deque[tuple[int, int, bytes]] = deque()
        if start == "oldest":
            first = consumer.try_read()
            if first is None:
                assert (
                    not self.history
                    or ringbuf.inspect(self.name).floor == ringbuf.inspect(self.name).position
                )
            else:
                expected.extend(self.history[first.seq :])
                assert expected.popleft() == (first.tag, first.seq, bytes(first.payload))
        self.readers.append(Reader(consumer, expected))

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), hold=st.booleans())
    def read(self, data: st.DataObject, hold: bool) -> None:
        reader = data.draw(st.sampled_from(self.readers))
        frame = reader.consumer.try_read()
        if frame is None:
            assert not reader.expected
            return
        expected = reader.expected.popleft()
        assert (frame.tag, frame.seq, bytes(frame.payload)) == expected
        if hold:
            reader.held.append((frame, np.frombuffer(frame.payload, np.uint8), expected[2]))
        else:
            frame.release()

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), most=st.integers(1, 9))
    def read_many(self, data: st.DataObject, most: int) -> None:
        reader = data.draw(st.sampled_from(self.readers))
        frames = reader.consumer.read_many(most)
        assert len(frames) == min(most, len(reader.expected))
        for frame in frames:
            assert (frame.tag, frame.seq, bytes(frame.payload)) == reader.expected.popleft()

    @precondition(lambda self: any(reader.held for reader in self.readers))
    @rule(data=st.data())
    def let_go(self, data: st.DataObject) -> None:
        reader = data.draw(st.sampled_from([reader for reader in self.readers if reader.held]))
        reader.held.pop(data.draw(st.integers(0, len(reader.held) - 1)))

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        reader = data.draw(st.sampled_from(self.readers))
        self.readers.remove(reader)
        reader.consumer.close()
        reader.held.clear()

    @invariant()
    def held_views_keep_their_bytes(self) -> None:
        for reader in getattr(self, "readers", ()):
            for _, view, payload in reader.held:
                assert view.tobytes() == payload

    def teardown(self) -> None:
        if not hasattr(self, "producer"):
            return
        self.producer.close()
        for reader in self.readers:
            for expected in reader.expected:
                frame = reader.consumer.try_read()
                assert frame is not None
                assert (frame.tag, frame.seq, bytes(frame.payload)) == expected
            with pytest.raises(ringbuf.RingClosed):
                reader.consumer.try_read()
            reader.held.clear()
            reader.consumer.close()


@pytest.mark.slow
@pytest.mark.parametrize("copies", [True, False], ids=["copies", "leases"])
def test_any_sequence_of_operations_agrees_with_a_deque(
    body: tuple[str, str], copies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not copies and body[1] == "py":
        # Everything of two bytes or more becomes a lease, so that leases meet every edge of a small ring too.
        monkeypatch.setattr("ringbuf._pyreader.COPY_LIMIT", 1)
    run_state_machine_as_test(
        RingMachine,
        settings=settings(
            max_examples=120,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("edge", [1 << 31, 1 << 32, 1 << 63])
@pytest.mark.parametrize("state", ["empty", "half", "full"])
def test_frames_pass_every_edge_of_the_position(
    name: str, body: tuple[str, str], edge: int, state: str
) -> None:
    with ringbuf.create(name, 256, _position=edge - 1024) as producer, ringbuf.attach(name) as consumer:
        backlog: deque[bytes] = deque()
        for i in range(200):
            payload = b"%d" % i * 3
            while not producer.try_write(1, payload):
                assert consumer.read(0).payload == backlog.popleft()
            backlog.append(payload)
            keep = {"empty": 0, "half": 4, "full": 99}[state]
            while len(backlog) > keep:
                assert consumer.read(0).payload == backlog.popleft()
        assert ringbuf.inspect(name).position > edge
        assert [bytes(frame.payload) for frame in consumer.read_many()] == list(backlog)


@pytest.mark.parametrize("log", range(6, 13))
def test_every_size_passes_through_every_small_capacity(name: str, body: tuple[str, str], log: int) -> None:
    capacity = 1 << log
    with ringbuf.create(name, capacity) as producer, ringbuf.attach(name) as consumer:
        for size in range(producer.max_payload + 1):
            payload = bytes([size % 251]) * size
            assert producer.try_write(1 + size % 255, payload)
            frame = consumer.read(0)
            assert (frame.tag, bytes(frame.payload)) == (1 + size % 255, payload)
            del frame

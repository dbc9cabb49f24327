"""Damage whose report is known (R007, R020, R024, R047); random damage: tests/stress/ring_corruption.py."""

from __future__ import annotations

import os
import struct

import pytest

import ringbuf
from ringbuf import layout
from ringbuf.testing import at_step


def poke(name: str, offset: int, value: int) -> None:
    fd = os.open(f"/dev/shm/ringbuf.{name}", os.O_RDWR)
    os.pwrite(fd, struct.pack("=Q", value), offset)
    os.close(fd)


@pytest.mark.parametrize("by", [8, 16, 24])
def test_a_first_position_in_the_middle_of_a_frame_is_noticed(producer: ringbuf.Producer, by: int) -> None:
    for _ in range(3):
        producer.write(1, b"\x05\0" * 12)
    poke(producer.name, layout.PRODUCER_PAGE + layout.P_FLOOR * 8, by)
    with pytest.raises(ringbuf.RingCorrupt), ringbuf.attach(producer.name, timeout=0) as consumer:
        consumer.try_read()


def test_a_first_position_at_the_last_word_is_noticed(producer: ringbuf.Producer) -> None:
    producer.write_many([(1, b"x" * 1000)] * 4)
    data = layout.slot_page(3)
    poke(producer.name, layout.PRODUCER_PAGE + layout.P_FLOOR * 8, 4088)
    poke(producer.name, layout.PRODUCER_PAGE + layout.P_POS * 8, 4096)
    poke(producer.name, data + 4088, 5)
    with pytest.raises(ringbuf.RingCorrupt):
        ringbuf.attach(producer.name, timeout=0)


@pytest.mark.parametrize("length", [1 << 31, 4096, 65, (1 << 48) - 1, 0])
def test_a_published_length_that_cannot_be_is_noticed_and_stays_so(
    producer: ringbuf.Producer, consumer: ringbuf.Consumer, length: int
) -> None:
    """R020: tag and size are checked against what the positions allow."""
    producer.write(1, b"x" * 64)
    producer.write(1, b"y" * 64)
    poke(producer.name, layout.slot_page(3), length << layout.LENGTH_BIT | 1)
    for _ in range(2):
        with pytest.raises(ringbuf.RingCorrupt) as caught:
            consumer.try_read(), consumer.try_read()
    assert caught.value.offset >= layout.slot_page(3)
    assert not producer.closed


@pytest.mark.parametrize("read", ["one", "many"])
@pytest.mark.parametrize("length", [49, 60, 80])
def test_a_frame_of_more_than_half_the_ring_is_noticed(
    name: str, body: tuple[str, str], length: int, read: str
) -> None:
    with ringbuf.create(name, 128) as producer, ringbuf.attach(name) as consumer:
        producer.write(1, b"x" * 8)
        assert consumer.read(0).payload == b"x" * 8
        producer.write(1, b"y" * 16)
        data = layout.slot_page(ringbuf.inspect(name).slots)
        poke(name, data + 24, length << layout.LENGTH_BIT | 1)
        poke(name, layout.PRODUCER_PAGE, 128)
        with pytest.raises(ringbuf.RingCorrupt, match="at most 64 can be"):
            consumer.try_read() if read == "one" else consumer.read_many(5)


def test_a_stale_frame_of_an_earlier_lap_is_never_delivered(
    producer: ringbuf.Producer, consumer: ringbuf.Consumer
) -> None:
    """R024: only what the position covers is parsed, and numbers tell laps apart."""
    for seq in range(600):
        producer.write(1, struct.pack("=Q", seq), timeout=1)
        assert consumer.read(0).seq == seq
    position = ringbuf.inspect(producer.name).position
    assert consumer.try_read() is None
    poke(producer.name, layout.PRODUCER_PAGE, position + 24)
    with pytest.raises(ringbuf.RingCorrupt):
        consumer.try_read()


def test_the_words_of_a_dead_predecessor_are_not_held_against_a_newcomer(name: str) -> None:
    """Between taking the lock of a slot and storing its own words, a consumer is under those of the dead."""
    with ringbuf.create(name, 4096, 2, _position=1 << 20) as producer:
        poke(name, layout.slot_page(0) + layout.C_CURSOR * 8, 8)
        poke(name, layout.slot_page(0) + layout.C_STATE * 8, 1 << layout.C_ATTACHMENT_BIT | layout.SLOT_LIVE)
        written = []

        def fill() -> None:
            while producer.try_write(1, b"x" * 500):
                written.append(1)

        with at_step("attach.locked", fill), ringbuf.attach(name, timeout=0) as consumer:
            fill()
            assert len(consumer.read_many()) == len(written) > 0


def test_a_cursor_that_leaves_the_ring_is_noticed_by_the_producer(
    producer: ringbuf.Producer, consumer: ringbuf.Consumer
) -> None:
    while producer.try_write(1, b"x" * 100):
        pass
    poke(producer.name, layout.slot_page(consumer.slot) + layout.C_CURSOR * 8, 1 << 40)
    with pytest.raises(ringbuf.RingCorrupt, match="cursor of slot 0"):
        producer.try_write(1, b"x" * 100)

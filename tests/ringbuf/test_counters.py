"""What a ring says about itself, where its words are awkward to read."""

from __future__ import annotations

import ringbuf


def test_lag_is_told_where_only_a_word_of_padding_is_left(name: str) -> None:
    with ringbuf.create(name, 4096) as producer, ringbuf.attach(name) as consumer:
        for size in (1800, 1800, 4088 - 2 * 1816 - 16):
            assert producer.try_write(1, b"x" * size)
            assert len(consumer.read(0)) == size
        assert ringbuf.inspect(name).consumers[0].position == 4088
        producer.write_many([(1, b"y" * 100)] * 3)
        assert ringbuf.inspect(name).consumers[0].lag_frames == 3

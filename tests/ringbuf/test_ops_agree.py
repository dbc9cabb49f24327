"""The same calls on every body: the same answers, and the same bytes in the segment."""

from __future__ import annotations

import mmap
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ringbuf import _pyreader, layout
from ringbuf.payload import gather

from .conftest import BODIES, PAIRS

PAGE = layout.PAGE
WORD = layout.WORD
SIZES = [0, 1, 2, 7, 8, 63, 64, 65, 500, 1000, 5000, 9000]


@pytest.fixture(autouse=True)
def one_copy_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which frames are copies is the one thing a body decides; here it decides as the C body does."""
    monkeypatch.setattr(_pyreader, "COPY_LIMIT", min(body.COPY_LIMIT for body in BODIES.values()))


class Corrupt(Exception):
    """(position) at which a reader met what it does not believe."""


class Bench:
    """A writer and a reader over private pages, without processes, and the callbacks they need."""

    def __init__(
        self, writer: str, reader: str, capacity: int, position: int = 0, fence: bool = False
    ) -> None:
        self.capacity = capacity
        self.control = mmap.mmap(-1, layout.SLOT_PAGES + PAGE)
        self.data = mmap.mmap(-1, max(capacity, PAGE))
        pages = memoryview(self.control)
        self.producer = pages[layout.PRODUCER_PAGE :][:PAGE].cast("Q")
        self.wake = pages[layout.WAKE_PAGE :][:PAGE].cast("Q")
        self.consumer = pages[layout.SLOT_PAGES :][:PAGE].cast("Q")
        self.producer[layout.P_STATE] = layout.STATE_LIVE
        self.producer[layout.P_POS] = self.producer[layout.P_FLOOR] = position
        self.consumer[layout.C_CURSOR] = position
        self.consumer[layout.C_STATE] = 1 << layout.C_ATTACHMENT_BIT | layout.SLOT_LIVE
        self.calls: list[Any] = []
        self.granted = position + capacity
        barrier = (lambda: None) if fence else None
        self.writer = BODIES[writer].make_writer(
            self.producer,
            memoryview(self.data).cast("Q"),
            self.data,
            self.wake,
            pages.cast("Q"),
            memoryview(bytearray(WORD)).cast("Q"),
            capacity=capacity,
            position=position,
            seq=0,
            slots=0,
            many=False,
            slow=self.slow,
            grant=self.grant,
            wake_up=self.wake_up,
            fence=barrier,
        )
        self.reader = BODIES[reader].make_reader(
            self.producer,
            self.consumer,
            memoryview(self.data).cast("Q"),
            self.data,
            capacity=capacity,
            position=position,
            seq=-1,
            idle=lambda: False,
            corrupt=lambda position, reason: Corrupt(position),
            wake_up=self.ring_producer,
            fence=barrier,
            is_forked=lambda: False,
            last_ended=lambda: self.calls.append("last ended"),
        )

    def slow(self, tag: int, payload: object, align_at: int) -> bool:
        layout.check_tag(tag)
        parts, nbytes = gather(payload)
        shift = layout.shift_for(align_at)
        step = layout.check_fits("agree", nbytes, self.capacity, shift)
        if not self.writer.put(tag, parts, nbytes, shift, step):
            return False
        self.writer.publish()
        return True

    def grant(self, position: int, need: int) -> int:
        return self.consumer[layout.C_CURSOR] + self.capacity

    def wake_up(self) -> int:
        self.calls.append(("wake", self.wake[0]))
        return self.wake[0]

    def ring_producer(self, generation: int) -> int:
        if generation:
            self.calls.append(("ring", generation))
        return generation

    def bytes(self) -> tuple[bytes, bytes]:
        # The C body counts by itself how often and how long the ring is full.
        self.producer[layout.P_FULL_EVENTS] = self.producer[layout.P_FULL_NS] = 0
        return bytes(self.control), bytes(self.data)


def answer(call: Callable[..., Any], *args: Any) -> Any:
    """What a call returns or raises, in a form that can be compared."""
    try:
        result = call(*args)
    except TypeError:
        return TypeError
    except Exception as error:
        return type(error), str(error)
    if isinstance(result, list):
        return [(frame.tag, frame.seq, bytes(frame.payload), repr(frame)) for frame in result]
    if hasattr(result, "payload"):
        return result.tag, result.seq, bytes(result.payload), repr(result)
    return result


def payload_of(rng: random.Random, limit: int) -> Any:
    size = min(rng.choice(SIZES), limit)
    data = rng.randbytes(size)
    kind = rng.randrange(7)
    if kind == 0:
        return bytearray(data)
    if kind == 1:
        return [data[: size // 2], memoryview(data)[size // 2 :]]
    if kind == 2:
        return tuple(data[i : i + 1] for i in range(min(size, 20)))
    if kind == 3:
        return np.frombuffer(data, np.uint8)[:: rng.choice([1, 2])]
    if kind == 4:
        return memoryview(data)[::3]
    return data


def script(seed: int, bench: Bench, steps: int = 400) -> list[Any]:
    """A random conversation, always the same for a seed, and every answer to it."""
    rng = random.Random(seed)
    limit = bench.capacity // 2 - layout.FRAME_HEADER - 7
    log: list[Any] = []
    held: list[Any] = []
    for _ in range(steps):
        match rng.randrange(11):
            case 0 | 1:
                log.append(answer(bench.writer.try_write, rng.randint(1, 255), payload_of(rng, limit)))
            case 2:
                align = rng.choice([0, 1, 5, 8, -3, 1 << 70])
                log.append(answer(bench.writer.try_write, rng.randint(1, 255), payload_of(rng, limit), align))
            case 3:
                bad = rng.choice(
                    [(0, b"x"), (256, b"x"), (-1, b""), ("1", b"x"), (1, "x"), (1, 5), (1, [b"", 2])]
                )
                log.append(answer(bench.writer.try_write, *bad))
                log.append(answer(bench.writer.try_write, 1, bytes(limit + 8 + rng.randrange(3))))
            case 4:
                sizes = [min(rng.choice(SIZES), limit) for _ in range(9)]
                frames = [(rng.randint(1, 255), rng.randbytes(size)) for size in sizes]
                done = first = rng.randrange(3)
                # How far a body gets by itself is its own affair.
                while done < len(frames):
                    done += bench.writer.put_many(frames, done)
                    if done < len(frames):
                        tag, data = frames[done]
                        step = layout.frame_bytes(len(data))
                        if not bench.writer.put(tag, [memoryview(data)], len(data), 0, step):
                            break
                        done += 1
                log.append(done - first)
                if rng.randrange(4):
                    bench.writer.publish()
                else:
                    bench.writer.rewind()
            case 5:
                nbytes = min(40, limit)
                step = layout.frame_bytes(nbytes)
                offset = answer(bench.writer.place, step)
                log.append(offset)
                bench.writer.freeze()
                if offset >= 0 and rng.randrange(2):
                    bench.writer.commit(9, nbytes, 0, step)
                    bench.writer.publish()
            case 6:
                log.append(answer(bench.reader.read_many, rng.randint(1, 9)))
            case 7:
                bench.wake[0] = rng.randrange(3)
                bench.producer[layout.P_WAITING] = rng.randrange(3)
            case 8:
                frame = bench.reader.try_read()
                if frame is not None:
                    held.append((frame, frame.payload if rng.randrange(2) else None))
            case 9:
                if held:
                    frame, view = held.pop(rng.randrange(len(held)))
                    log.append((answer(frame.release), len(frame)))
                    del frame, view
            case _:
                log.append(answer(bench.reader.try_read))
        log.append((bench.writer.position(), bench.reader.position(), bench.consumer[layout.C_CURSOR]))
    held.clear()
    bench.reader.close()
    return log


@pytest.mark.parametrize("capacity", [64, 256, 4096, 1 << 15])
@pytest.mark.parametrize("seed", range(6))
def test_the_same_calls_give_the_same_answers_and_bytes(capacity: int, seed: int) -> None:
    position = random.Random(seed).choice([0, 8, (1 << 32) - 64, (1 << 63) - 128])
    results = {}
    for writer, reader in PAIRS:
        bench = Bench(writer, reader, capacity, position, fence=bool(seed % 2))
        log = script(seed, bench)
        results[writer, reader] = (log, bench.bytes(), bench.calls)
    expected = results["py", "py"]
    assert any(entry is True for entry in expected[0])
    for pair, result in results.items():
        for ours, theirs in zip(result[0], expected[0], strict=True):
            assert ours == theirs, pair
        assert result[1] == expected[1], pair
        assert result[2][-1] == expected[2][-1] == "last ended"


def garbage(rng: random.Random, bench: Bench) -> None:
    """Frames that look nearly right, and a position up to which they are published."""
    words = memoryview(bench.data).cast("Q")
    at = 0
    while at < bench.capacity:
        tag = rng.choice([0, 0, 1, 2, 255])
        gap = bench.capacity - at
        nbytes = rng.choice([gap, gap - 16, gap - 8, 0, 8, 8, 16, 24, 40, rng.randrange(1 << 48)])
        shift = rng.choice([0, 0, 0, 0, 1, 7, 8, 255])
        words[at // WORD] = max(0, nbytes) << layout.LENGTH_BIT | shift << layout.SHIFT_BIT | tag
        if at + WORD < bench.capacity:
            words[at // WORD + 1] = rng.choice([0, 0, 1, 1, 2, 3, 1 << 63])
        at += rng.choice([8, layout.frame_bytes(nbytes, shift) if 0 <= nbytes < gap else 24])
    base = bench.producer[layout.P_POS]
    bench.producer[layout.P_POS] = base + rng.choice(
        [bench.capacity, bench.capacity, bench.capacity // 2, bench.capacity + 8, 4, -8 % (1 << 64 - 1), 0]
    )


@pytest.mark.parametrize("capacity", [64, 128, 512])
def test_garbage_is_met_alike(capacity: int) -> None:
    outcomes = set()
    for seed in range(400):
        results = []
        for reader in BODIES:
            bench = Bench("py", reader, capacity)
            garbage(random.Random(seed), bench)
            log = [answer(bench.reader.try_read) for _ in range(8)]
            log.append(answer(bench.reader.read_many, 5))
            results.append((log, bench.reader.position(), bench.bytes()))
        assert all(result == results[0] for result in results), seed
        outcomes.add(str(results[0][0][0])[:12])
    # It was garbage of many kinds: read, refused, and nothing there.
    assert len(outcomes) > 3


@pytest.mark.parametrize("reader", BODIES)
def test_frames_before_garbage_are_handed_out_and_it_is_met_again(reader: str) -> None:
    bench = Bench("py", reader, 512)
    for tag in (1, 2, 3):
        assert bench.writer.try_write(tag, b"good")
    at = layout.frame_bytes(4) * 3
    memoryview(bench.data).cast("Q")[at // WORD] = 1 << 60
    bench.producer[layout.P_POS] += 64
    assert [frame.tag for frame in bench.reader.read_many(9)] == [1, 2, 3]
    for _ in range(2):
        with pytest.raises(Corrupt):
            bench.reader.read_many(9)
        with pytest.raises(Corrupt):
            bench.reader.try_read()


@pytest.mark.parametrize("writer", BODIES)
def test_a_shut_writer_asks_and_a_frozen_one_takes_the_slow_path(writer: str) -> None:
    bench = Bench(writer, "py", 512)
    asked: list[tuple[object, ...]] = []
    bench.slow = lambda *args: asked.append(args) or True  # type: ignore[method-assign, func-returns-value]
    bench.writer.freeze()
    before = bench.bytes()
    assert bench.writer.put_many([(1, b"x")], 0) == 0
    assert bench.bytes() == before
    bench.writer.shut()
    assert bench.writer.put_many([(1, b"x")], 0) == 0
    assert not bench.writer.put(1, [memoryview(b"x")], 1, 0, 24)
    assert bench.writer.place(24) == -1
    assert bench.bytes() == before


@pytest.mark.parametrize(("writer", "reader"), PAIRS)
@pytest.mark.parametrize("size", [0, 1, 2, 8, 61, 1024, 1025])
def test_runs_of_equal_frames_pass_like_single_ones(writer: str, reader: str, size: int) -> None:
    """Some bodies take equal frames together: at every length of run, every edge, and where a run ends."""
    rng = random.Random(size)
    bench = Bench(writer, reader, 1 << 15, (1 << 32) - (1 << 14))
    expected: list[tuple[int, int, bytes]] = []
    number = 0
    for turn in range(300):
        frames: list[Any] = [(7, rng.randbytes(size)) for _ in range(rng.choice([1, 7, 8, 9, 64, 65, 130]))]
        odd = rng.randrange(len(frames))
        match turn % 6:
            case 1:
                frames[odd] = (8, frames[odd][1])
            case 2:
                frames[odd] = (7, rng.randbytes(size + 1))
            case 3:
                frames[odd] = (7, bytearray(frames[odd][1]))
            case 4:
                frames = [list(frame) for frame in frames]
        done = 0
        while done < len(frames):
            done += bench.writer.put_many(frames, done)
            if done < len(frames):
                tag, data = frames[done]
                step = layout.frame_bytes(len(data))
                if not bench.writer.put(tag, [memoryview(data)], len(data), 0, step):
                    break
                done += 1
        bench.writer.publish()
        for tag, data in frames[:done]:
            expected.append((tag, number, bytes(data)))
            number += 1
        while len(expected) > rng.choice([0, 0, 20, 200]):
            read = bench.reader.read_many(rng.choice([1, 7, 8, 63, 64, 1024]))
            assert [(f.tag, f.seq, bytes(f.payload)) for f in read] == expected[: len(read)]
            assert read
            del expected[: len(read)], read
            assert bench.consumer[layout.C_CURSOR] == bench.reader.position()


@pytest.mark.parametrize("bad", [0, 5, 8, 40, 63])
@pytest.mark.parametrize("reader", BODIES)
def test_a_run_ends_before_the_frame_that_is_wrong(reader: str, bad: int) -> None:
    bench = Bench("py", reader, 1 << 15)
    assert bench.writer.place(64) == 0, "a writer asks for room when it first needs some"
    assert bench.writer.write_all([(1, b"x" * 8)] * 64, False) == 64
    memoryview(bench.data).cast("Q")[bad * 3 + 1] = 999
    if bad:
        assert [frame.seq for frame in bench.reader.read_many(64)] == list(range(bad))
        assert bench.consumer[layout.C_CURSOR] == bad * 24
        with pytest.raises(Corrupt) as error:
            bench.reader.read_many(64)
        assert error.value.args == (bad * 24 + 8,)
    else:
        # The first frame says with which number the stream begins.
        assert [frame.seq for frame in bench.reader.read_many(64)] == [999]


@pytest.mark.parametrize("writer", BODIES)
@pytest.mark.parametrize(
    "odd",
    [(1.0, b"x"), (256, b"x"), (0, b"x"), (-1, b"x"), ("1", b"x"), (1, "x"), (1, 5), (1,), (1, b"x", 2), 3],
)
def test_what_is_no_frame_ends_a_run(writer: str, odd: Any) -> None:
    bench = Bench(writer, "py", 1 << 15)
    assert bench.writer.place(64) == 0
    assert bench.writer.write_all([(1, b"x")] * 8, False) == 8
    before = bench.writer.position()
    for place in (0, 3, 7):
        frames = [(1, b"y")] * 8
        frames[place] = odd
        # Whoever takes the frame alone says what is wrong with it.
        answer(bench.writer.put_many, frames, 0)
        bench.writer.rewind()
    assert bench.writer.position() == before == bench.producer[layout.P_POS]


@pytest.mark.parametrize(("writer", "reader"), PAIRS)
@pytest.mark.parametrize("size", [2, 64, 61, 1024])
def test_equal_frames_in_a_row_are_read_one_by_one(writer: str, reader: str, size: int) -> None:
    """A body may keep what the last frame's header said; whatever follows is still looked at."""
    bench = Bench(writer, reader, 1 << 13)
    words = memoryview(bench.data).cast("Q")
    step = layout.frame_bytes(size)
    for number in range(500):
        tag = 1 if number % 7 else 2
        assert bench.writer.try_write(tag, bytes([number % 256]) * size)
        if number % 3 == 2:
            for back in (2, 1, 0):
                frame = bench.reader.try_read()
                assert frame is not None
                assert (frame.tag, frame.seq) == (1 if (number - back) % 7 else 2, number - back)
                assert frame.payload == bytes([(number - back) % 256]) * size
                assert bench.consumer[layout.C_CURSOR] == bench.reader.position()
    while bench.reader.try_read() is not None:
        pass
    # Away from the end of the data, where padding would come in between.
    while (place := bench.writer.position() & (bench.capacity - 1)) + 5 * step > bench.capacity:
        assert bench.writer.try_write(1, bytes(8))
        assert bench.reader.try_read() is not None
    for _ in range(4):
        assert bench.writer.try_write(1, bytes(size))
    words[(place + 3 * step) // WORD + 1] += 1
    first = bench.reader.position()
    for _ in range(3):
        assert bench.reader.try_read() is not None
    for _ in range(2):
        with pytest.raises(Corrupt) as error:
            bench.reader.try_read()
        assert error.value.args == (first + 3 * step + WORD,)
    words[(place + 3 * step) // WORD + 1] -= 1
    assert bench.reader.try_read() is not None
    # Published up to the middle of a frame: that is none.
    words[(place + 4 * step) // WORD] = words[place // WORD]
    words[(place + 4 * step) // WORD + 1] = words[(place + 3 * step) // WORD + 1] + 1
    bench.producer[layout.P_POS] += step - WORD
    with pytest.raises(Corrupt) as error:
        bench.reader.try_read()
    assert error.value.args == (first + 4 * step,)

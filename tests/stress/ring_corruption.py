"""Random bytes over every part of a segment, while it is opened, inspected, read and written.

Each ring is damaged again and again (single bits, words that look like positions or lengths, runs of noise;
in the header, the producer page, the wake page, a slot, the data). Each damage is met by some who attach and
read, inspect, check or peek, and then undone; the last one also by the processes that have the ring open, who
read, write and wait, and by one who resumes it. Each of these must end in a documented error or in
an answer that is right: numbers in order, and a frame a consumer gets is one the producer wrote, unless the
data themselves were damaged, which a ring without checksums cannot know. Nothing may crash, read outside the
mapping, or go on for ever.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import signal
import struct
import sys
import time
from collections.abc import Callable

import ringbuf
from ringbuf import layout
from ringbuf.command.survey import survey
from ringbuf.names import opened
from ringbuf.peek import Onlooker, Overtaken
from ringbuf.testing import check_ring
from tests.stress._kit import arguments, hold, payload, private_shm, spawn, tag

CAPACITY = 4096
SLOTS = 2
LIMIT = 1500
RINGS_A_CHILD = 10
DAMAGES_A_RING = 40
# One operation may take so long before it counts as endless; SIGALRM ends the child.
OPERATION_S = 20

WORDS = (
    0,
    1,
    2,
    7,
    8,
    63,
    255,
    256,
    *range(CAPACITY - 8, CAPACITY + 9, 8),
    1 << 31,
    1 << 32,
    1 << 63,
    2**64 - 1,
)
# Which words of a page mean something; damage goes there more often than into the unused rest.
MEANINGFUL = {
    0: range(layout.HEADER_WORDS),
    1: (*range(11), 16, 17, *range(24, 29), 32, *range(40, 49), *range(64, 72)),
    2: (0,),
    3: (0, *range(8, 13), *range(16, 19), *range(24, 27)),
}


def damage(rng: random.Random, fd: int, size: int) -> bool:
    """Write garbage somewhere; whether frames may be hit."""
    page = rng.choice([0, 1, 1, 2, 3, 4, 5, 5, 5])
    offset = page * layout.PAGE
    kind = rng.randrange(4)
    if page < 5:
        words = MEANINGFUL[min(page, 3)]
        at = offset + 8 * (rng.choice(words) if rng.random() < 0.9 else rng.randrange(512))
    else:
        at = offset + rng.randrange(0, CAPACITY, 8)
    if kind == 0:
        value = rng.choice(WORDS)
        os.pwrite(fd, struct.pack("=Q", value), at)
    elif kind == 1:
        (old,) = struct.unpack("=Q", os.pread(fd, 8, at))
        os.pwrite(fd, struct.pack("=Q", old ^ 1 << rng.randrange(64)), at)
    elif kind == 2:
        (old,) = struct.unpack("=Q", os.pread(fd, 8, at))
        os.pwrite(fd, struct.pack("=Q", (old + rng.choice([-4096, -16, -8, -1, 1, 8, 16, 4096])) % 2**64), at)
    else:
        run = min(rng.randrange(1, 200), size - at)
        os.pwrite(fd, rng.randbytes(run), at)
        return at + run > 5 * layout.PAGE
    return page >= 5


def documented(work: Callable[[], object], counts: dict[str, int], what: str) -> object:
    """Its result, or None after an error that the ring documents; anything else passes through."""
    signal.alarm(OPERATION_S)
    try:
        return work()
    except ringbuf.RingError as error:
        kind = type(error).__name__
        counts[kind] = counts.get(kind, 0) + 1
        hold(str(error), "says nothing")
    except TimeoutError:
        pass
    finally:
        signal.alarm(0)
    counts[what] = counts.get(what, 0) + 1
    return None


def look(name: str) -> None:
    ringbuf.inspect(name)


def peek(name: str) -> None:
    with opened(name, None, os.O_RDONLY) as (fd, geometry):
        onlooker = Onlooker(name, fd, geometry)
        bounds = onlooker.bounds()
        with contextlib.suppress(Overtaken):
            for frame in onlooker.frames(bounds.floor, bounds.published):
                hold(len(frame.payload) == frame.nbytes <= CAPACITY, "more than there is")
        for frame in onlooker.unpublished(bounds.published, 3):
            hold(frame.nbytes <= CAPACITY, "more than there is")


def one(rng: random.Random, name: str, counts: dict[str, int]) -> None:
    """One damaged ring."""
    seed = rng.getrandbits(32)
    producer = ringbuf.create(name, CAPACITY, SLOTS, _position=rng.choice([0, 2**32 - 4096, 2**63 - 8192]))
    fd = os.open(f"/dev/shm/ringbuf.{name}", os.O_RDWR | os.O_CLOEXEC)
    handles: list[ringbuf.Consumer] = []
    try:
        size = os.fstat(fd).st_size
        before = ringbuf.attach(name) if rng.random() < 0.7 else None
        if before is not None:
            handles.append(before)
        kept = len(handles)
        written = 0
        for _ in range(rng.randrange(1, 12)):
            written += producer.try_write(tag(seed, written), payload(seed, written, LIMIT))
            if before is not None and rng.random() < 0.5:
                before.try_read()
        data_hit = False

        def right(frame: ringbuf.Frame) -> None:
            same = (frame.tag, bytes(frame.payload)) == (
                tag(seed, frame.seq),
                payload(seed, frame.seq, LIMIT),
            )
            hold(same or data_hit, f"a lie: {frame}")
            counts["frames read"] = counts.get("frames read", 0) + 1

        def read_on(consumer: ringbuf.Consumer) -> None:
            last = -1
            for _ in range(40):
                frame = consumer.try_read()
                if frame is None:
                    break
                hold(last in (-1, frame.seq - 1), f"frame {frame.seq} after {last}")
                last = frame.seq
                right(frame)

        def attach() -> None:
            consumer = ringbuf.attach(name, timeout=0, start=rng.choice(["oldest", "latest"]))
            handles.append(consumer)
            read_on(consumer)

        def write() -> None:
            for _ in range(6):
                producer.try_write(1, bytes(rng.randrange(LIMIT)))
            producer.write(1, b"x" * 100, timeout=0)

        meetings = {
            "inspect": lambda: look(name),
            "peek": lambda: peek(name),
            "check": lambda: check_ring(name),
            "attach": attach,
        }
        sound = os.pread(fd, size, 0)
        for again in range(DAMAGES_A_RING - 1, -1, -1):
            data_hit = False
            for _ in range(rng.choice([1, 1, 1, 2, 5])):
                data_hit |= damage(rng, fd, size)
            counts["corruptions"] = counts.get("corruptions", 0) + 1
            for what in rng.sample(sorted(meetings), 2 if again else 4):
                documented(meetings[what], counts, what)
            if again:
                for consumer in handles[kept:]:
                    consumer.close()
                del handles[kept:]
                os.pwrite(fd, sound, 0)
        if rng.random() < 0.1:
            documented(survey, counts, "survey")
            documented(ringbuf.rings, counts, "rings")
        if before is not None:
            documented(lambda: read_on(before), counts, "read")
        if rng.random() < 0.02:
            # It waits a moment for a lock that somebody holds.
            documented(lambda: ringbuf.resume(name), counts, "resume")
        documented(write, counts, "write")
        if rng.random() < 0.05:
            documented(lambda: producer.write(1, b"x" * 1000, timeout=0.01), counts, "wait")
            if before is not None:
                documented(lambda: before.read(0.01), counts, "wait")
    finally:
        signal.alarm(OPERATION_S)
        for consumer in handles:
            consumer.close()
        documented(producer.close, counts, "close")
        with contextlib.suppress(ringbuf.RingNotFound):
            ringbuf.unlink(name)
        os.close(fd)
        signal.alarm(0)


def run_child(seed: int, shared: memoryview) -> None:
    rng = random.Random(seed)
    counts: dict[str, int] = {}
    for number in range(RINGS_A_CHILD):
        shared[2] = number
        one(rng, f"corrupt{os.getpid()}-{number}", counts)
    shared[0] += counts["corruptions"]
    shared[1] += counts.get("frames read", 0)
    for place, name in enumerate(
        ("RingCorrupt", "RingVersion", "RingNotFound", "RingClosed", "ProducerAlive"), 3
    ):
        shared[place] += counts.get(name, 0)


def main() -> None:
    args = arguments(__doc__)
    private_shm()
    shared = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("Q")
    deadline = time.monotonic() + args.seconds
    seed = args.seed * 1_000_000
    while time.monotonic() < deadline:
        child = spawn(lambda seed=seed: run_child(seed, shared))
        status = child.wait(600)
        if status:
            print(f"child seed {seed}, ring {shared[2]}: exit {status}", file=sys.stderr)
            sys.exit(1)
        seed += 1
    ringbuf.reap()
    print(
        f"seed {args.seed}: {shared[0]} corruptions, {shared[1]} frames read; RingCorrupt {shared[3]}, "
        f"RingVersion {shared[4]}, RingNotFound {shared[5]}, RingClosed {shared[6]}, "
        f"ProducerAlive {shared[7]}; no other error, no crash, no hang"
    )


if __name__ == "__main__":
    main()

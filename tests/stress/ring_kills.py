"""Random SIGKILL of the producer, of consumers, or of all, under full load.

Three processes share one ring: a producer that writes numbered frames of 0 bytes to the limit in every way
there is, and two consumers that read in every way there is and keep some leases. At random instants some of
them are killed and started again. What must hold:

- each attachment receives every frame from its first one on, once, whole, in order, also over a resume;
- PeerDead comes after the last published frame, and the successor's first frame is the one after it;
- a frame whose write returned is published, one whose write had not begun is not;
- a consumer that comes back starts no later than what somebody still needed;
- no wait outlasts its deadline; nothing is left after reap.
"""

from __future__ import annotations

import mmap
import os
import random
import signal
import sys
import time
from collections import deque

import ringbuf
from tests.stress._kit import (
    WATCHDOG_S,
    Child,
    arguments,
    gone_afterwards,
    hold,
    payload,
    private_shm,
    spawn,
    tag,
)

CAPACITIES = (256, 4096, 65536, 1 << 20)
CONSUMERS = 2
# How much longer than its time-out a wait may take on a loaded machine before it counts as stuck.
SLACK_S = 10.0

# Words of the scoreboard; NONE where nothing was stored yet.
NONE = (1 << 64) - 1
BEGUN, DONE, FIRST, FRAMES = 0, 1, 2, 3
START, DEAD_INCARNATION, DEAD_LAST, READ = 0, 1, 2, 3
ROW = 8


class Board:
    """A row of shared words per process, which outlive it."""

    def __init__(self) -> None:
        self.words = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("Q")

    def row(self, index: int) -> memoryview:
        """The words of one process."""
        return self.words[index * ROW : index * ROW + ROW]

    def clear(self, index: int) -> None:
        """Before a process starts; what it READ, and FRAMES, go on counting."""
        row = self.row(index)
        for word in range(3):
            row[word] = NONE


def positions(name: str) -> dict[int, int]:
    """pid -> position of every consumer that is attached, or died attached."""
    return {c.pid: c.position for c in ringbuf.inspect(name).consumers if not c.joining}


def in_time(started: float, timeout: float) -> None:
    """Complain about a wait that outlasted its deadline."""
    waited = time.monotonic() - started
    hold(waited < timeout + SLACK_S, f"waited {waited:.1f} s with a time-out of {timeout} s")


# ----------------------------------------------------------------------------------------------- the children


def produce(name: str, capacity: int, create: bool, seed: int, row: memoryview, salt: int) -> None:
    rng = random.Random(salt)
    producer = ringbuf.create(name, capacity, 4) if create else ringbuf.resume(name)
    limit = producer.max_payload
    seq = ringbuf.inspect(name).frames
    row[DONE] = row[BEGUN] = seq
    row[FIRST] = seq
    while True:
        way = rng.randrange(4)
        timeout = rng.choice([0.0, 0.001, 0.05])
        started = time.monotonic()
        if way < 3:
            row[BEGUN] = seq + 1
        try:
            if way == 0:
                written = int(producer.try_write(tag(seed, seq), payload(seed, seq, limit)))
            elif way == 1:
                producer.write(tag(seed, seq), [payload(seed, seq, limit)], timeout)
                written = 1
            elif way == 2:
                body = payload(seed, seq, limit)
                with producer.claim(tag(seed, seq), len(body), timeout) as buf:
                    buf[:] = body
                written = 1
            else:
                count = rng.randrange(1, 30)
                row[BEGUN] = seq + count
                frames = [(tag(seed, n), payload(seed, n, limit)) for n in range(seq, seq + count)]
                written = producer.write_many(frames, timeout=timeout)
        except ringbuf.RingFull:
            written = 0
        in_time(started, timeout)
        seq += written
        row[DONE] = row[BEGUN] = seq
        row[FRAMES] += written


def consume(name: str, capacity: int, seed: int, row: memoryview, salt: int) -> None:
    rng = random.Random(salt)
    limit = capacity // 2 - 16
    held: deque[ringbuf.Frame] = deque()
    expected = -1

    def check(frame: ringbuf.Frame) -> None:
        hold(frame.tag == tag(seed, frame.seq), f"frame {frame.seq} has tag {frame.tag}")
        hold(frame.payload == payload(seed, frame.seq, limit), f"frame {frame.seq} is torn")

    with ringbuf.attach(name, timeout=SLACK_S) as consumer:
        row[START] = positions(name)[os.getpid()]
        while True:
            timeout = rng.choice([0.0, 0.001, 0.05])
            started = time.monotonic()
            way = rng.randrange(3)
            try:
                if way == 0:
                    frame = consumer.try_read()
                    frames = [] if frame is None else [frame]
                elif way == 1:
                    frames = [consumer.read(timeout)]
                else:
                    frames = consumer.read_many(rng.randrange(1, 50), timeout)
            except TimeoutError:
                frames = []
            except ringbuf.PeerDead as dead:
                row[DEAD_LAST] = (expected - 1) & NONE if expected >= 0 else NONE
                row[DEAD_INCARNATION] = dead.incarnation
                frames = []
            in_time(started, timeout)
            for frame in frames:
                check(frame)
                hold(expected in (-1, frame.seq), f"frame {frame.seq} came, {expected} was next")
                row[READ] += 1
                expected = frame.seq + 1
                if rng.random() < 0.02:
                    held.append(frame)
            if held and (len(held) > 2 or rng.random() < 0.3):
                check(held.popleft())
            frames.clear()
            frame = None


# ------------------------------------------------------------------------------------------------- the parent


class Fleet:
    """The three processes of one ring, and what is known about each."""

    def __init__(self, rng: random.Random, seed: int) -> None:
        self.rng = rng
        self.seed = seed
        self.name = f"kills{os.getpid()}-{rng.getrandbits(32):x}"
        self.capacity = rng.choice(CAPACITIES)
        self.board = Board()
        self.children: dict[int, Child] = {}
        self.incarnation = 0
        self.all: list[Child] = []
        self.dead_pids: list[int] = []

    def start_producer(self, create: bool) -> None:
        self.board.clear(0)
        row, salt = self.board.row(0), self.rng.getrandbits(64)
        self._start(0, lambda: produce(self.name, self.capacity, create, self.seed, row, salt))
        self.incarnation = 1 if create else self.incarnation + 1

    def start_consumer(self, index: int) -> None:
        self.board.clear(index)
        row, salt = self.board.row(index), self.rng.getrandbits(64)
        self._start(index, lambda: consume(self.name, self.capacity, self.seed, row, salt))

    def _start(self, index: int, work) -> None:  # type: ignore[no-untyped-def]
        self.children[index] = spawn(work)
        self.all.append(self.children[index])

    def wait_for(self, condition, what: str) -> None:  # type: ignore[no-untyped-def]
        deadline = time.monotonic() + WATCHDOG_S
        while not condition():
            for index, child in self.children.items():
                hold(child.poll() is None or child.status == -signal.SIGKILL, f"process {index} failed")
            if time.monotonic() > deadline:
                for child in self.children.values():
                    child.signal(signal.SIGUSR1)
                time.sleep(0.5)
                raise AssertionError(f"{what}: not within {WATCHDOG_S} s; {ringbuf.inspect(self.name)}")
            time.sleep(0.0005)

    def kill(self, victims: list[int]) -> None:
        for index in victims:
            hold(self.children[index].poll() is None, f"process {index} failed")
            self.children[index].signal(signal.SIGKILL)
        for index in victims:
            self.children[index].wait()
        self.dead_pids = [self.children[index].pid for index in victims if index]

    def producer_started(self) -> bool:
        """Whether the producer has announced its first frame."""
        return self.board.row(0)[FIRST] != NONE

    def check_resume(self, begun: int, done: int) -> None:
        """The successor goes on after the last published frame, which is one whose write had begun."""
        self.wait_for(self.producer_started, "the producer resumes")
        first = self.board.row(0)[FIRST]
        if done != NONE:
            hold(done <= first <= begun, f"written {done}, begun {begun}, resumed at {first}")
        for index in range(1, CONSUMERS + 1):
            row = self.board.row(index)
            if row[DEAD_INCARNATION] == self.incarnation - 1 and row[DEAD_LAST] != NONE:
                hold(row[DEAD_LAST] == first - 1, f"PeerDead after frame {row[DEAD_LAST]} of {first}")


def epoch(rng: random.Random, seed: int, deadline: float, counts: dict[str, int]) -> None:
    """One ring's life, with some hundred kills."""
    fleet = Fleet(rng, seed)
    with gone_afterwards(fleet.all):
        fleet.start_producer(True)
        for index in range(1, CONSUMERS + 1):
            fleet.start_consumer(index)
        # A creator killed before there is a ring leaves nothing to resume; ring_steps covers that.
        fleet.wait_for(fleet.producer_started, "the producer starts")
        for _ in range(200):
            if time.monotonic() > deadline:
                break
            one_kill(fleet, counts)
        # Everybody gets something after the last kill.
        reads = [fleet.board.row(index)[READ] for index in range(1, CONSUMERS + 1)]
        fleet.wait_for(
            lambda: all(fleet.board.row(i + 1)[READ] > n for i, n in enumerate(reads)), "the ring goes on"
        )
        fleet.kill(list(range(CONSUMERS + 1)))
        counts["frames"] += fleet.board.row(0)[FRAMES]
        counts["receptions"] += sum(fleet.board.row(index)[READ] for index in range(1, CONSUMERS + 1))
        info = ringbuf.inspect(fleet.name)
        hold(info.state == "dead" and not info.in_use, f"all are dead, the ring is {info.state}")


def one_kill(fleet: Fleet, counts: dict[str, int]) -> None:
    """Kill somebody at a random instant, look at the survivors, start the dead again."""
    rng = fleet.rng
    time.sleep(rng.choice([0.0, 0.001, 0.005, 0.02]) * rng.random())
    victims = rng.choice([[0], [0], [1], [2], [1, 2], [0, 1], [0, 1, 2]])
    fleet.kill(victims)
    counts["kills"] += len(victims)
    producer = fleet.board.row(0)
    begun, done = producer[BEGUN], producer[DONE]
    survivors = [index for index in range(1, CONSUMERS + 1) if index not in victims]
    before = positions(fleet.name)
    if 0 in victims:
        fleet_was_live = done != NONE
        if survivors and fleet_was_live and rng.random() < 0.5:
            # Nothing may be missing when the death is reported.
            fleet.wait_for(
                lambda: all(fleet.board.row(i)[DEAD_INCARNATION] == fleet.incarnation for i in survivors),
                "the survivors notice",
            )
            counts["deaths noticed"] += len(survivors)
        if not fleet_was_live:
            # Killed while it resumed: whether it had begun its incarnation is not known outside.
            fleet.incarnation = ringbuf.inspect(fleet.name).producer.incarnation
        fleet.start_producer(False)
        fleet.check_resume(begun, done)
        counts["resumes"] += 1
    for index in victims:
        if index:
            fleet.start_consumer(index)
            if rng.random() < 0.5:
                check_return(fleet, index, before)
                counts["returns checked"] += 1


def check_return(fleet: Fleet, index: int, before: dict[int, int]) -> None:
    """A consumer that comes back starts no later than what the other, or the dead, still needed."""
    row = fleet.board.row(index)
    fleet.wait_for(lambda: row[START] != NONE, "the consumer is back")
    now = positions(fleet.name)
    others = [
        child.pid
        for other, child in fleet.children.items()
        if other not in (0, index) and child.status is None
    ]
    stayed = [now[pid] for pid in others if pid in now]
    died = [before[pid] for pid in fleet.dead_pids if pid in before]
    bound = min(stayed) if stayed else max(died, default=None)
    if bound is not None:
        hold(
            row[START] <= bound,
            f"starts at {row[START]}, {bound} is still needed",
        )


def main() -> None:
    args = arguments(__doc__)
    private = private_shm()
    rng = random.Random(args.seed)
    deadline = time.monotonic() + args.seconds
    counts = dict.fromkeys(
        ("kills", "resumes", "deaths noticed", "returns checked", "frames", "receptions"), 0
    )
    try:
        while time.monotonic() < deadline:
            epoch(rng, args.seed, deadline, counts)
            if private:
                ringbuf.reap()
                left = os.listdir("/dev/shm")
                hold(not left, f"left after reap: {left}")
    except BaseException:
        print(f"seed {args.seed}, {counts}", file=sys.stderr)
        raise
    print(f"seed {args.seed}:", ", ".join(f"{value} {what}" for what, value in counts.items()))


if __name__ == "__main__":
    main()

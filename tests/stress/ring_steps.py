"""SIGKILL and SIGSTOP at each named step of create, attach, write, read, close, resume and reap.

For every step, a child takes the operation that has it and is killed, or stopped, just before it is taken.
Then the others must go on: a ring can be resumed or replaced, consumers get everything that was published,
once and whole, a stopped process is waited for no longer than asked and is not dead, and after it goes on it
finishes as if nothing had been. What the dead left is gone after reap.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time
from collections.abc import Callable

import ringbuf
from ringbuf.testing import STEPS, at_step, check_ring, kill_here, stop_here
from tests.stress._kit import Child, arguments, hold, payload, private_shm, spawn, tag

CAPACITY = 256
LIMIT = 56  # three frames always fit


class Stage:
    """One ring, and the process at fault."""

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self.seed = seed

    def frame(self, seq: int) -> tuple[int, bytes]:
        """Tag and payload of a numbered frame."""
        return tag(self.seed, seq), payload(self.seed, seq, LIMIT)

    def fill(self, producer: ringbuf.Producer, first: int, count: int) -> None:
        for seq in range(first, first + count):
            producer.write(*self.frame(seq), timeout=5)

    def check(self, frame: ringbuf.Frame, seq: int | None = None) -> int:
        """That a frame is what it should be; its number."""
        hold(seq in (None, frame.seq), f"frame {frame.seq} came, {seq} was next")
        hold((frame.tag, bytes(frame.payload)) == self.frame(frame.seq), f"frame {frame.seq} is torn")
        return frame.seq


def faulty(step: str, action: Callable[[], None], work: Callable[[], None]) -> Child:
    """A child that does something to itself at a step of its work."""

    def run() -> None:
        with at_step(step, action):
            work()

    return spawn(run)


# Operations ------------------------------------------------------------------------------------------------


def make(stage: Stage) -> None:
    with ringbuf.create(stage.name, CAPACITY, 3) as producer:
        stage.fill(producer, 0, 2)


def join_and_read(stage: Stage) -> None:
    with ringbuf.attach(stage.name, timeout=5) as consumer:
        for _ in range(3):
            stage.check(consumer.read(5))


def sleep_and_read(stage: Stage) -> None:
    with ringbuf.attach(stage.name, start="latest", timeout=5) as consumer:
        stage.check(consumer.read(5))


def read_while_the_producer_waits(stage: Stage) -> None:
    with ringbuf.attach(stage.name, timeout=5) as consumer:
        for _ in range(3):
            deadline = time.monotonic() + 20
            while not ringbuf.inspect(stage.name).producer.waiting and time.monotonic() < deadline:
                time.sleep(0.001)
            stage.check(consumer.read(5))


def take_over(stage: Stage) -> None:
    producer = ringbuf.resume(stage.name)
    stage.fill(producer, ringbuf.inspect(stage.name).frames, 30)
    producer.close()


def replace(stage: Stage) -> None:
    ringbuf.create(stage.name, CAPACITY, 3, replace=True).close()


def reap(stage: Stage) -> None:
    ringbuf.reap()


# Scenes: what is around, and what must hold afterwards -----------------------------------------------------


def end(child: Child, action: str) -> None:
    """Wait until the child did what it was told: it is dead, or stopped, or it never met the step."""
    if action == "kill":
        hold(child.wait() == -signal.SIGKILL, f"exit {child.status}: the step was not taken")
    else:
        deadline = time.monotonic() + 30
        while _state(child.pid) != "T":
            hold(time.monotonic() < deadline and child.poll() is None, "the step was not taken")
            time.sleep(0.001)


def _state(pid: int) -> str:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[0].decode()
    return "gone"


def go_on(child: Child, action: str) -> None:
    if action == "stop":
        child.signal(signal.SIGCONT)
        hold(child.wait() == 0, "does not finish after SIGCONT")


def scene_create(stage: Stage, step: str, action: str) -> None:
    child = faulty(step, _ACTIONS[action], lambda: make(stage))
    end(child, action)
    named = os.path.exists(f"/dev/shm/ringbuf.{stage.name}")
    if action == "stop":
        # Nobody takes a ring that is being made, or lives. Between open and lock it may be taken; then its
        # maker starts over.
        reaped = ringbuf.reap()
        hold(step == "create.opened" or stage.name not in reaped, "reaped under its maker's feet")
        if named:
            hold(ringbuf.inspect(stage.name).producer.alive, "a stopped producer counts as dead")
            with contextlib.suppress(ringbuf.RingExists):
                ringbuf.create(stage.name, CAPACITY)
                raise AssertionError("replaced a living ring")
        else:
            with contextlib.suppress(ringbuf.RingNotFound):
                ringbuf.attach(stage.name, timeout=0.02)
                raise AssertionError("attached to what is not yet there")
        go_on(child, action)
        return
    # Whatever is left is in nobody's way.
    with ringbuf.create(stage.name, CAPACITY * 2) as producer, ringbuf.attach(stage.name) as consumer:
        stage.fill(producer, 0, 1)
        stage.check(consumer.read(1), 0)


def scene_consumer(stage: Stage, step: str, action: str) -> None:
    """A consumer at fault; the producer and another consumer go on."""
    with ringbuf.create(stage.name, CAPACITY, 3) as producer:
        stage.fill(producer, 0, 3)
        with ringbuf.attach(stage.name) as other:
            work = {"read.nap": sleep_and_read, "read.ring": read_while_the_producer_waits}.get(
                step, join_and_read
            )
            if step == "read.ring":
                while producer.try_write(*stage.frame(ringbuf.inspect(stage.name).frames)):
                    pass
            child = faulty(step, _ACTIONS[action], lambda: work(stage))
            first = ringbuf.inspect(stage.name).frames
            if step in ("read.ring", "detach.begin", "detach.free"):
                # It is rung, or gets what it waits for, from here.
                deadline = time.monotonic() + 20
                while _state(child.pid) not in "TZ" and time.monotonic() < deadline:
                    seq = ringbuf.inspect(stage.name).frames
                    with contextlib.suppress(ringbuf.RingFull):
                        producer.write(*stage.frame(seq), timeout=0.1)
                    if step != "read.ring":
                        other.try_read()
            end(child, action)
            check_ring(stage.name)
            if action == "kill":
                _everything_flows(stage, producer, other)
            else:
                started = time.monotonic()
                with contextlib.suppress(ringbuf.RingFull):
                    for seq in range(ringbuf.inspect(stage.name).frames, first + 60):
                        producer.write(*stage.frame(seq), timeout=0.05)
                        other.try_read()
                hold(time.monotonic() - started < 10, "waits for a stopped consumer longer than asked")
                # What it had not released is still there: it reads on without a fault.
                child.signal(signal.SIGCONT)
                while child.poll() is None:
                    with contextlib.suppress(ringbuf.RingFull):
                        producer.write(*stage.frame(ringbuf.inspect(stage.name).frames), timeout=0.1)
                    other.try_read()
                hold(child.wait() == 0, "does not finish after SIGCONT")


def _everything_flows(stage: Stage, producer: ringbuf.Producer, other: ringbuf.Consumer) -> None:
    following = None
    for _ in range(40):
        seq = ringbuf.inspect(stage.name).frames
        while not producer.try_write(*stage.frame(seq)):
            frame = other.try_read()
            if frame is None:
                producer.write(*stage.frame(seq), timeout=5)
                break
            following = stage.check(frame, following) + 1
            del frame


def scene_producer(stage: Stage, step: str, action: str) -> None:
    """A producer at fault: at a write, while full, at its end, or while it resumes."""
    dead = spawn(lambda: _die_with_frames(stage))
    hold(dead.wait() == -signal.SIGKILL, "the first producer")
    with ringbuf.attach(stage.name) as consumer:
        received = 0
        child = faulty(step, _ACTIONS[action], lambda: take_over(stage))
        deadline = time.monotonic() + 30
        while _state(child.pid) not in "TZ":
            hold(time.monotonic() < deadline, "the step was not taken")
            if step == "room.nap":
                # Whoever reads now may keep it from ever finding the ring full.
                time.sleep(0.001)
                continue
            # Slowly, so that it finds the ring full; from time to time asleep, so that it must ring.
            with contextlib.suppress(ringbuf.PeerDead, TimeoutError, ringbuf.RingClosed):
                received = stage.check(consumer.read(0.02), received) + 1
        end(child, action)
        if action == "stop" and not step.startswith(("close.", "remove.")):
            with contextlib.suppress(ringbuf.ProducerAlive):
                ringbuf.resume(stage.name)
                raise AssertionError("two producers")
        go_on_reading = True
        if action == "stop":
            child.signal(signal.SIGCONT)
        elif step not in ("close.unlink", "close.lock", "remove.name", "remove.fifos"):
            successor = ringbuf.resume(stage.name)
            seq = ringbuf.inspect(stage.name).frames
            with contextlib.suppress(ringbuf.RingFull):
                successor.write(*stage.frame(seq), timeout=0)
            successor.close()
        while go_on_reading:
            try:
                received = stage.check(consumer.read(10), received) + 1
            except ringbuf.PeerDead:
                continue
            except ringbuf.RingClosed:
                go_on_reading = False
        hold(received >= 3, f"only {received} frames came")
        if action == "stop":
            hold(child.wait() == 0, "does not finish after SIGCONT")


def _die_with_frames(stage: Stage) -> None:
    producer = ringbuf.create(stage.name, CAPACITY, 3)
    stage.fill(producer, 0, 3)
    kill_here()


def scene_dead_peer(stage: Stage, step: str, action: str) -> None:
    """A consumer at fault while it learns of its producer's death."""
    hold(spawn(lambda: _die_with_frames(stage)).wait() == -signal.SIGKILL, "the producer")

    def work() -> None:
        with ringbuf.attach(stage.name) as consumer, contextlib.suppress(ringbuf.PeerDead):
            for seq in range(5):
                stage.check(consumer.read(5), seq)

    child = faulty(step, _ACTIONS[action], work)
    end(child, action)
    with ringbuf.resume(stage.name) as producer:
        seq = ringbuf.inspect(stage.name).frames
        hold(seq == 3, f"resumes at {seq}")
        producer.write(*stage.frame(seq), timeout=5)
    go_on(child, action)


def scene_evict(stage: Stage, step: str, action: str) -> None:
    """A producer at fault just as it finds a consumer dead."""
    hold(spawn(lambda: _die_with_frames(stage)).wait() == -signal.SIGKILL, "the producer")
    gone = spawn(lambda: _attach_and_die(stage))
    hold(gone.wait() == -signal.SIGKILL, "the consumer")
    child = faulty(step, _ACTIONS[action], lambda: _overfill(stage))
    end(child, action)
    if action == "kill":
        with ringbuf.resume(stage.name) as producer, ringbuf.attach(stage.name) as consumer:
            following = stage.check(consumer.read(5), 0) + 1
            for seq in range(ringbuf.inspect(stage.name).frames, 40):
                while not producer.try_write(*stage.frame(seq)):
                    following = stage.check(consumer.read(5), following) + 1
    go_on(child, action)


def _attach_and_die(stage: Stage) -> None:
    consumer = ringbuf.attach(stage.name)
    hold(not consumer.closed, "attached")
    kill_here()


def _overfill(stage: Stage) -> None:
    with ringbuf.resume(stage.name) as producer, contextlib.suppress(ringbuf.RingFull):
        for seq in range(3, 40):
            producer.write(*stage.frame(seq), timeout=0.05)


def scene_reap(stage: Stage, step: str, action: str) -> None:
    """Who removes a dead ring is killed or stopped meanwhile; nobody else is hindered for long."""
    hold(spawn(lambda: _die_with_frames(stage)).wait() == -signal.SIGKILL, "the producer")
    child = faulty(step, _ACTIONS[action], lambda: reap(stage))
    end(child, action)
    if action == "kill":
        ringbuf.create(stage.name, CAPACITY).close()
    go_on(child, action)
    ringbuf.create(stage.name, CAPACITY).close()


def scene_replace(stage: Stage, step: str, action: str) -> None:
    with ringbuf.create(stage.name, CAPACITY, 3) as producer, ringbuf.attach(stage.name) as consumer:
        stage.fill(producer, 0, 1)
        child = faulty(step, _ACTIONS[action], lambda: replace(stage))
        end(child, action)
        stage.check(consumer.read(1), 0)
        if action == "kill":
            stage.fill(producer, 1, 1)
            stage.check(consumer.read(1), 1)
        go_on(child, action)


_ACTIONS = {"kill": kill_here, "stop": stop_here}


def scene_of(step: str) -> Callable[[Stage, str, str], None]:
    """Where a step is met."""
    operation = step.split(".")[0]
    if step == "read.dead":
        return scene_dead_peer
    if step == "room.evict":
        return scene_evict
    return {
        "create": scene_create,
        "attach": scene_consumer,
        "read": scene_consumer,
        "detach": scene_consumer,
        "resume": scene_producer,
        "room": scene_producer,
        "write": scene_producer,
        "close": scene_producer,
        "reap": scene_reap,
        "remove": scene_reap,
        "replace": scene_replace,
    }[operation]


def main() -> None:
    args = arguments(__doc__)
    if not private_shm():
        print("skipped: needs a mount namespace of its own")
        return
    rng = random.Random(args.seed)
    deadline = time.monotonic() + args.seconds
    taken = rounds = 0
    while not rounds or time.monotonic() < deadline:
        rounds += 1
        for number, step in enumerate(STEPS):
            for action in _ACTIONS:
                stage = Stage(f"steps{number}", rng.getrandbits(32))
                try:
                    scene_of(step)(stage, step, action)
                    ringbuf.reap()
                    left = os.listdir("/dev/shm")
                    hold(not left, f"left after reap: {left}")
                except BaseException:
                    print(f"seed {args.seed}, round {rounds}: {action} at {step}", file=sys.stderr)
                    raise
                taken += 1
    print(f"seed {args.seed}: {taken} faults at {len(STEPS)} steps in {rounds} rounds, all recovered")


if __name__ == "__main__":
    main()

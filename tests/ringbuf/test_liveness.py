"""Death, pauses and successors, with real processes."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from support import MS, spawn_python, wait_until

import ringbuf
from ringbuf import layout, liveness

pytestmark = pytest.mark.usefixtures("body")

PRODUCER = """
import sys, ringbuf
p = (ringbuf.create if sys.argv[2] == "create" else ringbuf.resume)(sys.argv[1])
for i in range(int(sys.argv[3])): p.write(1, b"%d" % i)
print("up", flush=True)
for line in sys.stdin: p.write(2, line.strip().encode())
"""
CONSUMER = """
import sys, ringbuf
c = ringbuf.attach(sys.argv[1], start="latest")
print("up", flush=True)
for line in sys.stdin: print(bytes(c.read().payload).decode(), flush=True)
"""


class Child:
    """A Python process that says "up", then obeys lines."""

    def __init__(self, code: str, *args: str) -> None:
        self.process = spawn_python(code, *args, stdin=subprocess.PIPE, stderr=None)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "up\n"
        self.pid = self.process.pid

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def spawn() -> Iterator[Any]:
    children: list[Child] = []

    def spawn(code: str, *args: str) -> Child:
        children.append(Child(code, *args))
        return children[-1]

    yield spawn
    for child in children:
        child.kill()


def read_all(consumer: ringbuf.Consumer) -> list[bytes]:
    return [bytes(frame.payload) for frame in consumer.read_many()]


def test_a_dead_producers_frames_come_first_then_peer_dead_once(name: str, spawn: Any) -> None:
    child = spawn(PRODUCER, name, "create", "10")
    with ringbuf.attach(name) as consumer:
        child.kill()
        assert [consumer.read(5).payload for _ in range(10)] == [b"%d" % i for i in range(10)]
        assert consumer.try_read() is None
        with pytest.raises(ringbuf.PeerDead) as caught:
            consumer.read(60)
        assert isinstance(caught.value, ConnectionError)
        assert caught.value.pid == child.pid
        assert caught.value.incarnation == 1
        assert abs(caught.value.since - time.time()) < 600
        assert consumer.try_read() is None
        with pytest.raises(TimeoutError):
            consumer.read(20 * MS)
        assert consumer.read_many(timeout=20 * MS) == []
        assert ringbuf.inspect(name).state == "dead"


@pytest.mark.parametrize("how", ["read", "read_many", "for"])
def test_sigkill_wakes_at_once_whoever_waits(name: str, spawn: Any, how: str) -> None:
    child = spawn(PRODUCER, name, "create", "0")
    with ringbuf.attach(name) as consumer:
        timer = threading.Timer(50 * MS, child.process.kill)
        timer.start()
        with pytest.raises(ringbuf.PeerDead):
            next(consumer) if how == "for" else getattr(consumer, how)(timeout=60)
        assert ringbuf.inspect(name).consumers[0].wakeups == 1
        timer.join()


def test_read_many_tells_of_a_death_even_without_waiting(name: str, spawn: Any) -> None:
    child = spawn(PRODUCER, name, "create", "1")
    with ringbuf.attach(name) as consumer:
        child.kill()
        assert read_all(consumer) == [b"0"]
        with pytest.raises(ringbuf.PeerDead):
            consumer.read_many()
        assert consumer.read_many() == []


def test_fileno_shows_a_death_once(name: str, spawn: Any) -> None:
    child = spawn(PRODUCER, name, "create", "0")
    with ringbuf.attach(name) as consumer:
        fd = consumer.fileno()
        assert consumer.try_read() is None
        assert select.select([fd], [], [], 0)[0] == []
        child.kill()
        assert select.select([fd], [], [], 60)[0] == [fd]
        assert consumer.try_read() is None
        assert select.select([fd], [], [], 0)[0] == []
        with ringbuf.resume(name) as producer:
            assert select.select([fd], [], [], 60)[0] == [fd]
            assert consumer.try_read() is None
            producer.write(1, b"again")
            assert select.select([fd], [], [], 60)[0] == [fd]
            assert read_all(consumer) == [b"again"]


def test_async_for_raises_peer_dead_and_reads_on(name: str, spawn: Any) -> None:
    child = spawn(PRODUCER, name, "create", "3")

    async def main() -> list[bytes]:
        got = []
        with ringbuf.attach(name) as consumer:
            with pytest.raises(ringbuf.PeerDead):  # noqa: PT012
                async for frame in consumer:
                    got.append(bytes(frame.payload))
                    if len(got) == 3:
                        asyncio.get_running_loop().call_later(30 * MS, child.process.kill)
            producer = ringbuf.resume(name)
            producer.write(1, b"next")
            asyncio.get_running_loop().call_later(30 * MS, producer.close)
            got += [bytes(frame.payload) async for frame in consumer]
        return got

    assert asyncio.run(main()) == [b"0", b"1", b"2", b"next"]


def test_a_successor_goes_on_where_the_dead_left_off(name: str, spawn: Any) -> None:
    child = spawn(PRODUCER, name, "create", "5")
    with ringbuf.attach(name) as consumer:
        assert consumer.read(5).payload == b"0"
        child.kill()
        with ringbuf.resume(name) as producer:
            assert producer.incarnation == 2
            producer.write(1, b"new")
            frames = consumer.read_many()
            assert [frame.seq for frame in frames] == [1, 2, 3, 4, 5]
            assert frames[-1].payload == b"new"
            assert ringbuf.inspect(name).producer.pid == os.getpid()


def test_peer_dead_is_told_once_for_every_incarnation(name: str, spawn: Any) -> None:
    children = [spawn(PRODUCER, name, "create", "1")]
    with ringbuf.attach(name) as consumer:
        for incarnation in (1, 2, 3):
            assert consumer.read(5).payload == b"0"
            children[-1].kill()
            with pytest.raises(ringbuf.PeerDead) as caught:
                consumer.read(60)
            assert caught.value.incarnation == incarnation
            children.append(spawn(PRODUCER, name, "resume", "1"))


def test_a_waiting_reader_reads_on_when_a_producer_resumes(name: str, spawn: Any) -> None:
    child = spawn(PRODUCER, name, "create", "0")
    with ringbuf.attach(name) as consumer:
        child.kill()
        with pytest.raises(ringbuf.PeerDead):
            consumer.read(60)
        made: list[ringbuf.Producer] = []

        def succeed() -> None:
            made.append(ringbuf.resume(name))
            made[0].write(1, b"x")

        timer = threading.Timer(50 * MS, succeed)
        timer.start()
        assert consumer.read(60).payload == b"x"
        timer.join()
        made[0].close()


def test_resume_finds_the_next_seq_whatever_was_reclaimed(name: str) -> None:
    code = """
import sys, os, signal, ringbuf
p = ringbuf.resume(sys.argv[1]) if sys.argv[2] != "0" else ringbuf.create(sys.argv[1], 256)
c = ringbuf.attach(sys.argv[1], start="latest")
for i in range(int(sys.argv[2]) % 23 + 1):
    while not p.try_write(1, b"x" * (i % 50)): c.read_many()
if int(sys.argv[2]) % 2: c.read_many()
print(ringbuf.inspect(sys.argv[1]).frames, flush=True)
sys.stdin.readline()
os.kill(os.getpid(), signal.SIGKILL)
"""
    frames = 0
    keeper = -1  # the lock of a slot, so that nobody's reap takes the ring between two producers
    for i in range(12):
        process = spawn_python(code, name, str(i), stdin=subprocess.PIPE)
        assert process.stdout is not None
        out = process.stdout.readline()
        if keeper < 0:
            keeper = os.open(f"/dev/shm/ringbuf.{name}", os.O_RDWR)
            assert liveness.lock_byte(keeper, layout.slot_page(7))
        _, errors = process.communicate("\n")
        frames += i % 23 + 1
        assert out, errors
        assert int(out) == frames
    os.close(keeper)
    with ringbuf.resume(name) as producer, ringbuf.attach(name, start="latest") as consumer:
        assert producer.try_write(1, b"y") or consumer.read_many()
        producer.write(1, b"z", timeout=5)
        assert [frame.seq for frame in consumer.read_many()][-1] in (frames, frames + 1)


def test_only_published_frames_survive_their_producer(name: str) -> None:
    code = """
import sys, os, signal, ringbuf
from ringbuf import _hooks
p = ringbuf.create(sys.argv[1], 4096)
p.write(1, b"published")
w = p._sender.writer
w.put(1, [memoryview(b"committed")], 9, 0, 32)
with p.claim(1, 100) as buf:
    buf[:] = b"c" * 100
    os.kill(os.getpid(), signal.SIGKILL)
"""
    spawn_python(code, name).communicate()
    with ringbuf.resume(name) as producer, ringbuf.attach(name) as consumer:
        producer.write(1, b"next")
        assert [(frame.seq, bytes(frame.payload)) for frame in consumer.read_many()] == [
            (0, b"published"),
            (1, b"next"),
        ]


def test_a_second_producer_is_refused_with_the_first_ones_pid(name: str, spawn: Any) -> None:
    child = spawn(PRODUCER, name, "create", "0")
    for _ in range(2):
        with pytest.raises(ringbuf.ProducerAlive) as caught:
            ringbuf.resume(name)
        assert caught.value.pid == child.pid
        with pytest.raises(ringbuf.RingExists) as exists:
            ringbuf.create(name)
        assert exists.value.pids == (child.pid,)
        os.kill(child.pid, signal.SIGSTOP)  # paused is not dead
    os.kill(child.pid, signal.SIGCONT)


def test_a_paused_producer_is_not_dead(name: str, spawn: Any) -> None:
    child = spawn(PRODUCER, name, "create", "0")
    with ringbuf.attach(name) as consumer:
        os.kill(child.pid, signal.SIGSTOP)
        with pytest.raises(TimeoutError):
            consumer.read(2300 * MS)  # longer than a re-check
        os.kill(child.pid, signal.SIGCONT)
        child.tell("hello")
        assert consumer.read(60).payload == b"hello"


def test_a_paused_consumer_holds_the_ring_and_a_killed_one_does_not(name: str, spawn: Any) -> None:
    with ringbuf.create(name, 4096) as producer:
        child = spawn(CONSUMER, name)
        os.kill(child.pid, signal.SIGSTOP)
        with ringbuf.attach(name) as other:
            while producer.try_write(1, b"x" * 100):
                pass
            other.read_many()
            with pytest.raises(ringbuf.RingFull) as caught:
                producer.write(1, b"y", timeout=50 * MS)
            assert caught.value.pid == child.pid
            timer = threading.Timer(50 * MS, child.process.kill)
            timer.start()
            producer.write(1, b"y", timeout=60)
            assert other.read(0).payload == b"y"
            assert ringbuf.inspect(name).evicted == 1
            timer.join()


def test_a_dead_consumers_slot_is_taken_again(name: str, spawn: Any) -> None:
    with ringbuf.create(name, 4096, slots=1) as producer:
        for i in range(4):
            child = spawn(CONSUMER, name)
            child.tell("")
            producer.write(1, b"%d" % i)
            assert child.answer() == str(i)
            child.kill()
            while producer.try_write(1, b"x" * 100):
                pass
            with ringbuf.attach(name) as consumer:
                read_all(consumer)
                assert producer.try_write(1, b"x")
                assert read_all(consumer) == [b"x"]


def test_a_dead_consumer_ahead_of_a_slow_one_costs_no_cpu(name: str, spawn: Any) -> None:
    with ringbuf.create(name, 4096) as producer, ringbuf.attach(name):
        child = spawn(CONSUMER, name)
        for _ in range(10):
            producer.write(1, b"x")
            child.tell("")
            assert child.answer() == "x"
        child.kill()
        while producer.try_write(1, b"x" * 100):
            pass
        before = time.process_time()
        with pytest.raises(ringbuf.RingFull):
            producer.write(1, b"x" * 100, timeout=300 * MS)
        assert time.process_time() - before < 100 * MS


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for a pid namespace")
@pytest.mark.parametrize("sides", ["producer", "consumer"])
def test_death_in_another_pid_namespace_is_seen(name: str, sides: str) -> None:
    code = PRODUCER if sides == "producer" else CONSUMER
    args = [name, "create", "1"] if sides == "producer" else [name]
    command = ["unshare", "-p", "-f", "--kill-child", sys.executable, "-c", code, *args]
    producer = ringbuf.create(name, 4096) if sides == "consumer" else None
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        if process.stdout.readline() != "up\n":
            pytest.skip("no pid namespaces here")
        if producer is None:
            with ringbuf.attach(name) as consumer:
                assert consumer.read(5).payload == b"0"
                assert ringbuf.inspect(name).producer.pid == 1
                timer = threading.Timer(50 * MS, process.kill)
                timer.start()
                with pytest.raises(ringbuf.PeerDead):
                    consumer.read(60)
                assert ringbuf.inspect(name).consumers[0].wakeups == 1
                timer.join()
        else:
            while producer.try_write(1, b"x" * 100):
                pass
            timer = threading.Timer(50 * MS, process.kill)
            timer.start()
            wait_until(lambda: producer.try_write(1, b"x") or producer.claim, what="room")
            timer.join()
            process.wait()
            wait_until(lambda: not ringbuf.inspect(name).consumers[0].alive, what="dead")
            producer.close()


def test_liveness_does_not_read_pids(name: str) -> None:
    """A planted pid of a living process makes no dead ring alive, and a wrong one no living ring dead."""
    producer = ringbuf.create(name, 4096)
    path = f"/dev/shm/ringbuf.{name}"

    def plant(pid: int) -> None:
        with open(path, "r+b") as file:
            file.seek(layout.PRODUCER_PAGE + layout.P_PID * layout.WORD)
            file.write(pid.to_bytes(8, "little"))

    plant(2**22 + 5)
    assert ringbuf.inspect(name).producer.alive
    assert name not in ringbuf.reap(prefix=name)
    producer.close(unlink=False)
    plant(1)
    assert not ringbuf.inspect(name).producer.alive
    assert name in ringbuf.reap(prefix=name)


# ---------------------------------------------------------------------------------------------------- locks


def test_locks_show_without_write_permission_and_end_with_their_open(tmp_path: Any) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(10_000))
    own, other = os.open(path, os.O_RDWR), os.open(path, os.O_RDONLY)
    assert liveness.lock_byte(own, 4096)
    assert liveness.is_locked(other, 4096)
    assert not liveness.is_locked(other, 4097)
    second = os.open(path, os.O_RDWR)
    assert not liveness.lock_byte(second, 4096)
    assert not liveness.lock_all(second, 1)
    os.close(own)
    assert not liveness.is_locked(other, 4096)
    assert liveness.lock_all(second, 1)
    for fd in (other, second):
        os.close(fd)


def test_process_start_tells_lives_of_one_pid_apart() -> None:
    assert liveness.process_start(os.getpid()) > 0
    assert liveness.process_start(2**22 + 1) == 0


def test_a_writer_that_only_tries_soon_finds_that_the_consumer_in_its_way_is_dead(
    name: str, spawn: Any
) -> None:
    with ringbuf.create(name, 4096) as producer:
        child = spawn(CONSUMER, name)
        with ringbuf.attach(name) as other:
            while producer.try_write(1, bytes(500)):
                pass
            other.read_many()
            assert producer.write_many([(1, bytes(500))] * 9) == 0
            child.kill()
            wait_until(lambda: producer.try_write(1, bytes(500)))
            assert producer.write_many([(1, bytes(500))] * 3) == 3
            info = ringbuf.inspect(name)
            assert (info.full_events, info.evicted) == (1, 1)

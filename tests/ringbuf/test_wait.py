from __future__ import annotations

import os
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
from ringbuf import wait
from ringbuf.layout import BARRIER_SLEEPER, BARRIER_WAKER, P_WAITING

pytestmark = pytest.mark.usefixtures("body")


def test_a_fence_takes_a_lock_and_gives_it_back() -> None:
    for _ in range(1000):
        wait.fence()


def test_the_barrier_is_chosen_by_the_maker(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wait, "_registered", False)
    assert wait.best_barrier() == BARRIER_WAKER
    with ringbuf.create(name, 4096) as producer, ringbuf.attach(name) as consumer:
        timer = threading.Timer(30 * MS, producer.write, (1, b"x"))
        timer.start()
        assert consumer.read(60).payload == b"x"
        while producer.try_write(1, b"x" * 1000):
            pass
        timer = threading.Timer(30 * MS, consumer.read_many)
        timer.start()
        producer.write(1, b"x" * 1000, timeout=60)
        timer.join()


@pytest.mark.skipif(wait.best_barrier() != BARRIER_SLEEPER, reason="this kernel has no membarrier")
def test_a_process_without_membarrier_is_refused_with_a_remedy(
    producer: ringbuf.Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wait, "_registered", False)
    with pytest.raises(ringbuf.RingError, match="RINGBUF_BARRIER=waker"):
        ringbuf.attach(producer.name)


def test_the_barrier_can_be_forced() -> None:
    code = "from ringbuf import wait; print(wait.best_barrier())"
    out, _ = spawn_python(code, env={**os.environ, "RINGBUF_BARRIER": "waker"}).communicate()
    assert out.strip() == str(BARRIER_WAKER)


@pytest.mark.parametrize(
    ("text", "cores"), [("max 100000\n", float("inf")), ("150000 100000\n", 1.5), ("50000 100000", 0.5)]
)
def test_cgroup_quotas_count(text: str, cores: float) -> None:
    assert wait._parse_cpu_max(text) == cores


def test_old_cgroup_quotas_count() -> None:
    assert wait._parse_cfs_quota("-1\n") == float("inf")
    assert wait._parse_cfs_quota("250000") == 2.5


def test_nobody_spins_on_two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 < wait.usable_cores() <= len(os.sched_getaffinity(0))
    monkeypatch.setattr(wait, "usable_cores", lambda: 2.0)
    assert wait.spin_seconds() == 0
    monkeypatch.setattr(wait, "usable_cores", lambda: 3.0)
    assert wait.spin_seconds() > 0


def test_a_spinning_reader_reads_what_comes(
    name: str, body: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ringbuf.watch.spin_seconds", lambda: 5 * MS)
    with ringbuf.create(name, 4096) as producer, ringbuf.attach(name) as consumer:
        timer = threading.Timer(1 * MS, producer.write, (1, b"x"))
        timer.start()
        assert consumer.read(60).payload == b"x"
        timer.join()
        with pytest.raises(TimeoutError):
            consumer.read(1 * MS)


def test_a_deadline_counts_down_and_never_below_zero() -> None:
    deadline = wait.Deadline(20 * MS)
    assert 0 < deadline.remaining() <= 20 * MS
    time.sleep(25 * MS)
    assert deadline.remaining() == 0
    assert deadline.waited() >= 25 * MS
    assert wait.Deadline(None).remaining() == float("inf")
    assert wait.Deadline(-5).remaining() == 0


@pytest.fixture
def ticking() -> Iterator[list[int]]:
    """A signal with a handler every 5 ms."""
    ticks: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda *_: ticks.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)
    yield ticks
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_signals_neither_shorten_nor_break_waits(
    producer: ringbuf.Producer, consumer: ringbuf.Consumer, ticking: list[int]
) -> None:
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        consumer.read(200 * MS)
    assert time.monotonic() - started >= 200 * MS
    while producer.try_write(1, b"x" * 1000):
        pass
    started = time.monotonic()
    with pytest.raises(ringbuf.RingFull):
        producer.write(1, b"x" * 1000, timeout=200 * MS)
    assert time.monotonic() - started >= 200 * MS
    assert len(ticking) > 10


@pytest.mark.parametrize("side", ["read", "write"])
def test_keyboard_interrupt_leaves_the_ring_usable(
    producer: ringbuf.Producer, consumer: ringbuf.Consumer, side: str
) -> None:
    while side == "write" and producer.try_write(1, b"x" * 1000):
        pass

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 30 * MS)
    try:
        with pytest.raises(KeyboardInterrupt):
            consumer.read() if side == "read" else producer.write(1, b"x" * 1000)
    finally:
        signal.signal(signal.SIGALRM, before)
    info = ringbuf.inspect(producer.name)
    assert not info.producer.waiting
    assert not info.consumers[0].parked
    consumer.read_many()
    producer.write(2, b"after", timeout=5)
    assert consumer.read(5).payload == b"after"


def test_a_lost_ring_is_healed_by_the_re_check(
    producer: ringbuf.Producer, consumer: ringbuf.Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ringbuf.doorbell.Bell.ring", lambda self: True)
    got: list[bytes] = []
    thread = threading.Thread(target=lambda: got.append(bytes(consumer.read(60).payload)))
    thread.start()
    wait_until(lambda: ringbuf.inspect(producer.name).consumers[0].parked, what="parked")
    time.sleep(20 * MS)
    producer.write(1, b"x")
    thread.join()
    assert got == [b"x"]


def test_sleeps_are_rung_and_counted_whoever_does_it(producer: ringbuf.Producer) -> None:
    """The C body sleeps and rings by itself once it knows the descriptors; its figures are the same."""
    received: list[bytes] = []
    for life in range(2):  # the second consumer has the first one's slot, and its bell
        with ringbuf.attach(producer.name, start="latest") as consumer:
            seat = consumer._seat

            def read(consumer: ringbuf.Consumer = consumer) -> None:
                for _ in range(5):
                    received.append(bytes(consumer.read(60).payload))

            reader = threading.Thread(target=read)
            reader.start()
            for i in range(5):
                wait_until(lambda seat=seat, n=5 * life + i: len(received) == n and seat._wake[0])
                producer.write(1, b"%d" % i)
            reader.join()
            info = ringbuf.inspect(producer.name)
            # One that was about to sleep may find the frame at once; its bell then rings for its next sleep.
            assert 1 <= info.rung <= 5 * (life + 1)
            assert 1 <= info.consumers[0].wakeups - info.consumers[0].spurious <= 5
    assert received == [b"%d" % i for i in range(5)] * 2


def test_a_full_producer_is_rung_by_releases(producer: ringbuf.Producer) -> None:
    size = producer.max_payload
    with ringbuf.attach(producer.name) as consumer:
        for _ in range(5):
            while producer.try_write(1, bytes(size)):
                pass
            writer = threading.Thread(target=producer.write, args=(1, bytes(size)), kwargs={"timeout": 60})
            writer.start()
            wait_until(lambda: consumer._seat.peer[P_WAITING])
            consumer.read_many()
            writer.join()
        info = ringbuf.inspect(producer.name)
        # One that was about to sleep may find the room at once, so how often it was woken is not known.
        assert info.consumers[0].rung >= 1


def test_a_sigpipe_that_would_kill_does_not(producer: ringbuf.Producer) -> None:
    code = """
import os, signal, sys, threading, time, ringbuf
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
c = ringbuf.attach(sys.argv[1])
bell = c._seat.tenure.bell("p")
print(bell.fileno() >= 0, flush=True)
sys.stdin.readline()
print(bell.ring(), flush=True)
"""
    process = spawn_python(code, producer.name, stdin=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == "True\n"
    producer.close()
    out, errors = process.communicate("\n")
    assert (out, process.returncode) == ("False\n", 0), errors


IDLE = """
import resource, sys, threading, time, ringbuf
name, seconds = sys.argv[1], float(sys.argv[2])
p = ringbuf.create(name, 4096)
c = ringbuf.attach(name)
while p.try_write(1, b"x" * 1000): pass
full = ringbuf.attach(name)
q = ringbuf.create(name + "-q", 4096)
d = ringbuf.attach(name + "-q")
def wait(call):
    try: call()
    except TimeoutError: pass
threads = [threading.Thread(target=wait, args=(f,)) for f in (
    lambda: p.write(1, b"x" * 1000, timeout=seconds), lambda: d.read(seconds))]
for t in threads: t.start()
time.sleep(0.2)
before = resource.getrusage(resource.RUSAGE_SELF)
start = time.monotonic()
for t in threads: t.join()
after = resource.getrusage(resource.RUSAGE_SELF)
used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
print(used / (time.monotonic() - start) / 2)
"""


@pytest.mark.slow
def test_idle_sides_use_next_to_no_cpu(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    out, errors = spawn_python(IDLE, name, "6").communicate()
    share = float(out)
    with capsys.disabled():
        print(f"\nidle CPU of a parked side: {share:.4%}", file=sys.stderr)
    # Ten times the goal of 0.01 %: a shared machine's clock ticks are coarse, a poll loop would use far more.
    assert share < 0.001, errors

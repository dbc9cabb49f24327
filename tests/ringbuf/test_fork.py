"""Forked children: nothing they inherited works or ends anything, and handles of their own do."""

from __future__ import annotations

import gc
import os
import signal
import threading
from typing import Any

import pytest
from support import MS, spawn_python, wait_until

import ringbuf

pytestmark = pytest.mark.usefixtures("body")


def in_child(call: Any) -> str:
    """What `call` does in a forked child: "" or the error."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            call()
            answer = ""
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(write, answer.encode())
        os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    with open(read) as pipe:
        return pipe.read()


def test_an_inherited_handle_is_an_error_in_a_child(
    producer: ringbuf.Producer, consumer: ringbuf.Consumer
) -> None:
    producer.write(1, b"x")
    expected = f"UseAfterFork: this handle of ring {producer.name!r} belongs to pid {os.getpid()}"
    for call in (
        lambda: producer.try_write(1, b"x"),
        lambda: producer.write(1, b"x"),
        lambda: producer.write_many([(1, b"x")]),
        lambda: producer.claim(1, 1).__enter__(),
        consumer.try_read,
        consumer.read,
        consumer.read_many,
        consumer.fileno,
        lambda: next(consumer),
    ):
        assert in_child(call).startswith(expected)
    assert consumer.read(0).payload == b"x"


def test_a_child_neither_unlinks_nor_ends_anything(
    producer: ringbuf.Producer, consumer: ringbuf.Consumer
) -> None:
    def close_all() -> None:
        producer.close()
        consumer.close()
        gc.collect()

    assert in_child(close_all) == ""
    producer.write(1, b"x")
    assert consumer.read(0).payload == b"x"
    assert ringbuf.inspect(producer.name).state == "live"


def test_a_living_child_keeps_no_lock_and_no_lifeline(name: str) -> None:
    code = """
import os, sys, time, ringbuf
p = ringbuf.create(sys.argv[1], 4096); c = ringbuf.attach(sys.argv[1])
p.write(1, b"x")
child = os.fork()
if child: print(child, flush=True)
time.sleep(60)
"""
    process = spawn_python(code, name)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    try:
        with ringbuf.attach(name) as consumer:
            assert consumer.read(5).payload == b"x"
            timer = threading.Timer(50 * MS, process.kill)
            timer.start()
            with pytest.raises(ringbuf.PeerDead):
                consumer.read(60)
            timer.join()
            assert [c.alive for c in ringbuf.inspect(name).consumers] == [False, True]
            ringbuf.resume(name).close()
    finally:
        os.kill(child, signal.SIGKILL)
        process.communicate()


def test_a_child_opens_handles_of_its_own(producer: ringbuf.Producer) -> None:
    def attach() -> None:
        with ringbuf.attach(producer.name) as own:
            assert own.read(5).payload == b"x"

    producer.write(1, b"x")
    assert in_child(attach) == ""


def test_a_fork_while_another_thread_waits(producer: ringbuf.Producer, consumer: ringbuf.Consumer) -> None:
    got: list[bytes] = []
    thread = threading.Thread(target=lambda: got.append(bytes(consumer.read(60).payload)))
    thread.start()
    wait_until(lambda: ringbuf.inspect(producer.name).consumers[0].parked, what="parked")
    assert in_child(consumer.try_read).startswith("UseAfterFork")
    producer.write(1, b"x")
    thread.join()
    assert got == [b"x"]

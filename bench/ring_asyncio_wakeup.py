"""How soon an asyncio reader sees a frame sent while its loop sleeps: a ring against a bare eventfd.

Unit: microseconds from send to the reader's line, one frame every 5 ms, under asyncio and uvloop.
The eventfd is the floor: one kernel counter, no data; its send time travels in a shared page. Each is read in
two ways, each compared with its like: in the loop's own callback, and in a task that waits (`async for`),
which costs every transport one more turn of the loop.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from typing import Any

import ringbuf
from bench import harness

GAP_S = 0.005


def send(transport: str, name: str, count: int, fd: int) -> None:
    """The signalling process: one frame every GAP_S seconds, then its end."""
    harness.pin(0)
    clock = time.monotonic_ns
    if transport.startswith("ringbuf"):
        with ringbuf.create(name, capacity=1 << 16, slots=1) as producer:
            print("ready", flush=True)
            sys.stdin.readline()
            for _ in range(count):
                time.sleep(GAP_S)
                producer.try_write(1, clock().to_bytes(8, "little") + bytes(56))
            sys.stdin.readline()
        return
    page = harness.SharedFile(name, 4096, create=True)
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(count):
        time.sleep(GAP_S)
        page.buf[:8] = clock().to_bytes(8, "little")
        os.eventfd_write(fd, 1)
    sys.stdin.readline()
    page.close()


async def receive_ring(name: str, count: int) -> list[int]:
    """A task over `async for`."""
    samples = []
    with ringbuf.attach(name, start="oldest", timeout=10) as consumer:
        print("ready", flush=True)
        async for frame in consumer:
            samples.append(time.monotonic_ns() - int.from_bytes(frame.payload[:8], "little"))
            del frame
            if len(samples) == count:
                break
    return samples


async def receive_ring_in_callback(name: str, count: int) -> list[int]:
    """The loop's own callback, as an API worker reads."""
    samples: list[int] = []
    loop, done = asyncio.get_running_loop(), asyncio.Event()
    with ringbuf.attach(name, start="oldest", timeout=10) as consumer:

        def readable() -> None:
            while (frame := consumer.try_read()) is not None:
                samples.append(time.monotonic_ns() - int.from_bytes(frame.payload[:8], "little"))
            if len(samples) >= count:
                done.set()

        loop.add_reader(consumer.fileno(), readable)
        print("ready", flush=True)
        await done.wait()
        loop.remove_reader(consumer.fileno())
    return samples


async def receive_eventfd(name: str, count: int, fd: int) -> list[int]:
    """A task that waits for the descriptor."""
    page = harness.SharedFile(name, 4096, create=False)
    samples: list[int] = []
    loop, came = asyncio.get_running_loop(), 0
    os.set_blocking(fd, False)
    print("ready", flush=True)
    while came < count:
        readable: asyncio.Future[None] = loop.create_future()
        loop.add_reader(fd, readable.set_result, None)
        await readable
        loop.remove_reader(fd)
        # A counter: what came while the loop was kept from running is one wake-up.
        came += os.eventfd_read(fd)
        samples.append(time.monotonic_ns() - int.from_bytes(page.buf[:8], "little"))
    page.close()
    return samples


async def receive_eventfd_in_callback(name: str, count: int, fd: int) -> list[int]:
    """The loop's own callback."""
    page = harness.SharedFile(name, 4096, create=False)
    samples: list[int] = []
    loop, done = asyncio.get_running_loop(), asyncio.Event()
    os.set_blocking(fd, False)
    came = 0

    def readable() -> None:
        nonlocal came
        came += os.eventfd_read(fd)
        samples.append(time.monotonic_ns() - int.from_bytes(page.buf[:8], "little"))
        if came >= count:
            done.set()

    loop.add_reader(fd, readable)
    print("ready", flush=True)
    await done.wait()
    loop.remove_reader(fd)
    page.close()
    return samples


def receive(transport: str, loop: str, name: str, count: int, fd: int) -> None:
    """The waiting process, under the named loop."""
    harness.pin(1)
    factory: Any = asyncio.new_event_loop
    if loop == "uvloop":
        import uvloop  # noqa: PLC0415 - measured only where it is installed

        factory = uvloop.new_event_loop
    task = {
        "ringbuf, task": lambda: receive_ring(name, count),
        "ringbuf, callback": lambda: receive_ring_in_callback(name, count),
        "eventfd, task": lambda: receive_eventfd(name, count, fd),
        "eventfd, callback": lambda: receive_eventfd_in_callback(name, count, fd),
    }[transport]()
    with asyncio.Runner(loop_factory=factory) as runner:
        print(json.dumps(runner.run(task)), flush=True)


def measure(transport: str, loop: str, count: int, impl: str | None) -> list[int]:
    name = f"bench{os.getpid()}-{os.urandom(3).hex()}"
    fd = os.eventfd(0)
    env = {**os.environ, **({"RINGBUF_IMPL": impl} if impl else {})}
    peers: list[subprocess.Popen[str]] = []
    try:
        for role in ("send", "receive"):
            command = [
                sys.executable,
                "-m",
                "bench.ring_asyncio_wakeup",
                "--peer",
                role,
                transport,
                loop,
                name,
            ]
            command += [str(count), str(fd)]
            peer = subprocess.Popen(
                command,
                cwd=harness.ROOT,
                env=env,
                text=True,
                pass_fds=[fd],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            peers.append(peer)
            assert peer.stdout is not None
            if peer.stdout.readline().strip() != "ready":
                raise RuntimeError(f"{transport} {role} did not come up")
        sender, receiver = peers
        assert sender.stdin is not None
        assert receiver.stdout is not None
        sender.stdin.write("go\n")
        sender.stdin.flush()
        samples: list[int] = json.loads(receiver.stdout.readline())
        sender.communicate("done\n", timeout=20)
        receiver.communicate(timeout=20)
        return samples
    finally:
        os.close(fd)
        for peer in peers:
            if peer.poll() is None:
                peer.kill()
                peer.communicate()


def main() -> None:
    if sys.argv[1:2] == ["--peer"]:
        role, transport, loop, name, count, fd = sys.argv[2:8]
        if role == "send":
            send(transport, name, int(count), int(fd))
        else:
            receive(transport, loop, name, int(count), int(fd))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--smoke", action="store_true")
    args = parser.parse_args()
    count = 20 if args.smoke else 200
    samples: dict[str, list[list[int]]] = {}
    for _ in range(1 if args.smoke else args.rounds):
        for loop in ("asyncio", "uvloop"):
            for transport, impl in (
                (f"{waiter}, {how}", impl)
                for how in ("callback", "task")
                for waiter, impl in (("eventfd", None), ("ringbuf", "c"), ("ringbuf", "python"))
            ):
                label = f"{loop}: {transport}" + (f" {impl}" if impl else "")
                try:
                    samples.setdefault(label, []).append(measure(transport, loop, count, impl))
                except (RuntimeError, ValueError, subprocess.TimeoutExpired) as error:
                    print(f"  left out: {label} ({error})", file=sys.stderr)
    results = {label: harness.spread_us(rounds) for label, rounds in samples.items() if rounds}
    rows = [(label, f"{v['p50_us']:.1f}", f"{v['p99_us']:.1f}") for label, v in results.items()]
    print(harness.table(["loop: waiter", "p50 us", "p99 us"], rows))
    harness.emit("ring_asyncio_wakeup", {"smoke": args.smoke, "latency": results})


if __name__ == "__main__":
    main()

"""Random SIGKILL and SIGSTOP of shards, workers and the supervisor under load, as often as wanted.

    python -m tests.stress.serve_kills [--kills 200] [--seconds S]

Streams run all the time. A killed shard's streams end with an error event that names the shard, and nobody
else's do; a killed worker's connections break, and its requests are aborted in the shards; a stopped process
is slow and loses nothing. After each blow the server is ready again, with other pids, while the streams of
those who were not hit go on. Now and then the supervisor itself is killed: its children leave, and the next
start finds nothing left. The times of both promises (2 s, 5 s) are printed with how often they were missed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import statistics
import sys
import time
from collections import Counter

import psutil
import uvloop

from tests.stress._kit import hold
from tests.stress._serve import Answer, Script, Server, connect, options, quiet, request, runtime_folder

# Where a promise is missed by so much, it is no longer the machine.
STUCK_S = 60.0
FAILED_WITHIN_S, BACK_WITHIN_S = 2.0, 5.0


class Load:
    """Streams that are always under way, and how each of them ended."""

    def __init__(self, server: Server, script: Script, rng: random.Random) -> None:
        self.server, self.script, self.rng = server, script, rng
        self.endings: list[tuple[float, str, str]] = []
        self.n_bytes = 0
        self.is_over = False

    async def client(self) -> None:
        """One stream after the other."""
        while not self.is_over:
            try:
                await self._stream(self.rng.randint(200, 600))
            except ConnectionRefusedError:
                await asyncio.sleep(0.1)

    async def _stream(self, count: int) -> None:
        params = {"max_new_tokens": count, "ignore_eos": True}
        body = {"text": "x", "stream": True, "incremental": True, "sampling_params": params}
        raw = b""
        async with connect(self.server) as (reader, writer):
            writer.write(request("/generate", body))
            try:
                async with asyncio.timeout(STUCK_S):
                    while part := await reader.read(1 << 16):
                        raw += part
                        self.n_bytes += len(part)
            except ConnectionResetError:
                pass
            except TimeoutError:
                raise AssertionError(f"a stream hangs after {raw[-200:]!r}") from None
        now = time.monotonic()
        answer = Answer(raw)
        if answer.status in (0, 200):
            ending = answer.hold_one_ending() if answer.status else "cut"
            if ending == "done":
                hold(answer.text() == self.script.text(count), f"another text of {count} tokens")
            else:
                hold(self.script.starts_with(answer.text()), f"a wrong text before its {ending}")
            self.endings.append((now, ending, answer.error))
        else:
            hold(answer.is_whole, f"a broken answer of status {answer.status}")
            self.endings.append((now, str(answer.status), answer.error))
            await asyncio.sleep(0.1)

    def since(self, start: float) -> list[tuple[float, str, str]]:
        """Endings after `start`, but those that succeeded."""
        return [ending for ending in self.endings if ending[0] >= start and ending[1] != "done"]


class Blows:
    """What is done to a server, and what must follow.

    Attributes:
        counts: blows by kind.
        failed_s, back_s: seconds from a shard's death to the last error of its streams; to its return.
    """

    def __init__(self, server: Server, load: Load, rng: random.Random) -> None:
        self.server, self.load, self.rng = server, load, rng
        self.counts: Counter[str] = Counter()
        self.failed_s: list[float] = []
        self.back_s: list[float] = []
        self.n_failed = self.n_cut = 0

    async def one(self) -> None:
        """One blow, and the wait until all is well again."""
        blow = self.rng.choices(
            [self.kill_shard, self.kill_worker, self.kill_both, self.stop_shard, self.stop_worker],
            [8, 6, 2, 3, 3],
        )[0]
        start, n_bytes = time.monotonic(), self.load.n_bytes
        await blow()
        self.counts[blow.__name__] += 1
        # One shard and one worker at least were not hit, but by kill_both.
        is_soon = time.monotonic() - start < 0.5
        hold(is_soon or self.load.n_bytes > n_bytes, f"{blow.__name__}: nobody was served meanwhile")
        await asyncio.sleep(self.rng.random() * 0.5)

    async def kill_shard(self) -> None:
        pids = await self.pids("shard")
        index = self.rng.randrange(len(pids))
        start = time.monotonic()
        os.kill(pids[index], signal.SIGKILL)
        await self._back(start, {pids[index]})
        found = self.load.since(start)
        for at, ending, error in found:
            hold(ending in ("error", "500", "503"), f"shard {index} was killed and a stream ended {ending}")
            hold(f"shard {index}" in error, f"shard {index} was killed and a stream ended by {error!r}")
            if ending != "503":
                self.failed_s.append(at - start)
        self.n_failed += len(found)

    async def kill_worker(self) -> None:
        pids = await self.pids("worker")
        victim = self.rng.choice(pids)
        start = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        await self._back(start, {victim}, is_shard=False)
        found = self.load.since(start)
        # New requests may be refused while nobody can take them; what runs elsewhere may not end.
        wrong = [ending for ending in found if ending[1] not in ("cut", "503")]
        hold(not wrong, f"a worker was killed and streams ended {wrong}")
        self.n_cut += len(found)

    async def kill_both(self) -> None:
        shards, workers = await self.pids("shard"), await self.pids("worker")
        victims = {self.rng.choice(shards), self.rng.choice(workers)}
        start = time.monotonic()
        for victim in victims:
            os.kill(victim, signal.SIGKILL)
        await self._back(start, victims)
        self.n_cut += sum(ending == "cut" for _, ending, _ in self.load.since(start))

    async def stop_shard(self) -> None:
        await self._stop(self.rng.choice(await self.pids("shard")))

    async def stop_worker(self) -> None:
        await self._stop(self.rng.choice(await self.pids("worker")))

    async def _stop(self, pid: int) -> None:
        start = time.monotonic()
        os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(0.1 + self.rng.random())
        os.kill(pid, signal.SIGCONT)
        await self.ready()
        # A request that finds the shard silent may be refused; nothing that runs may end for it.
        found = [ending for ending in self.load.since(start) if ending[1] != "503"]
        hold(not found, f"a process was stopped for a moment and streams ended {found}")

    async def _back(self, start: float, victims: set[int], is_shard: bool = True) -> None:
        """Wait for the victims' successors."""
        while True:
            pids = {
                pid for found in (await asyncio.to_thread(self.server.children)).values() for pid in found
            }
            if not pids & victims and len(pids) == 4:
                break
            hold(time.monotonic() - start < STUCK_S, "no successor")
            await asyncio.sleep(0.05)
        await self.ready()
        if is_shard:
            self.back_s.append(time.monotonic() - start)

    async def ready(self) -> None:
        """Wait until every worker says that it is ready: some answers in a row, each on a new connection."""
        deadline = time.monotonic() + STUCK_S
        in_a_row = 0
        answer: Answer | None = None
        while in_a_row < 4:
            hold(time.monotonic() < deadline, f"not ready again: {answer and answer.body!r}")
            answer = await self.ask("/health")
            in_a_row = in_a_row + 1 if answer.status == 200 else 0
            if not in_a_row:
                await asyncio.sleep(0.05)

    async def ask(self, path: str) -> Answer:
        """GET; an empty answer when the connection breaks."""
        raw = b""
        try:
            async with asyncio.timeout(STUCK_S), connect(self.server) as (reader, writer):
                writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
                while part := await reader.read(1 << 16):
                    raw += part
        except ConnectionError:
            pass
        return Answer(raw)

    async def pids(self, role: str) -> list[int]:
        """Pids of the living, shards in their order."""
        found: list[int] = []
        while len(found) != 2:
            if role == "shard":
                found = await asyncio.to_thread(self.server.shard_pids)
            else:
                found = (await asyncio.to_thread(self.server.children))[role]
        return found


async def one_life(server: Server, blows: int, seed: int, deadline: float, tell: list[Blows]) -> None:
    """Blows against one server, then quiet."""
    rng = random.Random(seed)
    load = Load(server, Script(), rng)
    struck = Blows(server, load, rng)
    tell.append(struck)
    async with asyncio.TaskGroup() as group:
        for _ in range(16):
            group.create_task(load.client())
        await asyncio.sleep(0.5)
        for _ in range(blows):
            if time.monotonic() < deadline:
                await struck.one()
        load.is_over = True
    await quiet(server, was_killed=True)


def kill_supervisor(server: Server) -> None:
    """SIGKILL it while it serves; its children must leave by themselves."""
    tree = psutil.Process(server.process.pid).children(recursive=True)
    server.process.kill()
    server.process.wait()
    hold(not psutil.wait_procs(tree, timeout=STUCK_S)[1], "children outlive their supervisor")


def main() -> int:
    """Lives of a server, each ended by a kill of its supervisor, until there were enough blows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=0, help="no more blows after that; 0 = no limit")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--per-life", type=int, default=20)
    args = parser.parse_args()
    begun = time.monotonic()
    deadline = begun + args.seconds if args.seconds else float("inf")
    told: list[Blows] = []
    supervisors = done = 0
    with runtime_folder() as runtime:
        before: Server | None = None
        while done < args.kills and (time.monotonic() < deadline or not told):
            with Server(*options(runtime), "--step-ms", "5", runtime=runtime) as server:
                server.wait_ready()
                if before is not None:
                    hold(not before.left_behind(), f"left after a start: {before.left_behind()}")
                uvloop.run(
                    one_life(server, min(args.per_life, args.kills - done), args.seed + done, deadline, told)
                )
                done = sum(sum(struck.counts.values()) for struck in told) + supervisors
                if done < args.kills:
                    kill_supervisor(server)
                    supervisors += 1
                    done += 1
                    before = server
    report(told, supervisors, time.monotonic() - begun)
    return 0


def report(told: list[Blows], supervisors: int, seconds: float) -> None:
    """One line of counts, one of times."""
    counts = sum((struck.counts for struck in told), Counter(kill_supervisor=supervisors))
    endings = Counter(ending for struck in told for _, ending, _ in struck.load.endings)
    print(f"{sum(counts.values())} blows in {seconds:.0f} s: {dict(counts)}; streams ended {dict(endings)}")
    for what, times, limit in (
        ("a killed shard's streams failed", [t for s in told for t in s.failed_s], FAILED_WITHIN_S),
        ("a killed shard was back and ready", [t for s in told for t in s.back_s], BACK_WITHIN_S),
    ):
        if times:
            late = sum(t > limit for t in times)
            print(
                f"{what} after {statistics.median(times):.2f} s (median), {max(times):.2f} s (most), "
                f"{late} of {len(times)} after more than {limit} s"
            )


if __name__ == "__main__":
    sys.exit(main())

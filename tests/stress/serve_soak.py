"""A server under mixed load for as long as wanted: what it holds at the start is what it holds at the end.

    python -m tests.stress.serve_soak [--seconds 1800]

The clients of serve_chaos come and go without pause. A tenth of the time in, and at the end, the server is
left in quiet: all tables must be empty then, and resident memory, open descriptors and threads of every
process must be what they were.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time

import psutil
import uvloop

from tests.stress._kit import arguments, hold
from tests.stress._serve import Server, quiet, rss_mb
from tests.stress.serve_chaos import Chaos, serving

AT_ONCE = 60
# An allocator's own coming and going; a leak of one small object per request passes it within minutes.
GROWTH_MB = 24.0


def held(server: Server) -> dict[str, tuple[int, int]]:
    """Descriptors and threads of every child."""
    found = {}
    for role, pids in server.children().items():
        for pid in pids:
            process = psutil.Process(pid)
            found[f"{role}-{pid}"] = (process.num_fds(), process.num_threads())
    return found


async def settle(server: Server) -> None:
    """Quiet, and then time for closed connections to be let go of."""
    await quiet(server)
    await asyncio.sleep(2)


async def soak(server: Server, seconds: float, seed: int) -> None:
    """Clients until the time is over."""
    chaos = Chaos(server, random.Random(seed))
    served = await chaos.many(1 << 20, AT_ONCE, seconds / 10)
    await settle(server)
    before, memory = held(server), rss_mb(server)
    begun = time.monotonic()
    served += await chaos.many(1 << 20, AT_ONCE, seconds * 9 / 10)
    serving_s = time.monotonic() - begun
    await settle(server)
    after, grown = held(server), rss_mb(server)
    hold(before.keys() == after.keys(), f"processes were replaced: {before} {after}")
    for name in after:
        grown[name] = round(grown[name] - memory[name], 1)
        hold(grown[name] < GROWTH_MB, f"{name} grew by {grown[name]} MB in {serving_s:.0f} s")
        # Threads of a pool, and the epoll of each, come with the first need for them and stay.
        fds, threads = (now - then for now, then in zip(after[name], before[name], strict=True))
        hold(fds <= 8 and threads <= 8, f"{name} holds {fds} more descriptors and {threads} more threads")
    print(f"{served} clients, resident MB grown by {grown} in {serving_s:.0f} s, tables empty")


def main() -> int:
    """Run it once."""
    args = arguments(__doc__, 1800)
    with serving() as server:
        uvloop.run(soak(server, args.seconds, args.seed))
    return 0


if __name__ == "__main__":
    sys.exit(main())

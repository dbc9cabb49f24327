"""Processor time of a parked side: a consumer that waits for a frame, a producer that waits for room.

Unit: per cent of one core, over a sleep of --seconds in which nothing happens. Each side is a process of its
own, so only its own re-checks are counted. It would lie if the sleep were so short that the first re-checks,
which come soonest, were most of it, or if anybody rang.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

from bench import harness

_CODE = """
import sys, time, ringbuf
side, name, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
if side == "consumer":
    ring = ringbuf.attach(name)
    wait = lambda: ring.read(seconds)
else:
    ring = ringbuf.create(name := name + "-full-" + ringbuf.__impl__, 4096)
    reader = ringbuf.attach(name)
    while ring.try_write(1, bytes(1000)):
        pass
    wait = lambda: ring.write(1, bytes(1000), timeout=seconds)
started, used = time.monotonic(), time.process_time_ns()
try:
    wait()
except TimeoutError:
    print((time.process_time_ns() - used) / 1e9 / (time.monotonic() - started))
"""


def start(side: str, name: str, seconds: float, impl: str) -> subprocess.Popen[str]:
    """One parked side."""
    return subprocess.Popen(
        [sys.executable, "-c", _CODE, side, name, str(seconds)],
        env={**os.environ, "RINGBUF_IMPL": impl},
        cwd=harness.ROOT,
        text=True,
        stdout=subprocess.PIPE,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--smoke", action="store_true")
    args = parser.parse_args()
    seconds = 1.0 if args.smoke else args.seconds
    import ringbuf  # noqa: PLC0415 - the ring must live as long as the sides, in whichever body

    shares: dict[str, float] = {}
    name = f"bench{os.getpid()}-idle"
    with ringbuf.create(name, 4096):
        sides = {
            f"{side}, {impl}": start(side, name, seconds, impl)
            for impl in ("c", "python")
            for side in ("consumer", "producer")
        }
        for label, process in sides.items():
            out, _ = process.communicate(timeout=seconds + 60)
            if out.strip():
                shares[label] = float(out) * 100
            else:
                print(f"  left out: {label}", file=sys.stderr)
    rows = [(label, f"{share:.4f} %") for label, share in shares.items()]
    print(harness.table(["parked side", f"of a core, over {seconds:.0f} s (goal 0.01 %)"], rows))
    harness.emit("ring_idle_cpu", {"smoke": args.smoke, "seconds": seconds, "percent": shares})


if __name__ == "__main__":
    main()

"""One end of a measured pair: `python -m bench.peer MODULE ROLE JSON`, started by bench.harness."""

from __future__ import annotations

import importlib
import json
import resource
import signal
import sys
import time
from typing import Any

from bench.harness import payloads_for, pin


def main() -> None:
    module, role, raw = sys.argv[1:4]
    args = json.loads(raw)
    pin(args["core"])
    # A rival that hangs ends by itself, also where whoever started it waits for its first word.
    signal.alarm(int(args.get("timeout_s", 120)))
    transport = importlib.import_module(module)
    kind = "Producer" if role == "producer" else "Consumer"
    extra = {}
    if "readers" in args and module.endswith(
        "vllm_queue"
    ):  # the only one that must know its readers beforehand
        extra = {"readers": args["readers"]} | ({} if role == "producer" else {"reader": int(role[-1])})
    peer = getattr(transport, kind)(args["name"], args["size"], args["mode"], **extra)
    # Whoever is told to end because the other side failed takes with it what it made.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        measure(peer, role, args)
    finally:
        peer.close()


def measure(peer: Any, role: str, args: dict[str, Any]) -> None:
    """Check, where asked, then run once, and print seconds and processor time as one JSON line."""
    payloads = payloads_for(args["size"])
    print("ready", flush=True)
    sys.stdin.readline()
    if args.get("checked"):
        peer.run(payloads, args["checked"], True)
        print("checked", flush=True)
        sys.stdin.readline()
    before = resource.getrusage(resource.RUSAGE_SELF)
    started = time.perf_counter()
    elapsed = peer.run(payloads, args["count"], args["check"])
    after = resource.getrusage(resource.RUSAGE_SELF)
    answer = {
        f"{role}_s": elapsed if elapsed is not None else time.perf_counter() - started,
        f"{role}_cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
    }
    print(json.dumps(answer), flush=True)
    if role == "producer":
        sys.stdin.readline()  # the harness closes it once the other side is through


if __name__ == "__main__":
    main()

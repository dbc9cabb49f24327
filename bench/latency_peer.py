"""One end of a latency pair, started by ring_ping_pong_latency.

`python -m bench.latency_peer LINK SIDE JSON`: ping sends and waits for the answer (round trip),
or with "gap_s" sleeps between one-way frames that carry their send time on the machine-wide monotonic clock
(wake-up of a blocked receiver).
"""

from __future__ import annotations

import gc
import json
import sys
import time

from bench.harness import pin
from bench.links import LINKS


def main() -> None:
    name, side, raw = sys.argv[1:4]
    args = json.loads(raw)
    pin(args["core"])
    link = LINKS[name](args["name"], side, args["kind"])
    print("ready", flush=True)
    sys.stdin.readline()
    link.connect()
    send, receive, count, gap = link.send, link.receive, args["count"], args["gap_s"]
    clock = time.monotonic_ns
    samples: list[int] = []
    gc.disable()
    if side == "pong":
        while count:
            frame = receive()
            if frame is None:
                continue
            payload = getattr(frame, "payload", frame)
            if gap:
                data = payload[0] if isinstance(payload, tuple) else payload
                samples.append(clock() - int.from_bytes(data[:8], "little"))
            else:
                send(bytes(64))
            count -= 1
    else:
        time.sleep(0.2)
        for _ in range(count):
            if gap:
                time.sleep(gap)
                send(clock().to_bytes(8, "little") + bytes(56))
            else:
                started = clock()
                send(bytes(64))
                while receive() is None:
                    pass
                samples.append(clock() - started)
    print(json.dumps({"samples": samples} if samples else {}), flush=True)
    sys.stdin.readline()
    link.close()


if __name__ == "__main__":
    main()

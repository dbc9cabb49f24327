"""A kernel pipe (a FIFO) written raw and read raw: frames of a fixed size.

Batches are one gathered write, and one read that is cut into its frames, as other batches come.
"""

from __future__ import annotations

import os
import tempfile
import time

from bench.rivals import looping

MODES = {"one", "many", "view"}
FIRST = "producer"
BATCH = 64


def _path(name: str) -> str:
    return os.path.join(tempfile.gettempdir(), name)


class Producer:
    def __init__(self, name: str, size: int, mode: str) -> None:
        self.mode, self.path = mode, _path(name)
        os.mkfifo(self.path)
        self.fd = os.open(self.path, os.O_RDWR)

    def run(self, payloads: list[bytes], count: int, check: bool) -> None:
        if self.mode == "many":
            looping.send_batches(self._send_many, payloads, count, BATCH)
            return
        done, n = 0, len(payloads)
        while done < count:
            for payload in payloads[: min(n, count - done)]:
                sent = os.write(self.fd, payload)
                while sent < len(payload):
                    sent += os.write(self.fd, memoryview(payload)[sent:])
            done += n

    def _send_many(self, batch: list[bytes]) -> int:
        sent = os.writev(self.fd, batch)
        rest = memoryview(b"".join(batch))[sent:] if sent < sum(map(len, batch)) else b""
        while rest:
            rest = rest[os.write(self.fd, rest) :]
        return len(batch)

    def close(self) -> None:
        os.close(self.fd)
        os.unlink(self.path)


class Consumer:
    def __init__(self, name: str, size: int, mode: str) -> None:
        self.size, self.mode = size, mode
        self.fd = os.open(_path(name), os.O_RDONLY)

    def _exactly(self, nbytes: int) -> bytes:
        data = os.read(self.fd, nbytes)
        if len(data) == nbytes:
            return data
        parts, have = [data], len(data)
        while have < nbytes:
            parts.append(os.read(self.fd, nbytes - have))
            have += len(parts[-1])
        return b"".join(parts)

    def run(self, payloads: list[bytes], count: int, check: bool) -> float:
        per_read = BATCH if self.mode == "many" else 1
        nbytes = self.size * per_read
        starts = range(0, nbytes, self.size or 1)
        got, started = 0, 0.0
        while got < count:
            data = self._exactly(nbytes)
            frames = [data[at : at + self.size] for at in starts] if per_read > 1 else [data]
            if check:
                for j, frame in enumerate(frames):
                    if frame != payloads[(got + j) % len(payloads)]:
                        raise SystemExit(f"frame {got + j} is not what was sent")
            if not got:
                started = time.perf_counter()
            got += per_read
        return time.perf_counter() - started

    def close(self) -> None:
        os.close(self.fd)

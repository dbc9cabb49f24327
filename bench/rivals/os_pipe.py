"""A kernel pipe (a FIFO) written raw and read raw: fixed-size frames, batches as one write and one read."""

from __future__ import annotations

import os
import tempfile
import time

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
        per_write = BATCH if self.mode == "many" else 1
        n = len(payloads)
        writes = [
            b"".join(payloads[(i + j) % n] for j in range(per_write))
            for i in range(0, n * per_write, per_write)
        ]
        done = 0
        while done < count:
            for data in writes:
                view = memoryview(data)
                while view:
                    view = view[os.write(self.fd, view) :]
                done += per_write
                if done >= count:
                    break

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
        got, started = 0, 0.0
        while got < count:
            data = self._exactly(nbytes)
            if check:
                for j in range(per_read):
                    if data[j * self.size : (j + 1) * self.size] != payloads[(got + j) % len(payloads)]:
                        raise SystemExit(f"frame {got + j} is not what was sent")
            if not got:
                started = time.perf_counter()
            got += per_read
        return time.perf_counter() - started

    def close(self) -> None:
        os.close(self.fd)

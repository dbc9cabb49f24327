"""The limit: the same ring arithmetic in plain C, two processes, no Python between the frames.

Compiled on first use with the system's C compiler into bench/results; without one the module does not import.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import time
from pathlib import Path

from bench.harness import SharedFile

MODES = {"one", "many", "view"}
FIRST = "producer"
HERE = Path(__file__).resolve().parent
CAPACITY = 1 << 20

_compiler = shutil.which("cc") or shutil.which("gcc")
if _compiler is None:
    raise ImportError("no C compiler")


def _library() -> ctypes.CDLL:
    built = HERE / "results" / "plain_ring.so"
    source = HERE / "plain_ring.c"
    if not built.exists() or built.stat().st_mtime < source.stat().st_mtime:
        built.parent.mkdir(exist_ok=True)
        partial = built.with_suffix(f".{os.getpid()}")
        subprocess.run(
            [str(_compiler), "-O2", "-shared", "-fPIC", "-o", str(partial), str(source)], check=True
        )
        os.replace(partial, built)
    return ctypes.CDLL(str(built))


def _capacity(size: int) -> int:
    capacity = CAPACITY
    while capacity < 8 * (size + 16):
        capacity *= 2
    return capacity


class _End:
    def __init__(self, name: str, size: int, mode: str, create: bool) -> None:
        self.size, self.batch, self.capacity = size, 64 if mode == "many" else 1, _capacity(size)
        self.shm = SharedFile(name, self.capacity + 4096, create)
        self.library = _library()
        self.anchor = ctypes.c_char.from_buffer(self.shm.buf)
        self.address = ctypes.c_void_p(ctypes.addressof(self.anchor))

    def close(self) -> None:
        del self.anchor
        self.shm.close()


class Producer(_End):
    def __init__(self, name: str, size: int, mode: str) -> None:
        super().__init__(name, size, mode, create=True)

    def run(self, payloads: list[bytes], count: int, check: bool) -> None:
        joined = b"".join(payloads)
        self.library.produce(
            self.address,
            ctypes.c_uint64(self.capacity),
            joined,
            ctypes.c_uint64(self.size),
            ctypes.c_uint64(len(payloads)),
            ctypes.c_uint64(count),
            ctypes.c_uint64(self.batch),
        )


class Consumer(_End):
    def __init__(self, name: str, size: int, mode: str) -> None:
        super().__init__(name, size, mode, create=False)

    def run(self, payloads: list[bytes], count: int, check: bool) -> float:
        joined = b"".join(payloads)
        self.library.first(self.address)
        started = time.perf_counter()
        self.library.consume.restype = ctypes.c_uint64
        wrong = self.library.consume(
            self.address,
            ctypes.c_uint64(self.capacity),
            joined,
            ctypes.c_uint64(self.size),
            ctypes.c_uint64(len(payloads)),
            ctypes.c_uint64(count),
            ctypes.c_uint64(self.batch),
            ctypes.c_uint64(check),
        )
        if wrong:
            raise SystemExit(f"{wrong} frames are not what was written")
        return time.perf_counter() - started

"""What every multi-process benchmark shares: pinned pairs of processes, interleaved rounds, one JSON line.

A transport is a module with classes `Producer(name, size, mode)` and `Consumer(name, size, mode)`, each with
`run(payloads, count, check)` and `close()`, a set `MODES`, and `FIRST`, the role that must exist before the
other.
"""

from __future__ import annotations

import datetime
import importlib
import itertools
import json
import mmap
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9)
_serial = itertools.count()


def machine() -> dict[str, Any]:
    """What a figure was taken on; goes into every JSON line."""
    cpu = "unknown"
    with open("/proc/cpuinfo", encoding="utf-8") as info:
        for line in info:
            if line.startswith("model name"):
                cpu = line.split(":", 1)[1].strip()
                break
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "load": round(os.getloadavg()[0], 1),
    }


def pin(core: int) -> None:
    """Run this process on one core only; a machine with a single core leaves it where it is."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[core % len(cores)]})


def percentile(samples: Sequence[float], q: float) -> float:
    """The q-th percentile (0..100) of the samples, the nearest below."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(len(ordered) * q / 100))]


def spread_us(rounds: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Latencies of interleaved rounds, in ns, as the report draws them, in us.

    `percentiles_us` (by percentile), `p50_us` and `p99_us` are over all rounds together; `rounds_p50_us` has
    each round's own, for ratios within a round.
    """
    together = sorted(sample for one in rounds for sample in one)
    at = {f"{q:g}": round(percentile(together, q) / 1e3, 3) for q in PERCENTILES}
    each = [round(percentile(one, 50) / 1e3, 3) for one in rounds]
    return {"p50_us": at["50"], "p99_us": at["99"], "percentiles_us": at, "rounds_p50_us": each}


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Ours over theirs, the median of each round's ratio; of the medians where one side lacks a round."""
    if len(ours) == len(theirs):
        return median(mine / its for mine, its in zip(ours, theirs, strict=True))
    return median(ours) / median(theirs)


def available(module: str) -> str | None:
    """None when the transport module imports here, else why not."""
    try:
        importlib.import_module(module)
    except ImportError as error:
        return str(error)
    return None


class SharedFile:
    """A plain shared mapping for rivals rebuilt here: a file under /dev/shm, removed by whoever made it."""

    def __init__(self, name: str, size: int, create: bool) -> None:
        self.path = Path("/dev/shm") / name
        self.owned = create
        fd = os.open(self.path, os.O_RDWR | (os.O_CREAT | os.O_EXCL if create else 0), 0o600)
        try:
            if create:
                os.posix_fallocate(fd, 0, size)
            self.map = mmap.mmap(fd, size)
        finally:
            os.close(fd)
        self.buf = memoryview(self.map)

    def close(self) -> None:
        self.buf.release()
        self.map.close()
        if self.owned:
            self.path.unlink()


def payloads_for(size: int) -> list[bytes]:
    """Distinct payloads of `size` bytes, cycled by frame number so that a lost or doubled frame shows."""
    n = 251 if size <= 4096 else 7 if size <= 1 << 17 else 3
    return [(i.to_bytes(8, "little") * (size // 8 + 1))[:size] for i in range(1, n + 1)]


def _expect(peer: subprocess.Popen[str], word: str, otherwise: str) -> None:
    assert peer.stdout is not None
    if peer.stdout.readline().strip() != word:
        raise RuntimeError(otherwise)


def _go(peers: Sequence[subprocess.Popen[str]]) -> None:
    for peer in peers:
        assert peer.stdin is not None
        peer.stdin.write("go\n")
        peer.stdin.flush()


def run_peers(
    module: str, roles: Sequence[str], args: Mapping[str, Any], env: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Run one process per role of `bench.peer`, started in order, released together; the last role's answer.

    Each process prints `ready` once set up and waits for a line on its standard input. With `checked` in the
    arguments they first send and compare that many frames, meet again, and measure then.
    """
    name = f"bench{os.getpid()}-{next(_serial)}"
    peers: list[subprocess.Popen[str]] = []
    try:
        for core, role in enumerate(roles):
            command = [
                sys.executable,
                "-m",
                "bench.peer",
                module,
                role,
                json.dumps({**args, "name": name, "core": core}),
            ]
            peer = subprocess.Popen(
                command,
                cwd=ROOT,
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, **(env or {})},
            )
            peers.append(peer)
            _expect(peer, "ready", f"{module} {role} did not come up")
        _go(peers)
        if args.get("checked"):
            for role, peer in zip(roles, peers, strict=True):
                _expect(peer, "checked", f"{module} {role}: not what was sent, or nothing")
            _go(peers)
        answers = {}
        for role, peer in zip(roles, peers, strict=True):
            out, _ = peer.communicate(timeout=float(args.get("timeout_s", 120)))
            if peer.returncode:
                raise RuntimeError(f"{module} {role} ended with {peer.returncode}")
            answers[role] = json.loads(out.splitlines()[-1])
        merged: dict[str, Any] = {}
        for answer in answers.values():
            merged.update(answer)
        return merged
    finally:
        for peer in peers:
            if peer.poll() is None:
                peer.terminate()
        for peer in peers:
            try:
                peer.wait(5)
            except subprocess.TimeoutExpired:
                peer.kill()
                peer.wait()
            for stream in (peer.stdin, peer.stdout):
                if stream is not None:
                    stream.close()


def interleave(cases: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Run every case once per round, so that a slow minute hits all of them; a failing case is left out."""
    samples: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, case in cases.items():
            try:
                samples[name].append(case())
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                print(f"  {name}: {error}", file=sys.stderr)
    return {name: values for name, values in samples.items() if values}


def median(values: Iterable[float]) -> float:
    """The median of interleaved rounds."""
    return statistics.median(values)


def emit(program: str, results: Mapping[str, Any]) -> None:
    """Print one JSON line and keep it under bench/results for the report."""
    line = json.dumps({"program": program, "machine": machine(), **results})
    print(line)
    RESULTS.mkdir(exist_ok=True)
    with open(RESULTS / f"{program}.jsonl", "a", encoding="utf-8") as kept:
        kept.write(line + "\n")


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table, columns padded for reading in a terminal."""
    cells = [list(map(str, header)), *(list(map(str, row)) for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in cells
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def rate(value: float) -> str:
    """Frames per second for reading: 6.9 M, 251 k, 870."""
    if value >= 1e6:
        return f"{value / 1e6:.2f} M"
    return f"{value / 1e3:.1f} k" if value >= 1e3 else f"{value:.0f}"

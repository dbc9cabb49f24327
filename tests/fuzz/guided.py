"""Coverage-guided fuzzing of frames, sampling parameters and stop regexes, where atheris is installed.

    python -m tests.fuzz.guided [--seconds S] [--seed N] [--target NAME]

The oracles are those of the random programs beside this one; here libFuzzer chooses the inputs, from a first
corpus that the random programs write, by the branches of `egress` that each input reaches. Every target gets
`--seconds` in a process of its own. A finding is printed with its input, and the program exits with 1. Not a
dependency: `pip install atheris`; without it this says so and exits with 0.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import random
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

# Inputs longer than these are more of the same; a pattern over 256 bytes is refused unseen.
MAX_BYTES = {"frames": 1024, "params": 1024, "admission": 272}
SEEDS = 400
# One of so many admitted patterns is attacked with searches, which takes several times as long as a verdict.
ATTACKED = 4
INPUT_S = 30

Judge = Callable[[bytes], None]


def target(name: str) -> tuple[Judge, list[bytes]]:
    """What judges one input, raising at a finding, and the first corpus.

    The program it comes from is imported here, so that the caller may have `egress` instrumented.
    """
    program: Any = importlib.import_module(f"tests.fuzz.fuzz_{name}")
    rng = random.Random(0)
    if name == "frames":
        return lambda data: program.try_one(data, check=True) and None, program.inputs(rng)[:SEEDS]
    if name == "params":
        fuzzer = program.Fuzzer(0)

        def judge(data: bytes) -> None:
            fuzzer.judge(data[1:], no_tokenizer=data[:1] == b"t")

        json: Any = importlib.import_module("json")
        bodies = [
            {key: value for key, value in fuzzer.body().items() if isinstance(key, str)} for _ in range(SEEDS)
        ]
        return judge, [rng.choice((b"t", b"f")) + json.dumps(body).encode() for body in bodies]

    def attack(data: bytes) -> None:
        pattern = data.decode("utf-8", "replace")
        if program.verdict(pattern) is None or zlib.crc32(data) % ATTACKED:
            return
        ratio, subject = program.check(random.Random(data), pattern, 1)
        if ratio >= program.TIMES_PLAIN:
            raise AssertionError(f"{ratio:.1f} times the plainest loop: {pattern!r} on {subject!r}")

    patterns = [program.grammar(rng) for _ in range(SEEDS)]
    return attack, [p.encode() for p in patterns if len(p.encode()) <= MAX_BYTES[name]]


def run(name: str, seconds: int, seed: int) -> None:
    """Fuzz one target in this process; libFuzzer ends it."""
    atheris = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["egress"]):
        judge, seeds = target(name)
    with tempfile.TemporaryDirectory() as folder:
        for number, data in enumerate(seeds):
            (Path(folder) / f"{number:04}").write_bytes(data)
        flags = {
            "max_total_time": seconds,
            "seed": seed + 1,  # libFuzzer takes 0 for "any"
            "max_len": MAX_BYTES[name],
            "timeout": INPUT_S,
            "artifact_prefix": f"{folder}/",
            "print_final_stats": 1,
        }
        atheris.Setup([sys.argv[0], *(f"-{flag}={value}" for flag, value in flags.items()), folder], judge)
        atheris.Fuzz()


def main() -> int:
    """Run the targets one after the other; 1 at a finding."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=30, help="for each target")
    parser.add_argument("--target", choices=MAX_BYTES, action="append", help="this one (repeatable)")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if importlib.util.find_spec("atheris") is None:
        print("guided: skipped, atheris is not installed (pip install atheris)")
        return 0
    targets = args.target or list(MAX_BYTES)
    # A time of 0 would mean "no end".
    seconds = max(1, round(args.seconds))
    if args.here:
        run(targets[0], seconds, args.seed)
        return 0
    for name in targets:
        command = [sys.executable, "-m", "tests.fuzz.guided", "--here", "--target", name]
        command += ["--seconds", str(seconds), "--seed", str(args.seed)]
        done = subprocess.run(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, check=False)
        stats = dict(line.split(":")[-2:] for line in done.stderr.splitlines() if line.startswith("stat::"))
        if done.returncode:
            print(f"{done.stderr[-6000:]}\nguided: a finding in {name}, seed {args.seed}")
            return 1
        coverage = [line for line in done.stderr.splitlines() if " cov: " in line][-1:]
        reached = coverage[0].split("cov: ")[1].split()[0] if coverage else "?"
        executed = stats.get("number_of_executed_units", "?").strip()
        print(f"guided {name}: {executed} inputs in {seconds} s, {reached} branches reached, no finding")
    return 0


if __name__ == "__main__":
    sys.exit(main())

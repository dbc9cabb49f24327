"""Runs the stress programs one after the other: every file of this folder but those with an underscore.

    python -m tests.stress --seconds N --seed S [--only NAME]

Each program takes --seconds and --seed, prints one line with its counts, and exits with 0 if all held.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
PROGRAMS = sorted(path.stem for path in FOLDER.glob("[a-z]*.py"))


def main() -> int:
    """Run what is asked for; the number of programs that failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60, help="for each program")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=PROGRAMS, action="append", help="this program (repeatable)")
    args = parser.parse_args()
    failed = 0
    for program in args.only or PROGRAMS:
        print(f"{program}: ", end="", flush=True)
        command = [sys.executable, "-m", f"tests.stress.{program}"]
        command += ["--seconds", str(args.seconds), "--seed", str(args.seed)]
        if subprocess.run(command, cwd=FOLDER.parent.parent, check=False).returncode:
            failed += 1
            print(f"{program}: FAILED with --seconds {args.seconds} --seed {args.seed}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())

"""The command `ringbuf`: look at rings from outside, follow their frames, remove what the dead left.

Everything but `reap` only reads: it takes no slot, holds nobody up, and works on live, dead and damaged rings
alike. Answers go to stdout, as tables or with --json as JSON; complaints to stderr. The exit code is 0, or 1
when something is wrong, or 2 when the command line is.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from ringbuf.command import doctor, frames, look, reaping
from ringbuf.errors import RingError

__all__ = ["main"]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ringbuf", description="Look at rings in shared memory, and remove what the dead left."
    )
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--json", action="store_true", help="print JSON instead of tables")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(
        name: str, run: Callable[[argparse.Namespace], int], text: str, *, ring: bool = False
    ) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, parents=[shared], help=text, description=text)
        sub.set_defaults(run=run)
        if ring:
            sub.add_argument("name", help="the ring")
            sub.add_argument(
                "--owner", type=int, metavar="UID", help="accept a ring of this user (default: your own only)"
            )
        return sub

    add("ls", look.ls, "List every ring, whatever its state.")
    add("stat", look.stat, "Show all that a ring says about itself.", ring=True)
    top = add("top", look.top, "Show rates and lags of all rings, again and again.")
    top.add_argument("--interval", type=float, default=1.0, metavar="S", help="seconds between two looks (1)")
    top.add_argument("--count", type=int, metavar="N", help="stop after N tables (default: on Ctrl-C)")
    tail = add(
        "tail",
        frames.tail,
        "Print frames as they pass, without taking a slot: what passed too fast is counted, not shown.",
        ring=True,
    )
    tail.add_argument("--oldest", action="store_true", help="begin with what is still there")
    tail.add_argument("-n", "--count", type=int, metavar="N", help="stop after N frames")
    tail.add_argument("--timeout", type=float, metavar="S", help="stop when nothing came for S seconds")
    dump = add("dump", frames.dump, "Print what is in a ring, and what a crashed producer left.", ring=True)
    dump.add_argument("--slot", type=int, metavar="N", help="begin where the consumer in slot N stands")
    dump.add_argument("--raw", metavar="FILE", help="also write the payloads to FILE, one after the other")
    for sub in (tail, dump):
        sub.add_argument(
            "--bytes", type=int, default=32, metavar="N", help="how much of each payload to show (32)"
        )
    add("reap", reaping.reap, "Remove the rings whose processes are all dead, and what killed creators left.")
    add("doctor", doctor.doctor, "Look for what goes wrong with shared memory, and say how to fix it.")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; its exit code.

    Args:
        argv: the arguments, without the program's name; those of the process by default.
    """
    args = _parser().parse_args(argv)
    run: Callable[[argparse.Namespace], int] = args.run
    try:
        code = run(args)
        sys.stdout.flush()
    except (RingError, ValueError) as error:
        print(f"ringbuf: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            print(f"ringbuf: {error}", file=sys.stderr)
            return 1
        # Whoever read the output has seen enough; Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    return code

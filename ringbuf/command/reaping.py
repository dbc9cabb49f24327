"""reap: the one command that removes something."""

from __future__ import annotations

import argparse

from ringbuf import monitor
from ringbuf.command.show import print_json

__all__ = ["reap"]


def reap(args: argparse.Namespace) -> int:
    """Remove what no living process holds."""
    names = monitor.reap()
    if args.json:
        print_json(names)
        return 0
    for name in names:
        print(f"removed {name}")
    if not names:
        print("nothing to remove")
    return 0

"""The command: `ringbuf`, or `python -m ringbuf`."""

from __future__ import annotations

import sys

from ringbuf.command import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())

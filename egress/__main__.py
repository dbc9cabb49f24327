"""python -m egress."""

from __future__ import annotations

import sys

from egress.cli import main

if __name__ == "__main__":
    sys.exit(main())

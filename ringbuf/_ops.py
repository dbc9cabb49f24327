"""Chooses the body of the ring, once: the C one where it was built, else the pure-Python one.

RINGBUF_IMPL=c or =python forces a body, and then its absence is an ImportError with the cause.
"""

from __future__ import annotations

import os

from ringbuf import _pyops

__all__ = ["COPY_LIMIT", "Frame", "fence", "impl", "make_reader", "make_writer"]

_asked = os.environ.get("RINGBUF_IMPL", "")
if _asked not in ("", "c", "python"):
    raise ImportError(f"RINGBUF_IMPL must be c or python, not {_asked!r}")
if _asked == "c":
    raise ImportError("RINGBUF_IMPL=c, but this package was built without its C body")
if (_reason := _pyops.unsupported()) is not None:
    raise ImportError(_reason)

impl = "python"
COPY_LIMIT = _pyops.COPY_LIMIT
Frame = _pyops.Frame
fence = _pyops.fence
make_reader = _pyops.make_reader
make_writer = _pyops.make_writer

"""Chooses the body of the ring, once: the C one where it was built, else the pure-Python one.

RINGBUF_IMPL=c or =python forces a body, and then its absence is an ImportError with the cause.
"""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING

from ringbuf import _pyops
from ringbuf.errors import RingError

if TYPE_CHECKING:
    from ringbuf._cops import COPY_LIMIT, Frame, fence, make_reader, make_writer, private

__all__ = ["COPY_LIMIT", "Frame", "check_gil", "fence", "impl", "make_reader", "make_writer", "private"]


def _choose(asked: str) -> tuple[str, ModuleType]:
    """The name of a body and its module.

    Args:
        asked: "c", "python", or "" for the best there is.

    Raises:
        ImportError: no body can run here, or not the one that was asked for; says why.
    """
    if asked not in ("", "c", "python"):
        raise ImportError(f"RINGBUF_IMPL must be c or python, not {asked!r}")
    reasons = []
    if asked != "python":
        try:
            return "c", importlib.import_module("ringbuf._cops")
        except ImportError as error:
            reasons.append(f"the C body cannot be loaded ({error})")
    if asked != "c":
        if (reason := _pyops.unsupported()) is None:
            return "python", _pyops
        reasons.append(reason)
    raise ImportError(f"no body of the ring can run here, RINGBUF_IMPL={asked!r}: " + "; ".join(reasons))


def check_gil(name: str) -> None:
    """Refuse to open a ring in an interpreter that runs without its lock.

    Neither body has locks of its own, and a free-threaded interpreter takes its lock back when it imports the
    C body or posix_ipc, which do not say that they can do without. PYTHON_GIL=0 overrules them.

    Raises:
        RingError: it does.
    """
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        raise RingError(
            f"ring {name!r} needs the interpreter's lock (GIL), or an object that two threads use would be "
            "corrupted: unset PYTHON_GIL, and leave out -X gil=0"
        )


impl, _body = _choose(os.environ.get("RINGBUF_IMPL", ""))

if not TYPE_CHECKING:
    COPY_LIMIT = _body.COPY_LIMIT
    Frame = _body.Frame
    fence = _body.fence
    make_reader = _body.make_reader
    make_writer = _body.make_writer
    private = _body.private

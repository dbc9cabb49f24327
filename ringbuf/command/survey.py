"""Everything in /dev/shm that bears a ring's name: what can be read of it, and why the rest cannot."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from ringbuf.counters import RingInfo
from ringbuf.errors import RingCorrupt, RingError, RingForbidden, RingNotFound, RingVersion
from ringbuf.monitor import inspect, ring_names, unfinished
from ringbuf.names import segment_path

__all__ = ["BEING_MADE", "HALF_MADE", "Entry", "survey"]

# States of a segment that bears no ring's name yet: its maker lives, or died.
BEING_MADE = "being made"
HALF_MADE = "half-made"


class Entry(NamedTuple):
    """One name.

    Attributes:
        name: the ring's.
        state: of the ring, or "forbidden", "corrupt", "version", "not ready", "gone"; BEING_MADE or
            HALF_MADE, and then the name is the temporary one.
        info: what it says about itself, None when it could not be read.
        problem: why not.
        nbytes: size of the file.
    """

    name: str
    state: str
    info: RingInfo | None
    problem: str | None
    nbytes: int

    def to_dict(self) -> dict[str, Any]:
        """The same as plain values, for JSON."""
        if self.info is not None:
            return self.info.to_dict() | {"segment_bytes": self.nbytes}
        return {
            "name": self.name,
            "state": self.state,
            "problem": self.problem,
            "segment_bytes": self.nbytes,
        }


def _size(name: str) -> int:
    try:
        return os.stat(segment_path(name), follow_symlinks=False).st_size
    except OSError:
        return 0


def survey() -> list[Entry]:
    """Look at every name, by name; never raises for any of them."""
    found = []
    for name in ring_names():
        nbytes = _size(name)
        try:
            info = inspect(name)
        except (RingError, ValueError, OSError) as error:
            found.append(Entry(name, _state(error), None, str(error), nbytes))
        else:
            found.append(Entry(name, info.state, info, None, nbytes))
    for name, making in unfinished():
        state = "forbidden" if making is None else BEING_MADE if making else HALF_MADE
        problem = {
            "forbidden": f"{segment_path(name)} is another user's",
            BEING_MADE: "not ready yet",
            HALF_MADE: "its maker died before it was ready; `ringbuf reap` removes it",
        }[state]
        found.append(Entry(name, state, None, problem, _size(name)))
    return [entry for entry in found if entry.state != "gone"]


def _state(error: Exception) -> str:
    if isinstance(error, RingForbidden):
        return "forbidden"
    if isinstance(error, RingVersion):
        return "version"
    if isinstance(error, RingNotFound):
        # Removed between listing and looking, or made by somebody who does not know how.
        return "gone" if error.reason == "missing" else "not ready"
    return "corrupt" if isinstance(error, (RingCorrupt, ValueError)) else "unreadable"

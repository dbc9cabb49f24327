"""The testing kit that ships with the ring: for its own tests and for those of programs built on it.

- `open_pair` wires a producer and its consumers back to back.
- `at_step` kills, pauses or raises at a named step of an operation (`STEPS`).
- `recording` logs every load and store of shared words, in order.
- `check_ring` verifies the invariants of a segment, also while it is in use.
- `explore` runs a producer and consumers through every interleaving of their loads and stores.
"""

from ringbuf.testing.check import RingCheck, check_ring
from ringbuf.testing.explore import Explored, Scenario, explore
from ringbuf.testing.pair import open_pair
from ringbuf.testing.steps import COLD_STEPS, HOT_STEPS, STEPS, at_step, kill_here, stop_here
from ringbuf.testing.words import Access, Log, RecordingWords, recording

__all__ = [
    "COLD_STEPS",
    "HOT_STEPS",
    "STEPS",
    "Access",
    "Explored",
    "Log",
    "RecordingWords",
    "RingCheck",
    "Scenario",
    "at_step",
    "check_ring",
    "explore",
    "kill_here",
    "open_pair",
    "recording",
    "stop_here",
]

"""Every interleaving of a producer and its consumers, scenario after scenario, until the time is over.

The scenarios grow; each runs to its end once begun, or is given up beyond its share of states (then nothing
is claimed of it). --seed turns the order of the larger ones.
"""

from __future__ import annotations

import random
import sys
import time

from ringbuf.testing import Scenario, explore
from tests.stress._kit import arguments

ONE = (("oldest", None),)
TWO = (("oldest", None), ("oldest", None))
STATES = 1_500_000

SMALL = (
    Scenario(sizes=(8,), fine=True),
    Scenario(sizes=(8, 8)),
    Scenario(sizes=(8,), store_buffers=True),
    Scenario(sizes=(8,), store_buffers=True, barrier="sleeper"),
    Scenario(sizes=(8, 8), consumers=(("latest", None),)),
    Scenario(sizes=(8, 8, 8), position=2**32 - 64, attached=True),
    Scenario(consumers=TWO, sizes=(8,), attached=True),
)
LARGE = (
    Scenario(sizes=(8, 8, 8)),
    Scenario(sizes=(8, 16, 0), position=2**63 - 64),
    Scenario(sizes=(8, 8), store_buffers=True),
    Scenario(sizes=(8, 8, 8), store_buffers=True, barrier="sleeper", attached=True),
    Scenario(consumers=(("oldest", None), ("latest", None)), sizes=(8,), attached=True),
    Scenario(consumers=(("oldest", 1), ("oldest", None)), sizes=(8, 8), attached=True),
    Scenario(consumers=TWO, sizes=(8,)),
    Scenario(consumers=TWO, sizes=(16, 16, 16), attached=True),
)


def main() -> None:
    args = arguments(__doc__)
    large = list(LARGE)
    random.Random(args.seed).shuffle(large)
    deadline = time.monotonic() + args.seconds
    explored = states = steps = interleavings = given_up = 0
    for scenario in (*SMALL, *large):
        if time.monotonic() > deadline:
            break
        try:
            found = explore(Scenario(**{**vars(scenario), "states": STATES}))
        except RuntimeError:
            given_up += 1
            continue
        explored += 1
        states += found.states
        steps += found.steps
        interleavings += found.interleavings
        print(f"  {scenario}: {found.states} states, {found.steps} steps", file=sys.stderr)
    print(
        f"{explored} scenarios: {states} states, {steps} steps, {interleavings:.3g} interleavings, "
        f"{given_up} given up"
    )


if __name__ == "__main__":
    main()

"""Every interleaving of a producer and its consumers, over shipped code; and an explorer that can fail."""

from __future__ import annotations

from unittest import mock

import pytest

from ringbuf import room, watch
from ringbuf.testing import Scenario, explore
from ringbuf.testing.explore import Violation

TWO = (("oldest", None), ("oldest", None))


@pytest.mark.parametrize(
    "scenario",
    [
        Scenario(sizes=(8,)),
        Scenario(sizes=(8,), fine=True),
        Scenario(sizes=(8, 8), consumers=(("latest", None),)),
        Scenario(sizes=(8,), store_buffers=True),
        Scenario(sizes=(8,), store_buffers=True, barrier="sleeper"),
        Scenario(sizes=(8,), store_buffers=True, position=2**63 - 64),
        # Frames of 24 bytes in a ring of 64: full at once, padding at the end, room only by the consumer.
        pytest.param(Scenario(sizes=(8, 8, 8), attached=True), marks=pytest.mark.slow),
        pytest.param(Scenario(consumers=TWO, sizes=(8,), attached=True), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_every_interleaving_keeps_the_promises(
    scenario: Scenario, capsys: pytest.CaptureFixture[str]
) -> None:
    found = explore(scenario)
    with capsys.disabled():
        print(f"\n{found.states} states stand for {found.interleavings:.3g} interleavings", end=" ")
    everything = tuple(range(len(scenario.sizes)))
    for (start, _), received in zip(scenario.consumers, found.received, strict=True):
        if start == "oldest":
            assert received == {everything}
        else:
            # One that joins late may miss any number of the first frames, and no other.
            assert received == {everything[first:] for first in range(len(everything) + 1)}


def test_a_producer_is_not_left_asleep_by_who_joined_while_it_looked() -> None:
    """It found the explorer: after a resume room is unknown, and a joining consumer hid it for a second."""
    assert explore(Scenario(sizes=(8,), position=2**32 - 64)).received == (frozenset({(0,)}),)


def test_without_a_barrier_a_wake_up_is_lost() -> None:
    with pytest.raises(Violation, match="sleeps for ever"):
        explore(Scenario(sizes=(8,), store_buffers=True, barrier="none"))


def test_in_program_order_no_barrier_is_missed() -> None:
    """The barrier is there for the store buffers: without these, none is needed."""
    assert explore(Scenario(sizes=(8,), barrier="none")).states > 1000


def test_without_the_second_look_a_wake_up_is_lost() -> None:
    with (
        mock.patch.object(watch.Watch, "idle", return_value=False),
        pytest.raises(Violation, match="sleeps for ever"),
    ):
        explore(Scenario(sizes=(8,)))


def test_a_producer_that_does_not_wait_for_room_is_caught() -> None:
    with (
        mock.patch.object(room.Room, "grant", lambda self, position, need: position + need),
        pytest.raises(Violation, match=r"corrupt|torn|after"),
    ):
        explore(Scenario(sizes=(8, 8, 8), attached=True))


def test_too_many_states_are_given_up() -> None:
    with pytest.raises(RuntimeError, match="more than 100 states"):
        explore(Scenario(sizes=(8, 8), states=100))

from __future__ import annotations

import pickle

import pytest

import ringbuf
from ringbuf import errors

EXAMPLES = [
    (errors.RingNotFound("r", "missing", 1.5), FileNotFoundError, ["'r'", "missing", "1.500"]),
    (errors.RingExists("r", (7, 8)), FileExistsError, ["'r'", "7, 8", "replace=True"]),
    (errors.RingForbidden("r", 5, 6), PermissionError, ["'r'", "uid 5", "uid 6"]),
    (errors.RingForbidden("r", None, 6), PermissionError, ["unknown user"]),
    (errors.RingFull("r", 100, 0.25), TimeoutError, ["100 bytes", "0.250", "no consumer"]),
    (
        errors.RingFull("r", 100, 0.25, slot=2, pid=9, lag=50, leases=3, oldest_lease=4),
        TimeoutError,
        ["pid 9", "slot 2", "50 bytes", "3 leases since seq 4"],
    ),
    (errors.RingClosed("r"), EOFError, ["'r'", "closed by the producer"]),
    (errors.PeerDead("r", 9, 1.0, 2), ConnectionError, ["pid 9", "incarnation 2"]),
    (errors.RingCorrupt("r", 40, "why"), ValueError, ["byte 40", "why"]),
    (errors.RingVersion("r", 3, 1), ValueError, ["version 3", "version 1"]),
    (errors.ProducerAlive("r", 9), RuntimeError, ["pid 9"]),
    (errors.NoFreeSlot("r", 4), RuntimeError, ["4"]),
    (errors.FrameTooLarge("r", 10, 5), ValueError, ["10 bytes", "5 bytes"]),
    (errors.FrameInUse(2, "it"), BufferError, ["2 view(s) of it"]),
    (errors.SharedMemoryFull("r", 10, 5, "do this"), OSError, ["10", "5", "do this"]),
    (errors.UseAfterFork("r", 9), RuntimeError, ["pid 9", "attach again"]),
]


@pytest.mark.parametrize(("error", "base", "parts"), EXAMPLES, ids=lambda value: type(value).__name__)
def test_errors_say_everything_they_carry(error: Exception, base: type, parts: list[str]) -> None:
    assert isinstance(error, errors.RingError)
    assert isinstance(error, base)
    for part in parts:
        assert part in str(error)


def test_every_error_is_in_the_tree_at_the_top_and_in_the_door() -> None:
    assert errors.__doc__ is not None
    for name in errors.__all__:
        assert name in errors.__doc__
        assert getattr(ringbuf, name) is getattr(errors, name)
    assert {type(error).__name__ for error, _, _ in EXAMPLES} == set(errors.__all__) - {"RingError"}


@pytest.mark.parametrize(("error", "base", "parts"), EXAMPLES, ids=lambda value: type(value).__name__)
def test_errors_survive_a_copy(error: Exception, base: type, parts: list[str]) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)

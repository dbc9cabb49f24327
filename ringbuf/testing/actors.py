"""The ring's own code as actors of the explorer, set upon words of its memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

from ringbuf import _pyops, layout, room, seat, watch
from ringbuf.errors import RingClosed
from ringbuf.layout import PRODUCER_PAGE, WAKE_PAGE, WORD
from ringbuf.room import Room
from ringbuf.seat import Seat
from ringbuf.sender import Sender
from ringbuf.testing.memory import Scenario, Step, cell_name
from ringbuf.wait import AWAKE, RUNG, TIME, Deadline, Sleeper
from ringbuf.watch import Watch

__all__ = ["Actor", "consumer_program", "patched", "producer_program"]


class _Pause(BaseException):
    """The actor asks for more than it has been given so far."""


class Actor:
    """A program that is run again and again, each time a step further.

    Args:
        program: called with the actor, which takes its accesses.
    """

    def __init__(self, program: Callable[[Actor], Any]) -> None:
        self._program = program
        # Node 0 is the beginning; every other has a parent and the value the step from there has given.
        self._nodes: list[tuple[int, Any]] = [(-1, None)]
        self._children: dict[tuple[int, Any], int] = {}
        self._marks: dict[Any, int] = {}
        self._steps: dict[int, Step] = {}
        self._given: list[Any] = []
        self._used = 0
        self._asked: Step = ()

    def child(self, node: int, value: Any) -> int:
        """The node after the step at `node` has given `value`."""
        key = (node, value)
        found = self._children.get(key)
        if found is None:
            found = self._new(key)
            while (step := self.next(found))[0] == "mark":
                # All that reach the same mark go on from the same node.
                found = self._marks.get(step[1]) or self._marks.setdefault(step[1], self._new((found, None)))
            self._children[key] = found
        return found

    def _new(self, key: tuple[int, Any]) -> int:
        self._nodes.append(key)
        return len(self._nodes) - 1

    def next(self, node: int) -> Step:
        """The step the actor takes at `node`."""
        step = self._steps.get(node)
        if step is None:
            step = self._steps[node] = self._run(node)
        return step

    def _run(self, node: int) -> Step:
        given: list[Any] = []
        while node:
            node, value = self._nodes[node]
            given.append(value)
        given.reverse()
        self._given, self._used, self._asked = given, 0, ()
        try:
            return ("done", self._program(self))
        except _Pause:
            return self._asked
        except Exception as error:
            return ("failed", f"{type(error).__name__}: {error}")

    def mark(self, *key: Any) -> None:
        """Say that all the program will do from here on follows from `key`, whatever happened before."""
        self.do("mark", key)

    def do(self, *step: Any) -> Any:
        """Take a step, or stop here to be told what it gives."""
        if self._used < len(self._given) and not self._asked:
            self._used += 1
            return self._given[self._used - 1]
        # Blocks that are left by this exception may try more steps; the first one counts.
        if not self._asked:
            self._asked = step
        raise _Pause


class _Words:
    """Words of the control pages, from one of them on; or bytes of them."""

    def __init__(self, actor: Actor, local: dict[int, int], first: int, step: int = 1) -> None:
        self._actor = actor
        self._local = local
        self._first = first
        self._step = step

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return _Words(self._actor, self._local, self._first + index.start, self._step)
        name = cell_name(self._first + index)
        return self._local.get(self._first + index, 0) if name is None else self._actor.do("load", name, None)

    def __setitem__(self, index: int, value: int) -> None:
        name = cell_name(self._first + index)
        if name is None:
            self._local[self._first + index] = value
        else:
            self._actor.do("store", name, None, value)


class _Bytes:
    """The bytes of one shared word."""

    def __init__(self, actor: Actor, name: str, first: int = 0) -> None:
        self._actor = actor
        self._name = name
        self._first = first

    def __getitem__(self, index: int) -> Any:
        return self._actor.do("load", self._name, index - self._first)

    def __setitem__(self, index: int, value: int) -> None:
        self._actor.do("store", self._name, index - self._first, value)


class _Data:
    """The data, as words or as bytes."""

    def __init__(self, actor: Actor, *, as_words: bool) -> None:
        self._actor = actor
        self._as_words = as_words

    def __getitem__(self, index: Any) -> Any:
        if self._as_words:
            part = self._actor.do("load", "DATA", (index * WORD, index * WORD + WORD))
            return int.from_bytes(part, "little")
        return self._actor.do("load", "DATA", (index.start, index.stop))

    def __setitem__(self, index: Any, value: Any) -> None:
        if self._as_words:
            where = (index * WORD, index * WORD + WORD)
            self._actor.do("store", "DATA", where, value.to_bytes(WORD, "little"))
        elif len(value):
            self._actor.do("store", "DATA", (index.start, index.stop), bytes(value))


class _Bell:
    """A peer's FIFO, or one's own."""

    def __init__(self, actor: Actor, party: str) -> None:
        self._actor = actor
        self._party = party

    def ring(self) -> bool:
        self._actor.do("ring", self._party)
        return True

    def drain(self) -> bool:
        return bool(self._actor.do("drain", self._party))

    def is_cut(self) -> bool:
        return False

    def fileno(self) -> int:
        # Never polled: the model sleeps by itself.
        return 0

    def nudge(self) -> None:
        pass


class _Sleeper(Sleeper):
    """Sleeps in the model: until rung, without a limit, or shortly, until nobody is joining."""

    actor: Actor
    party: str
    # What else decides how the actor goes on after a sleep.
    state: Callable[[], tuple[Any, ...]]

    def nap(self, lifelines: Any, seconds: float) -> int:
        rung = self.actor.do("nap", self.party, seconds < 1)
        self.drain()
        self.actor.mark("awake", rung, self._generation, *self.state())
        return RUNG if rung else TIME


def _tenure(actor: Actor, scenario: Scenario, control: _Words) -> Any:
    geometry = SimpleNamespace(
        capacity=scenario.capacity, slots=len(scenario.consumers), origin=scenario.position
    )
    alive = SimpleNamespace(producer_alive=lambda: True, consumer_alive=lambda slot: True)
    segment = SimpleNamespace(geometry=geometry, name="model", control=control, probe=alive)
    return SimpleNamespace(
        segment=segment,
        bell=lambda party: _Bell(actor, party),
        check=lambda: None,
        is_alive=lambda party, holds_lock: holds_lock,
        closed=False,
        forked=False,
    )


def _barriers(actor: Actor, scenario: Scenario) -> tuple[Callable[[], None], Callable[[], None] | None]:
    """What a sleeper runs, and what a waker."""
    if scenario.barrier == "sleeper":
        return (lambda: actor.do("membarrier")), None
    if scenario.barrier == "none":
        return (lambda: None), None
    return (lambda: actor.do("fence")), (lambda: actor.do("fence"))


# Which actor runs now, for the fences that are no argument of anything.
_running: list[tuple[Actor, Scenario]] = []


def _model_fence() -> None:
    actor, scenario = _running[-1]
    if scenario.barrier != "none":
        actor.do("fence")


@contextlib.contextmanager
def patched() -> Iterator[None]:
    """Let the ring's modules fence in the model, and not look at processes."""
    with contextlib.ExitStack() as stack:
        for module in (room, seat):
            stack.enter_context(mock.patch.object(module, "fence", _model_fence))
        stack.enter_context(mock.patch.object(seat, "process_start", return_value=0))
        stack.enter_context(mock.patch.object(watch, "spin_seconds", return_value=0.0))
        yield


def _private(body: Iterable[Any]) -> tuple[Any, ...]:
    """The private state of a body's closures: their plain cells, by name."""
    found: dict[str, Any] = {}
    for function in body:
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            if isinstance(cell.cell_contents, int):
                found[name] = cell.cell_contents
    return tuple(sorted(found.items()))


def _payload(seq: int, size: int) -> bytes:
    return bytes([seq + 1]) * size


def producer_program(scenario: Scenario) -> Callable[[Actor], tuple[int, ...]]:
    """Write every frame, waiting for room, then close."""

    def run(actor: Actor) -> tuple[int, ...]:
        _running[:] = [(actor, scenario)]
        control = _Words(actor, {}, 0)
        own: Any = control[PRODUCER_PAGE // WORD :]
        sender: Any = Sender.__new__(Sender)
        sleeper_barrier, waker_fence = _barriers(actor, scenario)
        sender.name = "model"
        sender.capacity = scenario.capacity
        sender.own = own
        sender.tenure = _tenure(actor, scenario, control)
        sender._fence = waker_fence
        sender._slots = len(scenario.consumers)
        sender._rung = _Bytes(actor, "RUNG")
        sender._wake = control[WAKE_PAGE // WORD :]
        sender._claim_open = False
        sender._keep_bell = None
        generations = iter(range(1, 1 << 30))
        sleeper: Any = _Sleeper.__new__(_Sleeper)
        sleeper.actor, sleeper.party = actor, "p"
        Sleeper.__init__(
            sleeper,
            own,
            layout.P_WAITING,
            _Bell(actor, "p"),  # type: ignore[arg-type]
            sleeper_barrier,
            lambda: next(generations),
        )
        sender.room = _room(sender, sleeper, scenario)
        sender.writer = _pyops.make_writer(
            own,
            _Data(actor, as_words=True),  # type: ignore[arg-type]
            _Data(actor, as_words=False),  # type: ignore[arg-type]
            sender._wake,
            sender.room.control,
            sender.room.evicted,
            capacity=scenario.capacity,
            position=scenario.position,
            seq=0,
            slots=0,
            many=False,
            slow=sender.try_write,
            grant=sender.room.grant,
            wake_up=sender.wake_up,
            fence=waker_fence,
        )
        for seq, size in enumerate(scenario.sizes):
            sleeper.state = lambda seq=seq: (seq, _private(sender.writer), sender.room.reclaimed)
            actor.mark(sleeper._generation, *sleeper.state())
            if not sender.writer.try_write(1, _payload(seq, size)):
                sender.write(1, _payload(seq, size), None, 0)
        own[layout.P_STATE] = layout.STATE_CLOSED
        if waker_fence is not None:
            waker_fence()
        sender.wake_up()
        return ()

    return run


def _room(sender: Any, sleeper: Sleeper, scenario: Scenario) -> Room:
    made: Any = Room.__new__(Room)
    with mock.patch.object(layout, "P_POS", layout.P_INCARNATION):
        # Its first floor is read from P_POS, which is no step of the protocol.
        Room.__init__(made, sender.tenure, sender.own, sleeper)
    made.reclaimed = max(0, scenario.position - scenario.capacity)
    return made  # type: ignore[no-any-return]


def consumer_program(scenario: Scenario, slot: int) -> Callable[[Actor], tuple[int, ...]]:
    """Join, read to the end or so many frames, leave; what was received."""
    start, most = scenario.consumers[slot]

    def run(actor: Actor) -> tuple[int, ...]:
        _running[:] = [(actor, scenario)]
        control = _Words(actor, {PRODUCER_PAGE // WORD + layout.P_INCARNATION: 1}, 0)
        sleeper_barrier, waker_fence = _barriers(actor, scenario)
        party = f"c{slot}"
        own: Any = control[layout.slot_page(slot) // WORD :]
        sitting: Any = Seat.__new__(Seat)
        sitting.name = "model"
        sitting.slot = slot
        sitting.keep_bell = None
        sitting.own = own
        sitting.peer = control[PRODUCER_PAGE // WORD :]
        sitting.tenure = _tenure(actor, scenario, control)
        sitting.tenure.give_back = lambda: None
        sitting._wake = _Bytes(actor, "WAKE")
        sitting.waker_fence = waker_fence
        sitting._wake[slot] = 0
        position = sitting._join(start == "oldest")
        raw = _Bytes(actor, "RUNG", PRODUCER_PAGE + layout.P_RUNG_GENERATIONS * WORD)
        sleeper: Any = _Sleeper.__new__(_Sleeper)
        sleeper.actor, sleeper.party = actor, party
        Sleeper.__init__(
            sleeper,
            sitting._wake,
            slot,
            _Bell(actor, party),  # type: ignore[arg-type]
            sleeper_barrier,
            lambda: seat._next_generation(own, raw, slot),  # type: ignore[arg-type]
        )
        looking = Watch(sitting.tenure, sitting.peer, own, sleeper)
        reader = _pyops.make_reader(
            sitting.peer,
            own,
            _Data(actor, as_words=True),  # type: ignore[arg-type]
            _Data(actor, as_words=False),  # type: ignore[arg-type]
            capacity=scenario.capacity,
            position=position,
            seq=-1,
            idle=looking.idle,
            corrupt=lambda position, reason: AssertionError(f"corrupt at {position}: {reason}"),
            wake_up=sitting.ring_producer,
            fence=waker_fence,
            is_forked=lambda: False,
            last_ended=lambda: None,
        )
        looking.position, looking.refresh = reader.position, reader.refresh
        received: list[int] = []
        sleeper.state = lambda: (tuple(received), _private(reader))
        with contextlib.suppress(RingClosed):
            while most is None or len(received) < most:
                actor.mark(sleeper._generation, *sleeper.state())
                frame = reader.try_read()
                if frame is None:
                    looking.wait(Deadline(None), AWAKE)
                    continue
                if received:
                    assert frame.seq == received[-1] + 1, f"frame {frame.seq} after {received}"
                assert frame.payload == _payload(frame.seq, scenario.sizes[frame.seq]), (
                    f"frame {frame.seq} is torn: {bytes(frame.payload)!r}"
                )
                received.append(frame.seq)
        if most is None and start == "oldest":
            assert received[-1:] == [len(scenario.sizes) - 1] or not received, f"ended after {received}"
        sitting._wake[slot] = 0
        sitting.vacate()
        return tuple(received)

    return run

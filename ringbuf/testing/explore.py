"""Every interleaving of one producer and its consumers, over the code that ships.

The actors are the real Sender, Room, Seat, Watch, Sleeper and the Python body, on words that belong to a
model memory. Each load and store of a word that two of them use is a step, and so is each barrier, bell and
sleep; between two steps of one actor, any other may take any number of its own. Words only one actor uses
are kept out of it.

An actor cannot be stopped halfway, but it can be run again: what it does next depends only on what it has
loaded so far. So a state is the memory and, per actor, the list of values it was given; to find its next
step, the actor is run from its beginning with these values until it asks for one more. Two schedules that
lead to the same state are followed once.

With store buffers, a store is seen by others only some steps later, in order: the total store order of
x86-64. A sleep has no time limit here, so a wake-up that can be lost shows as a state in which nobody can
move.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ringbuf.testing.actors import Actor, consumer_program, patched, producer_program
from ringbuf.testing.memory import Memory, Scenario, Step, owner

__all__ = ["Explored", "Scenario", "Violation", "explore"]


class Explored(NamedTuple):
    """What an exploration met.

    Attributes:
        states: different ones.
        steps: transitions between them.
        interleavings: schedules from beginning to end that these stand for.
        received: per consumer, every list of seqs it received in some schedule.
    """

    states: int
    steps: int
    interleavings: int
    received: tuple[frozenset[tuple[int, ...]], ...]


class Violation(AssertionError):
    """A schedule that breaks a promise; its steps are in the text."""


State = tuple[Memory, tuple[int, ...]]


class _Search:
    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        count = len(scenario.consumers)
        programs: list[Callable[[Any], Any]] = [producer_program(scenario)]
        programs += [consumer_program(scenario, slot) for slot in range(count)]
        self.actors = [Actor(program) for program in programs]
        self.came_from: dict[State, tuple[State, int] | None] = {}
        self.received: tuple[set[tuple[int, ...]], ...] = tuple(set() for _ in range(count))

    def start(self) -> State:
        scenario = self.scenario
        memory = Memory.fresh(scenario)
        nodes = [0] * len(self.actors)
        for index in range(1, len(self.actors)) if scenario.attached else ():
            # Up to the first look for frames after it is LIVE.
            actor, node = self.actors[index], 0
            while actor.next(node)[:2] != ("load", "P_POS") or not memory.is_live(index - 1):
                memory, value = memory.take(index, actor.next(node))
                memory = memory.flushed()
                node = actor.child(node, value)
            nodes[index] = node
        return memory, tuple(nodes)

    def successors(self, state: State) -> Iterator[tuple[int, State]]:
        """The states one step away, each with who moved: an actor, or -1 - actor for one of its stores."""
        memory, nodes = state
        for index, actor in enumerate(self.actors):
            step = actor.next(nodes[index])
            if step[0] == "failed":
                raise Violation(self.story(state, f"actor {index}: {step[1]}"))
            if memory.allows(index, step):
                after, node = self.move(memory, index, nodes[index])
                yield index, (after, (*nodes[:index], node, *nodes[index + 1 :]))
        for index in memory.buffered():
            after = memory.flush_one(index)
            while not self.scenario.fine and memory.buffers[index][0][1] == "DATA" and after.buffers[index]:
                memory, after = after, after.flush_one(index)
            yield -1 - index, (after, nodes)

    def move(self, memory: Memory, index: int, node: int) -> tuple[Memory, int]:
        """Let an actor take its next step, and what is taken in one go with it."""
        actor = self.actors[index]
        step = actor.next(node)
        while True:
            memory, value = memory.take(index, step)
            node = actor.child(node, value)
            following = actor.next(node)
            if not self._goes_on(index, step, following) or not memory.allows(index, following):
                return memory, node
            step = following

    def _goes_on(self, index: int, step: Step, following: Step) -> bool:
        """Whether an actor takes `following` in one go with `step`."""
        if following[0] == "fence" and not self.scenario.store_buffers:
            return True
        if following[0] == "load" and owner(following[1]) == index:
            # Nobody else stores there, so it is the same before and after whatever others do.
            return True
        if self.scenario.fine or step[1:2] != ("DATA",):
            return False
        return step[0] == "store" or following[:2] == ("load", "DATA")

    def story(self, state: State, end: str) -> str:
        """The steps that lead to a state, one a line."""
        lines = [end]
        while (link := self.came_from[state]) is not None:
            state, index = link
            memory, nodes = state
            if index < 0:
                lines.append(f"{-1 - index}: {memory.buffers[-1 - index][0]} is seen by all")
            else:
                step = self.actors[index].next(nodes[index])
                lines.append(f"{index}: {step} -> {memory.take(index, step)[1]!r}")
        return "\n".join(reversed(lines))

    def finish(self, state: State) -> None:
        """Nobody can move: all must be done, with everything received."""
        _, nodes = state
        for index, actor in enumerate(self.actors):
            step = actor.next(nodes[index])
            if step[0] != "done":
                raise Violation(self.story(state, f"actor {index} sleeps for ever at {step}"))
            if index:
                self.received[index - 1].add(step[1])


def explore(scenario: Scenario) -> Explored:
    """Run every interleaving of a scenario.

    Raises:
        Violation: a frame was lost, doubled, torn or out of order, an error was raised, or somebody
            sleeps for ever; with the schedule that leads there.
    """
    with patched():
        return _explore(_Search(scenario))


def _explore(search: _Search) -> Explored:
    start = search.start()
    search.came_from[start] = None
    paths: dict[State, int] = {}
    steps = 0
    # Depth first, each state with the successors that are still to be followed and the paths from it so far.
    stack: list[tuple[State, Iterator[tuple[int, State]]]] = [(start, search.successors(start))]
    sums = [0]
    moved = [False]
    while stack:
        state, rest = stack[-1]
        mover, after = next(rest, (0, None))
        if after is None:
            stack.pop()
            total, any_moved = sums.pop(), moved.pop()
            if not any_moved:
                search.finish(state)
                total = 1
            paths[state] = total
            if sums:
                sums[-1] += total
            continue
        steps += 1
        moved[-1] = True
        if after in paths:
            sums[-1] += paths[after]
            continue
        search.came_from[after] = (state, mover)
        if len(search.came_from) > search.scenario.states:
            raise RuntimeError(f"more than {search.scenario.states} states")
        stack.append((after, search.successors(after)))
        sums.append(0)
        moved.append(False)
    return Explored(
        len(paths), steps, paths[start], tuple(frozenset(received) for received in search.received)
    )

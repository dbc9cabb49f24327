"""The explorer's memory.

A tuple of cells, one per shared word (the data is one cell of bytes), the bells that were rung, and a store
buffer per actor. It is immutable, so states can be compared and kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from ringbuf import layout
from ringbuf.layout import PAGE, PRODUCER_PAGE, SLOT_PAGES, WAKE_PAGE, WORD

__all__ = ["Memory", "Scenario", "Step", "cell_name", "owner"]

_PAGE_WORDS = PAGE // WORD
_BYTE = 0xFF
_NAMES = {
    layout.P_POS: "P_POS",
    layout.P_FLOOR: "P_FLOOR",
    layout.P_WAITING: "P_WAITING",
    layout.P_STATE: "P_STATE",
    layout.P_RUNG_GENERATIONS: "RUNG",
}
_SLOT_NAMES = {layout.C_CURSOR: "C_CURSOR", layout.C_STATE: "C_STATE"}


@dataclass(frozen=True)
class Scenario:
    """What is explored.

    Attributes:
        capacity: bytes of the ring, small.
        sizes: payload bytes of each frame the producer writes before it closes the ring.
        consumers: per consumer where it starts and after how many frames it leaves, None for at the end.
        barrier: who pays for it, "waker" or "sleeper"; "none" leaves it out, to see that it is needed.
        store_buffers: whether stores may be seen late, as on x86-64.
        position: where the stream begins.
        attached: whether the consumers have joined before the producer begins.
        fine: also let others in between the accesses to frames, see below.
        states: give up beyond so many.

    A load of a word that only the actor itself stores is taken with the step before it. And what a frame
    consists of is stored before it is published and loaded after; nobody else stores there in between, or the
    ring is broken. So it makes no difference whether others move between two stores of a frame, or between
    the last of them and the publication, or between two loads of one: unless asked for, these are taken in
    one go. What is left is any delay before the first load and before the publication.
    """

    capacity: int = 64
    sizes: tuple[int, ...] = (8, 8, 8)
    consumers: tuple[tuple[str, int | None], ...] = (("oldest", None),)
    barrier: str = "waker"
    store_buffers: bool = False
    position: int = 0
    attached: bool = False
    fine: bool = False
    states: int = 5_000_000


def cell_name(word: int) -> str | None:
    """The name of the shared cell at a word of the control pages; None if one actor only uses it."""
    page, index = divmod(word, _PAGE_WORDS)
    if page == PRODUCER_PAGE // PAGE:
        return _NAMES.get(index)
    if page == WAKE_PAGE // PAGE:
        return "WAKE" if not index else None
    slot = page - SLOT_PAGES // PAGE
    name = _SLOT_NAMES.get(index)
    return f"{name}{slot}" if name and slot >= 0 else None


def owner(cell: str) -> int:
    """The only actor that stores to a cell; -1 if there are several."""
    if cell.startswith("C_"):
        return 1 + int(cell.removeprefix("C_CURSOR").removeprefix("C_STATE"))
    return -1 if cell == "WAKE" else 0


Step = tuple[Any, ...]

_MOST_CONSUMERS = 3
_CELLS = [*_NAMES.values(), "WAKE", "DATA"]
_CELLS += [f"{name}{slot}" for slot in range(_MOST_CONSUMERS) for name in _SLOT_NAMES.values()]
_INDEX = {name: index for index, name in enumerate(_CELLS)}
_STATES = [_INDEX[f"C_STATE{slot}"] for slot in range(_MOST_CONSUMERS)]


class Memory(NamedTuple):
    """What all actors share, at one moment."""

    cells: tuple[Any, ...]
    bells: frozenset[str]
    buffers: tuple[tuple[Step, ...], ...]
    store_buffers: bool

    @classmethod
    def fresh(cls, scenario: Scenario) -> Memory:
        """The memory of a ring that was just made."""
        if len(scenario.consumers) > _MOST_CONSUMERS:
            raise ValueError(f"at most {_MOST_CONSUMERS} consumers can be explored")
        cells: dict[str, Any] = dict.fromkeys(_CELLS, 0)
        cells["P_POS"] = cells["P_FLOOR"] = scenario.position
        cells["P_STATE"] = layout.STATE_LIVE
        cells["DATA"] = bytes(scenario.capacity)
        actors = 1 + len(scenario.consumers)
        return cls(tuple(cells.values()), frozenset(), ((),) * actors, scenario.store_buffers)

    def is_live(self, slot: int) -> bool:
        """Whether the consumer of a slot has joined."""
        return int(self.cells[_STATES[slot]]) & 3 == layout.SLOT_LIVE

    def _changed(self, step: Step) -> tuple[Any, ...]:
        _, name, where, value = step
        index = _INDEX[name]
        cells = self.cells
        return (*cells[:index], _stored(cells[index], where, value), *cells[index + 1 :])

    def buffered(self) -> list[int]:
        """The actors with stores that others do not see yet."""
        return [index for index, buffer in enumerate(self.buffers) if buffer]

    def flush_one(self, index: int) -> Memory:
        """Let others see the oldest such store of an actor."""
        first, *rest = self.buffers[index]
        buffers = (*self.buffers[:index], tuple(rest), *self.buffers[index + 1 :])
        return self._replace(cells=self._changed(first), buffers=buffers)

    def flushed(self, index: int | None = None) -> Memory:
        """Let others see all of them, of one actor or of everybody."""
        memory = self
        for actor in range(len(self.buffers)) if index is None else [index]:
            while memory.buffers[actor]:
                memory = memory.flush_one(actor)
        return memory

    def allows(self, index: int, step: Step) -> bool:
        """Whether an actor may take this step now."""
        if step[0] in ("done", "failed"):
            return False
        if step[0] == "nap":
            _, party, timed = step
            # Whoever sleeps shortly waits for a newcomer to pick its position, which rings nobody.
            return party in self.bells or (timed and not self._anybody_joins())
        return True

    def _anybody_joins(self) -> bool:
        return any(self.cells[index] & 3 == layout.SLOT_JOINING for index in _STATES)

    def take(self, index: int, step: Step) -> tuple[Memory, Any]:
        """The memory after an actor's step, and what the step gives it."""
        kind = step[0]
        if kind == "load":
            _, name, where = step
            value = self.cells[_INDEX[name]]
            for _, stored, at, new in self.buffers[index]:
                if stored == name:
                    value = _stored(value, at, new)
            return self, _loaded(value, where)
        if kind == "store":
            if not self.store_buffers:
                return self._replace(cells=self._changed(step)), None
            own = (*self.buffers[index], step)
            return self._replace(buffers=(*self.buffers[:index], own, *self.buffers[index + 1 :])), None
        if kind == "fence":
            return self.flushed(index), None
        if kind == "membarrier":
            return self.flushed(), None
        if kind == "ring":
            return self._replace(bells=self.bells | {step[1]}), None
        rung = step[1] in self.bells
        return self._replace(bells=self.bells - {step[1]} if kind == "drain" else self.bells), rung


def _loaded(value: Any, where: Any) -> Any:
    """Part of a cell: all of it, one byte of a word, or a slice of the data."""
    if where is None:
        return value
    if isinstance(where, int):
        return value >> 8 * where & _BYTE
    first, last = where
    return value[first:last]


def _stored(value: Any, where: Any, new: Any) -> Any:
    if where is None:
        return new
    if isinstance(where, int):
        return value & ~(_BYTE << 8 * where) | new << 8 * where
    first, last = where
    return value[:first] + new + value[last:]

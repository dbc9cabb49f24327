"""Every write that is not the fast path, and the end of the ring; what the writing body calls back."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from ringbuf import _ops, layout
from ringbuf._hooks import is_watched, step, wrap_words
from ringbuf.doorbell import PRODUCER, OwnBell, consumer_party
from ringbuf.errors import FrameInUse, RingFull
from ringbuf.layout import PAGE, PRODUCER_PAGE, WAKE_PAGE, WORD, check_fits, check_tag, shift_for
from ringbuf.mapping import Anchor, map_pages
from ringbuf.payload import Payload, gather
from ringbuf.room import Room
from ringbuf.segment import Segment
from ringbuf.tenure import Tenure
from ringbuf.wait import Deadline, Sleeper, barrier_for

__all__ = ["Sender"]

_FLAGS_A_WORD = WORD
_RUNG_BYTE = layout.P_RUNG_GENERATIONS * WORD


def _next_generation(own: memoryview) -> int:
    """A wake generation no consumer has seen: they count up, over all incarnations."""
    generation: int = own[layout.P_GENERATION] + 1 & layout.MAX_POSITION or 1
    own[layout.P_GENERATION] = generation
    return generation


class Sender:
    """The producer's half of a ring, below its handle.

    Args:
        segment: the mapped segment.
        fd: an open of it; stays the caller's to close.
        anchor: holds the producer's lock.
        fifo: the producer's own FIFO.
        seq: number of the next frame.
    """

    __slots__ = (
        "_claim_open",
        "_fence",
        "_keep_bell",
        "_rung",
        "_slots",
        "_wake",
        "capacity",
        "data",
        "incarnation",
        "name",
        "own",
        "room",
        "tenure",
        "words",
        "writer",
    )

    def __init__(self, segment: Segment, fd: int, anchor: Anchor, fifo: OwnBell, seq: int) -> None:
        geometry = segment.geometry
        sleeper_barrier, self._fence = barrier_for(segment.name, geometry.barrier)
        self.name = segment.name
        self.capacity = geometry.capacity
        self._slots = geometry.slots
        page = memoryview(map_pages(fd, PRODUCER_PAGE, PAGE, writable=True))
        self._rung = page[_RUNG_BYTE : _RUNG_BYTE + layout.MAX_SLOTS]
        self.own = wrap_words("producer", page.cast("Q"))
        self.data = map_pages(fd, geometry.data_offset, geometry.data_bytes, writable=True)
        self.words = wrap_words("data", memoryview(self.data).cast("Q"))
        self._wake = segment.words(WAKE_PAGE, "wake")
        self._claim_open = False
        self.incarnation: int = self.own[layout.P_INCARNATION]
        self.tenure = Tenure(segment, anchor, fifo, PRODUCER)
        sleeper = Sleeper(
            self.own, layout.P_WAITING, fifo, sleeper_barrier, partial(_next_generation, self.own)
        )
        self.room = Room(self.tenure, self.own, sleeper, memoryview(self.data))
        self.writer = _ops.make_writer(
            self.own,
            self.words,
            self.data,
            self._wake,
            self.room.control,
            self.room.evicted,
            capacity=geometry.capacity,
            position=self.own[layout.P_POS],
            seq=seq,
            slots=0 if self.room.grant_only else geometry.slots,
            many=geometry.slots > _FLAGS_A_WORD,
            slow=self.try_write,
            grant=self.room.grant,
            wake_up=self.wake_up,
            fence=self._fence,
        )
        self.tenure.shut = self.writer.shut
        self.room.counts_full = not getattr(self.writer, "counts_full", False)
        # Of a body that rings by itself, once it knows how.
        self._keep_bell = None if is_watched() else getattr(self.writer, "keep_bell", None)

    # ---------------------------------------------------------------------------------------------- writing

    def _check(self) -> None:
        self.tenure.check()
        if self._claim_open:
            raise FrameInUse(1, "an open claim")

    def try_write(self, tag: int, payload: object, align_at: int) -> bool:
        """The body's slow path: other payloads than bytes, alignment, a full ring, misuse."""
        self._check()
        check_tag(tag)
        parts, nbytes = gather(payload)
        shift = shift_for(align_at)
        if not self.writer.put(
            tag, parts, nbytes, shift, check_fits(self.name, nbytes, self.capacity, shift)
        ):
            return False
        self.writer.publish()
        return True

    def write(self, tag: int, payload: Payload, timeout: float | None, align_at: int) -> None:
        """Wait for room and write; the first try was in vain."""
        self._check()
        parts, nbytes = gather(payload)
        shift = shift_for(align_at)
        step_bytes = check_fits(self.name, nbytes, self.capacity, shift)
        deadline = Deadline(timeout)
        while not self.writer.put(tag, parts, nbytes, shift, step_bytes):
            self._wait(step_bytes, deadline)
        self.writer.publish()

    def _wait(self, step_bytes: int, deadline: Deadline) -> None:
        position = self.writer.position()
        gap = self.capacity - (position & (self.capacity - 1))
        need = step_bytes if step_bytes <= gap else gap + step_bytes
        self.room.wait(position, need, deadline)

    def write_many(
        self, frames: Sequence[tuple[int, Payload]], done: int, timeout: float | None, align_at: int
    ) -> int:
        """Commit the frames after the first `done`; publish once, and before every wait for room."""
        self._check()
        writer = self.writer
        shift = shift_for(align_at)
        deadline = None if timeout == 0 else Deadline(timeout)
        published = 0
        try:
            while done < len(frames):
                tag, payload = frames[done]
                check_tag(tag)
                parts, nbytes = gather(payload)
                step_bytes = check_fits(self.name, nbytes, self.capacity, shift)
                if writer.put(tag, parts, nbytes, shift, step_bytes):
                    done += 1
                    if not shift:
                        done += writer.put_many(frames, done)
                    continue
                if done > published:
                    writer.publish()
                    published = done
                if deadline is None:
                    break
                self._wait(step_bytes, deadline)
        except RingFull:
            return published
        except BaseException:
            writer.rewind()
            raise
        if done > published:
            writer.publish()
        return done

    # ----------------------------------------------------------------------------------------------- claims

    def begin_claim(self, step_bytes: int, timeout: float | None) -> int:
        """Reserve room; the offset of the frame. No other write is possible until end_claim."""
        self._check()
        deadline = Deadline(timeout)
        while (offset := self.writer.place(step_bytes)) < 0:
            self._wait(step_bytes, deadline)
        self._claim_open = True
        self.writer.freeze()
        return offset

    def commit_claim(self, tag: int, nbytes: int, shift: int, step_bytes: int) -> None:
        """Publish the claimed frame."""
        self.tenure.check()
        self.writer.commit(tag, nbytes, shift, step_bytes)
        self.writer.publish()

    def end_claim(self) -> None:
        """Allow other writes again."""
        self._claim_open = False

    # ---------------------------------------------------------------------------------------------- waking

    def wake_up(self) -> int:
        """Ring every parked consumer that was not yet rung in this sleep; wake word 0 as it was seen."""
        rung = self._rung
        first = 0
        for index in range(-(-self._slots // _FLAGS_A_WORD)):
            word = self._wake[index]
            if not index:
                first = word
            slot = index * _FLAGS_A_WORD
            while word:
                generation = word & 0xFF
                if generation:
                    if rung[slot] == generation:
                        layout.add(self.own, layout.P_SKIPPED, 1)
                    else:
                        step("write.ring")
                        bell = self.tenure.bell(consumer_party(slot))
                        if bell.ring() and self._keep_bell is not None:
                            self._keep_bell(slot, bell.fileno())
                        rung[slot] = generation
                        layout.add(self.own, layout.P_RUNG, 1)
                word >>= 8
                slot += 1
        return first

    # ------------------------------------------------------------------------------------------------- end

    def close(self, unlink: bool) -> None:
        """End the ring and give everything back; only the first call counts, and only where it was opened."""
        if not self.tenure.close():
            return
        step("close.state")
        # SYNC: store P_STATE after the last P_POS, barrier, load the wake words; pairs with Watch.idle and
        # Sleeper.arm.
        _ops.fence()
        self.own[layout.P_STATE] = layout.STATE_CLOSED
        if self._fence is not None:
            self._fence()
        self.wake_up()
        step("close.unlink")
        if unlink:
            with suppress(OSError):
                self.tenure.segment.remove_names()
        step("close.lock")
        self.tenure.give_back()
        # The body's closures call back here; this ends the cycle. Whoever still has one finds the handle
        # closed.
        self._keep_bell = None
        del self.writer

"""The ring's hot operations in pure Python: the specification of what a body does.

A body is two factories, `make_writer` and `make_reader`. What they return is bundles of closures over
private state; the fast path of each runs without another Python call, and everything slow (looking at
consumers, waking, leases, errors) is a callback into code that exists once, above the body.

Ordering. One aligned 8-byte store of P_POS publishes: a frame's bytes are stored before it, and a consumer
loads it before it loads any of them. One aligned 8-byte store of C_CURSOR releases: a consumer's loads of
the bytes come before it, and the producer loads it before it overwrites them. This body gets both from the
machine: x86-64 keeps loads and stores in program order except that a load may pass an earlier store to
another place, and an item of a memoryview cast to "Q" is loaded and stored by one 8-byte move
(struct.pack_into is not: it clears first). Where a store must be seen before a later load, the sleep
protocol in `wait` has the barrier. On other machines this body refuses to run; the C body has the fences.

Private state is kept small on purpose: offsets in the ring instead of 64-bit positions, because arithmetic on
Python integers below 2**30 costs half; the position is formed only where it is stored.

Interruption. KeyboardInterrupt may fall between any two steps. A writer's frame counts once its offset is
taken, and becomes visible with the next publication at the latest; nothing is visible half. A reader's
frame is released once its offset is taken.
"""

from __future__ import annotations

import platform
import threading
from collections.abc import Callable, Sequence
from mmap import mmap

from ringbuf._body import Reader, Writer
from ringbuf.frame import Frame
from ringbuf.layout import (
    C_CURSOR,
    FRAME_HEADER,
    LENGTH_BIT,
    P_ENDED,
    P_FRAMES,
    P_PADDING,
    P_POS,
    P_STATE,
    P_WAITING,
    SHIFT_BIT,
    SHIFT_MASK,
    STATE_LIVE,
    TAG_MASK,
    WORD,
    add,
)
from ringbuf.lease import LeaseBook

__all__ = ["COPY_LIMIT", "Frame", "fence", "make_reader", "make_writer", "unsupported"]

# Payloads up to this many bytes are handed out as private copies: a copy of 4 KiB and a lease cost about
# the same in this body.
COPY_LIMIT = 4096

_ROUND_UP = FRAME_HEADER + WORD - 1
_TAG_AND_SHIFT = SHIFT_MASK << SHIFT_BIT | TAG_MASK
_SHUT = -1


def unsupported() -> str | None:
    """Why this body cannot run here, or None."""
    machine = platform.machine()
    if machine in ("x86_64", "AMD64"):
        return None
    return (
        f"the pure-Python body relies on the total store order of x86-64 and this machine is {machine}: "
        "install the package with a C compiler, so that the C body is built"
    )


_lock = threading.Lock()


def fence() -> None:
    """A full barrier: both lock operations are locked instructions, also where nobody contends."""
    with _lock:
        pass


def make_writer(
    own: memoryview,
    words: memoryview,
    data: mmap,
    wake: memoryview,
    control: memoryview,
    evicted: memoryview,
    *,
    capacity: int,
    position: int,
    seq: int,
    slots: int,
    many: bool,
    slow: Callable[[int, object, int], bool],
    grant: Callable[[int, int], int],
    wake_up: Callable[[], int],
    fence: Callable[[], None] | None,
) -> Writer:
    """The writing closures of one producer.

    Args:
        own: words of the producer page.
        words, data: the data pages, as words and as bytes.
        wake: words of the wake page; only word 0 is looked at here.
        control: words of all pages before the data.
        evicted: for each slot the state word it had when it was found dead.
        capacity, position, seq: bytes; where the next frame goes, and its seq.
        slots: how many slots the body may look at by itself, as long as it meets nothing but living
            consumers that leave room; 0 when it must always ask `grant`, as this body does.
        many: more slots than word 0 holds flags of, so wake_up is called after every publication.
        slow: try_write of anything but plain bytes with room.
        grant: (position, need) -> up to which position may be written.
        wake_up: rings who is parked and not yet rung; returns wake word 0 as it was seen.
        fence: the waker's barrier, if this ring needs one.
    """
    offset = position & (capacity - 1)
    base = position - offset
    half = capacity >> 1
    edge = offset  # the fast path may write up to this offset; at most half the ring, as a frame may take
    limit = position  # everything below this position may be written
    rung = 0
    shut_down = False

    def try_write(tag: int, payload: object, align_at: int = 0) -> bool:
        nonlocal offset, seq, rung
        if payload.__class__ is bytes and not align_at:
            nbytes = len(payload)
            end = offset + (nbytes + _ROUND_UP & -WORD)
            if end <= edge and 0 < tag <= TAG_MASK:
                at = offset >> 3
                words[at] = nbytes << LENGTH_BIT | tag
                words[at + 1] = seq
                at = offset + FRAME_HEADER
                data[at : at + nbytes] = payload
                offset = end
                seq += 1
                own[P_FRAMES] = seq
                # SYNC: store P_POS after the frame's bytes; pairs with the consumer's load of P_POS before
                # them.
                own[P_POS] = base + end
                if fence is not None:
                    fence()
                # SYNC: store P_POS, barrier, load the wake word; pairs with Sleeper.arm.
                if many or wake[0] != rung:
                    rung = wake_up()
                return True
        return slow(tag, payload, align_at)

    def make_edge(step: int) -> bool:
        """Have `step` contiguous bytes at `offset`, after padding if need be; False when the ring is full."""
        nonlocal offset, base, edge, limit
        if shut_down:
            grant(base + offset, step)
            return False
        gap = capacity - offset
        need = step if step <= gap else gap + step
        here = base + offset
        if here + need > limit:
            # SYNC: the cursors are loaded in `grant` before the bytes they release are overwritten here.
            limit = grant(here, need)
            if here + need > limit:
                edge = min(limit - base, capacity, offset + half)
                return False
        if step > gap:
            if gap:
                words[offset >> 3] = gap << LENGTH_BIT
                add(own, P_PADDING, gap)
            base += capacity
            offset = 0
        edge = min(limit - base, capacity, offset + half)
        return True

    def put(tag: int, parts: Sequence[memoryview], nbytes: int, shift: int, step: int) -> bool:
        if offset + step > edge and not make_edge(step):
            return False
        at = offset + FRAME_HEADER + shift
        for part in parts:
            end = at + len(part)
            data[at:end] = part
            at = end
        commit(tag, nbytes, shift, step)
        return True

    def put_many(frames: Sequence[tuple[int, object]], first: int) -> int:
        nonlocal offset, seq
        here, number, done = offset, seq, 0
        for tag, payload in frames[first:] if first else frames:
            if payload.__class__ is not bytes or not 0 < tag <= TAG_MASK:
                break
            nbytes = len(payload)
            end = here + (nbytes + _ROUND_UP & -WORD)
            if end > edge:
                break
            at = here >> 3
            words[at] = nbytes << LENGTH_BIT | tag
            words[at + 1] = number
            at = here + FRAME_HEADER
            data[at : at + nbytes] = payload
            here = end
            number += 1
            done += 1
        offset, seq = here, number
        return done

    def place(step: int) -> int:
        if offset + step > edge and not make_edge(step):
            return -1
        return offset

    def commit(tag: int, nbytes: int, shift: int, step: int) -> None:
        nonlocal offset, seq
        at = offset >> 3
        words[at] = nbytes << LENGTH_BIT | shift << SHIFT_BIT | tag
        words[at + 1] = seq
        seq += 1
        offset += step

    def publish() -> None:
        nonlocal rung
        own[P_FRAMES] = seq
        # SYNC: store P_POS after the frames' bytes; pairs with the consumer's load of P_POS before them.
        own[P_POS] = base + offset
        if fence is not None:
            fence()
        # SYNC: store P_POS, barrier, load the wake word; pairs with Sleeper.arm.
        if many or wake[0] != rung:
            rung = wake_up()

    def rewind() -> None:
        nonlocal offset, base, edge, seq
        seq = own[P_FRAMES]
        published = own[P_POS]
        offset = published & (capacity - 1)
        base = published - offset
        edge = offset

    def write_all(frames: Sequence[tuple[int, object]]) -> int:
        done = put_many(frames, 0)
        if done and done == len(frames):
            publish()
        return done

    def where() -> int:
        return base + offset

    def freeze() -> None:
        nonlocal edge
        edge = _SHUT

    def shut() -> None:
        nonlocal edge, shut_down
        edge = _SHUT
        shut_down = True

    return Writer(try_write, put, put_many, write_all, place, commit, publish, rewind, where, freeze, shut)


def make_reader(
    peer: memoryview,
    own: memoryview,
    words: memoryview,
    data: mmap,
    *,
    capacity: int,
    position: int,
    seq: int,
    idle: Callable[[], bool],
    corrupt: Callable[[int, str], Exception],
    wake_up: Callable[[int], int],
    fence: Callable[[], None] | None,
    is_forked: Callable[[], bool],
    last_ended: Callable[[], None],
) -> Reader:
    """The reading closures of one consumer.

    Args:
        peer: words of the producer page, read-only.
        own: words of this consumer's page.
        words, data: the data pages, as words and as bytes, read-only.
        capacity, position, seq: bytes; where the next frame is expected, and its seq, -1 to take it as it
            comes.
        idle: called when nothing is there, at the end or if attended to: True to look again; may raise.
        corrupt: (position, reason) -> the error to raise.
        wake_up: (generation) rings the waiting producer; returns the generation.
        fence: the waker's barrier, if this ring needs one.
        is_forked: whether this process is a child that inherited the reader; then it gives nothing back.
        last_ended: called when the reader is closed and no view of a frame is left.
    """
    offset = position & (capacity - 1)
    base = position - offset
    ready = offset  # frames are known to be published up to this offset, at most to the end of this lap
    held = attended = False
    rung = 0

    def try_read() -> Frame | None:
        nonlocal offset, seq, rung
        if offset >= ready and not look():
            return None
        at = offset >> 3
        # SYNC: P_POS was loaded in `refresh`, before these bytes; pairs with the producer's store of P_POS.
        head = words[at]
        tag = head & _TAG_AND_SHIFT
        nbytes = head >> LENGTH_BIT
        if 1 < nbytes <= COPY_LIMIT and 0 < tag <= TAG_MASK:
            end = offset + (nbytes + _ROUND_UP & -WORD)
            if end <= ready and words[at + 1] == seq:
                at = offset + FRAME_HEADER
                frame = Frame()
                frame.tag = tag
                frame.seq = seq
                frame._data = data[at : at + nbytes]
                offset = end
                seq += 1
                if not held:
                    # SYNC: store C_CURSOR after the frame's bytes were loaded; pairs with the load in Room.
                    own[C_CURSOR] = base + end
                    if fence is not None:
                        fence()
                    # SYNC: store C_CURSOR, barrier, load P_WAITING; pairs with Sleeper.arm.
                    waiting = peer[P_WAITING]
                    if waiting != rung:
                        rung = wake_up(waiting)
                return frame
        return other_frame(head)

    def other_frame(head: int) -> Frame | None:
        """The next frame when it is not a plain small one: padding, shifted, large, tiny, or garbage."""
        nonlocal offset, seq
        tag = head & TAG_MASK
        shift = head >> SHIFT_BIT & SHIFT_MASK
        nbytes = head >> LENGTH_BIT
        if not tag:
            if nbytes != capacity - offset or shift or not offset or ready < capacity:
                raise corrupt(base + offset, f"padding of {nbytes} bytes, {capacity - offset} to the end")
            skip_padding()
            # Padding is published with the frame behind it, at the start of the data.
            if not look():
                return None
            head = words[0]
            tag = head & TAG_MASK
            shift = head >> SHIFT_BIT & SHIFT_MASK
            nbytes = head >> LENGTH_BIT
            if not tag:
                raise corrupt(base, "padding follows padding")
        step = FRAME_HEADER + shift + nbytes + WORD - 1 & -WORD
        if shift >= WORD or step > capacity // 2 or offset + step > ready:
            raise corrupt(
                base + offset,
                f"frame of {step} bytes where at most {min(ready - offset, capacity // 2)} can be",
            )
        found = words[(offset >> 3) + 1]
        if seq < 0:
            seq = found
        elif found != seq:
            raise corrupt(base + offset + WORD, f"frame has seq {found}, expected {seq}")
        at = offset + FRAME_HEADER + shift
        if 1 < nbytes <= COPY_LIMIT:
            frame = Frame()
            frame.tag = tag
            frame.seq = seq
            frame._data = data[at : at + nbytes]
        else:
            frame = lease(tag, seq, base + offset, at, nbytes)
        offset += step
        seq += 1
        release()
        return frame

    def release() -> None:
        nonlocal rung
        if not held:
            # SYNC: store C_CURSOR after the frames' bytes were loaded; pairs with the load in Room.grant.
            own[C_CURSOR] = base + offset
            if fence is not None:
                fence()
            # SYNC: store C_CURSOR, barrier, load P_WAITING; pairs with Sleeper.arm.
            waiting = peer[P_WAITING]
            if waiting != rung:
                rung = wake_up(waiting)

    def skip_padding() -> None:
        nonlocal offset, base, ready
        base += capacity
        ready = offset = 0
        release()

    def refresh() -> bool:
        nonlocal ready, offset, base
        # SYNC: load P_POS before any byte it covers; pairs with the producer's store of P_POS.
        published = peer[P_POS]
        ahead = published - base - offset
        if not 0 <= ahead <= capacity or ahead & (WORD - 1):
            raise corrupt(base + offset, f"published position is {published}, read position {base + offset}")
        if ready < 0:
            return bool(ahead)
        if offset == capacity:
            base += capacity
            offset = 0
        # Not past the end: there the offset starts again at 0, which is done above on the next look.
        ready = min(offset + ahead, capacity)
        return ahead > 0

    def look() -> bool:
        """Whether there is a frame, having looked again and, if not, asked what to do about it."""
        if ready < 0:
            return idle()
        if refresh():
            return True
        if not attended and peer[P_STATE] == STATE_LIVE and not peer[P_ENDED]:
            return False
        return idle() and refresh()

    def read_many(max_frames: int) -> list[Frame]:
        frames: list[Frame] = []
        append = frames.append
        try:
            while len(frames) < max_frames and (
                offset < ready or (refresh() if frames and ready >= 0 else look())
            ):
                frame = try_read()
                # A padding frame may be all there was to read.
                if frame is None:
                    break
                append(frame)
        except Exception:
            # What stopped a read that has frames to hand out is met again by the next one.
            if not frames:
                raise
        return frames

    def attend() -> None:
        nonlocal attended
        attended = True

    def where() -> int:
        return base + offset

    def hold(on: bool) -> None:
        nonlocal held
        held = on

    def shut() -> None:
        nonlocal ready
        ready = _SHUT

    book = LeaseBook(own, data, is_forked, lambda: wake_up(peer[P_WAITING]), last_ended)
    book.position, book.hold = where, hold
    lease = book.lease
    return Reader(try_read, read_many, refresh, attend, where, shut, book.close)

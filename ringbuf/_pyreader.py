"""The reader of the pure-Python body; `_pyops` has the rules it keeps."""

from __future__ import annotations

from collections.abc import Callable
from mmap import mmap

from ringbuf._body import Reader
from ringbuf._pyframes import PACK_LIMIT, SHORTEST_RUN, unpack_run, unpacker
from ringbuf.frame import Frame
from ringbuf.layout import (
    C_CURSOR,
    FRAME_HEADER,
    LENGTH_BIT,
    P_ENDED,
    P_POS,
    P_STATE,
    P_WAITING,
    SHIFT_BIT,
    SHIFT_MASK,
    STATE_LIVE,
    TAG_MASK,
    WORD,
    frame_bytes,
)
from ringbuf.lease import LeaseBook

__all__ = ["COPY_LIMIT", "make_reader"]

# Payloads up to this many bytes are handed out as private copies. In one process (bench.frame_read) a copy of
# 8 KiB costs half of a lease, and between two the reader is twice as fast with copies up to 16 KiB, even if
# it never looks at the bytes; the other half is left for readers that share a memory bus.
COPY_LIMIT = 8192

# A frame of n payload bytes takes n + _ROUND_UP & _WHOLE of the ring.
_ROUND_UP = FRAME_HEADER + WORD - 1
_WHOLE = -WORD
_TAG_AND_SHIFT = SHIFT_MASK << SHIFT_BIT | TAG_MASK
_SHUT = -1
# More than any ring has.
_NEVER = 1 << 62


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
    # No frame takes more than half the ring.
    small = min(COPY_LIMIT, capacity // 2 - FRAME_HEADER)
    small_in_runs = min(small, PACK_LIMIT)
    # Frames often come with the same word 0 as the one before. -1 is no word.
    last_head = known_head = -1
    known_tag, known_step = 0, _NEVER
    known_unpack = unpacker(0)
    # While accesses are recorded, every word is loaded by itself.
    in_runs = isinstance(words, memoryview)

    def try_read() -> Frame | None:
        nonlocal offset, seq, rung
        end = offset + known_step
        if end > ready:
            if offset >= ready:
                if not look():
                    return None
                end = offset + known_step
            if end > ready:
                return any_frame()
        # SYNC: P_POS was loaded in `refresh`, before these bytes; pairs with the producer's store of P_POS.
        head, found, payload = known_unpack(data, offset)
        if head != known_head or found != seq:
            return any_frame()
        frame = Frame()
        frame.tag = known_tag
        frame.seq = found
        frame._data = payload
        offset = end
        seq = found + 1
        if not held:
            # SYNC: store C_CURSOR after the frame's bytes were loaded; pairs with the load in Room.grant.
            own[C_CURSOR] = base + end
            if fence is not None:
                fence()
            # SYNC: store C_CURSOR, barrier, load P_WAITING; pairs with Sleeper.arm.
            waiting = peer[P_WAITING]
            if waiting != rung:
                rung = wake_up(waiting)
        return frame

    def any_frame() -> Frame | None:
        """The next frame, when it is not known to be like the one before; something is published."""
        nonlocal offset, seq, last_head, known_head, known_step
        # SYNC: as in try_read.
        head = words[offset >> 3]
        if head != known_head:
            known_head, known_step = -1, _NEVER
        tag = head & _TAG_AND_SHIFT
        nbytes = head >> LENGTH_BIT
        end = offset + (nbytes + _ROUND_UP & _WHOLE)
        if not 1 < nbytes <= small or end > ready or not 0 < tag <= TAG_MASK:
            return other_frame(head)
        if words[(offset >> 3) + 1] != seq:
            return other_frame(head)
        if head == last_head:
            know(head)
        last_head = head
        at = offset + FRAME_HEADER
        frame = Frame()
        frame.tag = tag
        frame.seq = seq
        frame._data = data[at : at + nbytes]
        offset = end
        seq += 1
        release()
        return frame

    def know(head: int) -> None:
        """Read the next frames with this word 0, that of a plain small frame, by one call each."""
        nonlocal known_head, known_tag, known_step, known_unpack
        nbytes = head >> LENGTH_BIT
        if in_runs and nbytes <= PACK_LIMIT:
            known_unpack = unpacker(nbytes)
            known_tag = head & TAG_MASK
            known_step = frame_bytes(nbytes)
            known_head = head

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
        if not held:
            # SYNC: store C_CURSOR after the frames' bytes were loaded; pairs with the load in Room.grant.
            own[C_CURSOR] = base + offset
            released()

    def released() -> None:
        nonlocal rung
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
        nonlocal offset, seq
        frames: list[Frame] = []
        append = frames.append
        runs = in_runs
        try:
            while len(frames) < max_frames and (
                offset < ready or (look_on() if frames and ready >= 0 else look())
            ):
                head = words[offset >> 3]
                tag = head & _TAG_AND_SHIFT
                nbytes = head >> LENGTH_BIT
                end = offset + (nbytes + _ROUND_UP & _WHOLE)
                if runs and ready - offset >= (end - offset) * SHORTEST_RUN:
                    runs = take_run(frames, max_frames)
                    if runs:
                        continue
                if (
                    1 < nbytes <= small
                    and end <= ready
                    and 0 < tag <= TAG_MASK
                    and words[(offset >> 3) + 1] == seq
                ):
                    at = offset + FRAME_HEADER
                    frame = Frame()
                    frame.tag = tag
                    frame.seq = seq
                    frame._data = data[at : at + nbytes]
                    offset = end
                    seq += 1
                    append(frame)
                    continue
                other = other_frame(head)
                # A padding frame may be all there was to read.
                if other is None:
                    break
                append(other)
        except Exception:
            # What stopped a read that has frames to hand out is met again by the next one.
            if not frames:
                raise
        finally:
            if frames:
                release()
        return frames

    def look_on() -> bool:
        """`refresh`, in the middle of a read of many: the producer need not wait for the end of it."""
        release()
        return refresh()

    def take_run(frames: list[Frame], max_frames: int) -> bool:
        """Read a run of equal small frames at once; False if none comes next."""
        nonlocal offset, seq
        most = max_frames - len(frames)
        tag, step, payloads = unpack_run(data, words, offset, ready, seq, small_in_runs, most)
        if not payloads:
            return False
        number = seq
        for payload in payloads:
            frame = Frame()
            frame.tag = tag
            frame.seq = number
            frame._data = payload
            frames.append(frame)
            number += 1
        offset += step * len(payloads)
        seq = number
        return True

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

    book = LeaseBook(own, data, is_forked, released, last_ended)
    book.position, book.hold = where, hold
    lease = book.lease
    return Reader(try_read, read_many, refresh, attend, where, shut, book.close)

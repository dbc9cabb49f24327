"""The writer of the pure-Python body; `_pyops` has the rules it keeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from mmap import mmap

from ringbuf._body import Writer
from ringbuf._pyframes import PACK_LIMIT, SHORTEST_RUN, new_packer, pack_run, packers, plain_stores
from ringbuf.layout import (
    FRAME_HEADER,
    LENGTH_BIT,
    P_FRAMES,
    P_PADDING,
    P_POS,
    SHIFT_BIT,
    TAG_MASK,
    WORD,
    add,
)

__all__ = ["make_writer"]

# A frame of n payload bytes takes n + _ROUND_UP & _WHOLE of the ring.
_ROUND_UP = FRAME_HEADER + WORD - 1
_WHOLE = -WORD
_SHUT = -1


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
    shut_down = False
    rung = -1 if many else 0
    packs = packers(words)
    in_runs = isinstance(words, memoryview)
    store_plainly = plain_stores(words)
    # Frames often have the tag and the size of the one before. Tags are compared by identity: 1.0 is none.
    last_tag, last_nbytes, last_head, last_step = 0, -1, 0, 0
    store_last = store_plainly

    def try_write(tag: int, payload: object, align_at: int = 0) -> bool:
        nonlocal offset, seq
        if payload.__class__ is not bytes or align_at:
            return slow(tag, payload, align_at)
        if (tag is not last_tag or len(payload) != last_nbytes) and not know(tag, len(payload)):
            return slow(tag, payload, align_at)
        end = offset + last_step
        if end > edge:
            return slow(tag, payload, align_at)
        store_last(data, offset, last_head, seq, payload)
        offset = end
        seq += 1
        own[P_FRAMES] = seq
        # SYNC: store P_POS after the frame's bytes; pairs with the consumer's load of P_POS before them.
        own[P_POS] = base + end
        if fence is not None:
            fence()
        # SYNC: store P_POS, barrier, load the wake word; pairs with Sleeper.arm.
        if wake[0] != rung:
            look_for_sleepers()
        return True

    def know(tag: int, nbytes: int) -> bool:
        """Get ready for frames of this tag and size; False where that is no tag."""
        nonlocal last_tag, last_nbytes, last_head, last_step, store_last
        if not isinstance(tag, int) or not 0 < tag <= TAG_MASK:
            return False
        last_tag, last_nbytes = tag, nbytes
        last_head = nbytes << LENGTH_BIT | tag
        last_step = nbytes + _ROUND_UP & _WHOLE
        store_last = packs[nbytes] or new_packer(nbytes) if nbytes <= PACK_LIMIT else store_plainly
        return True

    def look_for_sleepers() -> None:
        nonlocal rung
        seen = wake_up()
        # With more slots than a word has flags no word tells that nobody sleeps, so nothing equals it.
        if not many:
            rung = seen

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
            # SYNC: the cursors are loaded in `grant` before the bytes they release are overwritten here;
            # pairs with the consumers' stores of C_CURSOR.
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
        here, number, done = offset, seq, first
        total = len(frames)
        while in_runs and total - done >= SHORTEST_RUN:
            run, taken = pack_run(data, words, here, edge - here, number, frames[done:] if done else frames)
            if not run:
                break
            here += taken
            number += run
            done += run
        for tag, payload in frames[done:] if done else frames:
            if payload.__class__ is not bytes or not 0 < tag <= TAG_MASK:
                break
            nbytes = len(payload)
            end = here + (nbytes + _ROUND_UP & _WHOLE)
            if end > edge:
                break
            if nbytes <= PACK_LIMIT:
                pack = packs[nbytes] or new_packer(nbytes)
                pack(data, here, nbytes << LENGTH_BIT | tag, number, payload)
            else:
                at = here >> 3
                words[at] = nbytes << LENGTH_BIT | tag
                words[at + 1] = number
                at = here + FRAME_HEADER
                data[at : at + nbytes] = payload
            here = end
            number += 1
            done += 1
        offset, seq = here, number
        return done - first

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
        own[P_FRAMES] = seq
        # SYNC: store P_POS after the frames' bytes; pairs with the consumer's load of P_POS before them.
        own[P_POS] = base + offset
        if fence is not None:
            fence()
        # SYNC: store P_POS, barrier, load the wake word; pairs with Sleeper.arm.
        if wake[0] != rung:
            look_for_sleepers()

    def rewind() -> None:
        nonlocal offset, base, edge, seq
        seq = own[P_FRAMES]
        published = own[P_POS]
        offset = published & (capacity - 1)
        base = published - offset
        edge = offset

    def write_all(frames: Sequence[tuple[int, object]], gives_up: bool) -> int:
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

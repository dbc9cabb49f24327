"""What a body of the ring is: the two bundles of operations that `make_writer` and `make_reader` return.

The Python body returns them as they are here, the C body as objects with the same methods and some more,
which do by themselves what `Sleeper` and `Bell` do otherwise. Whoever makes a body asks whether it has them:

Writer.keep_bell(slot, fd): ring the consumer in `slot` through this descriptor from now on.
Reader.keep_bell(fd): ring the producer through this descriptor from now on.
Reader.doze: see `wait.Doze` and `Sleeper.doze`.
Writer.counts_full: it counts by itself how often, and how long, the ring was full.

Descriptors stay the caller's, who shuts the body before closing one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from ringbuf.frame import Frame

__all__ = ["Reader", "Writer"]


class Writer(NamedTuple):
    """The producer's side of a body.

    try_write(tag, payload, align_at=0) -> bool: write and publish one frame if there is room.
    put(tag, parts, nbytes, shift, step) -> bool: commit one checked frame without publishing; False when
        full.
    put_many(frames, first) -> int: commit frames[first:] while they are plain bytes and there is room; how
        many.
    write_all(frames, gives_up) -> int: the same from the first, published if that was all of them; how many
        were put. If the caller gives up at a full ring, a body may publish what went in before: ~how many.
    place(step) -> int: the offset where a frame of `step` bytes would go, padding committed; -1 when full.
    commit(tag, nbytes, shift, step): make the placed frame the next one, without publishing.
    publish(): make all committed frames visible, and wake who sleeps.
    rewind(): forget every frame that was committed and not published.
    position() -> int: where the next frame goes.
    freeze(): the next write takes its slow path, whatever room there is.
    shut(): so does every write from now on.
    """

    try_write: Callable[..., bool]
    put: Callable[[int, Sequence[memoryview], int, int, int], bool]
    put_many: Callable[[Sequence[tuple[int, object]], int], int]
    write_all: Callable[[Sequence[tuple[int, object]], bool], int]
    place: Callable[[int], int]
    commit: Callable[[int, int, int, int], None]
    publish: Callable[[], None]
    rewind: Callable[[], None]
    position: Callable[[], int]
    freeze: Callable[[], None]
    shut: Callable[[], None]


class Reader(NamedTuple):
    """The consumer's side of a body.

    try_read() -> Frame | None: the next frame, when there is one.
    read_many(max_frames) -> list: what is there, at most so many.
    refresh() -> bool: whether there is a frame to read, having looked again.
    attend(): from now on `idle` is asked whenever a read finds nothing, not only at the end of the ring.
    position() -> int: where the next frame to read begins.
    shut(): from now on every read takes its slow path at once.
    close(): nothing is read any more; last_ended is called when no view of a frame is left, perhaps at once.
    """

    try_read: Callable[[], Frame | None]
    read_many: Callable[[int], list[Frame]]
    refresh: Callable[[], bool]
    attend: Callable[[], None]
    position: Callable[[], int]
    shut: Callable[[], None]
    close: Callable[[], None]

    def each(self, consumer: Iterator[Frame], kept: int) -> Iterator[Frame]:
        """What iter(consumer) is; a body may take what is there by itself.

        Args:
            consumer: gives its next frame, waiting for it.
            kept: most payload bytes of a frame that is handed out as it is, and not as a private copy.
        """
        return consumer

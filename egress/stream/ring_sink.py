"""Where a shard puts what one worker shall read: a ring, and a bounded backlog for when the ring is full.

Nothing here waits. A frame the ring has no room for is copied into the backlog and goes out, in order, with a
later `flush`. Once the backlog's bound is passed the sink is *over*: further batches are refused, whole,
until the backlog is empty again. What was refused, and what fits no frame at all, is returned to the caller
as failures: the caller forgets those requests, the sink has already queued their ERROR frames. ERROR frames
are exempt from the bound, because every request gets one at most.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

from egress.errors import EncodeError
from egress.wire import Tag, encode_error, encode_result
from egress.wire.encode import HeaderBuffer, encode_batch_into

__all__ = ["Columns", "FrameWriter", "RingSink"]

# The columns of `encode_batch`, by name, each with one entry per request.
Columns = dict[str, list[Any]]

# An error's text may quote what a client sent; longer ones say nothing more.
MAX_MESSAGE_CHARS = 2000


class FrameWriter(Protocol):
    """What a sink asks of a ring: `ringbuf.Producer` has it."""

    def try_write(self, tag: int, payload: Any, *, align_at: int = 0) -> bool:
        """Write a frame unless the ring is full; never blocks."""


class RingSink:
    """The frames of one worker.

    Args:
        ring: the producer; stays the caller's.
        name: the ring's, for messages.
        max_frame: bytes of the largest payload the ring takes.
        backlog_bytes, backlog_frames: what may wait when the ring is full.
    """

    __slots__ = (
        "_backlog",
        "_counted_bytes",
        "_counted_frames",
        "_header",
        "_is_over",
        "_max_bytes",
        "_max_frame",
        "_max_frames",
        "_ring",
        "frames",
        "name",
        "refused",
    )

    def __init__(
        self, ring: FrameWriter, *, name: str, max_frame: int, backlog_bytes: int, backlog_frames: int
    ) -> None:
        self._ring = ring
        self._header = HeaderBuffer()
        self.name = name
        self._max_frame = max_frame
        self._max_bytes = backlog_bytes
        self._max_frames = backlog_frames
        self._backlog: deque[tuple[int, bytes, int, bool]] = deque()
        self._counted_bytes = 0
        self._counted_frames = 0
        self._is_over = False
        self.frames = 0
        self.refused = 0

    @property
    def is_over(self) -> bool:
        """Whether the backlog's bound was passed and not all of it has gone out since."""
        return self._is_over

    @property
    def backlog_bytes(self) -> int:
        """Bytes of batches that wait for room in the ring."""
        return self._counted_bytes

    @property
    def has_backlog(self) -> bool:
        """Whether anything waits for room in the ring."""
        return bool(self._backlog)

    def send_batch(self, columns: Columns) -> list[str]:
        """Send one step's rows for this worker, in one frame where they fit, else split by requests.

        Args:
            columns: arguments of `encode_batch`; the lists are not kept.

        Returns:
            The rids that could not be sent and never will be; their ERROR frames are queued. Empty as a rule.
        """
        rids = columns["rids"]
        if self._is_over:
            return self._refuse(rids)
        try:
            buffers = self._encode(**columns)
            size = sum(map(len, buffers))
        except EncodeError as error:
            if len(rids) > 1:
                return self._halve(columns)
            self.send_error(rids[0], f"internal error: the engine's output cannot be sent: {error}")
            return list(rids)
        if size > self._max_frame:
            if len(rids) > 1:
                return self._halve(columns)
            self.send_error(
                rids[0], f"one step of this request takes {size} bytes, a frame holds {self._max_frame}"
            )
            return list(rids)
        # The columns start behind the first buffer (length word and header): that is the byte to align.
        if self._write(Tag.BATCH, buffers, len(buffers[0]), size):
            return []
        return self._refuse(rids)

    def send_error(self, rid: str, message: str, status_code: int | None = None) -> None:
        """Send the terminal failure of one request; it is queued however full the backlog is."""
        body = encode_error(rid, message[:MAX_MESSAGE_CHARS], status_code)
        self._write_exempt(Tag.ERROR, body)

    def send_result(self, rid: str, payload: bytes) -> None:
        """Send the one answer to a control request; one too large for a frame becomes an ERROR."""
        body = encode_result(rid, payload)
        if len(body) > self._max_frame:
            self.send_error(rid, f"the answer takes {len(body)} bytes, a frame holds {self._max_frame}")
        else:
            self._write_exempt(Tag.RESULT, body)

    def send(self, tag: int, body: bytes) -> None:
        """Send a small frame of another kind (a greeting), however full the backlog is."""
        self._write_exempt(tag, body)

    def flush(self) -> bool:
        """Write what waits and fits now.

        Returns:
            Whether nothing waits any more.
        """
        backlog = self._backlog
        while backlog:
            tag, body, align_at, is_counted = backlog[0]
            if not self._ring.try_write(tag, body, align_at=align_at):
                return False
            backlog.popleft()
            self.frames += 1
            if is_counted:
                self._counted_bytes -= len(body)
                self._counted_frames -= 1
        self._is_over = False
        return True

    def discard(self) -> None:
        """Forget the backlog: the worker it was for is gone."""
        self._backlog.clear()
        self._counted_bytes = self._counted_frames = 0
        self._is_over = False

    def _encode(
        self,
        rids: Sequence[str],
        finish_reasons: Sequence[Any],
        prompt_tokens: Sequence[int],
        token_ids: Sequence[Any],
        **optional: Any,
    ) -> list[Any]:
        """As `encode_batch`, the header in a buffer that is used again: writing copies it."""
        return encode_batch_into(self._header, rids, finish_reasons, prompt_tokens, token_ids, optional)  # type: ignore[arg-type]

    def _write(self, tag: int, buffers: Sequence[Any], align_at: int, size: int) -> bool:
        if (not self._backlog or self.flush()) and self._ring.try_write(tag, buffers, align_at=align_at):
            self.frames += 1
            return True
        if self._counted_bytes + size > self._max_bytes or self._counted_frames >= self._max_frames:
            self._is_over = True
            return False
        self._backlog.append((tag, b"".join(buffers), align_at, True))
        self._counted_bytes += size
        self._counted_frames += 1
        return True

    def _write_exempt(self, tag: int, body: bytes) -> None:
        if (self._backlog and not self.flush()) or not self._ring.try_write(tag, body, align_at=0):
            self._backlog.append((tag, body, 0, False))
        else:
            self.frames += 1

    def _refuse(self, rids: Sequence[str]) -> list[str]:
        self.refused += len(rids)
        for rid in rids:
            self.send_error(rid, f"overloaded: {self.backlog_text()}", 503)
        return list(rids)

    def backlog_text(self) -> str:
        """How full the backlog is, for messages."""
        return (
            f"the worker does not take its frames: {self._counted_bytes} of {self._max_bytes} bytes and "
            f"{self._counted_frames} of {self._max_frames} frames wait for ring {self.name!r}"
        )

    def _halve(self, columns: Columns) -> list[str]:
        middle = len(columns["rids"]) // 2
        first = {name: column[:middle] for name, column in columns.items()}
        second = {name: column[middle:] for name, column in columns.items()}
        return self.send_batch(first) + self.send_batch(second)

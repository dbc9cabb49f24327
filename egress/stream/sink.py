"""The two ends of a stream of items, as anybody may implement them.

`egress.stream.channel` is the local one, for tasks and threads of one process. `egress.testing.check_sink`
tells whether another keeps the same promises.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from egress.stream.item import EgressItem

__all__ = ["EgressSink", "EgressSource"]


class EgressSink(Protocol):
    """Where one request's items go: Frames, then exactly one terminal item."""

    def try_send(self, item: EgressItem) -> None:
        """Hand over `item`; never blocks. A terminal item always has a place.

        Raises:
            SinkFull: the reader is too slow; the item was not taken, nothing that was taken is lost.
            SinkClosed: the reader is gone, or a terminal item was already sent.
        """

    def close(self) -> None:
        """Send nothing more; without a terminal item before, the reader learns that its answer is
        truncated."""


class EgressSource(Protocol):
    """Where one request's items come from."""

    async def recv(self) -> EgressItem:
        """Wait for the next item; cancelling the wait loses none.

        Raises:
            Truncated: the sink went away without a terminal item, and everything before that was received.
            SinkClosed: the terminal item was received before, or this source was closed.
        """

    def recv_sync(self, timeout: float | None = None) -> EgressItem:
        """Wait in a thread; as `recv`, and TimeoutError after `timeout` seconds without an item."""

    def try_recv(self) -> EgressItem | None:
        """The next item, or None when nothing waits; never raises for the end, which a waiting call tells."""

    def close(self) -> None:
        """Take nothing more and drop what waits; the sink's next `try_send` raises SinkClosed."""

    def __aiter__(self) -> AsyncIterator[EgressItem]:
        """Every item up to and with the terminal one; raises Truncated if that never comes."""

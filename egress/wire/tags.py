"""The kinds of frame.

A tag travels in the ring's frame header; in a file or a socket it is the byte before the body. Tags 1 to 15
belong to answers, and only three are given out; 16 and up are requests on their way to a shard
(egress.wire.requests), which no reader of answers accepts.
"""

from __future__ import annotations

from enum import IntEnum

__all__ = ["Tag"]


class Tag(IntEnum):
    """The kind of an answer frame, as the scheduler writes it.

    RESULT: the one answer to a control request. BATCH: one step's tokens of many requests. ERROR: the
    terminal failure of one request.

    >>> Tag.BATCH
    <Tag.BATCH: 2>
    """

    RESULT = 1
    BATCH = 2
    ERROR = 3

"""From a tag and a body to a value: the one table of decoders.

On a ring the tag is in the frame's header and the payload is the body; in a file or a socket a frame is the
tag's byte and the body behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from egress.errors import MalformedFrame
from egress.wire.accept import decode_batch
from egress.wire.batch import Batch
from egress.wire.messages import Failure, Result, decode_error, decode_result
from egress.wire.tags import Tag

__all__ = ["decode", "decode_frame"]

_Decoded: TypeAlias = Batch | Result | Failure

# Plain integers: a key that is the very object asked for is found without comparing.
_DECODERS: dict[int, Callable[[Any], _Decoded]] = {
    int(Tag.RESULT): decode_result,
    int(Tag.BATCH): decode_batch,
    int(Tag.ERROR): decode_error,
}


def decode(tag: int, body: Any) -> Batch | Result | Failure:
    """Read the body of one frame.

    Args:
        tag: what the ring's frame header says; see Tag.
        body: any contiguous buffer, without the tag. A Batch's arrays are views of it and keep it alive;
            Result and Failure hold copies.

    Raises:
        MalformedFrame: the tag is unknown or the body breaks a rule; nothing of the frame may be delivered,
            and the requests in `.rids` must be failed.

    >>> decode(3, encode_error("a", "no room", 503))
    Failure(rid='a', message='no room', status_code=503)
    """
    try:
        decoder = _DECODERS[tag]
    except KeyError:
        raise MalformedFrame(f"unknown tag, body of {memoryview(body).nbytes} bytes", (), tag) from None
    return decoder(body)


def decode_frame(frame: Any) -> Batch | Result | Failure:
    """Read one frame with its tag byte in front, as from a file or a socket; otherwise as decode.

    Raises:
        MalformedFrame: also when the frame is empty.
    """
    view = memoryview(frame).cast("B")
    if not view:
        raise MalformedFrame("empty frame, not even a tag")
    return decode(view[0], view[1:])

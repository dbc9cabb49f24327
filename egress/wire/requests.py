"""What travels against the stream of tokens: requests, aborts, questions; and the greeting of both sides.

Positional msgpack arrays whose first item is a version, tags 16 and up, only plain data inside. A field may
be appended with a default without a new version, because a reader ignores items it does not know; any other
change raises `VERSION`, and a frame of another version is refused, naming its rid. These frames never leave
the machine and never outlive the server, so there are no golden bytes of them.

Epochs. A shard and a worker that restart take their rings over, with everything their predecessors left in
them. So each life of a process draws an epoch, the two sides exchange them in HELLO frames, and a request
names the life of the shard it was written for: a later life drops it, the worker has already failed it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Any, TypeAlias

import msgspec

from egress.errors import MalformedFrame

__all__ = [
    "VERSION",
    "Abort",
    "AbortClient",
    "Control",
    "Generate",
    "Hello",
    "Request",
    "RequestTag",
    "decode_request",
    "encode_request",
]

VERSION = 1

_TokenId: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
_Rid: TypeAlias = Annotated[str, msgspec.Meta(min_length=1)]


class RequestTag(IntEnum):
    """Tags of the frames in this file; those below 16 belong to `egress.wire.tags`."""

    GENERATE = 16
    ABORT = 17
    ABORT_CLIENT = 18
    CONTROL = 19
    HELLO = 20


class Generate(msgspec.Struct, array_like=True, kw_only=True):
    """Start one request: worker to shard.

    Attributes:
        rid: unique for ever, at most one live request bears it.
        epoch: the life of the shard it is meant for.
        input_ids: the prompt.
        sampling: `SamplingParams.to_wire()`.
        client_rid: what `AbortClient` may name; None when the client gave no id.
    """

    version: int = VERSION
    rid: _Rid
    epoch: str
    input_ids: list[_TokenId]
    sampling: list[Any]
    client_rid: str | None = None
    return_logprob: bool = False
    logprob_start_len: int = -1
    top_logprobs_num: Annotated[int, msgspec.Meta(ge=0)] = 0
    token_ids_logprob: list[_TokenId] | None = None
    return_text_in_logprobs: bool = False
    return_hidden_states: bool = False


class Abort(msgspec.Struct, array_like=True, kw_only=True):
    """Forget these rids, nobody waits for them any more; unknown ones are no fault."""

    version: int = VERSION
    rids: list[str]


class AbortClient(msgspec.Struct, array_like=True, kw_only=True):
    """End every request that carries `client_rid`, whichever worker sent it, with an abort finish reason."""

    version: int = VERSION
    client_rid: str


class Control(msgspec.Struct, array_like=True, kw_only=True):
    """A question; its one answer is a RESULT frame for `rid`."""

    version: int = VERSION
    rid: _Rid
    op: str


class Hello(msgspec.Struct, array_like=True, kw_only=True):
    """A greeting, on either ring of a pair.

    Attributes:
        epoch: this life of the sender.
        peer: the receiver's epoch as the sender knows it; "" before its first greeting.
        pid: the sender.
    """

    version: int = VERSION
    epoch: str
    peer: str = ""
    pid: int = 0


Request: TypeAlias = Generate | Abort | AbortClient | Control | Hello

_TAG_OF: dict[type[Request], RequestTag] = {
    Generate: RequestTag.GENERATE,
    Abort: RequestTag.ABORT,
    AbortClient: RequestTag.ABORT_CLIENT,
    Control: RequestTag.CONTROL,
    Hello: RequestTag.HELLO,
}
_DECODERS: dict[int, msgspec.msgpack.Decoder[Request]] = {
    tag: msgspec.msgpack.Decoder(kind) for kind, tag in _TAG_OF.items()
}
_encoder = msgspec.msgpack.Encoder()

# A newer frame may carry anything after its version, but its rid stays second: enough to fail that request
# alone.
_NAMES_ITS_RID = (RequestTag.GENERATE, RequestTag.CONTROL)


def encode_request(request: Request) -> tuple[RequestTag, bytes]:
    """The tag and the payload of `request`, ready for `Producer.try_write`.

    Raises:
        ValueError: a string in it is no valid UTF-8 (a lone surrogate), or an int passes 64 bits.
    """
    try:
        return _TAG_OF[type(request)], _encoder.encode(request)
    except (OverflowError, TypeError) as error:
        raise ValueError(str(error)) from error


def decode_request(tag: int, payload: bytes | memoryview) -> Request:
    """The request in a frame.

    Raises:
        MalformedFrame: an unknown tag, another version, or bytes that are no such request; `.rids` names the
            request it belongs to where that can still be read.
    """
    decoder = _DECODERS.get(tag)
    if decoder is None:
        raise MalformedFrame("unknown request tag", (), tag)
    try:
        request = decoder.decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise MalformedFrame(str(error), _readable_rid(tag, payload), tag) from error
    if request.version != VERSION:
        rids = (request.rid,) if isinstance(request, Generate | Control) else ()
        raise MalformedFrame(f"request version {request.version}, expected {VERSION}", rids, tag)
    return request


def _readable_rid(tag: int, payload: bytes | memoryview) -> tuple[str, ...]:
    if tag not in _NAMES_ITS_RID:
        return ()
    try:
        items = msgspec.msgpack.decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return ()
    if isinstance(items, list) and len(items) > 1 and isinstance(items[1], str) and items[1]:
        return (items[1],)
    return ()

"""What travels from a request's producer to its handler: any number of Frames, then exactly one terminal
item.

| item | terminal | answers |
|---|---|---|
| Frame | no | a generation: part of it |
| Done | yes | a generation: its last part, finish reason included |
| Control | yes | a control request, whole |
| Error | yes | either, by failing |
"""

from __future__ import annotations

from typing import ClassVar, TypeAlias

import msgspec

from egress.wire.event import ChunkEvent

__all__ = ["Control", "Done", "EgressItem", "Error", "Frame"]


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One more part of the answer; others follow.

    Attributes:
        event: owns its columns (`ChunkEvent.detach`) if it may wait anywhere longer than its frame lives.
    """

    is_terminal: ClassVar[bool] = False
    event: ChunkEvent


class Done(msgspec.Struct, frozen=True, gc=False):
    """The last part of the answer.

    Attributes:
        event: as in Frame; its finish reason says why the answer ends.
    """

    is_terminal: ClassVar[bool] = True
    event: ChunkEvent


class Control(msgspec.Struct, frozen=True, gc=False):
    """The one answer to a control request.

    Attributes:
        payload: the RESULT frame's payload, verbatim.
    """

    is_terminal: ClassVar[bool] = True
    payload: bytes


class Error(msgspec.Struct, frozen=True, gc=False):
    """The request failed; nothing follows.

    Attributes:
        message: for the client.
        status_code: the HTTP status it stands for.
    """

    is_terminal: ClassVar[bool] = True
    message: str
    status_code: int = 500


EgressItem: TypeAlias = Frame | Done | Control | Error
"""Anything a sink takes and a source gives."""

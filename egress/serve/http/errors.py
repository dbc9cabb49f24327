"""From errors to HTTP: the one table of statuses, and how both API families show a failure.

Whatever ends a request badly, an exception on the way in or an item from the shard, becomes a `Failure`; a
`Failure` becomes a status with a JSON body while nothing was sent, and an event afterwards.
"""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from egress.errors import EgressError, Truncated, ValidationError
from egress.serve.dispatch import Overloaded, ShardDown
from egress.stream.item import Error
from egress.wire.finish_reason import FinishReason

__all__ = ["Failure", "HttpError", "failure_of", "failure_of_item", "failure_of_reason", "native", "openai"]

logger = logging.getLogger(__name__)

INTERNAL = "internal error"


class Failure(msgspec.Struct, frozen=True):
    """How a request failed.

    Attributes:
        status: the HTTP status, 400..599.
        message: what to tell the client; names field, value and range where one is at fault.
        field: the request's field at fault, or None.
        code: OpenAI's word for it, where there is one.
        headers: to be sent along with the status.
    """

    status: int
    message: str
    field: str | None = None
    code: str | None = None
    headers: tuple[tuple[bytes, bytes], ...] = ()


class HttpError(EgressError):
    """A request that HTTP itself refuses: too large, unknown path, wrong method, no key.

    Args:
        status, message, field, code, headers: as `Failure`.
    """

    def __init__(
        self,
        status: int,
        message: str,
        field: str | None = None,
        code: str | None = None,
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        super().__init__(message)
        self.failure = Failure(status, message, field, code, headers)


# Any of these is a decision, not a fault; everything that is not here is a 500 with its traceback in the log.
_STATUS: tuple[tuple[type[BaseException], int], ...] = (
    (ValidationError, 400),
    (Overloaded, 503),
    (ShardDown, 503),
    (TimeoutError, 504),
    (Truncated, 500),
)


def failure_of(error: BaseException) -> Failure:
    """Say what an exception means to the client; one that nobody expected is logged."""
    if isinstance(error, HttpError):
        return error.failure
    for kind, status in _STATUS:
        if isinstance(error, kind):
            retry = getattr(error, "retry_after_s", None)
            headers = () if retry is None else ((b"retry-after", b"%d" % retry),)
            return Failure(status, str(error), getattr(error, "field", None), headers=headers)
    logger.error("a handler failed", exc_info=error)
    return Failure(500, INTERNAL)


def failure_of_item(item: Error) -> Failure:
    """Say what a terminal Error item means."""
    return _of_status(item.status_code, item.message)


def failure_of_reason(reason: FinishReason | None) -> Failure | None:
    """Say how an abort failed: one with a status did, every other reason is an ending."""
    aborted = None if reason is None else reason.abort_status()
    return None if aborted is None else _of_status(*aborted)


def _of_status(status: Any, message: str) -> Failure:
    if type(status) is not int or not 400 <= status <= 599:
        status = 500
    # A 503 from a shard means no room now; a second is the least that header can say.
    headers = ((b"retry-after", b"1"),) if status == 503 else ()
    return Failure(status, message or INTERNAL, headers=headers)


def native(failure: Failure) -> dict[str, Any]:
    """The body of the `/generate` family: `{"error": {"message", "code"}}`."""
    return {"error": {"message": failure.message, "code": failure.status}}


def openai(failure: Failure) -> dict[str, Any]:
    """The body of `/v1`: OpenAI's shape; `code` is its word, or the status where it has none."""
    kind = "invalid_request_error" if failure.status < 500 else "server_error"
    return {
        "error": {
            "message": failure.message,
            "type": kind,
            "param": failure.field,
            "code": failure.code or failure.status,
        }
    }

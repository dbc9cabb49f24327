"""Log lines: one event a line, as text for people or as JSON for machines, always with the process's role.

What varies goes into fields (`log.info("request ended", extra=fields(rid=..., status=...))`), never into the
message, so that a line can be searched by its message and read by its fields. Nothing is logged per token.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import Any

import msgspec

from egress.serve.config import Settings

__all__ = ["RateLimit", "configure", "fields"]

_FIELDS = "egress_fields"
_encoder = msgspec.json.Encoder(enc_hook=str)


def fields(**values: Any) -> dict[str, Any]:
    """The `extra=` of a log call that carries `values` as the line's fields."""
    return {_FIELDS: values}


def configure(settings: Settings, role: str) -> None:
    """Send every log record of this process to stderr, in the form that `settings` asks for.

    Args:
        settings: `log_format`, `log_level` and `instance` are read.
        role: "supervisor", "shard 0", "worker 1".
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json(settings.instance, role) if settings.log_format == "json" else _Text(role))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.log_level.upper())
    # uvicorn's own lines repeat what the supervisor says, and its access log is what log_requests replaces.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    logging.getLogger("uvicorn.access").disabled = True


class _Text(logging.Formatter):
    def __init__(self, role: str) -> None:
        super().__init__()
        self._role = role

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%H:%M:%S", time.localtime(record.created))
        values = getattr(record, _FIELDS, {})
        tail = "".join(f" {name}={_plain(value)}" for name, value in values.items())
        line = (
            f"{stamp}.{int(record.msecs):03d} {record.levelname:<7} {self._role}: {record.getMessage()}{tail}"
        )
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class _Json(logging.Formatter):
    def __init__(self, instance: str, role: str) -> None:
        super().__init__()
        self._instance = instance
        self._role = role

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": round(record.created, 6),
            "level": record.levelname.lower(),
            "instance": self._instance,
            "role": self._role,
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, _FIELDS, {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return _encoder.encode(line).decode()


def _plain(value: Any) -> str:
    text = str(value)
    # repr escapes line breaks: no client's rid can forge a second line.
    return text if text and text.isprintable() and not any(c in text for c in ' "=') else repr(text)


class RateLimit:
    """Say a thing at most once in `every_s`, and how often it was held back meanwhile.

    >>> limit = RateLimit(10.0)
    >>> limit.allow("slow", now=0.0), limit.allow("slow", now=1.0), limit.allow("slow", now=11.0)
    (0, None, 1)
    """

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._seen: dict[str, tuple[float, int]] = {}

    def allow(self, kind: str, now: float) -> int | None:
        """How many of `kind` were held back since the last one said, or None: hold this one back, too."""
        said, held = self._seen.get(kind, (None, 0))
        if said is not None and now - said < self._every_s:
            self._seen[kind] = (said, held + 1)
            return None
        self._seen[kind] = (now, 0)
        return held

"""Server-sent events: JSON in, bytes that no reader can break apart out.

The standard ends a line at CR or LF, and JSON text holds neither. Many readers split with their
language's own idea of a line, though (Python's `str.splitlines`), which also takes U+0085, U+2028 and
U+2029. JSON may carry those raw, so they leave here as escapes, which mean the same to every JSON parser.
Everything else stays UTF-8: a Chinese answer is readable in `curl`, and half as long as its escapes.
"""

from __future__ import annotations

__all__ = ["DONE", "HEADERS", "event", "safe"]

DONE = b"data: [DONE]\n\n"

HEADERS: list[tuple[bytes, bytes]] = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # nginx holds a proxied answer back until its buffer is full, unless told not to.
    (b"x-accel-buffering", b"no"),
]


def event(json: bytes) -> bytes:
    """Frame one JSON document, without a line feed in it, as one event."""
    return b"data: %b\n\n" % safe(json)


def safe(json: bytes) -> bytes:
    """Escape what a reader might take for the end of a line; JSON, or a part of it, stays what it says."""
    if json.isascii():
        return json
    # Outside a string JSON is ASCII, so wherever these sequences occur an escape may stand in their place.
    json = json.replace(b"\xe2\x80\xa8", b"\\u2028").replace(b"\xe2\x80\xa9", b"\\u2029")
    return json.replace(b"\xc2\x85", b"\\u0085")

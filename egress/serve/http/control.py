"""The routes that generate nothing: models, health, metrics, a shard's own report, aborts, the page."""

from __future__ import annotations

import asyncio
import re
import urllib.parse
from pathlib import Path
from typing import Any, ClassVar

from egress.errors import ValidationError
from egress.serve.http.bodies import Body, check_range, check_rid, read_body
from egress.serve.http.errors import HttpError
from egress.serve.http.exchange import Exchange, encode
from egress.serve.http.service import Service
from egress.serve.metrics import CONTENT_TYPE

__all__ = [
    "PAGE_FILES",
    "abort_request",
    "health",
    "live",
    "metrics",
    "model",
    "models",
    "page",
    "server_info",
]

_PAGE = Path(__file__).resolve().parent.parent / "page"

# path -> (file, content type)
PAGE_FILES: dict[str, tuple[str, bytes]] = {
    "/": ("index.html", b"text/html; charset=utf-8"),
    "/page/page.js": ("page.js", b"text/javascript; charset=utf-8"),
    "/page/page.css": ("page.css", b"text/css; charset=utf-8"),
}

# The page shows what a model wrote: nothing in it may run or load anything.
_PAGE_HEADERS = (
    (b"cache-control", b"no-cache"),
    (b"content-security-policy", b"default-src 'self'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
)


class AbortBody(Body, kw_only=True):
    """What `/abort_request` takes: the id an answer shows."""

    unsupported: ClassVar[frozenset[str]] = frozenset({"abort_all", "abort_message"})
    allowed: ClassVar[dict[str, tuple[bytes, ...]]] = {"abort_all": (b"false",)}

    rid: str


async def health(service: Service, exchange: Exchange) -> None:
    """`GET /health`: 200 while every shard and ring that requests need is there, else 503 and why."""
    state = service.dispatch.health()
    reasons = []
    if state.get("draining"):
        reasons.append("the server is shutting down")
    reasons += [f"shard {shard['index']} does not answer" for shard in state["shards"] if not shard["alive"]]
    is_ready = state["ready"] and not reasons
    if not is_ready and not reasons:
        reasons.append("the server is starting")
    headers = () if is_ready else ((b"retry-after", b"1"),)
    await exchange.answer(
        200 if is_ready else 503, encode({**state, "ready": is_ready, "reasons": reasons}), headers=headers
    )


async def live(service: Service, exchange: Exchange) -> None:
    """`GET /live`: this worker's loop runs."""
    await exchange.answer(200, b'{"live":true}')


async def metrics(service: Service, exchange: Exchange) -> None:
    """`GET /metrics`: the whole server in one scrape."""
    await exchange.answer(200, await asyncio.to_thread(service.metrics.scrape), CONTENT_TYPE.encode())


async def server_info(service: Service, exchange: Exchange) -> None:
    """`GET /server_info?shard=0`: a shard's answer, verbatim."""
    given = urllib.parse.parse_qs(exchange.scope["query_string"].decode("latin-1"), keep_blank_values=True)
    if unknown := sorted(given.keys() - {"shard"}):
        raise ValidationError(f"{unknown[0][:64]!r} is no parameter of this request", unknown[0][:64])
    shard = given.get("shard", ["0"])[-1]
    last = service.settings.shards - 1
    if not re.fullmatch(r"[0-9]{1,9}", shard, re.ASCII):
        raise ValidationError(f"shard must be in [0, {last}], got {shard[:64]!r}", "shard")
    check_range("shard", int(shard), 0, last)
    await exchange.answer(
        200, await service.dispatch.control("server_info", int(shard), service.settings.control_s)
    )


async def abort_request(service: Service, exchange: Exchange) -> None:
    """`POST /abort_request`: end every live request with that id, whichever worker took it.

    `aborted` counts those of the worker that answers; the shards are told of all, and their requests end with
    finish_reason abort.
    """
    rid = read_body(AbortBody, await exchange.read(service.settings.max_body)).rid
    check_rid(rid)
    await exchange.answer(200, encode({"rid": rid, "aborted": service.dispatch.abort(rid)}))


async def models(service: Service, exchange: Exchange) -> None:
    """`GET /v1/models`."""
    await exchange.answer(200, encode({"object": "list", "data": [_model(service)]}))


async def model(service: Service, exchange: Exchange) -> None:
    """`GET /v1/models/{model}`."""
    name = exchange.scope["path_params"]["model"]
    if name != service.settings.model_name:
        raise HttpError(404, f"model {name[:64]!r} does not exist", "model", "model_not_found")
    await exchange.answer(200, encode(_model(service)))


def _model(service: Service) -> dict[str, Any]:
    return {
        "id": service.settings.model_name,
        "object": "model",
        "created": service.started,
        "owned_by": "egress",
        "max_model_len": service.settings.max_context,
    }


async def page(service: Service, exchange: Exchange) -> None:
    """`GET /`, and what the page loads."""
    name, content_type = PAGE_FILES[exchange.scope["path"]]
    await exchange.answer(
        200, await asyncio.to_thread((_PAGE / name).read_bytes), content_type, _PAGE_HEADERS
    )

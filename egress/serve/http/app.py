"""The application: routes, the key, and what becomes of every error.

Starlette routes; its two error middlewares, which wrap `send` for every event of every stream, give way to
`_Gate`. A handler either answers or raises before anything was sent; streams tell later failures themselves.
"""

from __future__ import annotations

import contextlib
import hmac
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from egress.serve.config import Settings
from egress.serve.dispatch import Dispatch
from egress.serve.http import chat, completions, control, errors, generate
from egress.serve.http.delivery import Failed
from egress.serve.http.errors import Failure, HttpError, failure_of
from egress.serve.http.exchange import ClientGone, Exchange, encode
from egress.serve.http.service import Service
from egress.serve.http.stalls import Stalls
from egress.serve.metrics import WorkerMetrics

__all__ = ["OPEN_PATHS", "create_app"]

Handler: TypeAlias = Callable[[Service, Exchange], Awaitable[None]]

# Answered without the key: probes have none, and the page holds nothing but itself.
OPEN_PATHS = frozenset({"/live", "/health", *control.PAGE_FILES})

_ROUTES: tuple[tuple[str, str, Handler], ...] = (
    ("POST", "/generate", generate.generate),
    ("POST", "/v1/completions", completions.completions),
    ("POST", "/v1/chat/completions", chat.chat),
    ("GET", "/v1/models", control.models),
    ("GET", "/v1/models/{model:path}", control.model),
    ("GET", "/health", control.health),
    ("GET", "/live", control.live),
    ("GET", "/metrics", control.metrics),
    ("GET", "/server_info", control.server_info),
    ("POST", "/abort_request", control.abort_request),
    *(("GET", path, control.page) for path in control.PAGE_FILES),
)


def create_app(
    dispatch: Dispatch, tokenizer: Any, settings: Settings, metrics: WorkerMetrics | None = None
) -> Starlette:
    """Make the HTTP side of one worker.

    Args:
        dispatch: where generations go.
        tokenizer: an egress.text tokenizer, or None with settings.skip_tokenizer_init.
        settings: names and limits.
        metrics: this worker's; None: a set of its own.

    Returns:
        An ASGI application that needs no lifespan. Whoever runs it flushes the metrics every FLUSH_S.

    Raises:
        ValueError: there is neither a tokenizer nor settings.vocab_size.
    """
    vocab_size = settings.vocab_size or (0 if tokenizer is None else tokenizer.vocab_size)
    if not vocab_size:
        raise ValueError("without a tokenizer settings.vocab_size must be set")
    metrics = metrics or WorkerMetrics()
    stalls = Stalls(settings.stall_s)
    service = Service(dispatch, tokenizer, settings, vocab_size, metrics, int(time.time()), stalls)
    return _App(service)


class _App(Starlette):
    """Starlette with the gate in place of its middleware stack."""

    def __init__(self, service: Service) -> None:
        self._service = service
        routes = [
            Route(path, _Endpoint(service, path, handler), methods=[method])
            for method, path, handler in _ROUTES
        ]
        super().__init__(routes=routes)
        # A redirect would lose a POST's body with many clients; an unknown path is unknown.
        self.router.redirect_slashes = False

    def build_middleware_stack(self) -> ASGIApp:
        """The gate, then the routes."""
        return _Gate(self._service, self.router)


class _Gate:
    """Asks for the key, and answers in JSON what no route takes."""

    def __init__(self, service: Service, inner: ASGIApp) -> None:
        self._service = service
        self._inner = inner
        key = service.settings.api_key
        self._key = None if key is None else key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        exchange = Exchange(scope, receive, send, self._service.stalls)
        try:
            if self._key is not None and scope["path"] not in OPEN_PATHS:
                self._check_key(exchange)
            await self._inner(scope, receive, send)
        except HttpError as error:
            await _refuse(self._service, exchange, error.failure, "other")
        except HTTPException as error:
            await _refuse(self._service, exchange, _no_route(scope, error), "other")

    def _check_key(self, exchange: Exchange) -> None:
        assert self._key is not None
        scheme, _, given = (exchange.header(b"authorization") or b"").partition(b" ")
        if scheme.lower() != b"bearer" or not hmac.compare_digest(given.strip(), self._key):
            raise HttpError(
                401,
                "this server needs its API key as a bearer token: Authorization: Bearer KEY",
                code="invalid_api_key",
                headers=((b"www-authenticate", b"Bearer"),),
            )


class _Endpoint:
    """One route: runs its handler, answers what it raises, counts how it ended."""

    def __init__(self, service: Service, route: str, handler: Handler) -> None:
        self._service = service
        self._route = route
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send, self._service.stalls)
        try:
            await self._handler(self._service, exchange)
        except ClientGone:
            # nginx's number for it; nobody reads an answer any more.
            self._service.metrics.answered(self._route, 499)
            return
        except Exception as error:
            if exchange.started:
                raise
            failure = error.failure if isinstance(error, Failed) else failure_of(error)
            await _refuse(self._service, exchange, failure, self._route)
            return
        self._service.metrics.answered(self._route, exchange.status)


async def _refuse(service: Service, exchange: Exchange, failure: Failure, route: str) -> None:
    is_openai = exchange.scope["path"].startswith("/v1/")
    body = errors.openai(failure) if is_openai else errors.native(failure)
    service.metrics.answered(route, failure.status)
    with contextlib.suppress(ClientGone):
        await exchange.answer(failure.status, encode(body), headers=failure.headers)


def _no_route(scope: Scope, error: HTTPException) -> Failure:
    path = scope["path"][:64]
    headers = tuple((key.encode(), value.encode()) for key, value in (error.headers or {}).items())
    if error.status_code == 405:
        return Failure(405, f"{scope['method']} is not allowed for {path!r}", headers=headers)
    return Failure(error.status_code, f"there is nothing at {path!r}", headers=headers)

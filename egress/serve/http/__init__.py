"""The HTTP side of a worker: one file per family of routes, `create_app` makes the whole."""

from egress.serve.http.app import OPEN_PATHS, create_app

__all__ = ["OPEN_PATHS", "create_app"]

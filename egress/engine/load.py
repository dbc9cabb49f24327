"""Engines by name: the ones that ship, and `package.module:factory` for any other."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from egress.engine.ngram import NGramEngine, keep_model
from egress.engine.protocol import Engine
from egress.engine.replay import ReplayEngine
from egress.errors import ValidationError
from egress.text import Tokenizer

__all__ = ["load_engine", "prepare_engine"]

Factory = Callable[[Tokenizer, dict[str, Any]], Any]

_BUILT_IN: dict[str, Factory] = {"ngram": NGramEngine, "replay": ReplayEngine}


def load_engine(name: str, tokenizer: Tokenizer, options: dict[str, Any] | None = None) -> Engine:
    """Make the engine called `name`.

    Args:
        name: "ngram", "replay", or "package.module:factory"; the module is imported, and the factory called
            as `factory(tokenizer, options)`.
        tokenizer: whose ids it speaks.
        options: the engine's own, as text or typed; see `NGramEngine` and `ReplayEngine` for theirs.

    Returns:
        An engine that nothing was submitted to yet.

    Raises:
        ValidationError: no such engine, a module that does not import, a factory that is missing, cannot be
            called or made something that is no engine, or an option it refused. What a foreign
            factory raises by itself passes through.
    """
    return _checked(name, _factory(name)(tokenizer, dict(options or {})))


def prepare_engine(name: str, tokenizer: Tokenizer, options: dict[str, Any] | None = None) -> None:
    """Do now what `load_engine` in a process forked later would do once more, where that is safe.

    A foreign engine is left alone: it may start threads or take a device, and neither survives a fork.

    Raises:
        ValidationError: as `load_engine` does.
    """
    if name == "ngram":
        keep_model(tokenizer, dict(options or {}))


def _factory(name: str) -> Factory:
    if name in _BUILT_IN:
        return _BUILT_IN[name]
    module_name, colon, attribute = name.partition(":")
    if not (colon and module_name and attribute):
        raise ValidationError(
            f"engine must be {' or '.join(_BUILT_IN)} or package.module:factory, got {name!r}", "engine"
        )
    try:
        found: Any = importlib.import_module(module_name)
    except ImportError as error:
        raise ValidationError(f"engine {name!r}: cannot import {module_name}: {error}", "engine") from error
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        missing = "has no" if found is None else "cannot call its"
        raise ValidationError(f"engine {name!r}: module {module_name} {missing} {attribute}", "engine")
    factory: Factory = found
    return factory


def _checked(name: str, engine: Any) -> Engine:
    for method in ("submit", "abort", "step"):
        if not callable(getattr(engine, method, None)):
            raise ValidationError(
                f"engine {name!r} made a {type(engine).__name__} without the method {method}", "engine"
            )
    checked: Engine = engine
    return checked

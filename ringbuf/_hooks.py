"""Where the testing kit may look in: named steps of the cold paths, and the words of a segment.

Nothing is installed in production: a step costs one call, a hot operation nothing, because recorders wrap the
words a body works on instead of the body.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["is_watched", "step", "wrap_words"]

on_step: Callable[[str], None] | None = None
on_words: Callable[[str, memoryview], memoryview] | None = None


def step(name: str) -> None:
    """Tell the testing kit that the step `name` is about to be taken; it may kill, pause or raise here."""
    if on_step is not None:
        on_step(name)


def is_watched() -> bool:
    """Whether a kit is installed; then no body may take a step on its own that has a name here."""
    return on_step is not None or on_words is not None


def wrap_words(label: str, words: memoryview) -> memoryview:
    """The words a body loads and stores: `words` itself, or the recorder the testing kit put around it."""
    return words if on_words is None else on_words(label, words)

"""What the two ends of a ring have in common: a name, a state, and a block that closes them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from ringbuf.tenure import Tenure

__all__ = ["Handle"]


class Handle(ABC):
    """An open end of a ring, closed when it is dropped.

    Args:
        tenure: its hold on the ring.
    """

    __slots__ = ("__weakref__", "_tenure")

    def __init__(self, tenure: Tenure) -> None:
        self._tenure = tenure

    @property
    def name(self) -> str:
        """The ring's name."""
        return self._tenure.segment.name

    @property
    def closed(self) -> bool:
        """Whether this handle was closed."""
        return self._tenure.closed

    @abstractmethod
    def close(self) -> None:
        """Give everything back. Closing again does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

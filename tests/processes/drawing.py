"""An engine for test_lifecycle: it shows what its process's random generators gave first."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from egress.engine import ReplayEngine
from egress.text import Tokenizer


class Drawing(ReplayEngine):
    """The replay engine, with the first numbers of the two generators that libraries share."""

    drawn: tuple[float, float]

    def info(self) -> dict[str, Any]:
        """What the replay engine shows, and the numbers."""
        return {**super().info(), "drawn": self.drawn}


def make(tokenizer: Tokenizer, options: dict[str, Any]) -> Drawing:
    """The factory."""
    engine = Drawing(tokenizer, options)
    engine.drawn = random.random(), float(np.random.random())
    return engine

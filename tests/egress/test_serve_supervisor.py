"""The supervisor's own decisions, without processes; tests/processes has the rest."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from egress.serve.config import Settings
from egress.serve.instances import Instance
from egress.serve.supervisor import Supervisor


@pytest.fixture
def instance() -> Iterator[Instance]:
    made = Instance()
    yield made
    made.close()


def test_a_signal_that_comes_with_the_last_child_s_readiness_only_ends_it(instance: Instance) -> None:
    """Both are taken in by one turn: the socket is closed by then, and there is nobody to greet."""

    class Told(Supervisor):
        def _start_template(self) -> None:
            self._load_by = 0.0

        def _turn(self) -> None:
            for child in self._children:
                child.is_up = True
            self._signals += 1
            self._drain_on(0.0)

    listener = socket.create_server(("127.0.0.1", 0))
    greeted: list[int] = []
    Told(Settings(), instance, listener).run(lambda: greeted.append(listener.getsockname()[1]))
    assert greeted == []
    assert listener.fileno() == -1

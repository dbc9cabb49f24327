"""The conformance check that ships: it passes a plain wrapper and finds each fault it is for."""

from __future__ import annotations

import time

import pytest
from support import MS

from egress.errors import SinkClosed, SinkFull
from egress.stream import ChannelSource, EgressItem, channel
from egress.testing import check_sink


class Wrapped:
    """A sink that passes everything on; the faulty ones below differ in one thing each."""

    def __init__(self) -> None:
        self.sink, self.source = channel(capacity=2, max_tokens=8)

    def try_send(self, item: EgressItem) -> None:
        self.sink.try_send(item)

    def close(self) -> None:
        self.sink.close()


class Forgetful(Wrapped):
    def try_send(self, item: EgressItem) -> None:
        try:
            self.sink.try_send(item)
        except SinkFull:
            return


class OneError(Wrapped):
    def try_send(self, item: EgressItem) -> None:
        try:
            self.sink.try_send(item)
        except SinkClosed:
            raise SinkFull(1, 1, 1, 1) from None


class NoPlaceForTheEnd(Wrapped):
    def try_send(self, item: EgressItem) -> None:
        if item.is_terminal and self.source.n_waiting_tokens >= 8:
            raise SinkFull(1, 1, 1, 1)
        self.sink.try_send(item)


class Talkative(Wrapped):
    def try_send(self, item: EgressItem) -> None:
        try:
            self.sink.try_send(item)
        except SinkClosed:
            if not item.is_terminal:
                raise


class Blocking(Wrapped):
    def try_send(self, item: EgressItem) -> None:
        while True:
            try:
                return self.sink.try_send(item)
            except SinkFull:
                time.sleep(MS)


class Silent(Wrapped):
    def close(self) -> None:
        self.kept = self.sink


class Unbounded(Wrapped):
    def __init__(self) -> None:
        self.sink, self.source = channel(max_tokens=1 << 40)


def test_the_check_itself_passes_a_plain_wrapper() -> None:
    check_sink(lambda: ((wrapped := Wrapped()), wrapped.source))


@pytest.mark.parametrize(
    "kind", [Forgetful, OneError, NoPlaceForTheEnd, Talkative, Blocking, Silent, Unbounded]
)
def test_the_check_finds_the_fault_of(kind: type[Wrapped], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("egress.testing.MAX_UNREAD", 1000)

    def make() -> tuple[Wrapped, ChannelSource]:
        wrapped = kind()
        return wrapped, wrapped.source

    with pytest.raises(AssertionError):
        check_sink(make, timeout=0.2)

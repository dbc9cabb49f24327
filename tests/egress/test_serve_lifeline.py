"""The wire between supervisor and child: lines both ways, and its end."""

from __future__ import annotations

import select

import msgspec
import pytest

from egress.serve.config import Settings
from egress.serve.lifeline import MAX_LINE_BYTES, Drain, Failed, Lifeline, Lost, Ping, Pong, Ready, Start


@pytest.fixture
def ends():
    supervisor, theirs = Lifeline.pair()
    child = Lifeline(theirs, is_child=True)
    yield supervisor, child
    supervisor.close()
    child.close()


def ping(end, times):
    for number in range(times):
        end.send(Ping(number=number))


def carry(line, supervisor, child):
    for at in range(0, len(line), 65536):
        supervisor._end.sendall(line[at : at + 65536])
        list(child.receive())


def test_orders_go_down_and_reports_come_up(ends):
    supervisor, child = ends
    settings = Settings(api_key="\n\u2028")
    orders = [
        Start(index=3, settings=msgspec.Raw(settings.to_json()), listen_fd=9),
        Ping(number=1),
        Drain(seconds=0.5),
    ]
    for order in orders:
        supervisor.send(order)
    start, *rest = child.receive()
    assert (start.index, start.listen_fd) == (3, 9)
    assert Settings.from_json(bytes(start.settings)) == settings
    assert rest == orders[1:]
    reports = [Ready(rings=["a"]), Pong(number=1, facts={"running": 2}), Failed(message="no")]
    for report in reports:
        child.send(report)
    assert list(supervisor.receive()) == reports


def test_nothing_there_is_no_fault(ends):
    assert [list(end.receive()) for end in ends] == [[], []]


def test_a_line_may_come_in_parts(ends):
    supervisor, child = ends
    for at, byte in enumerate(b'{"op":"ping","number":7}\n'):
        assert list(child.receive()) == []
        supervisor._end.send(bytes([byte]))
        assert at < 30
    assert list(child.receive()) == [Ping(number=7)]


def test_the_end_is_told_after_the_last_words(ends):
    supervisor, child = ends
    child.send(Failed(message="last words"))
    child.close()
    assert select.select([supervisor], [], [], 5)[0]
    heard = []
    with pytest.raises(Lost):
        heard.extend(supervisor.receive())
    assert heard == [Failed(message="last words")]
    with pytest.raises(Lost):
        ping(supervisor, times=3)


def test_a_child_that_takes_nothing_never_blocks_its_supervisor(ends):
    supervisor, _ = ends
    with pytest.raises(Lost, match="takes nothing"):
        ping(supervisor, times=10**6)


@pytest.mark.parametrize(
    "line", [b"nonsense\n", b'{"op":"start"}\n', b'{"op":"ready"}\n', b"x" * (MAX_LINE_BYTES + 1)]
)
def test_an_unreadable_line_is_the_end(line):
    supervisor, theirs = Lifeline.pair()
    child = Lifeline(theirs, is_child=True)
    supervisor._end.setblocking(True)
    try:
        with pytest.raises(Lost):
            carry(line, supervisor, child)
    finally:
        supervisor.close()
        child.close()

"""A stream lent to the rounds: nothing overlooked, nothing taken along, what is refused handed back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from http_fakes import Bench, says
from http_raw import run, until

from egress.serve.dispatch import Call, Stream
from egress.serve.http.reader import Reader
from egress.serve.metrics import WorkerMetrics
from egress.stream import ChannelSource, channel
from egress.stream.item import Done, EgressItem, Frame
from egress.wire.event import ChunkEvent
from egress.wire.finish_reason import Length


class _Written:
    """A Direct that notes what it is given, and takes it while `is_open`."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.is_open = True

    def write(self, data: bytes) -> bool:
        if self.is_open:
            self.parts.append(data)
        return self.is_open


class _Texts:
    """An answer that shows texts as they are."""

    def __init__(self) -> None:
        self.text = ""

    def push(self, event: ChunkEvent) -> None:
        self.text += event.text

    def take(self) -> bytes:
        text, self.text = self.text, ""
        return text.encode()

    def pass_on(self, event: ChunkEvent) -> bytes:
        self.push(event)
        return self.take()

    def fail(self, failure: Any) -> bytes:
        return b"failed"


class _Between:
    """A source that lets one more item come at the worst moment: after the look, before the waker is left."""

    def __init__(self, sink: Any, source: Any) -> None:
        self._sink = sink
        self._source = source
        self.coming: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def on_next(self, waker: Callable[[], None]) -> bool:
        if self.coming:
            self._sink.try_send(self.coming.pop(0))
        taken: bool = self._source.on_next(waker)
        return taken


def lent() -> tuple[Any, _Between, Reader, Any]:
    """A reader whose first event was taken by its task, and what it writes to."""
    sink, source = channel()
    between = _Between(sink, source)
    stream = Stream("r", "r", between)  # type: ignore[arg-type]
    reader = Reader(Call([stream], lambda armed: None), stream, _Texts(), None, WorkerMetrics())
    return sink, between, reader, _Written()


def frame(text: str) -> Frame:
    return Frame(ChunkEvent.make("r", [1], text=text))


def done(text: str) -> Done:
    return Done(ChunkEvent.make("r", [1], Length(1), text=text))


@pytest.mark.parametrize("end", [frame("d"), done("d")])
def test_an_event_between_the_look_and_the_wait_is_not_overlooked(end: Any) -> None:
    async def main() -> None:
        sink, source, reader, written = lent()
        source.coming = [frame("a")]
        back = asyncio.create_task(reader.pushed(written))
        await asyncio.sleep(0)
        source.coming = [frame("c")]
        sink.try_send(frame("b"))
        await until(lambda: b"".join(written.parts) == b"abc", "written")
        source.coming = [end]
        await asyncio.sleep(0)
        sink.try_send(frame("-"))
        if isinstance(end, Done):
            assert await back == b""
            assert reader.is_over
            assert not await reader.more()
            assert reader.answer.take() == b"-d"
        else:
            await until(lambda: b"".join(written.parts) == b"abc-d", "written")
            sink.try_send(done("e"))
            assert await back == b""
        assert not source._channel.wakers

    run(main)


def test_what_a_full_socket_refuses_is_handed_back() -> None:
    async def main() -> None:
        sink, source, reader, written = lent()
        back = asyncio.create_task(reader.pushed(written))
        await asyncio.sleep(0)
        written.is_open = False
        sink.try_send(frame("a"))
        await asyncio.sleep(0)
        # Comes after the refusal, and stays where its bound counts it.
        sink.try_send(frame("b"))
        assert await back == b"a"
        assert source.n_waiting == 1
        assert not source._channel.wakers
        assert await reader.more()
        assert reader.answer.take() == b"b"

    run(main)


def test_a_cancelled_handler_takes_nothing_along() -> None:
    async def main() -> None:
        sink, source, reader, written = lent()
        back = asyncio.create_task(reader.pushed(written))
        await asyncio.sleep(0)
        sink.try_send(frame("a"))
        back.cancel()
        with pytest.raises(asyncio.CancelledError):
            await back
        await asyncio.sleep(0)
        assert written.parts == []
        assert source.n_waiting == 1
        assert not source._channel.wakers

    run(main)


def test_an_answer_taken_as_a_whole_wakes_its_task_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[ChannelSource] = []
    recv = ChannelSource.recv

    async def counted(self: ChannelSource) -> EgressItem:
        asked.append(self)
        return await recv(self)

    monkeypatch.setattr(ChannelSource, "recv", counted)
    words = [f"{number}," for number in range(300)]
    bench = Bench(says(*words))
    answer = bench.post("/v1/completions", {"prompt": "p", "n": 2})
    assert [choice["text"] for choice in answer.json()["choices"]] == ["".join(words)] * 2
    assert answer.json()["usage"]["completion_tokens"] == 2 * len("".join(words))
    # For the first event of each choice; the last one only ends the wait.
    assert len(asked) <= 4

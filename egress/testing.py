"""Checks that ship with the package, for those who bring their own parts.

`check_sink` holds any pair of sink and source to the promises of `egress.stream.sink`: the local channel, one
that crosses a process, one over another event loop. It knows only the protocols and raises AssertionError, so
that it works under any test runner.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from egress.errors import SinkClosed, SinkError, SinkFull, Truncated
from egress.stream.fold import Fold
from egress.stream.item import Control, Done, EgressItem, Error, Frame
from egress.stream.sink import EgressSink, EgressSource
from egress.wire import ChunkEvent, ChunkExtras, Stop

__all__ = ["check_sink"]

Pair: TypeAlias = tuple[EgressSink, EgressSource]

# More single-token frames than any bound worth the name: a sink that has taken these is taken to have none.
MAX_UNREAD = 1 << 17


def check_sink(make_sink: Callable[[], Pair], timeout: float = 10.0) -> None:
    """Hold a sink and its source to what every sink promises.

    Args:
        make_sink: called with nothing, many times; gives a new (sink, source) pair each time.
        timeout: seconds within which an item must arrive, and within which no `try_send` may fail to return.

    Raises:
        AssertionError: a promise is broken; the text says which.

    >>> from egress.stream import channel
    >>> check_sink(channel)
    """
    for check in (
        _items_arrive_once_and_in_order,
        _terminal_items_arrive_as_they_are,
        _nothing_follows_a_terminal_item,
        _full_is_told_and_a_terminal_item_still_fits,
        _a_full_sink_takes_again_once_read,
        _merging_loses_nothing,
        _closing_the_source_closes_the_sink,
        _closing_a_full_source_is_closed_not_full,
        _closing_the_sink_truncates,
    ):
        _Checker(make_sink, timeout).run(check)


class _Checker:
    """One pair, and the two calls on it that could hang."""

    def __init__(self, make_sink: Callable[[], Pair], timeout: float) -> None:
        self.make_sink = make_sink
        self.timeout = timeout
        self.rule = ""

    def run(self, check: Callable[[_Checker], None]) -> None:
        self.rule = check.__name__.strip("_").replace("_", " ")
        self.sink, self.source = self.make_sink()
        try:
            # In a thread of its own, so that a sink that blocks is a failure and not a hang.
            self._bounded(lambda: check(self))
        finally:
            self.source.close()
            self.sink.close()

    def _bounded(self, call: Callable[[], None]) -> None:
        failures: list[BaseException] = []

        def body() -> None:
            try:
                call()
            except BaseException as failure:
                failures.append(failure)

        thread = threading.Thread(target=body, name="check_sink", daemon=True)
        thread.start()
        # A check receives a handful of times, each within timeout; sending never waits.
        thread.join(10 * self.timeout)
        self.expect(not thread.is_alive(), "a call did not return: try_send must never block")
        for failure in failures:
            if isinstance(failure, AssertionError):
                raise failure
            raise AssertionError(f"{self.rule}: {failure!r}") from failure

    def expect(self, holds: bool, what: str) -> None:
        if not holds:
            raise AssertionError(f"{self.rule}: {what}")

    def recv(self) -> EgressItem:
        try:
            return self.source.recv_sync(timeout=self.timeout)
        except TimeoutError:
            raise AssertionError(f"{self.rule}: nothing arrived within {self.timeout} s") from None

    def recv_frame_into(self, fold: Fold) -> None:
        item = self.recv()
        if not isinstance(item, Frame):
            raise AssertionError(f"{self.rule}: {type(item).__name__} arrived instead of a Frame")
        fold.push(item.event)

    def recv_rest_into(self, fold: Fold) -> EgressItem:
        """Fold every frame that is left; the terminal item."""
        while isinstance(item := self.recv(), Frame):
            fold.push(item.event)
        return item

    def recv_all(self) -> tuple[Fold, EgressItem]:
        """The fold of every frame, and the terminal item."""
        fold = Fold()
        return fold, self.recv_rest_into(fold)

    def refusal(self, item: EgressItem) -> SinkError:
        """The error with which the sink refuses `item`, given time to learn that it must."""
        deadline = time.monotonic() + self.timeout
        while time.monotonic() < deadline:
            try:
                self.sink.try_send(item)
            except SinkError as refusal:
                return refusal
            time.sleep(0.001)
        raise AssertionError(f"{self.rule}: {type(item).__name__} was taken")

    def fill(self) -> int:
        """Send until SinkFull; how many frames were taken."""
        for count in range(MAX_UNREAD):
            try:
                self.sink.try_send(Frame(_event(count)))
            except SinkFull:
                return count
        raise AssertionError(f"{self.rule}: {MAX_UNREAD} unread frames were taken: the sink has no bound")


def _event(number: int, finish_reason: Any = None) -> ChunkEvent:
    """An event that shows which one it is in every field that adds up."""
    extras = ChunkExtras(
        out_lp_val=np.array([-number], np.float32),
        out_lp_idx=np.array([number], np.int32),
        out_top_val=np.array([-number, -1], np.float32),
        out_top_idx=np.array([number, 1], np.int32),
        out_top_lens=[2],
        in_lp_val=np.array([-number], np.float32),
        in_lp_idx=np.array([number], np.int32),
    )
    return ChunkEvent.make(
        "check",
        [number],
        finish_reason,
        prompt_tokens=7,
        text=f"{number},",
        completion_tokens=2,
        extras=extras,
    )


def _same(checker: _Checker, fold: Fold, count: int) -> None:
    """The fold of what arrived equals the fold of `_event(0)` to `_event(count - 1)`."""
    sent = Fold()
    for number in range(count):
        sent.push(_event(number))
    got, wanted = fold.result, sent.result
    for field in ("rid", "text", "completion_tokens", "prompt_tokens"):
        ours, theirs = getattr(wanted, field), getattr(got, field)
        checker.expect(ours == theirs, f"{field} is {theirs!r:.80}, not {ours!r:.80}")
    checker.expect(np.array_equal(got.token_ids, wanted.token_ids), "token_ids differ")
    if got.extras is None or wanted.extras is None:
        raise AssertionError(f"{checker.rule}: extras are lost")
    for name in wanted.extras.__struct_fields__:
        ours, theirs = list(getattr(wanted.extras, name)), list(getattr(got.extras, name))
        checker.expect(ours == theirs, f"extras.{name} differs")


def _items_arrive_once_and_in_order(checker: _Checker) -> None:
    fold = Fold()
    for number in range(3):
        # Whatever its bounds, a sink whose reader has read everything takes a frame.
        try:
            checker.sink.try_send(Frame(_event(number)))
        except SinkFull:
            checker.recv_frame_into(fold)
            checker.sink.try_send(Frame(_event(number)))
    checker.sink.try_send(Done(_event(3, Stop())))
    last = checker.recv_rest_into(fold)
    if not isinstance(last, Done):
        raise AssertionError(f"{checker.rule}: {type(last).__name__} arrived instead of Done")
    checker.expect(last.event.finish_reason == Stop(), "the finish reason differs")
    fold.push(last.event)
    _same(checker, fold, 4)


def _terminal_items_arrive_as_they_are(checker: _Checker) -> None:
    items: list[EgressItem] = [Control(b"\x00\xffpayload"), Error("no room \u2028 here", 503)]
    for item in items:
        sink, source = checker.make_sink()
        sink.try_send(item)
        got = source.recv_sync(timeout=checker.timeout)
        checker.expect(got == item, f"{got!r} arrived instead of {item!r}")
        source.close()


def _nothing_follows_a_terminal_item(checker: _Checker) -> None:
    checker.sink.try_send(Error("failed", 500))
    for item in (Frame(_event(0)), Done(_event(1, Stop())), Error("again", 500), Control(b"")):
        try:
            checker.sink.try_send(item)
        except SinkClosed:
            continue
        except SinkFull:
            raise AssertionError(f"{checker.rule}: {type(item).__name__} found it full, not closed") from None
        raise AssertionError(f"{checker.rule}: {type(item).__name__} was taken")
    _, last = checker.recv_all()
    checker.expect(last == Error("failed", 500), f"{last!r} arrived instead of the first terminal item")


def _full_is_told_and_a_terminal_item_still_fits(checker: _Checker) -> None:
    count = checker.fill()
    checker.expect(count > 0, "an empty sink is full")
    checker.sink.try_send(Error("too slow", 503))
    fold, last = checker.recv_all()
    checker.expect(last == Error("too slow", 503), f"{last!r} arrived instead of the terminal item")
    _same(checker, fold, count)


def _a_full_sink_takes_again_once_read(checker: _Checker) -> None:
    count = checker.fill()
    fold = Fold()
    while fold.completion_tokens < 2 * count:
        checker.recv_frame_into(fold)
    checker.sink.try_send(Frame(_event(count)))
    checker.recv_frame_into(fold)
    _same(checker, fold, count + 1)


def _merging_loses_nothing(checker: _Checker) -> None:
    count = checker.fill()
    checker.sink.try_send(Done(_event(count, Stop())))
    fold, last = checker.recv_all()
    if not isinstance(last, Done):
        raise AssertionError(f"{checker.rule}: {type(last).__name__} arrived instead of Done")
    fold.push(last.event)
    _same(checker, fold, count + 1)


def _closing_the_source_closes_the_sink(checker: _Checker) -> None:
    checker.sink.try_send(Frame(_event(0)))
    checker.source.close()
    checker.source.close()
    for item in (Frame(_event(1)), Done(_event(2, Stop()))):
        refusal = checker.refusal(item)
        checker.expect(isinstance(refusal, SinkClosed), f"{refusal!r} instead of SinkClosed")


def _closing_a_full_source_is_closed_not_full(checker: _Checker) -> None:
    checker.fill()
    checker.source.close()
    deadline = time.monotonic() + checker.timeout
    while isinstance(refusal := checker.refusal(Frame(_event(0))), SinkFull):
        # A sink that crosses a process learns of the closing a little later.
        checker.expect(time.monotonic() < deadline, "stays full instead of closed")
        time.sleep(0.001)
    checker.expect(isinstance(refusal, SinkClosed), f"{refusal!r} instead of SinkClosed")


def _closing_the_sink_truncates(checker: _Checker) -> None:
    checker.sink.try_send(Frame(_event(0)))
    checker.sink.close()
    checker.sink.close()
    refusal = checker.refusal(Frame(_event(1)))
    checker.expect(isinstance(refusal, SinkClosed), f"{refusal!r} instead of SinkClosed")
    item = checker.recv()
    checker.expect(isinstance(item, Frame), "what was sent before is lost")
    try:
        item = checker.recv()
    except Truncated:
        return
    raise AssertionError(f"{checker.rule}: {type(item).__name__} arrived instead of Truncated")

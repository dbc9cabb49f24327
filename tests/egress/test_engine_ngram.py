"""The n-gram engine: every way to end, seeds, batch independence, log-probabilities, refusals."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_kit import EOS, HOLE, OTHER_EOS, TINY, TOKENS, VOCAB, answer_to, finish, request, take

from egress.engine import NGramEngine
from egress.engine.sampler import Adjuster, Choice
from egress.errors import ValidationError
from egress.text import ByteTokenizer
from egress.wire import Length, Stop, encode_batch

CORPUS = """the ring is a circle of bytes.
the bytes go round and round the ring. 字节 🙂 end

\f
a token is a number, and a number is a token. round and round."""

MANY: list[dict[str, Any]] = [
    {},
    {"temperature": 0},
    {"top_p": 0.8},
    {"top_k": 3, "temperature": 0.5},
    {"min_p": 0.2},
    {"frequency_penalty": 1.0, "presence_penalty": 0.5},
    {"repetition_penalty": 1.4},
    {"logit_bias": {"101": 3.0}},
    {"min_new_tokens": 20},
    {"stop": "ring"},
    {"stop_token_ids": [46]},
    {"ignore_eos": True},
    {"return_logprob": True, "top_logprobs_num": 2},
]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("corpus") / "text.txt"
    path.write_text(CORPUS, encoding="utf-8")
    return str(path)


@pytest.fixture
def engine(corpus: str) -> NGramEngine:
    return NGramEngine(TINY, {"corpus": corpus, "order": 8, "seed": 1, "hidden_size": 8})


def test_nothing_runs_nothing_comes(engine: NGramEngine) -> None:
    assert engine.step() is None
    engine.abort("nobody")
    assert engine.step() is None


def test_it_speaks_its_text(engine: NGramEngine) -> None:
    answer = answer_to(engine, "the ring is", temperature=0, max_new_tokens=20)
    assert answer.text == " a circle of bytes.\n"
    assert answer.reason == Length(length=20)
    assert [chunk["prompt_tokens"] for chunk in answer.chunks] == [11] * 20
    assert all(len(chunk["token_ids"]) == 1 for chunk in answer.chunks)


def test_the_end_token_ends(engine: NGramEngine) -> None:
    answer = answer_to(engine, "字节 🙂 e", temperature=0)
    assert answer.text == "nd\n\n<end>"
    assert answer.reason == Stop(matched=EOS)


def test_every_end_token_ends(engine: NGramEngine) -> None:
    answer = answer_to(engine, "a", logit_bias={str(OTHER_EOS): 1000.0})
    assert (answer.ids, answer.reason) == ([OTHER_EOS], Stop(matched=OTHER_EOS))


def test_ignore_eos_goes_on_past_the_end(engine: NGramEngine) -> None:
    answer = answer_to(engine, "字节 🙂 e", temperature=0, ignore_eos=True, max_new_tokens=12)
    assert answer.text.startswith("nd\n\n<end>\na tok")
    assert answer.reason == Length(length=12)


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_stop_token_ids_end_whatever_ignore_eos_says(engine: NGramEngine, ignore_eos: bool) -> None:
    answer = answer_to(
        engine, "the ring is", temperature=0, stop_token_ids=[ord("."), 0], ignore_eos=ignore_eos
    )
    assert answer.text == " a circle of bytes."
    assert answer.reason == Stop(matched=ord("."))


def test_a_stop_string_ends_where_it_is_complete(engine: NGramEngine) -> None:
    answer = answer_to(engine, "the ring is", temperature=0, stop=["nowhere", "circle"])
    assert answer.text == " a circle"
    assert answer.reason == Stop(matched="circle")


def test_a_stop_string_of_many_bytes_ends(engine: NGramEngine) -> None:
    answer = answer_to(engine, "ring. ", temperature=0, stop="节 🙂")
    assert answer.text == "字节 🙂"
    assert answer.reason == Stop(matched="节 🙂")


def test_a_stop_regex_ends_with_its_pattern(engine: NGramEngine) -> None:
    answer = answer_to(engine, "the ring is", temperature=0, stop_regex=r"c[a-z]{2}c")
    assert answer.text == " a circ"
    assert answer.reason == Stop(matched=r"c[a-z]{2}c")


def test_no_limit_runs_until_a_stop(engine: NGramEngine) -> None:
    answer = answer_to(engine, "the ring", max_new_tokens=None, stop_token_ids=[ord("🙂".encode()[-1:])])
    assert isinstance(answer.reason, Stop)
    assert len(answer.ids) > 0


def test_a_stop_on_the_last_allowed_token_is_a_stop(engine: NGramEngine) -> None:
    """Else part of a stop string would reach the client: only a Stop is trimmed."""
    for fields in ({"stop": " a"}, {"stop_token_ids": [ord("a")]}):
        answer = answer_to(engine, "the ring is", temperature=0, max_new_tokens=2, **fields)
        assert answer.text == " a"
        assert isinstance(answer.reason, Stop)


def test_no_tokens_wanted_is_one_terminal_row_without_tokens(engine: NGramEngine) -> None:
    fields = {"return_logprob": True, "logprob_start_len": 0, "return_hidden_states": True}
    answer = answer_to(engine, "the", max_new_tokens=0, **fields)
    assert (answer.ids, answer.reason, len(answer.chunks)) == ([], Length(length=0), 1)
    assert len(answer.column("in_lp_val")) == 3
    assert answer.column("out_lp_val") == []
    assert engine.step() is None


def test_min_new_tokens_holds_every_kind_of_stop_off(engine: NGramEngine) -> None:
    fields: dict[str, Any] = {"temperature": 0, "stop_token_ids": [ord(".")], "stop": "circle"}
    answer = answer_to(engine, "the ring is", min_new_tokens=40, max_new_tokens=80, **fields)
    assert "circle" in answer.text
    assert not {EOS, OTHER_EOS, ord(".")} & set(answer.ids[:40])
    fields["temperature"] = 1.0
    answer = answer_to(
        engine, "the ring is", min_new_tokens=40, max_new_tokens=5000, sampling_seed=1, **fields
    )
    assert len(answer.ids) > 40
    assert isinstance(answer.reason, Stop)


def test_a_stop_string_inside_the_first_min_new_tokens_is_text(engine: NGramEngine) -> None:
    fields: dict[str, Any] = {"temperature": 0, "stop": "a", "max_new_tokens": 9}
    assert answer_to(engine, "the ring is", min_new_tokens=1, **fields).text == " a"
    assert answer_to(engine, "the ring is", min_new_tokens=2, **fields).text == " a circle"


def test_min_new_tokens_equal_to_max_gives_exactly_that_many(engine: NGramEngine) -> None:
    answer = answer_to(engine, "nd\n\n", min_new_tokens=30, max_new_tokens=30)
    assert (len(answer.ids), answer.reason) == (30, Length(length=30))
    assert not {EOS, OTHER_EOS} & set(answer.ids)


def test_a_seed_gives_the_same_answer_alone_and_in_any_company(corpus: str) -> None:
    alone = {}
    for i, fields in enumerate(MANY):
        engine = NGramEngine(TINY, {"corpus": corpus})
        alone[f"r{i}"] = answer_to(engine, "the ", sampling_seed=i - 3, max_new_tokens=60, **fields)
    engine = NGramEngine(TINY, {"corpus": corpus})
    answers: dict[str, Any] = {}
    for i, fields in reversed(list(enumerate(MANY))):
        # Others come, and one of them goes, between each two, so that rows change places all the time.
        for j in range(i % 3):
            engine.submit(request(f"x{i}.{j}", "round", max_new_tokens=5 * j + 1))
        engine.submit(request(f"r{i}", "the ", sampling_seed=i - 3, max_new_tokens=60, **fields))
        take(engine.step(), answers)
        engine.abort(f"x{i}.1")
    while (batch := engine.step()) is not None:
        take(batch, answers)
    for rid, answer in alone.items():
        assert answers[rid].ids == answer.ids, rid
        assert answers[rid].reason == answer.reason
        assert answers[rid].column("out_top_val") == answer.column("out_top_val")


def test_seeds_differ_and_zero_is_one(engine: NGramEngine) -> None:
    texts = [
        answer_to(engine, "", sampling_seed=seed, temperature=2.0, max_new_tokens=40).ids
        for seed in (0, 1, -1, 2**63 - 1, -(2**63))
    ]
    assert len({tuple(text) for text in texts}) == 5
    assert answer_to(engine, "", sampling_seed=0, temperature=2.0, max_new_tokens=40).ids == texts[0]


def test_without_a_seed_answers_differ(engine: NGramEngine) -> None:
    answers = {tuple(answer_to(engine, "", temperature=2.0, max_new_tokens=40).ids) for _ in range(5)}
    assert len(answers) == 5


def test_the_engines_own_seed_fixes_unseeded_requests(corpus: str) -> None:
    def run() -> list[list[int]]:
        engine = NGramEngine(TINY, {"corpus": corpus, "seed": "7"})
        return [answer_to(engine, "", temperature=2.0, max_new_tokens=30).ids for _ in range(3)]

    assert run() == run()


@pytest.mark.parametrize(
    "fields", [{}, {"temperature": 0.7, "top_p": 0.9}, {"logit_bias": {"32": 2.0}}], ids=str
)
def test_first_tokens_follow_the_model(engine: NGramEngine, fields: dict[str, Any]) -> None:
    """Chi-square of 6,000 seeded requests in one batch against the exact distribution."""
    n = 6000
    row = engine.model.read(engine._blank, list(b"round"))[0][-1]
    params = request("p", **fields).sampling
    choice = Choice(Adjuster(params, []).apply(engine.model.distribution(row), False), params)
    wanted = np.zeros(VOCAB)
    for token, p in choice.probabilities().items():
        wanted[token] = p
    for i in range(n):
        engine.submit(request(f"r{i}", "round", sampling_seed=i, max_new_tokens=1, **fields))
    batch = engine.step()
    assert batch is not None
    counts = np.bincount([ids[0] for ids in batch.token_ids], minlength=VOCAB)
    assert not counts[wanted == 0].any()
    # Cells that expect fewer than five are one cell.
    rare = n * wanted < 5
    cells = [*zip(counts[~rare], wanted[~rare], strict=True), (counts[rare].sum(), wanted[rare].sum())]
    chi_square = sum((count - n * p) ** 2 / (n * p) for count, p in cells if p)
    degrees = max(len(cells) - 1, 1)
    assert chi_square < degrees + 5 * math.sqrt(2 * degrees)


def test_frequency_penalty_keeps_tokens_from_coming_back(engine: NGramEngine) -> None:
    fields: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "max_new_tokens": 200}
    plain = answer_to(engine, "round", **fields)
    penalized = answer_to(engine, "round", frequency_penalty=2.0, presence_penalty=2.0, **fields)
    assert len(set(penalized.ids)) > 2 * len(set(plain.ids))


def test_a_negative_bias_bans_a_token(engine: NGramEngine) -> None:
    answer = answer_to(engine, "the", logit_bias={"32": -1000.0}, max_new_tokens=200, ignore_eos=True)
    assert 32 not in answer.ids


def test_holes_of_the_vocabulary_never_come(engine: NGramEngine) -> None:
    fields: dict[str, Any] = {"temperature": 100.0, "max_new_tokens": 3000, "ignore_eos": True}
    answer = answer_to(engine, "", logit_bias={str(HOLE): 100.0}, **fields)
    assert set(answer.ids) == set(range(VOCAB)) - {HOLE}


def test_logprobs_are_the_models(engine: NGramEngine) -> None:
    wants: dict[str, Any] = {
        "return_logprob": True,
        "top_logprobs_num": 3,
        "token_ids_logprob": [32, HOLE, 101],
    }
    prompt = list(b"the ri")
    answer = answer_to(
        engine, prompt, logprob_start_len=0, max_new_tokens=9, sampling_seed=2, top_k=4, **wants
    )
    contexts, p = engine.model.read(engine._blank, prompt + answer.ids)
    assert answer.column("out_lp_val") == pytest.approx(np.log(p[6:]).tolist())
    assert answer.column("out_lp_idx") == answer.ids
    assert answer.column("in_lp_val")[0] is None
    assert answer.column("in_lp_val")[1:] == pytest.approx(np.log(p[1:6]).tolist())
    assert answer.column("in_lp_idx") == prompt
    assert all("in_lp_val" not in chunk for chunk in answer.chunks[1:])
    for side, places in (("in", range(1, 6)), ("out", range(6, 6 + len(answer.ids)))):
        skip = 1 if side == "in" else 0
        top_val, top_idx = answer.column(f"{side}_top_val"), answer.column(f"{side}_top_idx")
        tid_val, tid_idx = answer.column(f"{side}_tid_val"), answer.column(f"{side}_tid_idx")
        assert top_val[:skip] == top_idx[:skip] == tid_val[:skip] == tid_idx[:skip] == [None] * skip
        assert len(top_val) == len(top_idx) == len(tid_val) == len(tid_idx) == len(places) + skip
        for i, place in enumerate(places, skip):
            logits = engine.model.distribution(contexts[place]).logits_of(np.arange(VOCAB))
            assert top_val[i] == pytest.approx(sorted(logits, reverse=True)[:3])
            assert top_val[i] == pytest.approx(logits[top_idx[i]].tolist())
            assert tid_idx[i] == [32, HOLE, 101]
            assert tid_val[i] == pytest.approx([logits[32], -math.inf, logits[101]])


@pytest.mark.parametrize(("start", "first"), [(-1, None), (0, None), (2, 2), (5, 5), (6, 6)])
def test_prompt_logprobs_begin_where_asked(engine: NGramEngine, start: int, first: int | None) -> None:
    prompt = list(b"the ri")
    wants: dict[str, Any] = {"return_logprob": True, "top_logprobs_num": 1, "token_ids_logprob": [7]}
    answer = answer_to(engine, prompt, logprob_start_len=start, max_new_tokens=2, **wants)
    for name in ("in_lp_idx", "in_lp_val", "in_top_val", "in_tid_idx"):
        assert len(answer.column(name)) == (0 if start < 0 else 6 - start)
    if start >= 0:
        assert answer.column("in_lp_idx") == prompt[start:]
    if first is not None:
        assert None not in answer.column("in_lp_val")


def test_an_empty_prompt_with_prompt_logprobs(engine: NGramEngine) -> None:
    answer = answer_to(
        engine, [], return_logprob=True, logprob_start_len=0, max_new_tokens=2, top_logprobs_num=2
    )
    assert answer.column("in_lp_val") == answer.column("in_top_val") == []
    assert len(answer.column("out_lp_val")) == 2


def test_rows_without_logprobs_stay_without_beside_rows_with(engine: NGramEngine) -> None:
    engine.submit(request("without", "the", max_new_tokens=3))
    engine.submit(request("with", "the", max_new_tokens=3, return_logprob=True))
    answers = finish(engine)
    assert [chunk.get("out_lp_val") for chunk in answers["without"].chunks] == [None] * 3
    assert len(answers["with"].column("out_lp_val")) == 3


def test_batches_encode_as_they_are(engine: NGramEngine) -> None:
    wants: dict[str, Any] = {"return_logprob": True, "logprob_start_len": 0, "return_hidden_states": True}
    engine.submit(request("a", "the ring", max_new_tokens=4, top_logprobs_num=2, **wants))
    engine.submit(request("b", "", max_new_tokens=2))
    engine.submit(request("c", "x", max_new_tokens=3, token_ids_logprob=[HOLE, 2], **wants))
    n_batches = 0
    while (batch := engine.step()) is not None:
        assert encode_batch(**{name: getattr(batch, name) for name in batch.__struct_fields__})
        n_batches += 1
    assert n_batches == 4


def test_hidden_states_come_once_one_row_per_token(engine: NGramEngine) -> None:
    one = answer_to(engine, "the ring", return_hidden_states=True, temperature=0, max_new_tokens=5)
    assert [len(chunk.get("hidden") or ()) for chunk in one.chunks] == [0, 0, 0, 0, 5]
    rows = np.array(one.column("hidden"))
    assert rows.shape == (5, 8)
    assert np.isfinite(rows).all()
    again = answer_to(engine, "xx the ring", return_hidden_states=True, temperature=0, max_new_tokens=1)
    assert np.array(again.column("hidden"))[0].tolist() == rows[0].tolist()
    assert len({tuple(row) for row in rows.tolist()}) == 5


def test_an_aborted_request_has_no_row_any_more(engine: NGramEngine) -> None:
    for rid in ("a", "b", "c"):
        engine.submit(request(rid, "the", max_new_tokens=50, ignore_eos=True))
    engine.abort("b")
    first = engine.step()
    assert first is not None
    assert list(first.rids) == ["a", "c"]
    engine.abort("a")
    engine.abort("a")
    engine.submit(request("a", "round", max_new_tokens=1))
    second = engine.step()
    assert second is not None
    assert list(second.rids) == ["c", "a"]
    engine.abort("c")
    assert engine.step() is None
    assert engine.info()["running"] == 0


def test_a_rid_is_refused_while_it_runs_and_free_again_after(engine: NGramEngine) -> None:
    engine.submit(request("a", max_new_tokens=1))
    with pytest.raises(ValidationError, match="rid must be unique"):
        engine.submit(request("a"))
    finish(engine)
    engine.submit(request("a", max_new_tokens=1))
    assert "a" in finish(engine)


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("json_schema", {"json_schema": "{}"}),
    ("regex", {"regex": "a+"}),
    ("ebnf", {"ebnf": "root ::= 'a'"}),
    ("structural_tag", {"structural_tag": "{}"}),
    ("custom_params", {"custom_params": {"a": 1}}),
    ("input_ids", {"prompt": [1, VOCAB]}),
    ("input_ids", {"prompt": [-1]}),
    ("token_ids_logprob", {"return_logprob": True, "token_ids_logprob": [VOCAB]}),
    ("top_logprobs_num", {"return_logprob": True, "top_logprobs_num": -1}),
    ("logprob_start_len", {"return_logprob": True, "logprob_start_len": 4, "prompt": [1, 2, 3]}),
    ("logprob_start_len", {"return_logprob": True, "logprob_start_len": -2}),
]


@pytest.mark.parametrize(("field", "fields"), REFUSED, ids=str)
def test_what_it_cannot_do_is_refused_by_name(
    engine: NGramEngine, field: str, fields: dict[str, Any]
) -> None:
    engine.submit(request("other", "the", max_new_tokens=2, ignore_eos=True))
    with pytest.raises(ValidationError, match=field) as refusal:
        engine.submit(request("bad", **fields))
    assert refusal.value.field == field
    assert refusal.value.status_code == 400
    assert len(finish(engine)["other"].ids) == 2


def test_beams_are_refused(engine: NGramEngine) -> None:
    bad = request("bad")
    bad.sampling.beam_width = 2
    with pytest.raises(ValidationError, match="beam_width must be 1"):
        engine.submit(bad)


def test_hidden_states_are_refused_without_the_option(corpus: str) -> None:
    engine = NGramEngine(TINY, {"corpus": corpus})
    assert engine.hidden_size is None
    with pytest.raises(ValidationError, match="return_hidden_states"):
        engine.submit(request("bad", return_hidden_states=True))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order": "1"}, r"order .*integer in \[2, 8\], got '1'"),
        ({"order": "five"}, "order"),
        ({"novelty": "nan"}, r"novelty .*number in \[0.001, 10.0\], got 'nan'"),
        ({"novelty": 0}, "novelty"),
        ({"novelty": "much"}, "novelty"),
        ({"hidden_size": -1}, "hidden_size"),
        ({"corpus": "/nowhere/at/all"}, "corpus '/nowhere/at/all' cannot be read"),
        ({"colour": "red"}, "no option 'colour'; it has corpus, order"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        NGramEngine(TINY, options)


def test_a_corpus_without_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.txt"
    path.write_text(" \n", encoding="utf-8")
    with pytest.raises(ValidationError, match="holds no text"):
        NGramEngine(TINY, {"corpus": str(path)})


def test_the_text_that_ships_has_many_scripts_and_streams_whole(corpus: str) -> None:
    engine = NGramEngine(TINY, {})
    assert engine.info()["text_tokens"] > 20_000
    answer = answer_to(engine, "今天", temperature=0, max_new_tokens=60)
    assert any("\u4e00" <= character <= "\u9fff" for character in answer.text)
    assert "🍵" in TINY.decode(answer_to(engine, "Tea is 茶 ", temperature=0, max_new_tokens=4).ids)


def test_a_chat_answer_begins_as_a_document_does(corpus: str) -> None:
    engine = NGramEngine(TINY, {"corpus": corpus})
    prompt = TINY.chat([{"role": "user", "content": "what is a ring?"}])
    answer = answer_to(engine, prompt, temperature=0, max_new_tokens=8)
    assert answer.ids == answer_to(engine, "", temperature=0, max_new_tokens=8).ids


class Picky(ByteTokenizer):
    """A tokenizer whose template wants other messages than the engine tries."""

    def chat(self, messages: list[dict[str, Any]], add_generation_prompt: bool = True, **context: Any) -> str:
        raise ValidationError("messages must begin with a system message", "messages")


def test_a_template_that_refuses_and_no_chat_at_all_are_lived_with(corpus: str) -> None:
    picky = Picky("picky", TOKENS, TINY.encode, (EOS,))

    class Mute:
        vocab_size, eos_token_ids = VOCAB, (EOS,)
        encode, token_bytes, is_special = TINY.encode, TINY.token_bytes, TINY.is_special

    for tokenizer in (picky, Mute()):
        engine = NGramEngine(tokenizer, {"corpus": corpus, "order": 8})
        assert answer_to(engine, "the ring is", temperature=0, max_new_tokens=9).text == " a circle"


def test_forgotten_distributions_are_made_again(corpus: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fields: dict[str, Any] = {"top_p": 0.9, "sampling_seed": 4, "max_new_tokens": 200, "ignore_eos": True}
    wanted = answer_to(NGramEngine(TINY, {"corpus": corpus}), "the", **fields).ids
    monkeypatch.setattr("egress.engine.ngram._CACHED", 2)
    engine = NGramEngine(TINY, {"corpus": corpus})
    assert answer_to(engine, "the", **fields).ids == wanted
    assert len(engine._choices) == len(engine._distributions) == 2

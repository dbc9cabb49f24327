"""Engines by name: the built-in ones, foreign ones, and what is said when there is none."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from engine_kit import TINY, answer_to

from egress.engine import Engine, NGramEngine, ReplayEngine, load_engine, prepare_engine
from egress.errors import ValidationError

MODULE = """
from egress.engine import TokenBatch

class Echo:
    def __init__(self, tokenizer, options):
        self.tokenizer, self.options, self.waiting = tokenizer, options, []
    def submit(self, request):
        self.waiting.append(request)
    def abort(self, rid):
        self.waiting = [r for r in self.waiting if r.rid != rid]
    def step(self):
        if not self.waiting:
            return None
        taken, self.waiting = self.waiting, []
        return TokenBatch(
            rids=[r.rid for r in taken],
            finish_reasons=[{"type": "stop", "matched": None}] * len(taken),
            prompt_tokens=[len(r.input_ids) for r in taken],
            token_ids=[r.input_ids for r in taken],
        )

class Shelf:
    echo = Echo

NUMBER = 5

def broken(tokenizer, options):
    raise RuntimeError("no such device")

def nothing(tokenizer, options):
    return object()
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"foreign_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, name, raising=False)
    return name


def test_what_was_prepared_is_learned_once(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("one two three", encoding="utf-8")
    options = {"corpus": str(text), "order": "3"}
    prepare_engine("ngram", TINY, options)
    one, other = (load_engine("ngram", TINY, options) for _ in range(2))
    assert isinstance(one, NGramEngine)
    assert isinstance(other, NGramEngine)
    assert one.model is other.model
    for changed in ({**options, "order": "4"}, {**options, "novelty": "1"}, {"order": "3"}):
        engine = load_engine("ngram", TINY, changed)
        assert isinstance(engine, NGramEngine)
        assert engine.model is not one.model
    text.write_text("four five six", encoding="utf-8")
    engine = load_engine("ngram", TINY, options)
    assert isinstance(engine, NGramEngine)
    assert engine.model is not one.model


def test_foreign_engines_are_not_prepared() -> None:
    prepare_engine("no.such:factory", TINY, {})


def test_built_in_names() -> None:
    assert isinstance(load_engine("ngram", TINY), NGramEngine)
    assert isinstance(load_engine("replay", TINY, {"text": "a"}), ReplayEngine)


@pytest.mark.parametrize("attribute", ["Echo", "Shelf.echo"])
def test_a_foreign_factory_gets_tokenizer_and_options(module: str, attribute: str) -> None:
    options = {"device": "0"}
    engine: Any = load_engine(f"{module}:{attribute}", TINY, options)
    assert engine.tokenizer is TINY
    assert engine.options == options
    assert isinstance(engine, Engine)
    assert answer_to(engine, "hello").text == "hello"


@pytest.mark.parametrize("name", ["", "gpt", "module", ":factory", "module:", "ngram:"])
def test_a_name_of_no_shape_says_what_there_is(name: str) -> None:
    with pytest.raises(ValidationError, match=r"ngram or replay or package.module:factory, got") as error:
        load_engine(name, TINY)
    assert error.value.field == "engine"


@pytest.mark.parametrize(
    ("attribute", "message"),
    [
        ("missing", "has no missing"),
        ("NUMBER", "cannot call its NUMBER"),
        ("nothing", "without the method submit"),
    ],
)
def test_a_factory_that_is_none_is_named(module: str, attribute: str, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        load_engine(f"{module}:{attribute}", TINY)


def test_a_module_that_does_not_import_is_named() -> None:
    with pytest.raises(ValidationError, match=r"cannot import no_such_package\b") as error:
        load_engine("no_such_package.engine:make", TINY)
    assert isinstance(error.value.__cause__, ImportError)


def test_what_a_foreign_factory_raises_passes_through(module: str) -> None:
    with pytest.raises(RuntimeError, match="no such device"):
        load_engine(f"{module}:broken", TINY)

"""The built-in engine: an n-gram model of a text, decoding all its requests in each step.

A request is a row of a few arrays and one `Run`. What all rows need (random numbers, drawing from the
unmodified model, moving contexts on, log-probabilities of the drawn tokens, lengths) happens for all at once
in numpy. Python loops visit only the rows that ask for more: filters, penalties, stops of their own,
log-probabilities, hidden states.

Log-probabilities are the model's own, before penalties, biases, temperature and filters (vLLM's
`raw_logprobs`): finite for every token, and comparable between prompt and answer. How a token is chosen is
told in `sampler`, how a request ends in `running`.

Hidden states, when the option `hidden_size` asks for them, are signed hashes of the context: equal contexts
give equal vectors, contexts that share their last tokens give similar ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from egress.engine.corpus import answer_opening, default_text, end_ids, holes, read_text, text_ids
from egress.engine.distribution import Distribution
from egress.engine.logprobs import LogprobColumns, logs
from egress.engine.model import NGramModel
from egress.engine.options import OptionReader
from egress.engine.protocol import EngineRequest, TokenBatch, verify_request
from egress.engine.running import Run, Table
from egress.engine.sampler import Choice, random_key, uniforms
from egress.errors import ValidationError
from egress.text import Tokenizer
from egress.wire import FinishReason, Length, Stop

__all__ = ["NGramEngine", "keep_model"]

Ints = NDArray[np.int64]

# Prepared distributions kept, about 10 KB each: a running text meets the same contexts again and again.
# bench/engine_step.py prints a step's cost with them warm and cold.
_CACHED = 2048


class NGramEngine:
    """An engine over `NGramModel`; made by `load_engine("ngram", tokenizer, options)`.

    Options:
        corpus: path of a UTF-8 text to learn; default: the one that ships.
            5 MB of it take about 2 s and, at most, 220 MB while counting.
        order: longest n-gram, 2 to 8, default 5.
        novelty: weight of unseen continuations, 0.001 to 10, default 0.1; 1 is Witten and Bell's.
        hidden_size: width of hidden states, 0 to 4096, default 0 = none.
        seed: fixes the tokens of requests without `sampling_seed` by order of submission; default: random.

    Raises:
        ValidationError: an option that is unknown or out of range; names it.
    """

    def __init__(self, tokenizer: Tokenizer, options: dict[str, Any]) -> None:
        setup = _Setup(options)
        self.hidden_size: int | None = setup.hidden_size or None
        self.model = _learned(tokenizer, setup.text, setup.order, setup.novelty).model
        self._tokenizer = tokenizer
        self._ends = end_ids(tokenizer)
        self._is_end = np.zeros(tokenizer.vocab_size, np.bool_)
        self._is_end[self._ends] = True
        # An answer to an empty prompt, or in a chat, begins as the documents of the text do.
        self._blank = self.model.read(self.model.start(), self._ends[:1])[0][-1:]
        self._opening = answer_opening(tokenizer)
        self._random = np.random.default_rng(None if setup.seed < 0 else setup.seed)
        self._choices: dict[tuple[Any, ...], Choice] = {}
        self._distributions: dict[tuple[int, int], Distribution] = {}
        self._has_gone = False
        self._live: dict[str, Run] = {}
        self._waiting: list[Run] = []
        self._runs: list[Run] = []
        self._table = Table.of([], self._blank[:0])

    def info(self) -> dict[str, Any]:
        """What runs and what was learned."""
        return {
            "engine": "ngram",
            "order": self.model.order,
            "text_tokens": self.model.text_tokens,
            "ngrams": self.model.ngrams(),
            "running": len(self._runs),
            "waiting": len(self._waiting),
            "hidden_size": self.hidden_size,
        }

    def submit(self, request: EngineRequest) -> None:
        """Take a request into the next step; see `Engine.submit`.

        Raises:
            ValidationError: grammars, beams, hidden states without `hidden_size`, ids outside the
                vocabulary, a rid that already runs.

        Cost: one look at each prompt id; the rest waits for the step.
        """
        verify_request(request, self.model.vocab_size, hidden_size=self.hidden_size)
        if request.rid in self._live:
            raise ValidationError(f"rid must be unique among running requests, got {request.rid!r}", "rid")
        seed = request.sampling.sampling_seed
        if seed is None:
            seed = int(self._random.integers(0, 2**63))
        run = self._live[request.rid] = Run(request, self._ends, self._tokenizer, random_key(seed))
        self._waiting.append(run)

    def abort(self, rid: str) -> None:
        """Forget a request; see `Engine.abort`."""
        run = self._live.pop(rid, None)
        if run is not None:
            # Its row goes with the next step's admission, so that a thousand aborts copy the table once.
            run.is_gone = self._has_gone = True

    def step(self) -> TokenBatch | None:
        """One token for every running request; see `Engine.step`.

        A request whose `max_new_tokens` is 0 gets its one, terminal row without tokens.

        Cost: a fixed number of numpy calls, a fifth of a millisecond together, and one or two microseconds
        per row; 10 to 40 for a row with filters, stops or log-probabilities, 100 to 250 with penalties
        (bench/engine_step.py). Log-probabilities of a prompt are made in its first step, O(prompt).
        """
        self._admit()
        runs, table = self._runs, self._table
        if not runs:
            return None
        contexts = table.contexts
        tokens = self._choose(runs, table)
        table.contexts, p = self.model.advance(contexts, tokens)
        table.produced += table.limit > 0
        ids = tokens.tolist()
        rows: list[list[int]] = [[token] for token in ids]
        reasons: list[FinishReason | None] = [None] * len(runs)
        for i in np.flatnonzero(table.produced >= table.limit).tolist():
            reasons[i] = Length(length=int(table.limit[i]))
            if not table.limit[i]:
                rows[i] = []
        for i in np.flatnonzero(table.stops_at_end & self._is_end[tokens] & (table.limit > 0)).tolist():
            reasons[i] = Stop(matched=ids[i])
        for i in np.flatnonzero(table.watched).tolist():
            if rows[i]:
                self._note_hidden(runs[i], contexts[i])
                if not isinstance(reasons[i], Stop):
                    reasons[i] = runs[i].reason(ids[i], int(table.produced[i])) or reasons[i]
        batch = TokenBatch(
            rids=[run.rid for run in runs],
            finish_reasons=reasons,
            prompt_tokens=[run.prompt_tokens for run in runs],
            token_ids=rows,
            hidden=self._hidden(runs, reasons),
        )
        self._fill_logprobs(batch, contexts, tokens, p)
        ended = [run.rid for run, reason in zip(runs, reasons, strict=True) if reason is not None]
        if ended:
            for rid in ended:
                del self._live[rid]
            self._keep([reason is None for reason in reasons])
        return batch

    def _admit(self) -> None:
        if self._has_gone:
            self._keep([not run.is_gone for run in self._runs])
            self._waiting = [run for run in self._waiting if not run.is_gone]
            self._has_gone = False
        if not self._waiting:
            return
        new = self._waiting
        contexts = np.concatenate([self._start(run.prompt) for run in new])
        self._table = self._table.plus(Table.of(new, contexts))
        self._runs += new
        self._waiting = []

    def _start(self, prompt: Sequence[int]) -> Ints:
        opening = self._opening
        if opening and list(prompt[-len(opening) :]) == opening:
            return self._blank
        # Nothing before the last order - 1 tokens has a say in what comes next.
        return self.model.read(self._blank, prompt[1 - self.model.order :])[0][-1:]

    def _keep(self, mask: list[bool]) -> None:
        self._runs = [run for run, kept in zip(self._runs, mask, strict=True) if kept]
        self._table = self._table.where(np.array(mask, np.bool_))

    def _choose(self, runs: list[Run], table: Table) -> Ints:
        numbers = uniforms(table.keys, table.produced)
        shaped = table.shaped | (table.produced < table.ends_after)
        tokens = np.empty(len(runs), np.int64)
        plain = ~shaped
        if plain.any():
            tokens[plain] = self.model.draw(table.contexts[plain], numbers[plain])
        for i in np.flatnonzero(shaped).tolist():
            masked = bool(table.produced[i] < table.ends_after[i])
            tokens[i] = self._choice(runs[i], table.contexts[i], masked).pick(float(numbers[i]))
        return tokens

    def _choice(self, run: Run, context: Ints, masked: bool) -> Choice:
        if masked or run.adjuster.changes_always:
            return Choice(run.adjuster.apply(self._distribution(context), masked), run.sampling)
        key = (*self._name(context), run.filters)
        choice = self._choices.get(key)
        if choice is None:
            choice = Choice(self._distribution(context), run.sampling)
            _remember(self._choices, key, choice)
        return choice

    def _distribution(self, context: Ints) -> Distribution:
        key = self._name(context)
        found = self._distributions.get(key)
        if found is None:
            found = self.model.distribution(context)
            _remember(self._distributions, key, found)
        return found

    def _name(self, context: Ints) -> tuple[int, int]:
        # The longest context names the shorter ones: they are its last tokens.
        numbers = context.tolist()
        length = len(numbers)
        while length and numbers[length - 1] < 0:
            length -= 1
        return length, numbers[length - 1] if length else -1

    def _fill_logprobs(self, batch: TokenBatch, contexts: Ints, tokens: Ints, p: NDArray[np.float64]) -> None:
        if not any(run.wants for run in self._runs):
            return
        columns = LogprobColumns(self.model, self._distribution, self._blank)
        values = logs(p)
        for i, run in enumerate(self._runs):
            if run.wants is not None:
                columns.add(i, run.wants, contexts[i], batch.token_ids[i], values[i])
                run.wants = run.wants.after_prompt()
        columns.write(batch)

    def _note_hidden(self, run: Run, context: Ints) -> None:
        if run.hidden is None or self.hidden_size is None:
            return
        seeds = (np.arange(self.model.order - 1, dtype=np.uint64) << np.uint64(48)) ^ context.astype(
            np.uint64
        )
        places = np.arange(self.hidden_size, dtype=np.int64)
        vectors = [uniforms(np.full(len(places), seed), places) - 0.5 for seed in seeds[context >= 0]]
        total = np.sum(vectors, axis=0) if vectors else np.zeros(len(places))
        run.hidden.append(total.astype(np.float32))

    def _hidden(self, runs: list[Run], reasons: list[FinishReason | None]) -> list[Any]:
        if all(run.hidden is None for run in runs):
            return []
        return [None if reason is None else run.hidden for run, reason in zip(runs, reasons, strict=True)]


class _Setup:
    """The options of an engine, read and checked."""

    def __init__(self, options: dict[str, Any]) -> None:
        reader = OptionReader("ngram", options)
        path = reader.text("corpus")
        self.order = reader.integer("order", 5, 2, 8)
        self.novelty = reader.number("novelty", 0.1, 0.001, 10.0)
        self.hidden_size = reader.integer("hidden_size", 0, 0, 4096)
        self.seed = reader.integer("seed", -1, -1, 2**63 - 1)
        reader.finish()
        self.text = default_text() if path is None else read_text(path, "corpus")


class _Learned(NamedTuple):
    """A model, and all that it is a function of."""

    tokenizer: Tokenizer
    text: str
    order: int
    novelty: float
    model: NGramModel


# Empty, or what `keep_model` left for the processes that are forked later; nothing changes a model.
_kept: list[_Learned] = []


def keep_model(tokenizer: Tokenizer, options: dict[str, Any]) -> None:
    """Learn now what engines with these options learn, for those made later, here or in forked processes.

    Raises:
        ValidationError: as `NGramEngine` does.
    """
    setup = _Setup(options)
    _kept[:] = [_learned(tokenizer, setup.text, setup.order, setup.novelty)]


def _learned(tokenizer: Tokenizer, text: str, order: int, novelty: float) -> _Learned:
    for kept in _kept:
        if kept.tokenizer is tokenizer and kept[1:4] == (text, order, novelty):
            return kept
    ids = text_ids(text, tokenizer)
    model = NGramModel(ids, tokenizer.vocab_size, order, novelty, holes(tokenizer))
    return _Learned(tokenizer, text, order, novelty, model)


def _remember(cache: dict[Any, Any], key: Any, value: Any) -> None:
    if len(cache) >= _CACHED:
        del cache[next(iter(cache))]
    cache[key] = value

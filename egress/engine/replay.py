"""An engine that says a given text: for tests that need to know the answer, and to load a server.

Every request gets the same text, `tokens_per_step` ids in each step, from its start. Since nothing is
random, where a request ends by an id, its length or the text's end is known when it is submitted; a step
only looks up one shared list per request and the few that end in it. Requests with stop strings or regexes
are the exception: their text is followed step by step.

After `loops` repetitions the text ends with the tokenizer's end token, if it has one. Sampling parameters
have no effect on a text that is fixed: a bias or a penalty is as if it were too weak.
"""

from __future__ import annotations

from typing import Any

from egress.engine.corpus import default_text, end_ids, read_text
from egress.engine.options import OptionReader
from egress.engine.protocol import EngineRequest, TokenBatch, verify_request
from egress.engine.script import Script
from egress.errors import ValidationError
from egress.text import StopMatcher, Tokenizer
from egress.wire import FinishReason, Length, Stop

__all__ = ["ReplayEngine"]

# What the made-up columns hold: any finite number does, and this one is exact in float32.
_LOGPROB = -0.5


class ReplayEngine:
    """An engine that repeats a text; made by `load_engine("replay", tokenizer, options)`.

    Options:
        text: what to say; path: a UTF-8 file to say instead; default: the text that ships.
        tokens_per_step: ids per request and step, 1 to 1024, default 1.
        loops: how many times the text is said before the end token, default 1; 0 = for ever.
        rate: tokens per second of each request, default 0 = as fast as steps are asked for.
        logprobs: whether made-up log-probabilities are given, default false.
        hidden_size: width of made-up hidden states, one row per step, 0 to 4096, default 0 = none.

    Raises:
        ValidationError: an option that is unknown or out of range; names it.
    """

    def __init__(self, tokenizer: Tokenizer, options: dict[str, Any]) -> None:
        reader = OptionReader("replay", options)
        text, path = reader.text("text"), reader.text("path")
        width = reader.integer("tokens_per_step", 1, 1, 1024)
        self._loops = reader.integer("loops", 1, 0, 2**31)
        rate = reader.number("rate", 0.0, 0.0, 1e9)
        self._has_logprobs = reader.flag("logprobs", False)
        self.hidden_size: int | None = reader.integer("hidden_size", 0, 0, 4096) or None
        reader.finish()
        if text is not None and path is not None:
            raise ValidationError("options text and path of engine replay exclude each other", "path")
        if text is None:
            text = default_text() if path is None else read_text(path, "path")
        ids = tokenizer.encode(text)
        if not ids:
            raise ValidationError(
                "option text of engine replay must hold at least one token, got none", "text"
            )
        self.step_s = width / rate if rate else 0.0
        self._tokenizer = tokenizer
        self._ends = end_ids(tokenizer)
        self._script = Script(ids, width)
        self._clock = 0
        self._live: dict[str, _Run] = {}
        self._due: dict[int, dict[str, _Run]] = {}
        self._rows = _Rows([])
        self._is_stale = False

    def info(self) -> dict[str, Any]:
        """What runs and what is said."""
        return {
            "engine": "replay",
            "text_tokens": len(self._script.ids),
            "tokens_per_step": self._script.width,
            "running": len(self._live),
            "step_s": self.step_s,
            "hidden_size": self.hidden_size,
        }

    def submit(self, request: EngineRequest) -> None:
        """Take a request into the next step; see `Engine.submit`.

        Raises:
            ValidationError: grammars, beams, log-probabilities or hidden states without their option, ids
                outside the vocabulary, a rid that already runs.
        """
        verify_request(
            request,
            self._tokenizer.vocab_size,
            has_logprobs=self._has_logprobs,
            hidden_size=self.hidden_size,
        )
        if request.rid in self._live:
            raise ValidationError(f"rid must be unique among running requests, got {request.rid!r}", "rid")
        size, reason, extra = self._end_of(request)
        run = _Run(request, self._clock, size, reason, extra, self._tokenizer)
        self._live[request.rid] = run
        self._is_stale = True
        if size is not None:
            # Even a request of no tokens has one row, its terminal one.
            steps = max(-(-size // self._script.width), 1)
            run.due = self._clock + steps - 1
            self._due.setdefault(run.due, {})[run.rid] = run

    def abort(self, rid: str) -> None:
        """Forget a request; see `Engine.abort`."""
        run = self._live.pop(rid, None)
        if run is not None:
            self._forget(run)

    def step(self) -> TokenBatch | None:
        """The next chunk of every running request; see `Engine.step`.

        Cost: one list look-up per request, and a rebuilding of the columns after one came or went.
        """
        if self._is_stale:
            self._rows = _Rows(list(self._live.values()))
            self._is_stale = False
        rows = self._rows
        if not rows.runs:
            return None
        now = self._clock
        self._clock += 1
        tokens = self._script.chunks([now - start for start in rows.starts])
        reasons = rows.no_reasons
        ending = list(self._due.pop(now, {}).values())
        if ending or rows.followed:
            reasons = list(reasons)
        for run in ending:
            place = rows.places[run.rid]
            reasons[place] = run.reason
            begin = (now - run.start) * self._script.width
            tokens[place] = self._script.between(begin, run.size or 0) + run.extra
        for run in rows.followed:
            place = rows.places[run.rid]
            tokens[place], reasons[place] = run.follow(tokens[place], reasons[place])
        batch = TokenBatch(
            rids=rows.rids, finish_reasons=reasons, prompt_tokens=rows.prompt_tokens, token_ids=tokens
        )
        if rows.wanting:
            self._make_up(batch, rows)
        for run in (*ending, *rows.followed):
            if reasons[rows.places[run.rid]] is not None and self._live.pop(run.rid, None) is not None:
                self._forget(run)
        return batch

    def _forget(self, run: _Run) -> None:
        self._is_stale = True
        due = self._due.get(run.due, {})
        due.pop(run.rid, None)
        if not due:
            self._due.pop(run.due, None)

    def _end_of(self, request: EngineRequest) -> tuple[int | None, FinishReason | None, list[int]]:
        """How many ids of the script a request gets, why no more, and what is appended to them."""
        sampling = request.sampling
        least = sampling.min_new_tokens
        ends = [] if sampling.ignore_eos else self._ends
        found = self._script.first_of({*ends, *(sampling.stop_token_ids or ())}, least)
        size = None if found is None else found + 1
        reason: FinishReason | None = (
            None if found is None else Stop(matched=self._script.between(found, found + 1)[0])
        )
        extra: list[int] = []
        if self._loops and not sampling.ignore_eos:
            said = max(self._loops * len(self._script.ids), least)
            if size is None or size > said:
                extra = ends[:1]
                size, reason = said, Stop(matched=extra[0] if extra else None)
        limit = sampling.max_new_tokens
        if limit is not None and (size is None or limit < size + len(extra)):
            size, reason, extra = limit, Length(length=limit), []
        return size, reason, extra

    def _make_up(self, batch: TokenBatch, rows: _Rows) -> None:
        n = len(rows.runs)
        columns: dict[str, list[Any]] = {}
        for place, run in rows.wanting:
            for name, cell in run.made_up(
                batch.token_ids[place], batch.finish_reasons[place], self.hidden_size
            ):
                columns.setdefault(name, [None] * n)[place] = cell
        for name, column in columns.items():
            setattr(batch, name, column)


class _Rows:
    """The columns that stay the same until a request comes or goes."""

    def __init__(self, runs: list[_Run]) -> None:
        self.runs = runs
        self.rids = [run.rid for run in runs]
        self.starts = [run.start for run in runs]
        self.prompt_tokens = [run.prompt_tokens for run in runs]
        self.no_reasons: list[FinishReason | None] = [None] * len(runs)
        self.places = dict(zip(self.rids, range(len(runs)), strict=True))
        self.followed = [run for run in runs if run.matcher is not None]
        self.wanting = [
            (i, run) for i, run in enumerate(runs) if run.return_logprob or run.hidden is not None
        ]


class _Run:
    """One running request."""

    def __init__(
        self,
        request: EngineRequest,
        start: int,
        size: int | None,
        reason: FinishReason | None,
        extra: list[int],
        tokenizer: Tokenizer,
    ) -> None:
        sampling = request.sampling
        self.rid = request.rid
        self.start = start
        self.size = size
        self.reason = reason
        self.extra = extra
        self.prompt_tokens = len(request.input_ids)
        self.due = -1
        self.return_logprob = request.return_logprob
        self.hidden: list[list[float]] | None = [] if request.return_hidden_states else None
        self._top = list(range(min(request.top_logprobs_num, tokenizer.vocab_size)))
        self._ids = list(request.token_ids_logprob or ())
        self._prompt = list(request.input_ids[max(request.logprob_start_len, 0) :])
        self._starts_at = request.logprob_start_len
        self._unsearched = sampling.min_new_tokens
        self.matcher: StopMatcher | None = None
        if sampling.stop_strs or sampling.stop_regex_strs:
            self.matcher = StopMatcher(sampling, tokenizer)

    def follow(self, tokens: list[int], reason: FinishReason | None) -> tuple[list[int], FinishReason | None]:
        """Look for stop strings and regexes in these tokens, past the first `min_new_tokens`.

        Returns:
            The tokens up to the one that completed a stop, and that stop; or both as given.
        """
        skipped = min(self._unsearched, len(tokens))
        self._unsearched -= skipped
        # What ends by an id ends with its last one, and that id is no text.
        n_searched = len(tokens) - 1 if isinstance(reason, Stop) else len(tokens)
        for place in range(skipped, n_searched):
            found = None if self.matcher is None else self.matcher.push(tokens[place : place + 1])
            if found is not None:
                return tokens[: place + 1], found
        return tokens, reason

    def made_up(
        self, tokens: Any, reason: FinishReason | None, hidden_size: int | None
    ) -> list[tuple[str, Any]]:
        """Cells of this row, by column; the input families once."""
        cells: list[tuple[str, Any]] = []
        if self.return_logprob:
            cells = self._sides("out", tokens, len(tokens), [])
            if self._starts_at >= 0:
                unknown = [None] if self._starts_at == 0 and self._prompt else []
                cells += self._sides("in", self._prompt, len(self._prompt) - len(unknown), unknown)
                self._starts_at = -1
        if self.hidden is not None and hidden_size:
            self.hidden.append([_LOGPROB] * hidden_size)
            if reason is not None:
                cells.append(("hidden", self.hidden))
        return cells

    def _sides(self, side: str, tokens: Any, known: int, unknown: list[None]) -> list[tuple[str, Any]]:
        cells = [(f"{side}_lp_val", unknown + [_LOGPROB] * known), (f"{side}_lp_idx", tokens)]
        for family, ids in (("top", self._top), ("tid", self._ids)):
            if ids:
                cells.append((f"{side}_{family}_val", unknown + [[_LOGPROB] * len(ids)] * known))
                cells.append((f"{side}_{family}_idx", unknown + [ids] * known))
        return cells

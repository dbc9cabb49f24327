"""Who runs in a shard, and how one step of the engine becomes rows for each worker.

The roster owns one entry per running request: which worker waits for it, its detokenizer state, what it
asked for beyond text. It calls the engine's `submit` and `abort` and turns the engine's batches into columns;
it knows no ring, no clock and no process, and whatever goes wrong with one request comes back as that
request's failure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
import numpy as np

from egress.engine import Engine, EngineRequest, TokenBatch
from egress.errors import DetokenizeError, ValidationError
from egress.request import SamplingParams
from egress.stream.ring_sink import Columns
from egress.text import Detokenizer, Tokenizer
from egress.wire import FinishReason
from egress.wire.requests import Generate

__all__ = ["Ended", "Roster", "Running"]

# Families of columns that pass through as the engine made them, and those of generated tokens among them,
# which are cut where detokenizing drops the id that stopped the request.
_OUT = ("out_lp_val", "out_lp_idx", "out_top_val", "out_top_idx", "out_tid_val", "out_tid_idx")
_IN = ("in_lp_val", "in_lp_idx", "in_top_val", "in_top_idx", "in_tid_val", "in_tid_idx")
_PASSED = (*_OUT, *_IN, "hidden")


class Running:
    """One request in the engine.

    Attributes:
        rid, client_rid, worker: who it is, and who waits for it.
        prompt_tokens: length of its prompt.
        state: its detokenizer.
        wants_logprob_text: every log-probability's id is decoded for it, too.
    """

    __slots__ = ("client_rid", "prompt_tokens", "rid", "state", "wants_logprob_text", "worker")

    def __init__(self, request: Generate, worker: int, state: Any) -> None:
        self.rid = request.rid
        self.client_rid = request.client_rid
        self.worker = worker
        self.prompt_tokens = len(request.input_ids)
        self.state = state
        self.wants_logprob_text = request.return_text_in_logprobs


class Ended(msgspec.Struct):
    """What one step ended, beside the rows it made.

    Attributes:
        finished: how many requests came to their own end.
        failed: (worker, rid, message) of requests whose ids could not be turned into text.
        tokens: ids the engine made in this step.
    """

    finished: int = 0
    failed: list[tuple[int, str, str]] = []
    tokens: int = 0


class Roster:
    """The running requests of one engine.

    Args:
        engine: what they run in.
        tokenizer: None when ids pass through as they are.
        max_running: requests at once.
    """

    def __init__(self, engine: Engine, tokenizer: Tokenizer | None, max_running: int) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer)
        self._max_running = max_running
        self._running: dict[str, Running] = {}

    def __len__(self) -> int:
        return len(self._running)

    def __contains__(self, rid: str) -> bool:
        return rid in self._running

    def of_worker(self, worker: int) -> list[str]:
        """The rids that this worker waits for."""
        return [running.rid for running in self._running.values() if running.worker == worker]

    def of_client(self, client_rid: str) -> list[str]:
        """The rids that carry this client's id, whichever worker waits for them."""
        return [running.rid for running in self._running.values() if running.client_rid == client_rid]

    def admit(self, request: Generate, worker: int) -> tuple[str, int] | None:
        """Take a request into the engine.

        Returns:
            None when it runs, else why it does not: a message and an HTTP status.
        """
        if request.rid in self._running:
            return f"rid {request.rid!r} is running already", 400
        if len(self._running) >= self._max_running:
            return f"overloaded: {len(self._running)} requests run, the limit is {self._max_running}", 503
        try:
            sampling = SamplingParams.from_wire(request.sampling)
            state = self._detokenizer.open(sampling)
            self._engine.submit(
                EngineRequest(
                    request.rid,
                    request.input_ids,
                    sampling,
                    request.top_logprobs_num,
                    request.token_ids_logprob,
                    request.return_logprob,
                    request.return_hidden_states,
                    request.logprob_start_len,
                )
            )
        except ValidationError as error:
            return str(error), error.status_code
        except Exception as error:
            # A user's engine, or a request no shard has ever seen: this one alone fails, the others run on.
            self._engine.abort(request.rid)
            return f"the engine refused the request: {type(error).__name__}: {error}", 500
        self._running[request.rid] = Running(request, worker, state)
        return None

    def drop(self, rid: str) -> bool:
        """Forget a request and stop its generation; whether it ran."""
        if self._running.pop(rid, None) is None:
            return False
        self._engine.abort(rid)
        return True

    def end(self, rid: str, reason: FinishReason) -> tuple[int, Columns] | None:
        """Stop a request before its own end: its worker and the row that says so, None if it is unknown."""
        running = self._running.pop(rid, None)
        if running is None:
            return None
        self._engine.abort(rid)
        try:
            text = running.state.push([], reason).text
        except DetokenizeError:
            text = ""
        return running.worker, {
            "rids": [rid],
            "finish_reasons": [reason],
            "prompt_tokens": [running.prompt_tokens],
            "token_ids": [[]],
            "texts": [text],
            "completion_tokens": [0],
        }

    def rows(self, batch: TokenBatch) -> tuple[dict[int, Columns], Ended]:
        """Turn one step into each worker's columns; requests that end with it leave the roster.

        Rows of requests that do not run (aborted since) are dropped.
        """
        ended = Ended()
        picked: dict[int, _Picked] = {}
        running_of = self._running
        reasons, token_ids = batch.finish_reasons, batch.token_ids
        for row, rid in enumerate(batch.rids):
            running = running_of.get(rid)
            if running is None:
                continue
            reason = reasons[row]
            try:
                delta = running.state.push(token_ids[row], reason)
            except DetokenizeError as error:
                ended.failed.append((running.worker, rid, str(error)))
                self.drop(rid)
                continue
            ended.tokens += delta.completion_tokens
            into = picked.get(running.worker)
            if into is None:
                into = picked[running.worker] = _Picked()
            into.add(row, running, reason, delta)
            if reason is not None:
                del running_of[rid]
                ended.finished += 1
        passed = [name for name in _PASSED if len(getattr(batch, name))]
        return {worker: self._columns(batch, into, passed) for worker, into in picked.items()}, ended

    def _columns(self, batch: TokenBatch, picked: _Picked, passed: list[str]) -> Columns:
        columns = picked.columns
        rows = picked.rows
        # All rows in their order: as when one worker has them all.
        is_whole = len(rows) == len(batch.rids)
        for name in ("prompt_tokens", *passed):
            column = getattr(batch, name)
            if not is_whole:
                column = column[rows] if type(column) is np.ndarray else [column[row] for row in rows]
            columns[name] = column
        if not picked.trimmed:
            # A reader infers them from the ids.
            del columns["completion_tokens"]
        else:
            self._cut(columns, picked.trimmed)
        if picked.wants_logprob_text and self._tokenizer is not None:
            for name in passed:
                if name.endswith("_idx"):
                    columns[f"{name[:-4]}_txt"] = list(self._texts(columns[name], picked.wants_logprob_text))
        return columns

    def _cut(self, columns: Columns, trimmed: list[int]) -> None:
        """Cut what belongs to ids that were dropped."""
        for name in _OUT:
            if name in columns:
                column = columns[name] = list(columns[name])
                for at in trimmed:
                    if column[at] is not None:
                        column[at] = column[at][: len(columns["token_ids"][at])]

    def _texts(self, column: list[Any], wanted: set[int]) -> Iterator[Any]:
        """Per row the texts beside its ids: nested as the ids are, empty strings where nobody asked."""
        for at, ids in enumerate(column):
            yield _nested(ids, self._detokenizer.token_texts if at in wanted else _blanks)


def _nested(ids: Any, texts_of: Callable[[Iterable[int]], list[str]]) -> Any:
    if ids is None or not len(ids):
        return ids
    if isinstance(ids[0], int | np.integer):
        return texts_of(map(int, ids))
    return [_nested(position, texts_of) for position in ids]


def _blanks(ids: Iterable[int]) -> list[str]:
    return ["" for _ in ids]


class _Picked:
    """One worker's rows of one step, while they are gathered."""

    __slots__ = ("columns", "rows", "trimmed", "wants_logprob_text")

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.trimmed: list[int] = []
        self.wants_logprob_text: set[int] = set()
        self.columns: Columns = {
            "rids": [],
            "finish_reasons": [],
            "token_ids": [],
            "texts": [],
            "completion_tokens": [],
        }

    def add(self, row: int, running: Running, reason: FinishReason | None, delta: Any) -> None:
        columns = self.columns
        if running.wants_logprob_text:
            self.wants_logprob_text.add(len(self.rows))
        if len(delta.token_ids) != delta.completion_tokens:
            self.trimmed.append(len(self.rows))
        self.rows.append(row)
        columns["rids"].append(running.rid)
        columns["finish_reasons"].append(reason)
        columns["token_ids"].append(delta.token_ids)
        columns["texts"].append(delta.text)
        columns["completion_tokens"].append(delta.completion_tokens)

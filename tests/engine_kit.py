"""What the engine tests share: a small byte vocabulary, requests, and running an engine to its end."""

from __future__ import annotations

from typing import Any

from egress.engine import Engine, EngineRequest, TokenBatch
from egress.request import SamplingParams
from egress.text import ByteTokenizer
from egress.wire import FinishReason

EOS = 256
OTHER_EOS = 257
HOLE = 259
VOCAB = 261
# 256 bytes, two end tokens, one special token, a hole, and one more token of two bytes.
TOKENS: dict[int, bytes | str] = {i: bytes([i]) for i in range(256)} | {
    EOS: "<end>",
    OTHER_EOS: "<stop>",
    258: "<special>",
    260: b"th",
}
TINY = ByteTokenizer("tiny", TOKENS, lambda text: list(text.encode()), (EOS, OTHER_EOS))


def request(rid: str, prompt: str | list[int] = "", **fields: Any) -> EngineRequest:
    """A request; fields of EngineRequest by name, all others are sampling parameters."""
    own = {name: fields.pop(name) for name in EngineRequest.__struct_fields__ if name in fields}
    params = SamplingParams.parse(fields)
    params.normalize()
    params.verify(VOCAB)
    ids = list(prompt.encode()) if isinstance(prompt, str) else prompt
    return EngineRequest(rid, ids, params, **own)


class Answer:
    """Everything one request got, chunk after chunk."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.chunks: list[dict[str, Any]] = []
        self.reason: FinishReason | None = None

    @property
    def text(self) -> str:
        return TINY.decode(self.ids, skip_special_tokens=False)

    def column(self, name: str) -> list[Any]:
        """All entries of one column, the chunks joined."""
        return [item for chunk in self.chunks for item in chunk.get(name) or ()]


def take(batch: TokenBatch, answers: dict[str, Answer]) -> None:
    """Hand a batch's rows to their answers; every column must be empty or as long as the rids."""
    n = len(batch.rids)
    columns = {name: getattr(batch, name) for name in batch.__struct_fields__}
    assert all(len(column) in (0, n) for column in columns.values())
    assert len(batch.token_ids) == len(batch.finish_reasons) == len(batch.prompt_tokens) == n
    for i, rid in enumerate(batch.rids):
        answer = answers.setdefault(rid, Answer())
        assert answer.reason is None, "nothing may follow a terminal row"
        answer.ids += batch.token_ids[i]
        answer.reason = batch.finish_reasons[i]
        answer.chunks.append({name: column[i] for name, column in columns.items() if column})


def finish(engine: Engine, max_steps: int = 10_000) -> dict[str, Answer]:
    """Step until nothing runs."""
    answers: dict[str, Answer] = {}
    for _ in range(max_steps):
        batch = engine.step()
        if batch is None:
            return answers
        take(batch, answers)
    raise AssertionError(f"the engine still runs after {max_steps} steps")


def answer_to(engine: Engine, prompt: str | list[int] = "", **fields: Any) -> Answer:
    """Submit one request and run it to its end."""
    engine.submit(request("only", prompt, **fields))
    return finish(engine)["only"]

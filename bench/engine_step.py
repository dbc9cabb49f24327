"""What a decode step costs per request, for both engines and the ways a client can ask.

Question: can the engine fill the path it is there to fill? Set-up: one process, no rings, no detokenizing;
`requests` requests that never end run in one engine, and steps are timed after a warm-up. Unit: microseconds
per request and step, best and median of the steps. The n-gram engine's caches are warm after the warm-up as
they are in a server; `cold` empties them before each step, so that every context is new.

What would make it lie: a machine whose cores are shared (read the best), requests so alike that they walk
the same contexts (each has its own seed here), and a text so short that its loops fit the cache.

    python -m bench.engine_step [--smoke] [--requests 1 64 1024 4096] [--steps 200]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

from bench import harness
from egress.engine import EngineRequest, NGramEngine, ReplayEngine, load_engine
from egress.request import SamplingParams
from egress.text import load_tokenizer

NGRAM_CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "plain, logprobs": {"return_logprob": True},
    "plain, top 5": {"return_logprob": True, "top_logprobs_num": 5},
    "greedy": {"sampling": {"temperature": 0}},
    "filtered": {"sampling": {"temperature": 0.8, "top_p": 0.9, "top_k": 50}},
    "filtered, cold": {"sampling": {"temperature": 0.8, "top_p": 0.9, "top_k": 50}, "cold": True},
    "penalties": {"sampling": {"frequency_penalty": 0.5, "presence_penalty": 0.2}},
    "stop string": {"sampling": {"stop": ["\u0000never"]}},
}
REPLAY_CASES: dict[str, dict[str, Any]] = {
    "replay": {},
    "replay, 8 per step": {"options": {"tokens_per_step": 8}},
    "replay, logprobs": {"options": {"logprobs": True}, "return_logprob": True},
    "replay, churn": {"options": {"loops": 0}, "churn": 8},
}


def request(rid: str, seed: int, sampling: dict[str, Any], **fields: Any) -> EngineRequest:
    """A request that runs for ever, from a prompt of four tokens."""
    params = SamplingParams.parse(
        {"max_new_tokens": None, "ignore_eos": True, "sampling_seed": seed} | sampling
    )
    params.normalize()
    return EngineRequest(rid, PROMPT, params, **fields)


def measure(engine: Any, requests: int, steps: int, case: dict[str, Any]) -> dict[str, float]:
    """Best and median microseconds per request and step; checks the shape of every batch."""
    fields = {key: value for key, value in case.items() if key.startswith(("return_", "top_"))}
    sampling = case.get("sampling", {})
    for i in range(requests):
        engine.submit(request(f"r{i}", i, sampling, **fields))
    before: Callable[[int], None] = lambda step: None  # noqa: E731
    if case.get("cold"):
        before = lambda step: (engine._choices.clear(), engine._distributions.clear())  # noqa: E731
    elif "churn" in case:

        def before(step: int) -> None:
            for i in range(case["churn"]):
                engine.abort(f"c{step - 1}.{i}")
                engine.submit(request(f"c{step}.{i}", i, sampling))

    seconds = []
    for step in range(steps + 10):
        before(step)
        start = time.perf_counter()
        batch = engine.step()
        seconds.append(time.perf_counter() - start)
        assert batch is not None
        assert len(batch.rids) == len(batch.token_ids) >= requests
        assert all(batch.token_ids)
        assert not any(batch.finish_reasons)
    timed = seconds[10:]
    scale = 1e6 / requests
    return {"best_us": min(timed) * scale, "median_us": statistics.median(timed) * scale}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--smoke", action="store_true", help="tiny counts: only shows that it runs")
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 64, 1024, 4096])
    parser.add_argument(
        "--steps", type=int, default=200, help="timed steps of up to 64 requests; fewer above"
    )
    options = parser.parse_args()
    counts, steps = ([1, 8], 3) if options.smoke else (options.requests, options.steps)
    results: dict[str, dict[str, dict[str, float]]] = {}
    start = time.perf_counter()
    load_engine("ngram", TOKENIZER, {})
    print(f"start of the ngram engine: {time.perf_counter() - start:.2f} s")
    print(f"{'case':<20} {'requests':>8} {'best':>9} {'median':>9}   us per request and step")
    for cases, make in ((NGRAM_CASES, NGramEngine), (REPLAY_CASES, ReplayEngine)):
        for name, case in cases.items():
            for requests in counts:
                engine = make(TOKENIZER, case.get("options", {}))
                took = measure(engine, requests, max(3, min(steps, steps * 64 // requests)), case)
                print(f"{name:<20} {requests:>8} {took['best_us']:>9.2f} {took['median_us']:>9.2f}")
                results.setdefault(name, {})[str(requests)] = took
    harness.emit("engine_step", {"smoke": options.smoke, "us_per_request": results})


TOKENIZER = load_tokenizer()
PROMPT = TOKENIZER.encode("Once upon a time")

if __name__ == "__main__":
    main()

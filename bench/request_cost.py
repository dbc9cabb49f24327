"""What does it cost to parse, normalize and verify one request's sampling parameters?

Each row runs `parse`, `normalize` (the regexes admitted out of the cache, as they are from the second request
on) and `verify` over one JSON object; the best of all rounds counts, in microseconds. Goal: a typical request
in 15 us. Wire rows are what a shard pays to read the same request. A first row decodes the typical object's
JSON with the standard library and does nothing else: the floor of any reader that keeps integers whole.

    python -m bench.request_cost [--smoke] [--rounds N]

It would lie if the cache were cold (the check before warms it) or if no regex were given.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

from bench import harness
from egress.request import SamplingParams

GOAL_US = 15.0
VOCAB = 151_643

TYPICAL: dict[str, Any] = {
    "max_new_tokens": 512,
    "temperature": 0.7,
    "top_p": 0.95,
    "stop": ["\n\nUser:", "<|end|>"],
    "stop_regex": [r"\d+\.\d+"],
    "sampling_seed": 42,
}
BODIES: dict[str, dict[str, Any]] = {
    "empty": {},
    "plain": {"max_new_tokens": 512, "temperature": 0.7, "top_p": 0.95},
    "typical": TYPICAL,
    "every field": TYPICAL
    | {
        "stop_token_ids": [1, 2],
        "top_k": 40,
        "min_p": 0.05,
        "frequency_penalty": 0.1,
        "presence_penalty": 0.1,
        "repetition_penalty": 1.1,
        "min_new_tokens": 2,
        "n": 1,
        "json_schema": '{"type": "object"}',
        "ignore_eos": False,
        "skip_special_tokens": True,
        "spaces_between_special_tokens": True,
        "no_stop_trim": False,
        "stream_interval": 1,
        "logit_bias": {"7": -1.0, "8": 2.0},
        "custom_params": {"trace": "x", "tags": ["a", "b"]},
    },
    "32 stops, 32 regexes": {
        "stop": [f"stop {i}" for i in range(32)],
        "stop_regex": [f"end{i}" for i in range(32)],
    },
    "logit_bias of 300": {"logit_bias": {str(i): 1.0 for i in range(300)}},
}


def admit(data: bytes) -> SamplingParams:
    params = SamplingParams.parse(data)
    params.normalize()
    params.verify(VOCAB)
    return params


def programs() -> dict[str, Callable[[], Any]]:
    """One call per row; every result is checked here, once, which also warms the admission cache."""
    found: dict[str, Callable[[], Any]] = {}
    typical = json.dumps(TYPICAL).encode()
    assert json.loads(typical) == TYPICAL
    found["floor: json alone, typical"] = lambda: json.loads(typical)
    for name, body in BODIES.items():
        data = json.dumps(body).encode()
        params = admit(data)
        wire = params.to_wire()
        assert SamplingParams.from_wire(wire) == params
        assert params.stop_strs == body.get("stop", [])
        found[name] = lambda data=data: admit(data)
        if name == "typical":
            found["typical, already a dict"] = lambda: admit(TYPICAL)  # type: ignore[arg-type]
            found["typical, to_wire"] = params.to_wire
            found["typical, from_wire"] = lambda wire=wire: SamplingParams.from_wire(wire)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--smoke", action="store_true", help="tiny counts: does it run at all")
    parser.add_argument("--rounds", type=int, default=60)
    args = parser.parse_args()
    rounds, repeats = (2, 5) if args.smoke else (args.rounds, 200)
    rows = programs()
    samples: dict[str, list[float]] = {name: [] for name in rows}
    for _ in range(rounds):
        for name, program in rows.items():
            start = time.perf_counter()
            for _ in range(repeats):
                program()
            samples[name].append((time.perf_counter() - start) / repeats * 1e6)
    best = {name: round(min(values), 2) for name, values in samples.items()}
    table = [
        (
            name,
            f"{best[name]:.2f}",
            f"{harness.median(values):.2f}",
            f"<= {GOAL_US:.0f}" * (name == "typical"),
        )
        for name, values in samples.items()
    ]
    print(harness.table(("parse, normalize, verify", "us, best", "us, median", "goal"), table))
    harness.emit("request_cost", {"smoke": args.smoke, "best_us": best, "goal_us": GOAL_US})


if __name__ == "__main__":
    main()

"""How fast is the BATCH codec, against decoding by hand?

By hand: one msgspec pass over the header into an array_like Struct, then a loop over the requests with a
numpy slice and a Struct for each. Every other row is a ratio to that, measured in the same run in turns, so
that the machine's mood cancels out; the best of all rounds counts. Results are checked before anything is
measured.

    python -m bench.batch_codec [--smoke] [--rounds N]

The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import random
import struct
import time
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from bench import harness
from egress.wire import Batch, ChunkExtras, Tag, decode, encode_batch

I32 = np.dtype("<i4")
# The goals of issue 5, as ratios to decoding by hand; None: printed to be seen.
GOALS: dict[str, dict[int, float | None]] = {
    "decode, touch": {4096: 0.45, 1: 1.0},
    "decode, touch, token_ids": {4096: 0.9, 1: None},
    "decode, select 1 in 8": {4096: 0.35, 1: None},
    "encode": {4096: 0.3, 1: None},
}


class HandHeader(msgspec.Struct, array_like=True):
    rids: list[str]
    finish_reasons: list[dict[str, Any] | None]
    prompt_tokens: list[int]
    tok_lens: list[int]


class HandEvent(msgspec.Struct):
    rid: str
    token_ids: Any
    finish_reason: dict[str, Any] | None
    prompt_tokens: int


_hand_header = msgspec.msgpack.Decoder(HandHeader).decode
_header_len = struct.Struct("<I").unpack_from


def decode_by_hand(body: bytes) -> list[HandEvent]:
    data_at = 4 + _header_len(body)[0]
    header = _hand_header(memoryview(body)[4:data_at])
    ids = np.frombuffer(body, I32, -1, data_at)
    events = []
    start = 0
    columns = zip(header.rids, header.finish_reasons, header.prompt_tokens, header.tok_lens, strict=True)
    for rid, reason, prompt, count in columns:
        end = start + count
        events.append(HandEvent(rid, ids[start:end], reason, prompt))
        start = end
    return events


def touch_by_hand(body: bytes) -> None:
    for event in decode_by_hand(body):
        event.rid, event.finish_reason, len(event.token_ids)


def decode_batch(body: bytes) -> Batch:
    batch = decode(Tag.BATCH, body)
    assert isinstance(batch, Batch)
    return batch


def touch(body: bytes) -> None:
    for event in decode(2, body):  # type: ignore[union-attr]
        event.rid, event.finish_reason, event.n_tokens  # noqa: B018


def touch_ids(body: bytes) -> None:
    for event in decode(2, body):  # type: ignore[union-attr]
        event.rid, event.finish_reason, event.n_tokens, event.token_ids  # noqa: B018


def step(n: int, rng: random.Random) -> dict[str, Any]:
    """The columns of a plain step of n requests with one token each."""
    return {
        "rids": [f"{rng.getrandbits(128):032x}" for _ in range(n)],
        "finish_reasons": [None] * n,
        "prompt_tokens": [rng.randrange(16, 4000) for _ in range(n)],
        "token_ids": [[rng.randrange(150_000)] for _ in range(n)],
    }


def interleaved(programs: dict[str, Callable[[], Any]], rounds: int, repeats: int) -> dict[str, float]:
    """The best time of each program in seconds per call, all programs taking turns in every round."""
    best = dict.fromkeys(programs, float("inf"))
    for _ in range(rounds):
        for name, program in programs.items():
            start = time.perf_counter()
            for _ in range(repeats):
                program()
            best[name] = min(best[name], (time.perf_counter() - start) / repeats)
    return best


def check(columns: dict[str, Any], body: bytes, wanted: frozenset[str]) -> None:
    """Hold that all the programs agree on the frame."""
    by_hand = decode_by_hand(body)
    batch = decode_batch(body)
    assert [event.rid for event in by_hand] == [event.rid for event in batch] == columns["rids"]
    expected = columns["token_ids"]
    assert [event.token_ids.tolist() for event in by_hand] == expected
    assert [event.token_ids.tolist() for event in batch] == expected
    assert batch.token_ids.tolist() == [token for tokens in expected for token in tokens]
    assert [event.rid for event in batch.select(wanted)] == [r for r in columns["rids"] if r in wanted]


def plain_ratios(n: int, rounds: int) -> dict[str, float]:
    """Measure a plain frame of n requests: ns per request by hand, and the ratios to it."""
    columns = step(n, random.Random(5))
    body = b"".join(encode_batch(**columns))
    wanted = frozenset(columns["rids"][::8])
    check(columns, body, wanted)
    programs = {
        "by hand, touch": lambda: touch_by_hand(body),
        "decode, touch": lambda: touch(body),
        "decode, touch, token_ids": lambda: touch_ids(body),
        "decode, select 1 in 8": lambda: decode_batch(body).select(wanted),
        "decode": lambda: decode(2, body),
        "encode": lambda: encode_batch(**columns),
    }
    best = interleaved(programs, rounds, max(1, 512 // n))
    by_hand = best["by hand, touch"]
    figures = {name: took / by_hand for name, took in best.items()}
    return {"ns by hand": by_hand / n * 1e9, **figures}


def column_view_us(n: int, rounds: int) -> float:
    """How long batch.token_ids takes on a decoded batch, in microseconds."""
    batch = decode_batch(b"".join(encode_batch(**step(n, random.Random(5)))))
    return interleaved({"view": lambda: batch.token_ids}, rounds, 100)["view"] * 1e6


def extras_us(n: int, members: int, width: int, rounds: int) -> float:
    """Microseconds to decode n requests and touch all extras, `members` having `width` alternatives."""
    columns = step(n, random.Random(5))
    vals: list[Any] = [None] * n
    for i in range(members):
        vals[i * n // members] = [[-0.5] * width]
    idxs = [cell and [[7] * width] for cell in vals]
    body = b"".join(encode_batch(**columns, out_top_val=vals, out_top_idx=idxs))

    def read() -> list[ChunkExtras]:
        return [event.extras for event in decode_batch(body) if event.extras is not None]

    assert [len(extras.out_top_val) for extras in read()] == [width] * members
    return interleaved({"extras": read}, rounds, 1)["extras"] * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="tiny counts: does it run at all")
    parser.add_argument("--rounds", type=int, default=100, help="rounds; the best of each program counts")
    options = parser.parse_args()
    rounds = 2 if options.smoke else options.rounds
    sizes = (1, 64) if options.smoke else (1, 64, 1024, 4096)

    ratios = {n: plain_ratios(n, rounds) for n in sizes}
    print(f"{'ratio to decoding by hand':28s}" + "".join(f"{f'N={n}':>10s}" for n in sizes) + "   goal")
    for name in ratios[sizes[0]]:
        goals = ", ".join(f"<= {goal} at N={n}" for n, goal in GOALS.get(name, {}).items() if goal)
        print(f"{name:28s}" + "".join(f"{ratios[n][name]:10.2f}" for n in sizes) + f"   {goals}")

    n = sizes[-1]
    view = {size: column_view_us(size, rounds) for size in sizes}
    print(f"batch.token_ids, us: {', '.join(f'{us:.2f} at N={size}' for size, us in view.items())}   <= 5")
    extras = {
        f"{members} of {n}, width {width}": extras_us(n, members, width, rounds)
        for members, width in ((n // 64, 20), (n // 64, 2000), (n // 8, 20), (n, 20))
    }
    print(f"decode and touch extras, us: {', '.join(f'{us:.0f} ({case})' for case, us in extras.items())}")

    harness.emit(
        "batch_codec",
        {"smoke": options.smoke, "ratios": ratios, "token_ids_us": view, "extras_us": extras},
    )


if __name__ == "__main__":
    main()

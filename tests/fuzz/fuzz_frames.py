"""Random and mutated frames against egress.wire.

    python tests/fuzz/fuzz_frames.py --seed 1 --seconds 600
    python tests/fuzz/fuzz_frames.py --seed 1 --count 5000000

Inputs are pure noise, well-formed frames with bytes changed, cut or repeated, and headers built from values
that are nearly right. The oracle: decoding raises MalformedFrame, or gives a value that says the same after
being written and read again (for one input in CHECKED of the accepted). Any other exception is a finding; the
input is printed as hex with the seed. The same seed gives the same inputs.
"""

from __future__ import annotations

import argparse
import random
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from wire_kit import check_accepted  # lies beside the suite, not in a package

from egress.errors import MalformedFrame
from egress.wire import Batch, Failure, Result, decode_frame, encode_batch, encode_error, encode_result

# Writing and reading an accepted batch again costs fifty times the decoding that is being fuzzed.
CHECKED = 61  # no divisor of BLOCK, so that every kind of input has its turn
BLOCK = 256  # inputs between two looks at the clock

_pack = msgspec.msgpack.Encoder().encode
_EDGES = (
    0,
    1,
    2,
    3,
    0x7F,
    0x80,
    0x8F,
    0x90,
    0x94,
    0x9F,
    0xA0,
    0xC0,
    0xC1,
    0xC7,
    0xCA,
    0xD6,
    0xD9,
    0xDC,
    0xDD,
    0xFF,
)
_COUNTS: tuple[Any, ...] = (
    0,
    0,
    0,
    1,
    1,
    1,
    2,
    3,
    -1,
    2**31,
    2**32 - 1,
    2**32,
    2**63,
    2**64 - 1,
    True,
    None,
    1.0,
    "1",
)
_STRINGS = ("", "a", "b", "a", "é", "终🎉", "\0", "x" * 40, "x" * 600)
_REASONS: tuple[Any, ...] = (
    None,
    None,
    None,
    {},
    {"type": "stop", "matched": 5},
    {"type": "stop", "matched": [1, 2.5]},
    {"type": "length", "length": -1},
    {"type": "abort", "status_code": 400},
    {"type": "new", "deep": [{"a": [None, float("nan")]}]},
    {1: 2},
    {"type": "x", "v": b"bin"},
    {"type": "x", "v": msgspec.msgpack.Ext(4, b"x")},
    "stop",
    7,
)


def well_formed(rng: random.Random) -> bytes:
    """A frame of any tag as our own encoder writes it, tag byte first."""
    kind = rng.random()
    if kind < 0.05:
        return b"\x01" + encode_result(rng.choice(_STRINGS), rng.randbytes(rng.randrange(9)))
    if kind < 0.1:
        return b"\x03" + encode_error(rng.choice(_STRINGS), rng.choice(_STRINGS), rng.choice((None, 400)))
    n = rng.choice((0, 1, 1, 2, 3, 5)) if kind < 0.9 else rng.randrange(100)
    ids = [[rng.randrange(-5, 99)] * rng.choice((1, 1, 1, 0, 3)) for _ in range(n)]
    columns: dict[str, Any] = {}
    if rng.random() < 0.5:
        columns["out_lp_val"] = [[0.5] * len(cell) for cell in ids]
        columns["out_lp_idx"] = ids
        if rng.random() < 0.3:
            columns["out_lp_txt"] = [["t"] * len(cell) for cell in ids]
    if rng.random() < 0.3:
        tops = [rng.choice((None, [None], [[1.5, 2.5], []], [[0.5]])) for _ in range(n)]
        columns["in_top_val"] = tops
        columns["in_top_idx"] = [cell and [row and [3] * len(row) for row in cell] for cell in tops]
    if rng.random() < 0.2:
        columns["hidden"] = [rng.choice((None, [[1.0, 2.0]], [3.0])) for _ in range(n)]
    if rng.random() < 0.2:
        columns["texts"] = [rng.choice(_STRINGS) for _ in range(n)]
    rids = [rng.choice(_STRINGS) for _ in range(n)]
    reasons = [rng.choice(_REASONS[:9]) for _ in range(n)] if rng.random() < 0.5 else [None] * n
    return b"\x02" + b"".join(encode_batch(rids, reasons, [rng.randrange(2**16)] * n, ids, **columns))


def nearly_right(rng: random.Random) -> bytes:
    """A BATCH whose header is msgpack, of columns that are mostly of the right type and length."""
    n = rng.choice((0, 1, 2, 3))

    def counts() -> Any:
        if rng.random() < 0.05:
            return rng.choice((None, 5, "x", {}, [[1]]))
        honest = _COUNTS[: rng.choice((8, 8, 8, len(_COUNTS)))]
        return [rng.choice(honest) for _ in range(n if rng.random() < 0.9 else rng.randrange(5))]

    strings: Callable[[], Any] = lambda: [rng.choice(_STRINGS) for _ in range(n)]  # noqa: E731
    reasons = [rng.choice(_REASONS[: rng.choice((9, 9, len(_REASONS)))]) for _ in range(n)]
    header: list[Any] = [strings(), reasons, counts(), counts()]
    for place in range(4, rng.choice((4, 4, 6, 8, 16, 17, 18, 24, 26))):
        filled = rng.random() < 0.4
        header.append([] if not filled else strings() if place == 16 or place >= 18 else counts())
    packed = _pack(header[: rng.choice((1, 3)) if rng.random() < 0.03 else None])
    wanted = sum(c for c in header[3] if type(c) is int and 0 <= c < 9) if isinstance(header[3], list) else 0
    size = max(0, 4 * (wanted + rng.choice((0, 0, 0, 0, 2, 4, 6))) + rng.choice((0, 0, 0, 0, -1, 1, 4)))
    return b"\x02" + struct.pack("<I", len(packed)) + packed + rng.randbytes(size)


def noise(rng: random.Random) -> bytes:
    """Random bytes, mostly behind a tag and a header length that make sense."""
    body = rng.randbytes(rng.randrange(40))
    kind = rng.random()
    if kind < 0.2:
        return body
    if kind < 0.4:
        return bytes((rng.randrange(1, 4),)) + body
    return (
        b"\x02"
        + struct.pack("<I", rng.randrange(len(body) + 1))
        + rng.choice((b"\x94", b"\xdc\0\x10"))
        + body
    )


def mutated(rng: random.Random, frame: bytes) -> bytes:
    """The frame with a few of its bytes changed, cut out, repeated or put in."""
    changed = bytearray(frame)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        at = rng.randrange(min(len(changed), 120) + 1)
        kind = rng.randrange(6)
        if kind <= 2 and at < len(changed):
            changed[at] = rng.choice(_EDGES) if kind else rng.randrange(256)
        elif kind == 3:
            del changed[at : at + rng.choice((1, 2, 4, 8))]
        elif kind == 4:
            changed[at:at] = changed[at : at + rng.choice((1, 4, 9))]
        else:
            changed[at:at] = bytes((rng.choice(_EDGES),))
    return bytes(changed[: rng.randrange(len(changed) + 1)] if rng.random() < 0.1 else changed)


def inputs(rng: random.Random) -> list[bytes]:
    """One block of inputs: a few fresh frames, each mutated many times, and the other two kinds."""
    block = [noise(rng) for _ in range(BLOCK // 8)]
    block += [nearly_right(rng) for _ in range(BLOCK // 4)]
    while len(block) < BLOCK:
        frame = well_formed(rng)
        block.append(frame)
        block += [mutated(rng, frame) for _ in range(23)]
    return block[:BLOCK]


def try_one(frame: bytes, check: bool) -> str:
    """Decode one input and say what came of it; anything but the oracle's outcomes raises."""
    try:
        value = decode_frame(frame)
    except MalformedFrame as error:
        "".join(error.rids)  # strings all of them, else this raises
        return "refused, rids named" if error.rids else "refused"
    if isinstance(value, Batch):
        if check:
            check_accepted(value)
        return "batch"
    if isinstance(value, Result):
        assert decode_frame(b"\x01" + encode_result(value.rid, value.payload)) == value
        return "result"
    assert isinstance(value, Failure)
    assert decode_frame(b"\x03" + encode_error(value.rid, value.message, value.status_code)) == value
    return "failure"


def fuzz(seed: int, seconds: float | None, count: int | None) -> Counter[str]:
    """Run until either bound is reached; give how many inputs had which outcome."""
    outcomes: Counter[str] = Counter()
    deadline = None if seconds is None else time.monotonic() + seconds
    rng = random.Random(seed)
    done = 0
    while (count is None or done < count) and (deadline is None or time.monotonic() < deadline):
        for frame in inputs(rng):
            try:
                outcomes[try_one(frame, check=done % CHECKED == 0)] += 1
            except Exception:
                print(f"seed {seed}, input {done}: {frame.hex()}", file=sys.stderr)
                raise
            done += 1
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=None)
    parser.add_argument("--count", type=int, default=None)
    options = parser.parse_args()
    seconds = 10.0 if options.seconds is None and options.count is None else options.seconds
    start = time.monotonic()
    outcomes = fuzz(options.seed, seconds, options.count)
    took = time.monotonic() - start
    total = outcomes.total()
    print(f"{total} inputs in {took:.1f} s, {total / took:.0f} inputs/s, seed {options.seed}; no finding")
    for outcome, number in outcomes.most_common():
        print(f"  {number:10d} {outcome}")


if __name__ == "__main__":
    main()

"""Throw parameter objects at SamplingParams: only ValidationError may come out, and what passes must hold.

    python tests/fuzz/fuzz_params.py [--seed N] [--seconds S] [--count N]

Objects come from three wells: fields with values of any kind at their limits, valid objects with one thing
changed, and JSON texts with bytes flipped, cut and doubled. An accepted object must give the same parameters
from its dict and from its JSON, survive the wire form, normalize twice as once, and sit inside every range.
A refusal names a key of the object, or none, in a text that UTF-8 can carry. A failure prints its input and
the seed; the same seed gives the same inputs.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from typing import Any

import msgspec

from egress.errors import ValidationError
from egress.request import SamplingParams

VOCAB = 1000
CLIENT = SamplingParams.__struct_fields__[:26]
KEYS = [*SamplingParams.__struct_fields__, "temprature", "", "N", "stop ", "\ud83d", "\u2028", 5, None]
INTS = [0, 1, -1, 2, 8, 128, 129, 2**31 - 1, 2**31, 2**53, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64]
FLOATS = [0.0, -0.0, 1.0, 0.5, 2.0, -2.0, 1e-6, 9.9e-7, 1e-300, 1e308, 1.0000001, 8.0, math.nan, math.inf]
TEXTS = ["", "a", "END", "0.5", "nan", "true", "\u505c", "\U0001f600", "\ud83d", "a\x00b", "x" * 300]
BIAS = ["0", "7", "999", "1000", "-1", "+7", " 7", "1.5", "1e1", "1_0", "\uff17", "9" * 30, "x", ""]
PATTERNS = [r"\d{3}", "abc", "a|b", "(", "(a+)+b", "[", "x" * 257, "", "\u505c+", "a{5000000000}", "(?i)end"]


class Fuzzer:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.accepted = self.refused = 0

    def scalar(self) -> Any:
        kind = self.rng.randrange(6)
        if kind == 0:
            return self.rng.choice([None, True, False])
        if kind <= 2:
            return self.rng.choice(INTS) if self.rng.random() < 0.7 else self.rng.getrandbits(80) - (1 << 79)
        if kind == 3:
            return self.rng.choice(FLOATS) * self.rng.choice([1, 1, -1])
        return self.rng.choice(TEXTS)

    def value(self, depth: int = 0) -> Any:
        kind = self.rng.randrange(8)
        if kind < 5 or depth > 3:
            return self.scalar()
        count = self.rng.choice([0, 1, 1, 2, 3, 33])
        if kind == 5:
            return [self.value(depth + 1) for _ in range(count)]
        if kind == 6:
            return [self.rng.choice(PATTERNS + TEXTS) for _ in range(count)]
        return {self.rng.choice(BIAS + TEXTS): self.value(depth + 1) for _ in range(count)}

    def plausible(self, name: str) -> Any:
        """A value of the type the field has."""
        rng = self.rng
        if name in ("stop", "stop_regex"):
            wells = PATTERNS if name == "stop_regex" else TEXTS
            some = [rng.choice(wells) for _ in range(rng.choice([0, 1, 2, 32, 33]))]
            return rng.choice([rng.choice(wells), some])
        if name == "stop_token_ids":
            return [rng.choice(INTS) for _ in range(rng.randrange(4))]
        if name == "logit_bias":
            return {rng.choice(BIAS): rng.choice(FLOATS) for _ in range(rng.randrange(4))}
        if name == "custom_params":
            return {rng.choice(TEXTS): self.value(1) for _ in range(rng.randrange(4))}
        if name in ("json_schema", "regex", "ebnf", "structural_tag"):
            return rng.choice(TEXTS)
        if name.startswith(("ignore", "skip", "spaces", "no_")):
            return rng.random() < 0.5
        if name in ("temperature", "top_p", "min_p") or name.endswith("penalty"):
            return rng.choice([*FLOATS, rng.uniform(-2.5, 2.5), rng.randrange(-3, 4)])
        return rng.choice([1, 1, 1, *INTS])

    def body(self) -> dict[Any, Any]:
        rng = self.rng
        body = {name: self.plausible(name) for name in rng.sample(CLIENT, rng.randrange(6))}
        if rng.random() < 0.5:
            body[rng.choice(KEYS)] = self.value()
        return body

    def mutated(self, text: bytes) -> bytes:
        rng = self.rng
        data = bytearray(text)
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(data) + 1)
            kind = rng.randrange(4)
            if kind == 0 and at < len(data):
                data[at] = rng.randrange(256)
            elif kind == 1:
                del data[at : at + rng.randrange(4)]
            elif kind == 2:
                data[at:at] = data[at : at + rng.randrange(12)]
            else:
                extra = (b"NaN", b"-Infinity", b"1e400", b"\\ud83d", b'"', b"[" * 9, b"9" * 25)
                data[at:at] = rng.choice(extra)
        return bytes(data)

    def one(self) -> None:
        body = self.body()
        text = json.dumps({key: value for key, value in body.items() if isinstance(key, str)}).encode()
        no_tokenizer = self.rng.random() < 0.1
        if self.rng.random() < 0.4:
            self.judge(self.mutated(text), no_tokenizer)
            return
        params = self.judge(body, no_tokenizer)
        again = self.judge(text, no_tokenizer)
        if all(isinstance(key, str) for key in body):
            assert (params is None) == (again is None), "a dict and its JSON differ"
            assert params == again

    def judge(self, data: Any, no_tokenizer: bool) -> SamplingParams | None:
        """Run every step over `data`; the settled parameters, or None when it was refused."""
        try:
            params = SamplingParams.parse(data)
            self.holds_the_wire_form(params)
            params.normalize(no_tokenizer)
            once = params.to_wire()
            params.normalize(not no_tokenizer)
            assert params.to_wire() == once, "normalizing twice is not once"
            params.verify(VOCAB)
        except ValidationError as error:
            self.refused += 1
            self.tells_the_client(error)
            return None
        self.accepted += 1
        self.holds_the_wire_form(params)
        self.holds_its_ranges(params)
        return params

    def tells_the_client(self, error: ValidationError) -> None:
        str(error).encode()
        assert len(str(error)) < 2000, "a text without bound"
        assert error.status_code == 400
        if error.field is not None:
            error.field.encode()
            assert len(error.field) <= 64 * len("\\U0010ffff"), "a field name without bound"

    def holds_the_wire_form(self, params: SamplingParams) -> None:
        packed = msgspec.msgpack.encode(params.to_wire())
        assert SamplingParams.from_wire(msgspec.msgpack.decode(packed)) == params, "the wire form differs"

    def holds_its_ranges(self, params: SamplingParams) -> None:
        for name in ("temperature", "top_p", "min_p", "frequency_penalty", "presence_penalty"):
            assert math.isfinite(getattr(params, name)), name
        assert 0 < params.top_p <= 1
        assert params.top_k >= 1
        assert params.n == 1
        assert len(params.stop_strs) <= 32
        assert len(params.stop_regex_strs) <= 32
        assert params.stop is None
        assert params.is_normalized
        assert params.max_new_tokens is None or params.min_new_tokens <= params.max_new_tokens
        assert params.stop_str_max_len == max((len(s.encode()) for s in params.stop_strs), default=0)


def fuzz(seed: int, seconds: float, count: int) -> Fuzzer:
    """Fuzz until `seconds` or `count` inputs are used up, whichever comes first."""
    fuzzer = Fuzzer(seed)
    deadline = time.monotonic() + seconds
    for done in range(count):
        state = fuzzer.rng.getstate()
        try:
            fuzzer.one()
        except BaseException:
            fuzzer.rng.setstate(state)
            print(f"seed {seed}, input {done}: {fuzzer.body()!r}", file=sys.stderr)
            raise
        if done % 256 == 0 and time.monotonic() > deadline:
            break
    return fuzzer


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--count", type=int, default=1 << 62)
    args = parser.parse_args()
    fuzzer = fuzz(args.seed, args.seconds, args.count)
    print(f"seed {args.seed}: {fuzzer.accepted} accepted, {fuzzer.refused} refused, all by the rules")


if __name__ == "__main__":
    main()

"""Look for a stop regex that is admitted and yet slow, wrongly bounded, or answered with no verdict.

    python tests/fuzz/fuzz_admission.py --seed 1 --seconds 600

Patterns are drawn from a grammar that favours what makes backtracking hurt: repeats of repeats, neighbours
that overlap, optional parts, alternatives that are prefixes of each other. For every admitted one, subjects
are made from the pattern's own characters and from samples of its parts, pumped and ended with something
that fails. A search is compared with the plainest quadratic loop over as many characters, in the same breath.
"""

# ruff: noqa: RUF001 - characters that look like others are the point here

from __future__ import annotations

import argparse
import random
import re
import time
from collections.abc import Iterator
from typing import Any

from egress.errors import ValidationError
from egress.request.admission import MAX_PATTERN_BYTES, MAX_TAIL, UNBOUNDED, RegexPattern
from egress.request.admission_tree import REPEATS, op, parse, parts_of

ATOMS = [
    "a",
    "b",
    "c",
    "ab",
    "x",
    " ",
    ",",
    r"\n",
    ".",
    r"\d",
    r"\w",
    r"\s",
    r"\S",
    r"\W",
    "[ab]",
    "[^a]",
    "[a-c]",
    r"[\w.-]",
    r"[^\S\n]",
    r"[^,\n]",
    "é",
    "[à-é]",
    "。",
    "0",
    r"\b",
    "$",
    "^",
    r"\Z",
    "(?=a)",
    "(?!b)",
    "(?<=a)",
    r"(?<!\w)",
    "a*",
    "a+",
    r"\s*",
    r"\w+",
    ".*",
    ".*?",
    r"\d+",
    "END",
    "a?",
    "[ab]*",
]
COUNTS = [
    "*",
    "+",
    "?",
    "*?",
    "+?",
    "??",
    "{2}",
    "{3}",
    "{2,}",
    "{0,2}",
    "{1,3}",
    "{0,9}",
    "{1,30}",
    "{5,60}",
    "{0,300}",
    "*+",
    "++",
]
GROUPS = ["(?:{})", "({})", "(?:{})", "(?>{})", "(?i:{})", "(?s:{})", "(?={})", "(?!{})", "(?P<n>{})"]
FLAGS = ["", "", "", "", "(?i)", "(?s)", "(?m)", "(?a)", "(?is)"]
NOISE = [
    *"()[]{}|*+?\\^$.-,:!<=>#P&~ \n",
    "\\1",
    "(?",
    "(?P=",
    "(?(1)",
    "\ud800",
    "\x00",
    "9999999",
    "𝒳",
]

TIMES_PLAIN = 7.5
"""Most a search may take: 30 ms where the plainest quadratic loop over MAX_TAIL characters takes 4."""


def grammar(rng: random.Random, depth: int = 0) -> str:
    """A random pattern; mostly valid, mostly short."""
    parts = []
    for _ in range(rng.choice((1, 1, 2, 2, 3, 4, 6))):
        if depth < 3 and rng.random() < 0.4:
            inner = grammar(rng, depth + 1)
            if rng.random() < 0.3:
                inner += "|" + grammar(rng, depth + 1)
            part = rng.choice(GROUPS).format(inner)
        else:
            part = rng.choice(ATOMS)
            if len(part) > 1 and rng.random() < 0.5:
                part = f"(?:{part})"
        if rng.random() < 0.4:
            part += rng.choice(COUNTS)
        parts.append(part)
    if depth == 0 and rng.random() < 0.1 and any("(" in part for part in parts):
        parts.append(rng.choice((r"\1", "(?(1)a|b*)")))
    return (rng.choice(FLAGS) if depth == 0 else "") + "".join(parts)


def mutate(rng: random.Random, pattern: str) -> str:
    """The pattern with a few characters changed: mostly invalid."""
    chars = list(pattern)
    for _ in range(rng.randint(1, 4)):
        at = rng.randint(0, len(chars))
        chars[at : at + rng.randint(0, 2)] = [rng.choice(NOISE)]
    return "".join(chars)


def sample(rng: random.Random, nodes: Any, groups: dict[int, str]) -> str:
    """A text that the sequence of the parse tree would match, look-around aside."""
    out: list[str] = []
    for kind, value in nodes:
        if kind is op.LITERAL:
            out.append(chr(value))
        elif kind in (op.NOT_LITERAL, op.ANY, op.IN):
            out.append(_member(rng, kind, value))
        elif kind in REPEATS:
            times = rng.choice((value[0], value[0] + 1, value[0] + 3))
            out += [sample(rng, value[2], groups) for _ in range(min(times, value[1], 40))]
        elif kind is op.BRANCH:
            out.append(sample(rng, rng.choice(value[1]), groups))
        elif kind is op.SUBPATTERN:
            text = sample(rng, value[3], groups)
            if value[0] is not None:
                groups[value[0]] = text
            out.append(text)
        elif kind is op.GROUPREF:
            out.append(groups.get(value, ""))
        elif kind not in (op.ASSERT, op.ASSERT_NOT):
            parts = parts_of(kind, value, 0)
            out.append(sample(rng, rng.choice(parts)[0], groups) if parts else "")
    return "".join(out)


_CANDIDATES = "ab x0,\n.-éàÉ。_A!cEND\u017f"


def _member(rng: random.Random, kind: Any, value: Any) -> str:
    text = "".join({kind: [chr(value) if kind is op.NOT_LITERAL else "a"]}.get(kind, []))
    if kind is op.IN:
        firsts = [chr(v if k is op.LITERAL else v[0]) for k, v in value if k in (op.LITERAL, op.RANGE)]
        text = "".join(firsts)
    matched = [c for c in _CANDIDATES + text if _matches(kind, value, c)]
    return rng.choice(matched) if matched else "a"


def _matches(kind: Any, value: Any, char: str) -> bool:
    if kind is op.ANY:
        return char != "\n"
    if kind is op.NOT_LITERAL:
        return ord(char) != value
    negated, found = False, False
    for what, item in value:
        if what is op.NEGATE:
            negated = True
        elif what is op.LITERAL:
            found = found or ord(char) == item
        elif what is op.RANGE:
            found = found or item[0] <= ord(char) <= item[1]
        else:
            name = str(item).rsplit("_", 1)[1]
            is_in = {
                "DIGIT": char.isdecimal(),
                "SPACE": char.isspace(),
                "WORD": char.isalnum() or char == "_",
            }[name]
            found = found or (is_in != ("NOT" in str(item)))
    return found != negated


def _parts(nodes: Any) -> Iterator[Any]:
    """The whole sequence, its items, and everything inside them."""
    yield nodes
    for kind, value in nodes:
        yield [(kind, value)]
        for part, _ in parts_of(kind, value, 0):
            yield from _parts(part)


def subjects(rng: random.Random, pattern: str, n_subjects: int) -> Iterator[tuple[str, str, str]]:
    """Triples (prefix, pump, suffix) made to make a search for `pattern` slow."""
    nodes, _ = parse(pattern)
    parts = list(_parts(nodes))
    singles = sorted({c for part in parts[:60] for c in sample(rng, part, {})[:8]})
    for char in singles[:6]:
        yield "", char, "\x00"
    for _ in range(n_subjects):
        pump = "".join(sample(rng, rng.choice(parts), {}) for _ in range(rng.choice((1, 1, 2, 3))))[:60]
        if not pump:
            continue
        prefix = sample(rng, rng.choice(parts), {})[:20] if rng.random() < 0.5 else ""
        yield prefix, pump, rng.choice(("", "\x00", "!", "\n", rng.choice(singles or ["a"])))


def text_of(subject: tuple[str, str, str], n: int) -> str:
    """The subject pumped to n characters."""
    prefix, pump, suffix = subject
    room = max(0, n - len(prefix) - len(suffix))
    return (prefix + (pump * (room // len(pump) + 1))[:room] + suffix)[-n:]


_PLAIN = re.compile(r"\n+$")


def _seconds(compiled: re.Pattern[str], text: str) -> float:
    started = time.thread_time()  # what other processes do meanwhile does not count
    compiled.search(text)
    return time.thread_time() - started


_plain_known: dict[int, float] = {}


def _times_plain(compiled: re.Pattern[str], text: str, rounds: int) -> float:
    """Times the plainest loop over as many characters; with rounds, both in turns, the least of each."""
    n = max(len(text), 256)
    plain = "\n" * (n - 1) + "x"
    if not rounds:
        if n not in _plain_known:
            _plain_known[n] = min(_seconds(_PLAIN, plain) for _ in range(9))
        return _seconds(compiled, text) / _plain_known[n]
    pairs = [(_seconds(compiled, text), _seconds(_PLAIN, plain)) for _ in range(rounds)]
    return min(ours for ours, _ in pairs) / min(theirs for _, theirs in pairs)


def slowness(compiled: re.Pattern[str], subject: tuple[str, str, str], times: float) -> float:
    """The most times the plainest quadratic loop a search takes, at growing lengths up to MAX_TAIL.

    Lengths grow in small steps and stop at the first that is slow, so that an exponential search is seen
    while it still ends. Small lengths are charged against the loop at 256, below which nothing is slow.
    """
    worst = 0.0
    for n in (16, 20, 24, 28, 32, 40, 52, 68, 96, 128, 192, 256, 512, MAX_TAIL):
        text = text_of(subject, n)
        ratio = 0.0
        for rounds in (0, 5, 30):  # a slow answer is asked for again: the machine may have looked away
            ratio = _times_plain(compiled, text, rounds)
            if ratio < times:
                break
        worst = max(worst, ratio)
        if ratio >= times:
            break
    return worst


def verdict(pattern: Any) -> RegexPattern | None:
    """What admission says; None = refused. Anything but a ValidationError comes out."""
    try:
        return RegexPattern.build(pattern)
    except ValidationError as error:
        if error.field != "stop_regex" or not str(error):
            raise AssertionError(f"a refusal without field or reason: {pattern!r}") from error
        return None


def check(
    rng: random.Random, pattern: str, n_subjects: int, times: float = TIMES_PLAIN
) -> tuple[float, tuple[str, str, str] | None]:
    """Attack one pattern, until it takes `times` the plainest loop: its worst slowness and the subject.

    Refused patterns give (0, None).

    Raises:
        AssertionError: a verdict of the wrong shape, or a match longer than the bound.
    """
    admitted = verdict(pattern)
    if admitted is None:
        return 0.0, None
    assert len(pattern.encode()) <= MAX_PATTERN_BYTES
    assert 0 < admitted.max_len <= UNBOUNDED
    compiled = re.compile(pattern)
    worst: tuple[float, tuple[str, str, str] | None] = (0.0, None)
    for subject in subjects(rng, pattern, n_subjects):
        ratio = slowness(compiled, subject, times)
        if ratio > worst[0]:
            worst = ratio, subject
        if ratio >= times:
            break
        found = compiled.search(text_of(subject, 200))
        assert found is None or len(found[0]) <= admitted.max_len, (pattern, found)
    return worst


def main() -> None:
    """Run until the time is up; exits with 1 and the seed at the first counterexample."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--subjects", type=int, default=12, help="subjects per admitted pattern")
    parser.add_argument("--keep-going", action="store_true", help="print counterexamples and go on")
    args = parser.parse_args()
    rng = random.Random(args.seed)
    ends = time.monotonic() + args.seconds
    n_patterns = n_admitted = n_bad = 0
    worst: tuple[float, str, Any] = (0.0, "", None)
    while time.monotonic() < ends:
        pattern = grammar(rng)
        n_patterns += 1
        if rng.random() < 0.3:
            verdict(mutate(rng, pattern))
            n_patterns += 1
        ratio, subject = check(rng, pattern, args.subjects)
        if subject is None:
            continue
        n_admitted += 1
        if ratio > worst[0]:
            worst = ratio, pattern, subject
        if ratio >= TIMES_PLAIN:
            n_bad += 1
            print(f"SLOW {ratio:.1f}x {pattern!r} on {subject!r} (seed {args.seed})", flush=True)
            if not args.keep_going:
                raise SystemExit(1)
    print(
        f"{n_patterns} patterns, {n_admitted} admitted and attacked, {n_bad} slow; "
        f"worst {worst[0]:.2f}x the plainest loop: {worst[1]!r} on {worst[2]!r}"
    )


if __name__ == "__main__":
    main()

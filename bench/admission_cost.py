"""What admitting a stop regex costs: a hit, a verdict, and whether the prices of the analysis are right.

Question: is a hit at most 150 ns, a verdict about 50 ms at most, and no admitted search over the limit?
Prices: for each construct the measured cost of a quadratic search over MAX_TAIL characters, in times the
plainest quadratic loop, beside what the analysis charges. Times are thread CPU time, the least of interleaved
rounds; a busy neighbour on the same core still makes a ratio lie by up to 1.5.

    python -m bench.admission_cost [--smoke]
"""

from __future__ import annotations

import argparse
import contextlib
import random
import re
import statistics
import time
import timeit

from bench import harness
from egress.errors import ValidationError
from egress.request.admission import LIMIT, MAX_TAIL, RegexPattern, admission_cache_info, weigh

EVERYDAY = [
    "</s>",
    r"\n\nQuestion:",
    r"\d+\.\d+",
    r"https?://\S+",
    r"```\s*$",
    r"\\boxed\{[^}]*\}",
    "User|Human",
    r"(?:\d{1,3}\.){3}\d{1,3}",
    r"(?i)\b(?:stop|end|quit)\b[.!]*$",
    r"(?s)<tool>.*?</tool>",
]
DEAR = [
    "(?:){1048575}x",
    "(?:.?.?.?.?){60}Z",
    "(?:a{1,30}){1,30}b",
    "(?:a?){25}a{25}b",
    "a{0,511}b{0,511}c",
    "(?:[a-z]{1,60} ?){1,9}!",
    "".join(f"(?:[{chr(97 + i)}-z]?x)*" for i in range(12)) + "!",
    "a?" * 100 + "b",
    "(?:a|b|c|" * 20 + "d" + ")*" * 20 + "e",
    "(a)" + "".join(f"(\\{i}\\{i})" for i in range(1, 30)) + "x",
    "é?" * 60,
]
PRICED = [
    (r"\n+$", "\n"),
    (r".+?Z", "x"),
    (r"\w+Z", "_"),
    (r".*\w", "!"),
    (r".*\d", "a"),
    (r".*\bZ", "!"),
    (r"(?i)[xyz]+Z", "x"),
    (r".*(?=a)", "x"),
    (r".*(?:ab)?Z", "x"),
    (r".*(a)?Z", "a"),
    (r".*(?:aa|bb|cd)", "x"),
    (r".*(?:\wa|\wb|\wd)", "x"),
    (r"(?:\w)*Z", "x"),
    (r"(\w)*Z", "_"),
    (r"(?:ab|\w)*Z", "x"),
    (r".*a??Z", "a"),
]


def hit_ns(rounds: int) -> tuple[float, float]:
    """Nanoseconds of RegexPattern.build for a cached pattern and of an empty call, least of short rounds."""
    pattern = EVERYDAY[2]
    assert RegexPattern.build(pattern) is RegexPattern.build(pattern)
    names = {"build": RegexPattern.build, "empty": lambda _: None, "pattern": pattern}
    least = []
    for statement in ("build(pattern)", "empty(pattern)"):
        timer = timeit.Timer(statement, timer=time.thread_time, globals=names)
        least.append(min(timer.repeat(rounds * 40, 2000)) / 2000 * 1e9)
    return least[0], least[1]


def verdict_ms(pattern: str, rounds: int) -> float:
    """Milliseconds of CPU of one verdict that is not cached; the pattern is varied so that it never is."""
    times = []
    for _ in range(rounds):
        fresh = f"{pattern}(?#{random.getrandbits(40):x})"[: 256 - pattern.count("é")]
        fresh = fresh if len(fresh.encode()) <= 256 and fresh.endswith(")") else pattern
        started = time.thread_time()
        with contextlib.suppress(ValidationError):
            RegexPattern.build(fresh)
        times.append((time.thread_time() - started) * 1e3)
    return statistics.median(times)


def _seconds(compiled: re.Pattern[str], text: str) -> float:
    started = time.thread_time()
    compiled.search(text)
    return time.thread_time() - started


def price(pattern: str, char: str, rounds: int) -> float:
    """Times the plainest quadratic loop a search takes over a text of one character."""
    text = char * (MAX_TAIL - 1) + ("\x00" if pattern[0] != "." else char)
    compiled, plain = re.compile(pattern), re.compile(r"\n+$")
    pairs = [(_seconds(compiled, text), _seconds(plain, "\n" * (MAX_TAIL - 1) + "x")) for _ in range(rounds)]
    return min(a for a, _ in pairs) / min(b for _, b in pairs)


def main() -> None:
    """Check, then measure, then print one JSON line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--smoke", action="store_true", help="tiny counts, to see that it runs")
    smoke = parser.parse_args().smoke
    rounds = 2 if smoke else 9
    for pattern in EVERYDAY:
        assert RegexPattern.build(pattern).pattern == pattern
    hit, empty = hit_ns(rounds)
    result = {
        "smoke": smoke,
        "hit_ns": round(hit, 1),
        "empty_call_ns": round(empty, 1),
        "everyday_verdict_ms": {p: round(verdict_ms(p, rounds), 3) for p in EVERYDAY},
        "dear_verdict_ms": {p[:40]: round(verdict_ms(p, min(rounds, 3)), 1) for p in DEAR},
        "limit": LIMIT,
        "price": {
            p: {"measured": round(price(p, c, rounds), 2), "charged": round(weigh(p), 2)} for p, c in PRICED
        },
        "cache": admission_cache_info()._asdict(),
    }
    harness.emit("admission_cost", result)


if __name__ == "__main__":
    main()

"""What the stress programs of the server share: a server, raw HTTP/1.1, the text it replays, its books."""

from __future__ import annotations

import asyncio
import json
import re
import resource
import signal
import sys
import tempfile
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from server_kit import Server

from egress.text import load_tokenizer
from tests.stress._kit import hold

__all__ = [
    "Answer",
    "Books",
    "Script",
    "Server",
    "connect",
    "exchange",
    "options",
    "quiet",
    "raise_limit",
    "request",
    "rss_mb",
    "running",
    "runtime_folder",
]

# Multi-byte all through: an ideograph, a flag and a family of emoji are cut by most token borders.
TEXT = "café 海は広い 👩‍👩‍👧 🇯🇵 naïve — déjà vu; print('Ω≈ç√')\n" * 40
WATCHDOG_S = 120.0


def raise_limit() -> None:
    """Let this process have as many descriptors as it may."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@contextmanager
def runtime_folder() -> Iterator[Path]:
    """A directory for servers' files, with the text that is replayed."""
    raise_limit()
    # Ended from outside, this program still ends its server.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "text").write_text(TEXT)
        (Path(folder) / "run").mkdir()
        yield Path(folder) / "run"


def options(runtime: Path) -> list[str]:
    """Flags of a server that replays TEXT for ever."""
    path = runtime.parent / "text"
    return ["--engine", "replay", "--engine-option", f"path={path}", "--engine-option", "loops=0"]


@contextmanager
def running(*flags: str, shards: int = 2, workers: int = 2) -> Iterator[Server]:
    """A ready server that replays TEXT for ever; afterwards nothing of it may be left."""
    with (
        runtime_folder() as runtime,
        Server(*options(runtime), *flags, runtime=runtime, shards=shards, workers=workers) as server,
    ):
        yield server.wait_ready()


class Script:
    """What a request of so many tokens is answered, by the tokenizer's own full decode."""

    def __init__(self) -> None:
        self._tokenizer = load_tokenizer("qwen")
        self._ids = self._tokenizer.encode(TEXT)
        self._texts: dict[int, str] = {}

    def text(self, count: int) -> str:
        """The text of the first `count` tokens."""
        if count not in self._texts:
            loops = count // len(self._ids) + 1
            self._texts[count] = self._tokenizer.decode((self._ids * loops)[:count])
        return self._texts[count]

    def starts_with(self, text: str) -> bool:
        """Whether `text` is the beginning of what is replayed, but for a character cut at its end."""
        whole = TEXT * (len(text) // len(TEXT) + 1)
        return whole.startswith(text.rstrip("�"))


def request(path: str, body: Any, *headers: str, close: bool = True) -> bytes:
    """The bytes of a POST."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(data)}", *headers]
    if close:
        lines.append("Connection: close")
    return "\r\n".join([*lines, "", ""]).encode() + data


class Answer:
    """A whole HTTP/1.1 answer, taken apart.

    Attributes:
        status: 0 where the connection ended before a status line.
        body: without its framing.
        is_whole: the framing says that nothing is missing.
        events: of a stream, each parsed; "[DONE]" as that string.
    """

    def __init__(self, raw: bytes) -> None:
        head, _, rest = raw.partition(b"\r\n\r\n")
        found = re.match(rb"HTTP/1\.1 (\d{3}) ", head)
        self.status = int(found[1]) if found else 0
        self.headers = head.lower()
        self.body, self.is_whole = self._unframed(rest) if found else (b"", False)
        self.events: list[Any] = []
        if b"text/event-stream" in self.headers:
            for event in self.body.decode().split("\n\n")[:-1]:
                hold(event.startswith("data: ") and "\n" not in event, f"not one event: {event[:200]!r}")
                self.events.append(event[6:] if event == "data: [DONE]" else json.loads(event[6:]))

    def _unframed(self, rest: bytes) -> tuple[bytes, bool]:
        if found := re.search(rb"content-length: (\d+)", self.headers):
            return rest[: int(found[1])], len(rest) == int(found[1])
        if b"transfer-encoding: chunked" not in self.headers:
            return rest, False
        parts = []
        place = 0
        while (end := rest.find(b"\r\n", place)) >= 0:
            size = int(rest[place:end], 16)
            part = rest[end + 2 : end + 2 + size]
            if len(part) < size:
                break
            place = end + 2 + size + 2
            if size == 0:
                hold(place == len(rest), f"bytes after the end of the answer: {rest[place : place + 80]!r}")
                return b"".join(parts), True
            parts.append(part)
        return b"".join(parts), False

    @property
    def error(self) -> str:
        """The message of the error it ends with, "" where there is none."""
        last: Any = self.events[-1] if self.events else None
        if self.events == [] and self.status >= 400:
            last = json.loads(self.body)
        return str(last["error"]["message"]) if isinstance(last, dict) and "error" in last else ""

    def hold_one_ending(self) -> str:
        """Check that a stream ended exactly once; "done", "error", or "cut" for a connection that broke."""
        done = self.events.count("[DONE]")
        errors = sum(isinstance(event, dict) and "error" in event for event in self.events)
        finished = sum(
            isinstance(event, dict) and bool(event.get("meta_info", {}).get("finish_reason"))
            for event in self.events
        )
        hold(done + errors <= 1, f"{done} end marks and {errors} errors in one stream")
        if done:
            hold(self.events[-1] == "[DONE]", "events after the end mark")
            hold(finished == 1 and self.is_whole, f"an end mark after {finished} finish reasons")
            return "done"
        if errors:
            hold("error" in self.events[-1], "events after the error")
            return "error"
        hold(not self.is_whole, "a stream that ended like a success, without its end mark")
        return "cut"

    def text(self) -> str:
        """The deltas of an incremental stream, joined."""
        return "".join(event["text"] for event in self.events if isinstance(event, dict) and "text" in event)


@asynccontextmanager
async def connect(
    server: Server,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection; closed without waiting for the other side."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def exchange(server: Server, data: bytes, seconds: float = WATCHDOG_S) -> Answer:
    """Send one request that asks to close, and read to the end."""
    raw = b""
    async with connect(server) as (reader, writer):
        writer.write(data)
        try:
            async with asyncio.timeout(seconds):
                while part := await reader.read(1 << 16):
                    raw += part
        except ConnectionResetError:
            pass
        except TimeoutError:
            raise AssertionError(f"no end within {seconds} s; so far {raw[-200:]!r}") from None
    return Answer(raw)


class Books:
    """The server's own accounts, from one scrape and every shard's report."""

    def __init__(self, server: Server, shards: int = 2) -> None:
        with urllib.request.urlopen(f"{server.url}/metrics", timeout=WATCHDOG_S) as answer:
            text = answer.read().decode()
        self.samples: Counter[str] = Counter()
        self.lines = text
        for name, value in re.findall(r"^(\w+)(?:\{[^}\n]*\})? (\S+)$", text, re.MULTILINE):
            self.samples[name] += float(value)  # type: ignore[assignment]
        self.running = [server.get(f"/server_info?shard={shard}")["running"] for shard in range(shards)]

    def faults(self, was_killed: bool = False) -> list[str]:
        """What is not as it must be when nobody asks for anything."""
        found = [f"shard {i} runs {n} requests" for i, n in enumerate(self.running) if n]
        for name in ("egress_requests_running", "egress_calls_open", "egress_backlog_bytes"):
            if self.samples[name]:
                found.append(f"{name} is {self.samples[name]}")
        admitted, ended = self.samples["egress_requests_total"], self._ended()
        if not was_killed and admitted != ended:
            found.append(f"{admitted:.0f} requests were admitted and {ended:.0f} ended")
        return found

    def _ended(self) -> float:
        pattern = r'egress_shard_requests_ended_total\{cause="(\w+)"[^}]*\} (\S+)'
        return sum(float(value) for cause, value in re.findall(pattern, self.lines) if cause != "refused")


async def quiet(server: Server, shards: int = 2, seconds: float = 20.0, was_killed: bool = False) -> Books:
    """Wait until all tables are empty and the accounts agree."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while True:
        books = await asyncio.to_thread(Books, server, shards)
        faults = books.faults(was_killed)
        if not faults:
            return books
        hold(loop.time() < deadline, f"after {seconds} s of quiet: {'; '.join(faults)}")
        await asyncio.sleep(0.3)


def rss_mb(server: Server) -> dict[str, float]:
    """Resident megabytes of every child, without the rings' shared pages, by its role and pid."""
    return {
        f"{role}-{pid}": (psutil.Process(pid).memory_info().rss - psutil.Process(pid).memory_info().shared)
        / 1e6
        for role, pids in server.children().items()
        for pid in pids
    }

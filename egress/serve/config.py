"""Every setting of a server, in one frozen struct, with its default, its unit and what one unit costs.

The supervisor makes it from the command line, checks it once, and hands it to its children as JSON.
Nothing else in `egress.serve` holds a number that a user might want to change.
"""

from __future__ import annotations

import re

import msgspec

from egress.errors import ValidationError

__all__ = ["MAX_RID_BYTES", "Settings", "frame_ring", "request_ring"]

# A rid is repeated in the header of every frame of its request; 512 bytes hold any UUID, trace id or path.
MAX_RID_BYTES = 512

# Half a ring is the largest frame; below this a batch of a few hundred requests no longer fits one.
MIN_RING_BYTES = 64 << 10
MAX_RING_BYTES = 1 << 34


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What a server is told; equal in the supervisor and in each of its children.

    Attributes:
        instance: name of this server, unique on the machine; first part of all its rings' names.
        host, port: where the API listens; port 0 takes a free one.
        shards: engine and detokenizer processes. Those of one server share one loaded tokenizer (about 80 MB
            for the default one) and have about 10 MB of their own, plus what their engine takes.
        workers: API processes. Each (shard, worker) pair costs two rings.
        tokenizer: a name that an installed package ships, or a path to a tokenizer.json.
        skip_tokenizer_init: token ids in, token ids out; no text anywhere.
        vocab_size: ids at or above it are refused; None: the tokenizer's own size.
        engine: a built-in name, or "package.module:factory".
        engine_options: handed to the engine's factory as they are.
        step_ms: least time from the start of one step to the start of the next; 0 = as fast as it can.
        model_name: what `/v1/models` lists and answers carry.
        max_context: tokens, prompt and answer together.
        max_running: requests at once in one shard; one more is answered 503.
        max_prompts: prompts in one request body.
        max_body: bytes of a request body; more is answered 413.
        ring_bytes: capacity of every ring, a power of two; shards * workers * 2 of them are made.
        stall_s: seconds after which a client that takes nothing of what waits for it is cut off; 0 = never.
        sink_items, sink_tokens: what may wait for one slow client before its request is ended.
        backlog_bytes, backlog_frames: what a shard keeps for one worker that does not take its frames.
        turn_frames: frames a worker takes from one ring in one turn of its loop before handlers run.
        api_key: when set, every request but /live, /health needs it as a bearer token.
        drain_s: seconds that running requests may take to end after SIGTERM.
        ping_s: seconds between two pings, of a child by the supervisor and of a shard by a worker.
        hang_s: seconds after which a child that does not answer pings is killed and replaced.
        control_s: seconds a control request may take.
        log_format: "text" or "json". log_level: a level name of `logging`.
        log_requests: one line per ended request.
        metrics_dir: directory of the metrics files, made and removed by the supervisor; "" = no files.
        runtime_dir: directory of this instance's other files, made and removed by the supervisor.
    """

    instance: str = "egress"
    host: str = "127.0.0.1"
    port: int = 8000
    shards: int = 1
    workers: int = 1
    tokenizer: str = "qwen"
    skip_tokenizer_init: bool = False
    vocab_size: int | None = None
    engine: str = "ngram"
    engine_options: dict[str, str] = {}
    step_ms: float = 0.0
    model_name: str = "egress-ngram"
    max_context: int = 8192
    max_running: int = 1024
    max_prompts: int = 256
    max_body: int = 4 << 20
    ring_bytes: int = 4 << 20
    stall_s: float = 60.0
    sink_items: int = 64
    sink_tokens: int = 4096
    backlog_bytes: int = 8 << 20
    backlog_frames: int = 1024
    turn_frames: int = 64
    api_key: str | None = None
    drain_s: float = 10.0
    ping_s: float = 1.0
    hang_s: float = 30.0
    control_s: float = 2.0
    log_format: str = "text"
    log_level: str = "INFO"
    log_requests: bool = False
    metrics_dir: str = ""
    runtime_dir: str = ""

    def verify(self) -> None:
        """Check every number against its range; the first failure wins.

        Raises:
            ValidationError: names the setting, its range and the value.
        """
        for field, low, high in _RANGES:
            value = getattr(self, field)
            if not low <= value <= high:
                raise ValidationError(f"{field} must be in [{low}, {high}], got {value}", field)
        if self.ring_bytes & (self.ring_bytes - 1):
            raise ValidationError(f"ring_bytes must be a power of two, got {self.ring_bytes}", "ring_bytes")
        if self.log_format not in ("text", "json"):
            raise ValidationError(f"log_format must be text or json, got {self.log_format!r}", "log_format")
        if not _INSTANCE.fullmatch(self.instance):
            raise ValidationError(
                f"instance must be 1 to 64 letters, digits, '-' or '_', got {self.instance!r}", "instance"
            )
        if self.vocab_size is not None and self.vocab_size < 1:
            raise ValidationError(f"vocab_size must be at least 1, got {self.vocab_size}", "vocab_size")

    @property
    def max_frame_bytes(self) -> int:
        """The largest payload a ring takes: half of it, less a frame's header and alignment."""
        return self.ring_bytes // 2 - 64

    @property
    def total_ring_bytes(self) -> int:
        """Bytes of data in all rings together; the pages around them come on top."""
        return 2 * self.shards * self.workers * self.ring_bytes

    def to_json(self) -> bytes:
        """The whole of it for a child process."""
        return msgspec.json.encode(self)

    @classmethod
    def from_json(cls, data: bytes | str) -> Settings:
        """What `to_json` wrote.

        Raises:
            msgspec.ValidationError: the JSON is not a settings object.
        """
        return msgspec.json.decode(data, type=cls)


# First part of a ring's name, whose parts are joined by dots.
_INSTANCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")

_RANGES: tuple[tuple[str, float, float], ...] = (
    ("port", 0, 65535),
    ("shards", 1, 64),
    ("workers", 1, 64),
    ("step_ms", 0, 60_000),
    ("max_context", 1, 1 << 24),
    ("max_running", 1, 1 << 20),
    ("max_prompts", 1, 1 << 16),
    ("max_body", 1024, 1 << 30),
    ("ring_bytes", MIN_RING_BYTES, MAX_RING_BYTES),
    ("stall_s", 0, 86_400),
    ("sink_items", 1, 1 << 20),
    ("sink_tokens", 1, 1 << 30),
    ("backlog_bytes", 1 << 16, 1 << 34),
    ("backlog_frames", 1, 1 << 20),
    ("turn_frames", 1, 1 << 16),
    ("drain_s", 0, 3600),
    ("ping_s", 0.05, 3600),
    ("hang_s", 1, 86_400),
    ("control_s", 0.05, 3600),
)


def frame_ring(instance: str, shard: int, worker: int) -> str:
    """The ring that carries a shard's frames to a worker; made by the shard."""
    return f"{instance}.s{shard}.w{worker}"


def request_ring(instance: str, shard: int, worker: int) -> str:
    """The ring that carries a worker's requests to a shard; made by the worker."""
    return f"{instance}.w{worker}.s{shard}"

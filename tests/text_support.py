"""Tokenizers for tests of text: small ones made here, nothing downloaded."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from egress.text import load_tokenizer

CORPUS = [
    "The quick brown fox jumps over the lazy dog; don't panic, it's 42.",
    "def f(x):\n    return x + 1\n\n\nclass A: pass",
    "中文测试,你好世界。再见。",
    "한국어 텍스트 — 안녕하세요",
    "émoji 👍🏽 👨‍👩‍👧 🇩🇪 café",
    "User: hello\n\nAssistant: hi there <|e STOP",
]

# What is hard to cut: CJK, emoji with joiners and flags, combining marks, a genuine U+FFFD, a BOM.
ALPHABET = "ab  .\n中海你好한국👍🏽👨\u200d👩🇩🇪e\u0301\ufffd\ufeff\u2028ß"


class Strings:
    """The small protocol and nothing else: a vocabulary of strings or bytes."""

    eos_token_ids = (3,)

    def __init__(self, vocab: Mapping[int, str | bytes], special: Sequence[int] = ()) -> None:
        self.vocab = dict(vocab)
        self.special = set(special)
        self.vocab_size = max(vocab) + 1

    def encode(self, text: str) -> list[int]:
        return [next(i for i, piece in self.vocab.items() if piece == char) for char in text]

    def token_bytes(self, token_id: int) -> bytes:
        piece = self.vocab[token_id]
        return piece if isinstance(piece, bytes) else piece.encode()

    def is_special(self, token_id: int) -> bool:
        return token_id in self.special


def byte_values() -> Strings:
    """A vocabulary whose ids are byte values."""
    return Strings({value: bytes([value]) for value in range(256)})


@cache
def qwen() -> Any:
    """The real default vocabulary, loaded once."""
    return load_tokenizer("qwen")


def byte_level() -> tokenizers.Tokenizer:
    """A trained byte-level BPE with special tokens and added ones, one outside the byte alphabet."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["</s>", "<|sep|>"],
    )
    backend.train_from_iterator(CORPUS, trainer)
    backend.add_tokens(["加字", "two words"])
    return backend


def byte_fallback(strip: bool = True) -> tokenizers.Tokenizer:
    """A vocabulary in Llama's manner: pieces with a metaspace, a token for each byte."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    vocab |= {f"<0x{value:02X}>": 3 + value for value in range(256)}
    for piece in ["▁", "▁a", "a", "b", "▁hello", "world", "中", ".", "▁▁", "e", "\u0301", "", "\n", "�"]:
        vocab[piece] = len(vocab)
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strip else steps)
    return backend


def word_pieces(decoder: Any) -> tokenizers.Tokenizer:
    """Words, continuations and punctuation under any decoder."""
    words = "[UNK],[CLS],[SEP],hello,##ing,▁wo,rld,▁,.,?,n't,'s,do,not,a</w>,b</w>,c,|,中,##é,##, "
    pieces = words.split(",")
    backend = tokenizers.Tokenizer(
        models.WordPiece(vocab={piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]")
    )
    backend.add_special_tokens(["[CLS]", "[SEP]"])
    if decoder is not None:
        backend.decoder = decoder
    return backend


def saved(backend: tokenizers.Tokenizer, folder: Path, **beside: Any) -> Any:
    """The tokenizer written to `folder` with JSON files beside it, and loaded."""
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    for name, content in beside.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return load_tokenizer(folder)


def in_chunks(ids: Sequence[int], rng: random.Random, longest: int = 9) -> list[list[int]]:
    """`ids` cut at random into chunks of 0 to `longest`."""
    chunks, at = [], 0
    while at < len(ids):
        size = rng.choice([0, 1, 1, 1, rng.randint(1, longest)])
        chunks.append(list(ids[at : at + size]))
        at += size
    return chunks


def streamed(state: Any, chunks: Sequence[Sequence[int]], finish: Any) -> list[str]:
    """The texts of all deltas, the last one of an empty terminal chunk."""
    return [state.push(list(chunk)).text for chunk in chunks] + [state.push([], finish).text]

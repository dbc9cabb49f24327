"""The body for Hugging Face tokenizer.json files, on the `tokenizers` library.

Which decoder the file names decides how its ids are decoded incrementally:

- ByteLevel: as bytes, each token mapped back through the byte-level alphabet.
- Metaspace, WordPiece, none, and the SentencePiece chain Replace, ByteFallback, Fuse, Strip: by pieces,
  because there a token's text depends only on whether it comes first (and on the run of byte tokens).
- anything else: over a window.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from egress.errors import DetokenizeError
from egress.text.chat_template import ChatTemplate, chatml
from egress.text.decoders import check_id
from egress.text.vocabulary import checked_text

__all__ = ["LibraryTokenizer", "load_file"]

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")

# Tokens that end a turn or a text in published vocabularies, for files without a word on it.
_EOS_NAMES = (
    "<|endoftext|>", "<|im_end|>", "</s>", "<eos>", "<end_of_turn>", "<|eot_id|>", "<|end_of_text|>",
    "<|end|>", "<\uff5cend\u2581of\u2581sentence\uff5c>", "<|return|>",
)  # fmt: skip


# What may remain of a decoder chain, Replace before it and Strip after it apart, for tokens to be pieces.
_LOCAL_CHAINS = {(), ("Metaspace",), ("WordPiece",), ("Fuse",), ("ByteFallback",), ("ByteFallback", "Fuse")}


def _byte_alphabet() -> dict[str, int]:
    """Character -> byte of byte-level vocabularies (GPT-2's bytes_to_unicode, reversed)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(b): b for b in printable} | {chr(256 + n): b for n, b in enumerate(others)}


_BYTE_OF_CHAR = _byte_alphabet()


class _Decoder(msgspec.Struct):
    """The fields of tokenizer.json's decoders that matter here."""

    type: str
    decoders: list[_Decoder] = []
    pattern: dict[str, str] | None = None
    content: str = ""
    start: int = 0
    stop: int = 0


class _File(msgspec.Struct):
    decoder: _Decoder | None = None


class LibraryTokenizer:
    """A tokenizer.json behind the Tokenizer protocol.

    Args:
        backend: a tokenizers.Tokenizer; owned from now on (its truncation and padding are switched off).
        decoder: the file's decoder.
        name: what to call it.
        eos_token_ids: ids that end a generation.
        template: its own chat template, or None for ChatML.
        bos_token: its text, so that a template that writes it does not get a second one.
    """

    def __init__(
        self,
        backend: Any,
        decoder: _Decoder | None,
        name: str,
        eos_token_ids: Iterable[int] = (),
        template: ChatTemplate | None = None,
        bos_token: str | None = None,
    ) -> None:
        # A truncation stored in the file would silently shorten prompts.
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._template = template
        self._special = {i for i, token in backend.get_added_tokens_decoder().items() if token.special}
        self._bos = None if bos_token is None else backend.token_to_id(bos_token)
        self.name = name
        self.vocab_size: int = max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        self.eos_token_ids = frozenset(eos_token_ids) or self._known_eos()
        self.strip: tuple[str, int] = ("", 0)
        self._has_bytes = False
        self._anchor = -1
        self._anchor_text = ""
        self.decoding: Literal["bytes", "pieces", "window"] = self._classify(decoder)

    def encode(self, text: str) -> list[int]:
        """The ids of `text`, with the special tokens the file's post-processor adds.

        Raises:
            ValidationError: the text holds a lone surrogate.
        """
        ids: list[int] = self._backend.encode(checked_text(text)).ids
        if self._bos is not None and ids[:2] == [self._bos, self._bos]:
            return ids[1:]
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes the token adds to a text it does not begin."""
        if self.decoding == "bytes":
            token = self._token(token_id)
            try:
                return bytes([_BYTE_OF_CHAR[char] for char in token])
            except KeyError:
                return token.encode()  # an added token outside the alphabet stands for itself
        byte = self.byte_of(token_id)
        return self.piece(token_id).encode() if byte is None else bytes([byte])

    def is_special(self, token_id: int) -> bool:
        """Whether `skip_special_tokens` leaves the token out."""
        return token_id in self._special

    def token_text(self, token_id: int) -> str:
        """The id decoded alone, special tokens kept; "" for one that cannot be."""
        try:
            return self.decode([token_id], skip_special_tokens=False)
        except DetokenizeError:
            return ""

    def decode(
        self,
        token_ids: Sequence[int],
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> str:
        """The text of all ids at once; the library knows no `spaces_between_special_tokens`.

        Raises:
            DetokenizeError: an id is outside the vocabulary.
        """
        ids = [check_id(token_id, self.vocab_size) for token_id in token_ids]
        for token_id in ids:
            self._token(token_id)
        return str(self._backend.decode(ids, skip_special_tokens=skip_special_tokens))

    def chat(self, messages: list[dict[str, Any]], add_generation_prompt: bool = True, **context: Any) -> str:
        """The prompt for `messages` by the tokenizer's own template, else ChatML.

        Raises:
            ValidationError: the messages are malformed, or the template refused them.
        """
        if self._template is None:
            return chatml(messages, add_generation_prompt)
        return self._template.render(messages, add_generation_prompt, **context)

    def byte_of(self, token_id: int) -> int | None:
        """The byte a byte-fallback token stands for, else None."""
        found = _BYTE_TOKEN.fullmatch(self._token(token_id)) if self._has_bytes else None
        return None if found is None else int(found[1], 16)

    def piece(self, token_id: int) -> str:
        """The text the token adds anywhere but first."""
        self._token(token_id)
        if self._anchor < 0:
            return str(self._backend.decode([token_id], skip_special_tokens=False))
        text = str(self._backend.decode([self._anchor, token_id], skip_special_tokens=False))
        return text[len(self._anchor_text) :]

    def first_piece(self, token_id: int) -> str:
        """The text of the token as the very first; what `strip` takes is still in it."""
        if self.strip[1]:
            return self.piece(token_id)
        return str(self._backend.decode([token_id], skip_special_tokens=False))

    def _token(self, token_id: int) -> str:
        token = self._backend.id_to_token(check_id(token_id, self.vocab_size))
        if token is None:
            raise DetokenizeError(f"token id {token_id} names no token of the vocabulary")
        return str(token)

    def _known_eos(self) -> frozenset[int]:
        ids = (self._backend.token_to_id(name) for name in _EOS_NAMES)
        return frozenset(i for i in ids if i is not None)

    def _classify(self, decoder: _Decoder | None) -> Literal["bytes", "pieces", "window"]:
        chain: list[_Decoder] = []
        if decoder is not None:
            chain = decoder.decoders if decoder.type == "Sequence" else [decoder]
        if [step.type for step in chain] in (["ByteLevel"], ["ByteLevel", "Fuse"]):
            return "bytes"
        # Replacing is local to a token as long as it comes before tokens are joined.
        while chain and chain[0].type == "Replace" and "String" in (chain[0].pattern or {}):
            chain = chain[1:]
        if [step.type for step in chain[-2:]] == ["Fuse", "Strip"] and not chain[-1].stop:
            self.strip = (chain[-1].content, chain[-1].start)
            chain = chain[:-1]
        kinds = tuple(step.type for step in chain)
        if kinds not in _LOCAL_CHAINS or not self._find_anchor():
            self.strip = ("", 0)
            return "window"
        self._has_bytes = "ByteFallback" in kinds
        return "pieces"

    def _find_anchor(self) -> bool:
        """Find an ordinary token before which another's text can be read off."""
        for token_id in range(self.vocab_size):
            token = self._backend.id_to_token(token_id)
            if token and token_id not in self._special and token.isascii() and token.isalnum():
                self._anchor = token_id
                self._anchor_text = str(self._backend.decode([token_id], skip_special_tokens=False))
                return True
        return False


def load_file(path: Path) -> LibraryTokenizer:
    """Load tokenizer.json at `path`, with what the files beside it say of templates and ends.

    Raises:
        ImportError: `tokenizers` is not installed (extra `tokenizers`).
        ValueError: the file is no tokenizer.json.
    """
    try:
        import tokenizers  # noqa: PLC0415  (an extra, and only this body needs it)
    except ImportError as error:
        raise ImportError(
            f"reading {path} needs the library tokenizers: pip install 'egress-ring[tokenizers]'"
        ) from error
    raw = path.read_bytes()
    try:
        decoder = msgspec.json.decode(raw, type=_File).decoder
        backend = tokenizers.Tokenizer.from_buffer(raw)
    except Exception as error:  # the library raises bare Exception
        raise ValueError(f"{path} is no tokenizer.json that can be read: {error}") from error
    config = _read_json(path.parent / "tokenizer_config.json")
    tokens = {key: text for key in _TOKEN_KEYS if (text := _token_text(config.get(key)))}
    template = _template_source(config, path.parent / "chat_template.jinja")
    return LibraryTokenizer(
        backend,
        decoder,
        name=path.parent.name if path.name == "tokenizer.json" else path.stem,
        eos_token_ids=_eos_ids(path.parent, tokens.get("eos_token"), backend),
        template=None if template is None else ChatTemplate(template, tokens),
        bos_token=tokens.get("bos_token"),
    )


_TOKEN_KEYS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


def _read_json(path: Path) -> dict[str, Any]:
    """The object in `path`; {} without the file."""
    try:
        found = msgspec.json.decode(path.read_bytes())
    except FileNotFoundError:
        return {}
    except msgspec.DecodeError as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} must hold a JSON object")
    return found


def _token_text(value: Any) -> str | None:
    """A token of tokenizer_config.json: a string, or an object with its content."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _template_source(config: dict[str, Any], beside: Path) -> str | None:
    found = config.get("chat_template")
    if isinstance(found, list):  # several by name; the one without a purpose is "default"
        named = {item.get("name"): item.get("template") for item in found if isinstance(item, dict)}
        found = named.get("default")
    if found is None and beside.is_file():
        found = beside.read_text(encoding="utf-8")
    return found if isinstance(found, str) else None


def _eos_ids(folder: Path, eos_token: str | None, backend: Any) -> set[int]:
    """Every id named as an end: generation_config.json, config.json, then the configured token."""
    found: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        value = _read_json(folder / name).get("eos_token_id")
        found.update(i for i in (value if isinstance(value, list) else [value]) if isinstance(i, int))
    token_id = None if eos_token is None else backend.token_to_id(eos_token)
    return found if token_id is None else found | {token_id}

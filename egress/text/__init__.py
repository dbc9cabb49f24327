"""Ids to text: tokenizers, incremental detokenizing, stop strings, chat templates."""

from egress.text.chat_template import ChatTemplate, chatml
from egress.text.detok import Delta, Detokenizer, DetokenizerState, push_batch
from egress.text.matcher import StopMatcher
from egress.text.tokenizers import (
    DEFAULT_TOKENIZER,
    ByteTokenizer,
    LoadedTokenizer,
    Tokenizer,
    known_tokenizers,
    load_tokenizer,
)

__all__ = [
    "DEFAULT_TOKENIZER",
    "ByteTokenizer",
    "ChatTemplate",
    "Delta",
    "Detokenizer",
    "DetokenizerState",
    "LoadedTokenizer",
    "StopMatcher",
    "Tokenizer",
    "chatml",
    "known_tokenizers",
    "load_tokenizer",
    "push_batch",
]

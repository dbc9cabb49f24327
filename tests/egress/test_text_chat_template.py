"""Chat templates: the tokenizer's own in a sandbox, ChatML otherwise."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest
from text_support import byte_level, qwen, saved

from egress.errors import ValidationError
from egress.text import ChatTemplate, chatml, load_tokenizer

HELLO = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi <b>"}]
LOOP = (
    "{{ bos_token }}{% for m in messages %}\n    {% if m.role == 'user' %}\n[{{ m.content }}]\n"
    "    {% endif %}\n{% endfor %}{% if add_generation_prompt %}>{% endif %}"
)


def test_the_default_is_chatml() -> None:
    want = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi <b><|im_end|>\n"
    assert chatml(HELLO, add_generation_prompt=False) == want
    assert qwen().chat(HELLO) == want + "<|im_start|>assistant\n"


def test_the_tokenizer_s_own_template_is_used(tmp_path: Path) -> None:
    config = {"chat_template": LOOP, "bos_token": {"content": "</s>"}}
    tokenizer = saved(byte_level(), tmp_path, tokenizer_config=config)
    assert tokenizer.chat(HELLO) == "</s>[Hi <b>]\n>"
    assert tokenizer.chat(HELLO, add_generation_prompt=False) == "</s>[Hi <b>]\n"


def test_a_list_of_templates_and_a_file_of_its_own(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    assert (
        saved(byte_level(), tmp_path / "a", tokenizer_config={"chat_template": named}).chat(HELLO) == "plain"
    )
    saved(byte_level(), tmp_path / "b")
    (tmp_path / "b" / "chat_template.jinja").write_text("from a file")
    assert load_tokenizer(tmp_path / "b").chat(HELLO) == "from a file"
    assert saved(byte_level(), tmp_path / "c").chat(HELLO) == chatml(HELLO)


def test_context_reaches_the_template() -> None:
    template = ChatTemplate(
        "{{ tools | tojson }}{{ thinking is defined }}{{ strftime_now('%Y') }}", clock=lambda: time.gmtime(0)
    )
    assert template.render(HELLO, tools=[{"é": "<"}]) == '[{"é": "<"}]False1970'


def test_text_parts_are_joined() -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    assert (
        chatml(parts, False)
        == ChatTemplate("<|im_start|>user\n{{ messages[0].content }}<|im_end|>\n").render(parts) + "\n"
    )
    assert "assistant\n<|im_end|>" in chatml([{"role": "assistant", "content": None}])


@pytest.mark.parametrize(
    "messages",
    [
        ["hi"],
        [{}],
        [{"role": 5, "content": "x"}],
        [{"role": "user", "content": 5}],
        [{"role": "user", "content": [{"type": "image_url"}]}],
        [{"role": "user", "content": ["x"]}],
        [{"role": "user", "content": [{"type": "text", "text": 5}]}],
    ],
)
def test_malformed_messages_are_a_400(messages: Any) -> None:
    for render in (chatml, ChatTemplate("{{ messages[0].content }}").render):
        with pytest.raises(ValidationError, match=r"messages\[0\]") as caught:
            render(messages)
        assert (caught.value.status_code, caught.value.field) == (400, "messages")


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages.__class__.__mro__ }}{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{% for i in range(10 ** 9) %}x{% endfor %}",
        "{{ 1 / 0 }}",
        "{{ missing.attribute }}",
    ],
)
def test_what_a_template_raises_is_the_client_s_400(source: str) -> None:
    with pytest.raises(ValidationError, match="chat template refused them") as caught:
        ChatTemplate(source).render(HELLO)
    assert caught.value.field == "messages"


def test_a_template_that_does_not_compile_is_refused_at_load(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not compile"):
        saved(byte_level(), tmp_path, tokenizer_config={"chat_template": "{% for %}"})


def test_without_jinja2_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ImportError, match=r"egress-ring\[serve\]"):
        ChatTemplate("x")

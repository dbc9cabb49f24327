"""Chat messages to one prompt: the tokenizer's own jinja template, sandboxed, or a stated default.

A template is a program from whoever published the tokenizer, and what it is given comes from clients: it
runs in jinja2's immutable sandbox with the settings that transformers gives templates, and whatever it
raises is the client's 400.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from egress.errors import ValidationError

__all__ = ["ChatTemplate", "chatml"]


def chatml(messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True) -> str:
    """The default template: ChatML, without a system message of its own.

    >>> chatml([{"role": "user", "content": "Hi"}])
    '<|im_start|>user\\nHi<|im_end|>\\n<|im_start|>assistant\\n'
    """
    turns = [
        f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n" for message in _plain(messages)
    ]
    return "".join(turns) + ("<|im_start|>assistant\n" if add_generation_prompt else "")


class ChatTemplate:
    """A compiled chat template.

    Args:
        source: the jinja text of tokenizer_config.json's chat_template.
        tokens: bos_token, eos_token and the like, as the template knows them.
        clock: the local time for a template that asks for the date.

    Raises:
        ValueError: the template does not compile.
        ImportError: jinja2 is not installed (extra `serve`).
    """

    def __init__(
        self,
        source: str,
        tokens: Mapping[str, str] | None = None,
        clock: Callable[[], time.struct_time] = time.localtime,
    ) -> None:
        # Only tokenizers with a template of their own need jinja2, which comes with an extra.
        try:
            from jinja2 import TemplateError  # noqa: PLC0415
            from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: PLC0415
        except ImportError as error:
            raise ImportError(
                "this tokenizer has a chat template, which needs jinja2: pip install 'egress-ring[serve]'"
            ) from error

        def refuse(message: str) -> NoReturn:
            raise TemplateError(message)

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        # jinja's own tojson escapes for HTML; models were trained on plain JSON.
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = refuse
        environment.globals["strftime_now"] = lambda form: time.strftime(form, clock())
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise ValueError(f"chat template does not compile: {error}") from error
        self._tokens = dict(tokens or {})

    def render(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True, **context: Any
    ) -> str:
        """The prompt for `messages`.

        Args:
            messages: role and content each; content a string, or a list of text parts.
            add_generation_prompt: end with the opening of the assistant's turn.
            context: more names for the template (tools, enable_thinking).

        Raises:
            ValidationError: the messages are malformed, or the template refused them.
        """
        known = {**self._tokens, **context}
        try:
            return self._template.render(
                messages=_plain(messages), add_generation_prompt=add_generation_prompt, **known
            )
        except ValidationError:
            raise
        except Exception as error:
            raise ValidationError(f"messages: the chat template refused them: {error}", "messages") from error


def _plain(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages with lists of text parts joined: most templates know strings only."""
    plain = []
    for place, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise ValidationError(f"messages[{place}] must be an object with a role", "messages")
        content = message.get("content")
        if isinstance(content, list | tuple):
            content = "".join(_text_of(part, place) for part in content)
        elif content is not None and not isinstance(content, str):
            raise ValidationError(f"messages[{place}].content must be a string or text parts", "messages")
        plain.append({**message, "content": content or ""})
    return plain


def _text_of(part: Any, place: int) -> str:
    text = part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None
    if not isinstance(text, str):
        raise ValidationError(f"messages[{place}].content may hold only parts of type 'text'", "messages")
    return text


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)

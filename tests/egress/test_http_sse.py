"""Events that no reader breaks apart."""

from __future__ import annotations

import json

import pytest
from http_fakes import Bench, events_of, says

from egress.serve.http import sse
from egress.serve.http.exchange import encode

NASTY = (
    "a\nb\rc\r\nd\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029e\x00\x7f\\\"'</script> "
    "你好 \U0001f469\u200d\U0001f467 \ufeff data: [DONE]\n\n"
)


@pytest.mark.parametrize("text", [NASTY, "", "plain", *NASTY])
def test_text_survives_and_stays_on_one_line(text: str) -> None:
    framed = sse.event(encode({"text": text}))
    assert framed.endswith(b"\n\n")
    # Python's splitlines is the greediest reader there is.
    (line, blank) = framed.decode().splitlines()
    assert blank == ""
    assert json.loads(line.removeprefix("data: ")) == {"text": text}


def test_other_text_is_not_escaped() -> None:
    assert "你好 \U0001f469\u200d\U0001f467".encode() in sse.event(encode("你好 \U0001f469\u200d\U0001f467"))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"text": "p", "stream": True}),
        ("/v1/completions", {"prompt": "p", "stream": True}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "p"}], "stream": True}),
    ],
)
def test_streams_carry_any_text(path: str, body: object) -> None:
    bench = Bench(says(*NASTY))
    response = bench.post(path, body)
    assert len(response.text.splitlines()) == 2 * len(events_of(response))
    *events, done = events_of(response)
    assert done == "[DONE]"
    if path == "/generate":
        text = events[-1]["text"]
    elif path == "/v1/completions":
        text = "".join(event["choices"][0]["text"] for event in events)
    else:
        text = "".join(event["choices"][0]["delta"].get("content", "") for event in events)
    assert text == NASTY

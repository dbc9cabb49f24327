"""What the README shows is run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT, SLOWNESS

README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def run(code: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60 * SLOWNESS,
        check=False,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def block(marker: str) -> str:
    [found] = [code for code in BLOCKS if marker in code]
    return found


def test_the_ring_example_prints_its_one_frame(tmp_path: Path) -> None:
    assert run(block("ringbuf.create"), tmp_path) == "1\n"


def test_the_egress_example_prints_its_own_requests_and_the_bound(tmp_path: Path) -> None:
    lines = run(block("encode_batch"), tmp_path).splitlines()
    assert lines[0].startswith("a [11, 12] [-0.1 -0.2]")
    assert lines[-1] == str(1 << 30)


def test_the_engine_example_is_an_engine(tmp_path: Path) -> None:
    (tmp_path / "my_engine.py").write_text(block("class Parrot"), encoding="utf-8")
    code = """
import egress, sys
sys.path.insert(0, ".")
tokenizer = egress.load_tokenizer("qwen")
engine = egress.load_engine("my_engine:make", tokenizer, {"word": "ring"})
params = egress.SamplingParams.parse({"max_new_tokens": 3})
params.normalize()
params.verify(tokenizer.vocab_size)
engine.submit(egress.EngineRequest(rid="r", input_ids=[1], sampling=params))
state, text = egress.Detokenizer(tokenizer).open(params), ""
while (batch := engine.step()) is not None:
    text += state.push(batch.token_ids[0], batch.finish_reasons[0]).text
print(text, batch)
"""
    assert run(code, tmp_path) == " ring ring ring None\n"


def test_the_tokenizer_example_prints_what_its_comment_says(tmp_path: Path) -> None:
    code = block("class Utf8")
    said = re.search(r"# ('.*\n)$", code)
    assert said is not None
    assert run(code, tmp_path) == said[1]


@pytest.mark.parametrize("command", ["make run", "make test"])
def test_the_two_commands_are_targets(command: str) -> None:
    assert f"\n{command} " in README
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(rf"^{command.split()[1]}:", makefile, re.MULTILINE)

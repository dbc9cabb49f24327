"""Log lines: one event a line, whatever is in it."""

from __future__ import annotations

import json
import logging

import msgspec
import pytest

from egress.serve import logs
from egress.serve.config import Settings


@pytest.fixture
def configured(capsys):
    root = logging.getLogger()
    before = root.handlers[:], root.level

    def configure(**fields):
        logs.configure(msgspec.structs.replace(Settings(), instance="i", **fields), "shard 3")
        return logging.getLogger("egress.test")

    yield configure
    root.handlers[:], root.level = before[0], before[1]


def test_text_lines_carry_role_message_and_fields(configured, capsys):
    log = configured()
    log.info("request ended", extra=logs.fields(rid="a b", tokens=3, note=""))
    line = capsys.readouterr().err
    assert line.endswith("INFO    shard 3: request ended rid='a b' tokens=3 note=''\n")


def test_a_field_cannot_forge_a_line(configured, capsys):
    configured().info("x", extra=logs.fields(rid="a\nERROR forged\u2028\x1b[2J"))
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_json_lines_are_json(configured, capsys):
    log = configured(log_format="json")
    log.warning("oh", extra=logs.fields(rid="a\n\u2028", path=object))
    try:
        raise ValueError("why")
    except ValueError:
        log.exception("failed")
    first, second = map(json.loads, capsys.readouterr().err.split("\n")[:2])
    assert first["message"] == "oh"
    assert first["rid"] == "a\n\u2028"
    assert first["role"] == "shard 3"
    assert first["instance"] == "i"
    assert first["level"] == "warning"
    assert "ValueError: why" in second["exception"]


def test_the_level_is_the_setting_s(configured, capsys):
    log = configured(log_level="ERROR")
    log.warning("no")
    log.error("yes")
    assert [line.rpartition(" ")[2] for line in capsys.readouterr().err.splitlines()] == ["yes"]


def test_a_repeated_thing_is_said_once_in_a_while_with_a_count():
    limit = logs.RateLimit(every_s=10.0)
    assert [limit.allow("a", t) for t in (0.0, 1.0, 9.9, 10.0, 10.1, 25.0)] == [0, None, None, 2, None, 1]
    assert limit.allow("b", 1.0) == 0

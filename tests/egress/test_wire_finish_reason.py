"""Finish reasons beyond the vectors: bounds, missing members, what stays as it was."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest

from egress.wire import Abort, FinishReason, Length, Stop, Unknown

I64 = 2**63


@pytest.mark.parametrize(
    ("wire", "expected"),
    [
        ({"type": "stop"}, Stop(None)),
        ({"type": "stop", "matched": None}, Stop(None)),
        ({"type": "stop", "matched": -I64}, Stop(-I64)),
        ({"type": "stop", "matched": I64 - 1}, Stop(I64 - 1)),
        ({"type": "stop", "matched": ""}, Stop("")),
        ({"type": "stop", "matched": []}, Stop([])),
        ({"type": "stop", "matched": [0, -1]}, Stop([0, -1])),
        ({"type": "length", "length": 0}, Length(0)),
        ({"type": "length", "length": 2 * I64 - 1}, Length(2 * I64 - 1)),
        ({"type": "abort"}, Abort()),
        ({"type": "abort", "status_code": 0, "x": 1}, Abort(None, 0)),
        ({"matched": 5, "type": "stop"}, Stop(5)),
    ],
)
def test_known_reasons(wire: dict[str, Any], expected: FinishReason) -> None:
    reason = FinishReason.from_wire(wire)
    assert reason == expected
    assert type(reason) is type(expected)
    assert FinishReason.from_wire(MappingProxyType(wire)) == expected
    assert next(iter(reason.to_wire())) == "type"


@pytest.mark.parametrize(
    "wire",
    [
        {},
        {"type": None},
        {"type": "Stop", "matched": 5},
        {"type": "stop", "matched": -I64 - 1},
        {"type": "stop", "matched": 5.0},
        {"type": "stop", "matched": False},
        {"type": "stop", "matched": [True]},
        {"type": "stop", "matched": ["a"]},
        {"type": "stop", "matched": [I64]},
        {"type": "stop", "matched": b"a"},
        {"type": "length", "length": 5.0},
        {"type": "length", "length": "5"},
        {"type": "length", "length": True},
        {"type": "length", "length": 2 * I64},
        {"type": "abort", "status_code": -1},
        {"type": "abort", "status_code": 65536},
        {"type": "abort", "status_code": True},
        {"type": "abort", "err_type": 5},
        {"type": "Unknown", "raw": {}},
        {"type": "FinishReason"},
    ],
)
def test_anything_else_is_unknown_and_kept(wire: dict[str, Any]) -> None:
    reason = FinishReason.from_wire(wire)
    assert type(reason) is Unknown
    assert reason.to_wire() == wire
    assert reason.matched is None
    assert reason.abort_status() is None
    assert FinishReason.from_wire(MappingProxyType(wire)) == reason


@pytest.mark.parametrize("value", [None, 5, "stop", [("type", "stop")]])
def test_only_maps_are_reasons(value: Any) -> None:
    with pytest.raises(TypeError):
        FinishReason.from_wire(value)


def test_only_an_abort_with_a_status_has_one() -> None:
    assert Abort("m", 400).abort_status() == (400, "m")
    assert Abort("", 400).abort_status() == (400, "")
    assert Abort(None, 0).abort_status() == (0, "request aborted")
    for reason in (Abort("m"), Stop(5), Length(5), Unknown({"type": "abort", "status_code": "400"})):
        assert reason.abort_status() is None


def test_matched_is_the_stop_s_own() -> None:
    assert Stop([1, 2]).matched == [1, 2]
    assert Length(5).matched is None
    assert Abort("m", 400).matched is None

"""Settings: what they refuse, and that they travel to a child unchanged."""

from __future__ import annotations

import msgspec
import pytest

from egress.errors import ValidationError
from egress.serve.config import Settings, frame_ring, request_ring


def changed(**fields):
    return msgspec.structs.replace(Settings(), **fields)


def test_the_defaults_are_in_range_and_fit_a_container_s_shared_memory():
    Settings().verify()
    two_by_two = changed(shards=2, workers=2)
    assert two_by_two.total_ring_bytes == 8 * two_by_two.ring_bytes <= 48 << 20


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("shards", 0),
        ("shards", 65),
        ("workers", 0),
        ("port", -1),
        ("port", 65536),
        ("step_ms", -0.1),
        ("step_ms", float("nan")),
        ("ring_bytes", 1 << 15),
        ("ring_bytes", (1 << 20) + 1),
        ("max_running", 0),
        ("max_context", 0),
        ("max_body", 0),
        ("stall_s", -0.1),
        ("drain_s", -1),
        ("log_format", "xml"),
        ("instance", ""),
        ("instance", "a.b"),
        ("instance", "../x"),
        ("vocab_size", 0),
    ],
)
def test_a_setting_out_of_range_is_named_with_its_value(field, value):
    with pytest.raises(ValidationError) as caught:
        changed(**{field: value}).verify()
    assert caught.value.field == field
    assert field in str(caught.value)
    assert str(value) in str(caught.value)


def test_settings_travel_as_json():
    settings = changed(engine_options={"corpus": "/x y/\u2028"}, api_key="k", step_ms=0.5, vocab_size=7)
    assert Settings.from_json(settings.to_json()) == settings


def test_each_pair_has_a_ring_each_way():
    names = {make("i", s, w) for make in (frame_ring, request_ring) for s in range(3) for w in range(3)}
    assert len(names) == 18
    assert frame_ring("i", 0, 1) == "i.s0.w1"
    assert request_ring("i", 0, 1) == "i.w1.s0"

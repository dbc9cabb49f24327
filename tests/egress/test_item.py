"""Items are values: equal by content, frozen, terminal or not."""

from __future__ import annotations

import typing

import pytest

from egress.stream import EgressItem
from egress.stream.item import Control, Done, Error, Frame
from egress.wire import ChunkEvent

EVENT = ChunkEvent.make("a", [1], text="x")


def test_exactly_frames_are_followed_by_more() -> None:
    kinds = typing.get_args(EgressItem)
    assert {kind.__name__: kind.is_terminal for kind in kinds} == {
        "Frame": False,
        "Done": True,
        "Control": True,
        "Error": True,
    }


def test_items_compare_by_content() -> None:
    assert Frame(EVENT) == Frame(EVENT)
    assert Frame(EVENT) != Done(EVENT)
    assert Control(b"x") == Control(b"x")
    assert Error("m", 400) != Error("m", 500)


def test_an_error_without_a_status_is_a_500() -> None:
    assert Error("m").status_code == 500


@pytest.mark.parametrize("item", [Frame(EVENT), Done(EVENT), Control(b""), Error("m")], ids=repr)
def test_items_are_frozen(item: EgressItem) -> None:
    with pytest.raises(AttributeError):
        setattr(item, item.__struct_fields__[0], None)
    assert isinstance(item, EgressItem)

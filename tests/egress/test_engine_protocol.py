from __future__ import annotations

from typing import Any

import pytest

import egress
from egress.engine import verify_batch


def batch(**columns: Any) -> egress.TokenBatch:
    whole: dict[str, Any] = {
        "rids": ["a", "b"],
        "finish_reasons": [None, None],
        "prompt_tokens": [1, 2],
        "token_ids": [[1], []],
    }
    return egress.TokenBatch(**(whole | columns))


def test_a_batch_of_equal_columns_is_taken() -> None:
    verify_batch(batch())
    verify_batch(batch(out_lp_val=[[0.5], None]))
    verify_batch(egress.TokenBatch(rids=[], finish_reasons=[], prompt_tokens=[], token_ids=[]))


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"finish_reasons": []}, "finish_reasons has 0 entries for 2 rids"),
        ({"token_ids": [[1], [2], [3]]}, "token_ids has 3 entries for 2 rids"),
        ({"prompt_tokens": [1]}, "prompt_tokens has 1 entries for 2 rids"),
        ({"hidden": [None]}, "hidden has 1 entries for 2 rids"),
    ],
)
def test_a_column_of_another_length_is_named(columns: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        verify_batch(batch(**columns))


@pytest.mark.parametrize("wrong", ["a string", [], 5, {"rids": []}])
def test_what_is_no_batch_is_named(wrong: object) -> None:
    with pytest.raises(TypeError, match=f"TokenBatch or None, got {type(wrong).__name__}"):
        verify_batch(wrong)


def test_a_column_that_is_no_sequence_is_a_type_error() -> None:
    with pytest.raises(TypeError):
        verify_batch(batch(token_ids=None))

"""Events cut out of a frame own what detached ones own, whatever the frame carries."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from egress.wire import Batch, ChunkEvent, Stop, decode, encode_batch

F32, I32 = np.float32, np.int32


def frame(n: int, width: int = 1, **optional: Any) -> tuple[Batch, bytearray]:
    """A decoded frame of n requests, and the memory under it, for the test to overwrite."""
    body = bytearray(
        b"".join(
            encode_batch(
                [f"r{i}" for i in range(n)],
                [Stop(matched=i) if i % 7 == 6 else None for i in range(n)],
                [i + 1 for i in range(n)],
                [[1000 * i + j for j in range(width)] for i in range(n)],
                texts=[f"t{i}" for i in range(n)],
                **optional,
            )
        )
    )
    batch = decode(2, body)
    assert isinstance(batch, Batch)
    return batch, body


def columns(event: ChunkEvent) -> dict[str, Any]:
    """Everything in an event, as plain values."""
    found: dict[str, Any] = {
        name: getattr(event, name)
        for name in ("rid", "finish_reason", "prompt_tokens", "n_tokens", "completion_tokens", "text", "ids")
    }
    found["token_ids"] = event.token_ids.tolist()
    if event.extras is not None:
        for name in event.extras.__struct_fields__:
            found[name] = list(getattr(event.extras, name))
    return found


def ragged(n: int, positions: int, width: int, dtype: Any) -> Any:
    return np.arange(n * positions * width).astype(dtype).reshape(n, positions, width)


def same_for_all(n: int) -> dict[str, Any]:
    return {
        "out_lp_val": ragged(n, 1, 1, F32)[:, 0],
        "out_lp_idx": ragged(n, 1, 1, I32)[:, 0],
        "out_top_val": ragged(n, 1, 5, F32),
        "out_top_idx": ragged(n, 1, 5, I32),
    }


def for_some(n: int) -> dict[str, Any]:
    return {
        name: [cell if i % 3 == 1 else None for i, cell in enumerate(column)]
        for name, column in same_for_all(n).items()
    }


def all_different(n: int) -> dict[str, Any]:
    draw = random.Random(n)
    lens = [draw.randrange(4) for _ in range(n)]
    return {
        "out_lp_val": [[0.5] * k for k in lens],
        "out_lp_idx": [[7] * k for k in lens],
        "hidden": [[[1.0] * k] * (i % 3) for i, k in enumerate(lens)],
    }


CASES = {
    "ids only": lambda n: {},
    "the same for all": same_for_all,
    "for some": for_some,
    "hidden, wide": lambda n: {"hidden": ragged(n, 1, 300, F32)},
    "hidden beside logprobs": lambda n: same_for_all(n) | {"hidden": ragged(n, 2, 40, F32)},
    "hidden for some": lambda n: {"hidden": [[[1.0] * 80] if i % 2 else None for i in range(n)]},
    "all different": all_different,
    "widths of zero": lambda n: {"out_top_val": [[None, None]] * n, "out_top_idx": [[None, None]] * n},
    "texts": lambda n: same_for_all(n) | {"out_lp_txt": [["x"]] * n},
    "trimmed": lambda n: {"completion_tokens": [9] * n},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("n", [1, 3, 200])
@pytest.mark.parametrize("width", [0, 1, 3])
def test_own_events_equal_detached_ones_and_outlive_the_frame(case: str, n: int, width: int) -> None:
    batch, body = frame(n, width, **CASES[case](n))
    wanted = [columns(event.detach()) for event in batch]
    events = batch.own()
    body[:] = bytes(len(body))
    assert [columns(event) for event in events] == wanted


@pytest.mark.parametrize("case", CASES)
def test_own_takes_the_places_it_is_given(case: str) -> None:
    batch, _ = frame(200, **CASES[case](200))
    at = list(range(1, 200, 9))
    assert [columns(event) for event in batch.own(at)] == [columns(batch[place].detach()) for place in at]


def test_own_events_share_no_memory_with_each_other_or_the_frame() -> None:
    batch, body = frame(50, **same_for_all(50))
    first, second = batch.own()[:2]
    one, two = first.extras, second.extras
    assert one is not None
    assert two is not None
    assert not np.shares_memory(one.out_top_val, np.frombuffer(body, np.uint8))
    assert not np.shares_memory(one.out_top_val, two.out_top_val)


def test_endings_are_the_places_of_terminal_rows() -> None:
    batch, _ = frame(20)
    assert batch.endings == [6, 13]
    assert frame(3)[0].endings == []


def test_whole_arrays_encode_as_their_rows_do() -> None:
    whole = same_for_all(40) | {"hidden": ragged(40, 2, 8, F32)}
    rows = {name: [list(cell) for cell in column] for name, column in whole.items()}
    rids, none = [str(i) for i in range(40)], [None] * 40
    ids = [[1, 2]] * 40
    for named in (whole, {name: column[:, ::-1] for name, column in whole.items()}):
        rows = {name: [list(cell) for cell in column] for name, column in named.items()}
        assert b"".join(encode_batch(rids, none, [1] * 40, ids, **named)) == b"".join(
            encode_batch(rids, none, [1] * 40, ids, **rows)
        )


@pytest.mark.parametrize("has_texts", [True, False])
def test_the_usual_events_are_of_the_small_class_and_nobody_can_tell(has_texts: bool) -> None:
    n = 90
    reasons = [Stop(matched=i) if i == 1 else None for i in range(n)]
    ids = [[i + 4] for i in range(n)]
    rids, texts = [f"r{i}" for i in range(n)], [f"t{i}" for i in range(n)] if has_texts else []
    batch = decode(2, b"".join(encode_batch(rids, reasons, list(range(n)), ids, texts=texts)))
    assert isinstance(batch, Batch)
    for at in (None, [0, 2], [1, 2]):
        own = batch.own(at)
        places = range(n) if at is None else at
        assert [type(event) is ChunkEvent for event in own] == [reasons[place] is None for place in places]
        for event, place in zip(own, places, strict=True):
            window = batch[place]
            for name in ("rid", "prompt_tokens", "text", "n_tokens", "completion_tokens", "extras", "ids"):
                assert getattr(event, name) == getattr(window, name)
            assert event.finish_reason == window.finish_reason == reasons[place]
            assert event.detach() is event
            assert repr(event) == repr(window)
    made = ChunkEvent.make("a", [4], text="x")
    assert isinstance(made, ChunkEvent)
    assert repr(made).startswith("ChunkEvent('a'")

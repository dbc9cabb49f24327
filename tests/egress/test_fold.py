"""Events into one answer: what appends, what replaces, and that merging first changes nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from egress.stream import Fold, merge_events
from egress.wire import ChunkEvent, ChunkExtras, Length, Stop


def f32(*values: float) -> np.ndarray[Any, Any]:
    return np.array(values, np.float32)


def i32(*values: int) -> np.ndarray[Any, Any]:
    return np.array(values, np.int32)


def shape(event: ChunkEvent) -> dict[str, Any]:
    """Everything an event says, as plain values."""
    extras = event.extras
    return {
        "rid": event.rid,
        "token_ids": event.token_ids.tolist(),
        "n_tokens": event.n_tokens,
        "finish_reason": event.finish_reason,
        "prompt_tokens": event.prompt_tokens,
        "text": event.text,
        "completion_tokens": event.completion_tokens,
        "extras": None
        if extras is None
        else {name: np.asarray(getattr(extras, name)).tolist() for name in extras.__struct_fields__},
    }


def folded(events: list[ChunkEvent]) -> ChunkEvent:
    fold = Fold()
    for event in events:
        fold.push(event)
    return fold.result


def test_text_ids_and_counts_add_up() -> None:
    result = folded(
        [
            ChunkEvent.make("a", [1, 2], prompt_tokens=5, text="he", completion_tokens=2),
            ChunkEvent.make("a", [], prompt_tokens=5, text="", completion_tokens=0),
            ChunkEvent.make("a", [3], Stop(2), 6, "llo", completion_tokens=2),
        ]
    )
    assert shape(result) == {
        "rid": "a",
        "token_ids": [1, 2, 3],
        "n_tokens": 3,
        "finish_reason": Stop(2),
        "prompt_tokens": 6,
        "text": "hello",
        "completion_tokens": 4,
        "extras": None,
    }


def test_output_families_append() -> None:
    def event(number: int) -> ChunkEvent:
        return ChunkEvent.make(
            "a",
            [number],
            extras=ChunkExtras(
                out_lp_val=f32(-number),
                out_lp_idx=i32(number),
                out_lp_txt=[f"t{number}"],
                out_top_val=f32(-number, -9),
                out_top_idx=i32(number, 9),
                out_top_lens=[2, 0],
                out_top_txt=["p", "q"],
                out_tid_val=f32(-5),
                out_tid_idx=i32(5),
                out_tid_lens=[1],
            ),
        )

    extras = folded([event(1), event(2)]).extras
    assert extras is not None
    assert extras.out_lp_val.tolist() == [-1, -2]
    assert extras.out_lp_idx.tolist() == [1, 2]
    assert list(extras.out_lp_txt) == ["t1", "t2"]
    assert extras.out_top_idx.tolist() == [1, 9, 2, 9]
    assert list(extras.out_top_lens) == [2, 0, 2, 0]
    assert list(extras.out_top_txt) == ["p", "q", "p", "q"]
    assert list(extras.out_tid_lens) == [1, 1]
    assert len(extras.out_tid_txt) == 0


def test_input_families_and_hidden_states_replace_and_survive_their_absence() -> None:
    def event(number: int, **extras: Any) -> ChunkEvent:
        return ChunkEvent.make("a", [number], extras=ChunkExtras(**extras))

    first = event(
        1,
        in_lp_val=f32(-1, -2),
        in_lp_idx=i32(1, 2),
        in_lp_txt=["a", "b"],
        in_top_val=f32(-1),
        in_top_idx=i32(1),
        in_top_lens=[0, 1],
        hidden_val=f32(1, 2),
        hidden_lens=[2],
    )
    newer = event(2, in_lp_val=f32(-3), in_lp_idx=i32(3), hidden_val=f32(3, 4), hidden_lens=[2])
    extras = folded([first, newer, ChunkEvent.make("a", [3])]).extras
    assert extras is not None
    assert extras.in_lp_val.tolist() == [-3]
    assert extras.in_lp_idx.tolist() == [3]
    assert list(extras.in_lp_txt) == []
    assert extras.hidden_val.tolist() == [3, 4]
    # The newer event had no in_top, so the older one's is still the answer's.
    assert extras.in_top_idx.tolist() == [1]
    assert list(extras.in_top_lens) == [0, 1]


def test_positions_without_data_are_data() -> None:
    extras = folded(
        [
            ChunkEvent.make("a", extras=ChunkExtras(out_top_lens=[0, 0])),
            ChunkEvent.make(
                "a", extras=ChunkExtras(out_top_val=f32(-1), out_top_idx=i32(4), out_top_lens=[1])
            ),
            ChunkEvent.make("a", extras=ChunkExtras(hidden_lens=[0])),
        ]
    ).extras
    assert extras is not None
    assert list(extras.out_top_lens) == [0, 0, 1]
    assert list(extras.hidden_lens) == [0]


@pytest.mark.parametrize("with_text_first", [True, False])
def test_texts_stay_beside_their_ids_when_some_come_without(with_text_first: bool) -> None:
    with_text = ChunkEvent.make(
        "a", extras=ChunkExtras(out_lp_val=f32(-1, -2), out_lp_idx=i32(1, 2), out_lp_txt=["x", "y"])
    )
    without = ChunkEvent.make("a", extras=ChunkExtras(out_lp_val=f32(-3), out_lp_idx=i32(3)))
    extras = folded([with_text, without] if with_text_first else [without, with_text]).extras
    assert extras is not None
    assert list(extras.out_lp_txt) == (["x", "y", ""] if with_text_first else ["", "x", "y"])


def test_results_stay_true_when_more_is_pushed() -> None:
    fold = Fold()
    seen = []
    for number in range(100):
        fold.push(
            ChunkEvent.make(
                "a",
                [number],
                text=chr(97 + number % 26),
                extras=ChunkExtras(out_lp_val=f32(number), out_lp_idx=i32(number)),
            )
        )
        seen.append(fold.result)
    for number, result in enumerate(seen):
        assert result.token_ids.tolist() == list(range(number + 1))
        assert result.extras is not None
        assert result.extras.out_lp_idx.tolist() == list(range(number + 1))
        assert not result.token_ids.flags.writeable
    assert fold.text == seen[-1].text
    assert fold.completion_tokens == 100


def test_a_fold_copies_each_column_a_bounded_number_of_times(monkeypatch: pytest.MonkeyPatch) -> None:
    copied = 0
    make_room = np.empty

    def counting(count: int, dtype: Any) -> np.ndarray[Any, Any]:
        nonlocal copied
        copied += count
        return make_room(count, dtype)

    monkeypatch.setattr(np, "empty", counting)
    fold = Fold()
    event = ChunkEvent.make("a", [1])
    for _ in range(4096):
        fold.push(event)
        assert fold.result is not None
    # Linear: the room ever made is at most a small multiple of what is in it, not its square.
    assert fold.result.n_tokens == 4096
    assert copied <= 6 * 4096


def test_an_empty_fold_has_no_result() -> None:
    assert Fold().text == ""
    with pytest.raises(ValueError, match="no event"):
        _ = Fold().result
    with pytest.raises(ValueError, match="no event"):
        merge_events([])


@st.composite
def events(draw: st.DrawFn) -> ChunkEvent:
    ids = draw(st.lists(st.integers(-5, 9), max_size=3))
    columns: dict[str, Any] = {}
    for family in ("out_lp", "in_lp", "out_top", "in_top", "out_tid", "in_tid", "hidden"):
        if not draw(st.booleans()):
            continue
        lens = draw(st.lists(st.integers(0, 2), min_size=1, max_size=2))
        count = sum(lens)
        columns[f"{family}_val"] = f32(*draw(st.lists(st.integers(-9, 0), min_size=count, max_size=count)))
        if family != "hidden":
            columns[f"{family}_idx"] = i32(*range(count))
            if draw(st.booleans()):
                columns[f"{family}_txt"] = [f"{family}{i}" for i in range(count)]
        if not family.endswith("_lp"):
            columns[f"{family}_lens"] = lens
    return ChunkEvent.make(
        "a",
        ids,
        draw(st.sampled_from([None, None, None, Stop("x"), Length(5)])),
        draw(st.integers(0, 9)),
        draw(st.text("ab\U0001f600", max_size=3)),
        draw(st.integers(0, 4)),
        ChunkExtras(**columns) if columns and draw(st.booleans()) else None,
    )


@given(st.lists(events(), min_size=1, max_size=8), st.data())
def test_merging_any_neighbours_first_changes_no_answer(
    chunks: list[ChunkEvent], data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(chunks) - 1))
    stop = data.draw(st.integers(start + 1, len(chunks)))
    merged = [*chunks[:start], merge_events(chunks[start:stop]), *chunks[stop:]]
    assert shape(folded(merged)) == shape(folded(chunks))


@given(st.lists(events(), min_size=1, max_size=8))
def test_merging_everything_is_folding_everything(chunks: list[ChunkEvent]) -> None:
    assert shape(merge_events(chunks)) == shape(folded(chunks))

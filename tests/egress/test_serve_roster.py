"""Who runs in a shard: batches become each worker's rows, and every request fails alone."""

from __future__ import annotations

import numpy as np
import pytest

from egress.engine import TokenBatch
from egress.errors import ValidationError
from egress.request import SamplingParams
from egress.serve.roster import Roster
from egress.wire import Abort, Length, Stop, decode, encode_batch
from egress.wire.requests import Generate


class Letters:
    """Ids are letters; anything else is no token."""

    vocab_size, eos_token_ids, name = 26, (), "letters"

    def token_bytes(self, token_id):
        return bytes([97 + token_id]) if 0 <= token_id < 26 else {}[token_id]

    def is_special(self, token_id):
        return False

    def token_text(self, token_id):
        return chr(97 + token_id)


class Engine:
    def __init__(self):
        self.submitted, self.aborted, self.refusal = [], [], None

    def submit(self, request):
        if self.refusal is not None:
            raise self.refusal
        self.submitted.append(request)

    def abort(self, rid):
        self.aborted.append(rid)

    def step(self):
        return None


def generate(rid, client_rid=None, **fields):
    sampling = SamplingParams.parse({"stop": fields.pop("stop", None), "temperature": 0.5})
    sampling.normalize()
    sampling.verify(26)
    return Generate(
        rid=rid, epoch="e", input_ids=[1, 2, 3], sampling=sampling.to_wire(), client_rid=client_rid, **fields
    )


def step(*rows, **families):
    rids, ids, reasons = zip(*rows, strict=True)
    return TokenBatch(
        rids=rids,
        token_ids=[list(i) for i in ids],
        finish_reasons=reasons,
        prompt_tokens=[3] * len(rids),
        **families,
    )


@pytest.fixture
def engine():
    return Engine()


@pytest.fixture
def roster(engine):
    return Roster(engine, Letters(), max_running=4)


def test_rows_go_to_the_worker_that_waits_for_them(roster):
    for rid, worker in (("a", 0), ("b", 1), ("c", 0)):
        assert roster.admit(generate(rid), worker) is None
    columns, ended = roster.rows(
        step(("a", [0], None), ("b", [1, 2], None), ("gone", [5], None), ("c", [3], Length(1)))
    )
    assert columns[0]["rids"] == ["a", "c"]
    assert columns[0]["texts"] == ["a", "d"]
    assert columns[0]["finish_reasons"] == [None, Length(1)]
    assert columns[1]["token_ids"] == [[1, 2]]
    # As many as the ids, which says it.
    assert "completion_tokens" not in columns[1]
    assert (ended.finished, ended.tokens, ended.failed) == (1, 4, [])
    assert len(roster) == 2
    assert "c" not in roster


def test_an_engine_gets_what_the_client_asked_for(roster, engine):
    roster.admit(
        generate(
            "a",
            return_logprob=True,
            top_logprobs_num=2,
            token_ids_logprob=[4],
            return_hidden_states=True,
            logprob_start_len=1,
        ),
        0,
    )
    (request,) = engine.submitted
    assert request.input_ids == [1, 2, 3]
    assert request.sampling.temperature == 0.5
    assert (request.return_logprob, request.top_logprobs_num, request.token_ids_logprob) == (True, 2, [4])
    assert (request.return_hidden_states, request.logprob_start_len) == (True, 1)


def test_past_the_limit_a_request_is_refused_with_503_and_an_old_one_never_evicted(roster):
    for rid in "abcd":
        assert roster.admit(generate(rid), 0) is None
    message, status = roster.admit(generate("e"), 0)
    assert status == 503
    assert "4" in message
    assert roster.of_worker(0) == list("abcd")
    roster.drop("a")
    assert roster.admit(generate("e"), 0) is None


@pytest.mark.parametrize(
    ("refusal", "status"),
    [(ValidationError("no beams", "beam_width"), 400), (RuntimeError("out of memory"), 500)],
)
def test_a_request_the_engine_refuses_fails_alone(roster, engine, refusal, status):
    roster.admit(generate("a"), 0)
    engine.refusal = refusal
    message, got = roster.admit(generate("b"), 0)
    assert got == status
    assert str(refusal) in message
    assert roster.of_worker(0) == ["a"]


def test_sampling_params_that_cannot_be_read_fail_alone(roster):
    request = generate("a")
    request.sampling = ["nonsense"]
    assert roster.admit(request, 0)[1] in (400, 500)
    assert len(roster) == 0


def test_a_running_rid_is_not_admitted_twice(roster):
    roster.admit(generate("a"), 0)
    assert roster.admit(generate("a"), 1)[1] == 400
    assert roster.of_worker(0) == ["a"]


def test_ids_that_are_no_tokens_fail_their_request_only(roster, engine):
    roster.admit(generate("a"), 0)
    roster.admit(generate("b"), 1)
    columns, ended = roster.rows(step(("a", [99], None), ("b", [1], None)))
    assert [(worker, rid) for worker, rid, _ in ended.failed] == [(0, "a")]
    assert "99" in ended.failed[0][2]
    assert engine.aborted == ["a"]
    assert columns[1]["texts"] == ["b"]
    assert 0 not in columns or columns[0]["rids"] == []
    assert "a" not in roster


def test_dropping_stops_the_generation_once(roster, engine):
    roster.admit(generate("a"), 0)
    assert roster.drop("a")
    assert not roster.drop("a")
    assert engine.aborted == ["a"]


def test_a_client_s_id_finds_its_requests_at_every_worker(roster):
    roster.admit(generate("x#1", "x"), 0)
    roster.admit(generate("x#2", "x"), 1)
    roster.admit(generate("x#3#1", "x#3"), 1)
    assert roster.of_client("x") == ["x#1", "x#2"]


def test_an_ended_request_gets_the_text_that_was_held_back(roster, engine):
    roster.admit(generate("a", stop=["bcd"]), 1)
    columns, _ = roster.rows(step(("a", [0, 1, 2], None)))
    assert columns[1]["texts"] == ["a"]
    reason = Abort(message="aborted", status_code=None, err_type=None)
    worker, row = roster.end("a", reason)
    assert worker == 1
    assert engine.aborted == ["a"]
    event = decode(2, b"".join(encode_batch(**row)))[0]
    assert (event.text, event.finish_reason, event.prompt_tokens) == ("bc", reason, 3)
    assert roster.end("a", reason) is None


def test_logprob_columns_follow_their_rows_and_are_cut_with_the_ids(roster):
    roster.admit(generate("a", return_text_in_logprobs=True), 0)
    roster.admit(generate("b"), 1)
    roster.admit(generate("c"), 0)
    columns, _ = roster.rows(
        step(
            ("a", [0, 1], Stop(matched=1)),
            ("b", [2], None),
            ("c", [3], None),
            out_lp_val=[[-1.0, -2.0], [-3.0], None],
            out_lp_idx=[[0, 1], [2], None],
            out_top_val=[[[-1.0, -1.5], [-2.0]], None, None],
            out_top_idx=[[[0, 5], [1]], None, None],
            in_lp_val=[[None, -0.5], None, None],
            in_lp_idx=[[7, 8], None, None],
        )
    )
    first = columns[0]
    assert first["token_ids"][0] == [0]
    assert first["out_lp_val"] == [[-1.0], None]
    assert first["out_lp_txt"] == [["a"], None]
    assert first["out_top_txt"] == [[["a", "f"]], None]
    assert first["in_lp_txt"] == [["h", "i"], None]
    assert columns[1]["out_lp_val"] == [[-3.0]]
    assert "out_lp_txt" not in columns[1]
    batch = decode(2, b"".join(encode_batch(**first)))
    assert batch[0].extras.out_lp_val.tolist() == [-1.0]
    assert list(batch[0].extras.out_top_txt) == ["a", "f"]
    assert list(batch[0].extras.in_lp_txt) == ["h", "i"]
    assert batch[1].extras is None


def test_without_a_tokenizer_ids_pass_through(engine):
    roster = Roster(engine, None, max_running=4)
    roster.admit(generate("a"), 0)
    columns, _ = roster.rows(step(("a", [10**6], Length(1))))
    assert columns[0]["token_ids"] == [[10**6]]
    assert columns[0]["texts"] == [""]


def test_an_engine_s_arrays_are_not_taken_apart(roster):
    for rid, worker in (("a", 0), ("b", 0), ("c", 1)):
        roster.admit(generate(rid), worker)
    arrays = {
        "out_lp_val": np.array([[-1], [-2], [-3]], np.float32),
        "out_lp_idx": np.array([[0], [1], [2]], np.int32),
        "out_top_val": np.arange(6, dtype=np.float32).reshape(3, 1, 2),
        "out_top_idx": np.arange(6, dtype=np.int32).reshape(3, 1, 2),
    }
    columns, _ = roster.rows(step(("a", [0], None), ("b", [1], None), ("c", [2], None), **arrays))
    for worker, rows in ((0, [0, 1]), (1, [2])):
        for name, column in arrays.items():
            assert type(columns[worker][name]) is np.ndarray
            assert columns[worker][name].tolist() == column[rows].tolist()
        assert "completion_tokens" not in columns[worker]
    roster.end("c", Length(1))
    whole = {name: column[:2] for name, column in arrays.items()}
    columns, _ = roster.rows(step(("a", [0], None), ("b", [1], None), **whole))
    assert all(columns[0][name] is column for name, column in whole.items())
    batch = decode(2, b"".join(encode_batch(**columns[0])))
    assert batch[1].completion_tokens == 1
    assert batch[1].extras.out_top_idx.tolist() == [2, 3]


def test_arrays_are_cut_with_the_ids_and_stay_the_engine_s(roster):
    roster.admit(generate("a"), 0)
    roster.admit(generate("b"), 0)
    vals, ids = np.full((2, 2), -1, np.float32), np.array([[5, 1], [2, 3]], np.int32)
    columns, _ = roster.rows(
        step(("a", [5, 1], Stop(matched=1)), ("b", [2, 3], None), out_lp_val=vals, out_lp_idx=ids)
    )
    assert columns[0]["completion_tokens"] == [2, 2]
    batch = decode(2, b"".join(encode_batch(**columns[0])))
    assert [event.extras.out_lp_idx.tolist() for event in batch] == [[5], [2, 3]]
    assert [event.completion_tokens for event in batch] == [2, 2]
    assert vals.shape == (2, 2)

"""Frames once written are read for ever; see tests/golden/write_missing.py."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from support import GOLDEN
from wire_kit import check_accepted, decode_batch, event_keys

from egress.wire import Failure, Result, Tag, decode, encode_batch

_spec = importlib.util.spec_from_file_location("write_missing", GOLDEN / "write_missing.py")
assert _spec is not None
assert _spec.loader is not None
write_missing = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(write_missing)

FRAMES = sorted(GOLDEN.glob("*/*/*.bin"))


def values_of(frame: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(frame.with_suffix(".json").read_text(encoding="utf-8"))
    return values


@pytest.mark.parametrize("frame", FRAMES, ids=lambda path: "-".join(path.with_suffix("").parts[-3:]))
def test_golden_frame_reads_as_it_was_meant(frame: Path) -> None:
    tag, body, values = int(frame.parent.name), frame.read_bytes(), values_of(frame)
    message = decode(tag, body)
    if tag == Tag.RESULT:
        assert message == Result(values["rid"], bytes.fromhex(values["payload"]))
    elif tag == Tag.ERROR:
        assert message == Failure(values["rid"], values["message"], values["status_code"] or 500)
    else:
        batch = decode_batch(body)
        columns = write_missing.columns_from(values)
        assert batch.rids == columns["rids"]
        assert [event.token_ids.tolist() for event in batch] == columns["token_ids"]
        assert [event.prompt_tokens for event in batch] == columns["prompt_tokens"]
        assert [e.finish_reason and e.finish_reason.to_wire() for e in batch] == columns["finish_reasons"]
        assert event_keys(batch) == event_keys(decode_batch(b"".join(encode_batch(**columns))))
        check_accepted(batch)


@pytest.mark.parametrize("frame", sorted((GOLDEN / "1").glob("*/*.bin")), ids=lambda path: path.stem)
def test_this_version_still_writes_its_golden_bytes(frame: Path) -> None:
    assert write_missing.encode(frame.parent.name, values_of(frame)) == frame.read_bytes()


def test_no_golden_frame_is_missing() -> None:
    listed = {(tag, name) for tag, frames in write_missing.LISTS.items() for name in frames}
    folder = GOLDEN / write_missing.WIRE_VERSION
    assert listed == {(path.parent.name, path.stem) for path in folder.glob("*/*.bin")}
    assert {tag for tag, _ in listed} == {str(int(tag)) for tag in Tag}

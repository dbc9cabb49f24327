"""Write golden frames that are missing; never touch one that is there.

    python tests/golden/write_missing.py

A golden frame is a body as it was once written: `<wire version>/<tag>/<name>.bin`, and beside it the values
it stands for, `<name>.json`. They are read for ever by tests/egress/test_wire_golden.py. A change that makes
them unreadable is a new wire version, with a folder of its own.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from egress.wire import encode_batch, encode_error, encode_result

ROOT = Path(__file__).resolve().parent
WIRE_VERSION = "1"

I32_MIN, I32_MAX, U32_MAX = -(2**31), 2**31 - 1, 2**32 - 1
F32_MAX, F32_TINY = 3.4028234663852886e38, 1.401298464324817e-45

RESULTS: dict[str, dict[str, Any]] = {
    "empty": {"rid": "", "payload": ""},
    "json": {"rid": "naïve-✓", "payload": b'{"ok":true}'.hex()},
    "long": {"rid": "r" * 40, "payload": bytes(range(256)).hex() * 2},
}
ERRORS: dict[str, dict[str, Any]] = {
    "no_status": {"rid": "a", "message": "internal error", "status_code": None},
    "lowest_status": {"rid": "a", "message": "", "status_code": 100},
    "highest_status": {"rid": "ré", "message": "终 🎉 " * 20, "status_code": 599},
}
PLAIN = {
    "rids": ["a", "b"],
    "finish_reasons": [None, None],
    "prompt_tokens": [3, 4],
    "token_ids": [[1, 2], [3]],
}
BATCHES: dict[str, dict[str, Any]] = {
    "no_requests": {"rids": [], "finish_reasons": [], "prompt_tokens": [], "token_ids": []},
    "one_request": {"rids": ["a"], "finish_reasons": [None], "prompt_tokens": [7], "token_ids": [[42]]},
    "many_requests": {
        "rids": [f"request-{i}" for i in range(300)],
        "finish_reasons": [None] * 300,
        "prompt_tokens": [i * i for i in range(300)],
        "token_ids": [[i] for i in range(300)],
    },
    "rids": {
        "rids": ["", "a", "a", "naïve ✓ 终🎉", "\0", "x" * 300],
        "finish_reasons": [None] * 6,
        "prompt_tokens": [0] * 6,
        "token_ids": [[], [1], [1], [], [2], [3]],
    },
    "ends_of_integers": {
        "rids": ["low", "high", "none"],
        "finish_reasons": [None] * 3,
        "prompt_tokens": [0, U32_MAX, 1],
        "token_ids": [[I32_MIN, -1], [I32_MAX, 0], []],
        "out_lp_val": [[-F32_MAX, F32_TINY], [F32_MAX, -0.0], []],
        "out_lp_idx": [[I32_MIN, I32_MAX], [0, -1], []],
        "completion_tokens": [0, U32_MAX, 1],
    },
    "not_finite": {
        **PLAIN,
        "in_lp_val": [["NaN", "Infinity", "-Infinity"], []],
        "in_lp_idx": [[1, 2, 3], []],
    },
    "reasons": {
        "rids": list("abcdefgh"),
        "finish_reasons": [
            {"type": "stop", "matched": 5},
            {"type": "stop", "matched": "终"},
            {"type": "stop", "matched": [1, 2]},
            {"type": "stop", "matched": None},
            {"type": "length", "length": U32_MAX},
            {"type": "abort", "message": "m", "status_code": 65535, "err_type": None},
            {"type": "new", "deep": [{"a": [None, True, 0.5, -(2**63), 2**64 - 1]}]},
            {},
        ],
        "prompt_tokens": [1] * 8,
        "token_ids": [[i] for i in range(8)],
    },
    "ragged": {
        **PLAIN,
        "out_top_val": [[[-0.5, -1.5], None, [-2.5]], None],
        "out_top_idx": [[[1, 9], None, [2]], None],
        "in_top_val": [None, [None, None]],
        "in_top_idx": [None, [None, None]],
        "out_tid_val": [[[1.0]], [[2.0, 3.0]]],
        "out_tid_idx": [[[11]], [[12, 13]]],
        "in_tid_val": [[], [[0.5], [], [0.25]]],
        "in_tid_idx": [[], [[8], [], [9]]],
        "hidden": [[[1.0, 2.0], [3.0, 4.0]], None],
    },
    "texts": {
        **PLAIN,
        "texts": ["é\n", ""],
        "completion_tokens": [2, 2],
        "out_lp_val": [[-0.5, -1.0], [-1.5]],
        "out_lp_idx": [[1, 2], [3]],
        "out_top_val": [[[0.5, 0.25], None], [[0.125]]],
        "out_top_idx": [[[4, 5], None], [[6]]],
        "out_lp_txt": [["x", "终"], [""]],
        "out_top_txt": [[["p", "q"], None], [["r"]]],
    },
}
LISTS: dict[str, dict[str, dict[str, Any]]] = {"1": RESULTS, "2": BATCHES, "3": ERRORS}


def with_floats(value: Any) -> Any:
    """Columns as JSON holds them, with non-finite floats as strings, as encode_batch takes them."""
    if isinstance(value, list):
        return [with_floats(item) for item in value]
    return float(value) if value in ("NaN", "Infinity", "-Infinity") else value


def columns_from(values: dict[str, Any]) -> dict[str, Any]:
    """The arguments of encode_batch that a BATCH's JSON stands for."""
    floats = {name for name in values if name.endswith("_val") or name == "hidden"}
    return {name: with_floats(column) if name in floats else column for name, column in values.items()}


def encode(tag: str, values: dict[str, Any]) -> bytes:
    """The body of the frame that these values stand for."""
    if tag == "1":
        return encode_result(values["rid"], bytes.fromhex(values["payload"]))
    if tag == "3":
        return encode_error(values["rid"], values["message"], values["status_code"])
    return b"".join(encode_batch(**columns_from(values)))


def main() -> None:
    for tag, frames in LISTS.items():
        folder = ROOT / WIRE_VERSION / tag
        folder.mkdir(parents=True, exist_ok=True)
        for name, values in frames.items():
            frame = folder / f"{name}.bin"
            if not frame.exists():
                frame.write_bytes(encode(tag, values))
                text = json.dumps(values, ensure_ascii=False, indent=1)
                frame.with_suffix(".json").write_text(text + "\n", encoding="utf-8")
                print(f"wrote {frame.relative_to(ROOT)}")


if __name__ == "__main__":
    main()

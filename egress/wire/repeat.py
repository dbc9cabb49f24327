"""Headers that say what the last one said.

While nobody comes or goes, the header of a step begins with the same bytes as the one before: the requests,
no finish reasons, the lengths of prompts, one token each. Only the texts behind them differ, and the data. So
the writer of a ring leaves those bytes where they are, and its reader compares them instead of decoding them.

Both are exact: what is written is what `encode_batch` writes, and what is taken over is what was read from
the very same bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np

from egress.wire.accept import Body, RawHeader
from egress.wire.batch import Batch, places_of
from egress.wire.columns import I32, WIDTH, Header

__all__ = ["opening_of", "read_repeated"]

_header_len = struct.Struct("<I").unpack_from
_decode_texts: Callable[[Any], list[str]] = msgspec.msgpack.Decoder(list[str]).decode
_columns_before_texts = attrgetter(*Header.__struct_fields__[:16])

_WITH_TEXTS = b"\xdc\x00\x11"  # msgpack: an array of seventeen
_FOUR = b"\x94"


def opening_of(view: Body, data_at: int, header: RawHeader) -> bytes:
    """The bytes of a header that come before its texts; empty where it has more than texts behind them.

    Args:
        view, data_at: the frame, and where its data begin.
        header: as it was read from there.
    """
    head = bytes(view[WIDTH : WIDTH + len(_WITH_TEXTS)])
    if head == _WITH_TEXTS:
        size = len(head) + sum(map(len, _columns_before_texts(header)))
        return bytes(view[WIDTH : WIDTH + size])
    return bytes(view[WIDTH:data_at]) if head.startswith(_FOUR) else b""


def read_repeated(view: Body, opening: bytes, rids: list[str], prompts: list[int]) -> Batch | None:
    """Read a frame whose header begins like an earlier one; None for any other, and for what breaks a rule.

    Args:
        opening: of a header which said that all requests go on and have one token each.
        rids, prompts: what it said of them.

    Raises:
        msgspec.DecodeError and its kin: the texts are not what they should be.
    """
    n = len(rids)
    texts_at = WIDTH + len(opening)
    data_at = len(view) - WIDTH * n
    if data_at < texts_at or data_at != WIDTH + _header_len(view)[0]:
        return None
    if bytes(view[WIDTH:texts_at]) != opening:
        return None
    texts: list[str] = []
    if opening.startswith(_WITH_TEXTS):
        texts = _decode_texts(view[texts_at:data_at])
        if len(texts) not in (0, n):
            return None
    elif data_at != texts_at:
        return None
    token_ids = np.frombuffer(view, I32, n, data_at)
    column = token_ids.reshape(n, 1)
    return Batch(rids, token_ids, None, prompts, None, column, places_of(n), texts or None)

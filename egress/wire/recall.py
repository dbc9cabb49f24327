"""Reading the BATCH frames of one ring, each knowing who was in the one before.

The steps of a running batch name the same requests in the same order: some leave, newcomers stand at the end.
So the rids of a frame are guessed from those of the last one, the guess is encoded, and if the frame has
exactly these bytes, the strings are taken over instead of being made: encoding costs a fifth of decoding, and
strings that are known already are found in a table at once. Prompt lengths are treated the same way. Where
the guess fails, somebody left unannounced: that one is found by halving, and the guess goes on behind it.

While nobody comes or goes, headers begin with the same bytes up to the texts. Then not even the guess need be
encoded: the bytes are compared with those of the last frame, and what these said is taken over.

A guess is only ever taken for bytes that were compared, and all other rules are checked as in
egress.wire.accept, so a frame is read, or rejected, as `decode` would do it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec

from egress.errors import MalformedFrame
from egress.wire.accept import accept_bulk, byte_view, decode_batch, read_raw
from egress.wire.batch import Batch
from egress.wire.columns import U32
from egress.wire.messages import UNREADABLE
from egress.wire.repeat import opening_of, read_repeated

__all__ = ["Recall", "Stretches", "cut"]

Stretches: TypeAlias = Sequence[tuple[int, int]]
"""Places [start, end) of a column, ascending."""

# Fewer requests are decoded as they come: guessing costs a few microseconds.
_FEW = 16
# Rids compared in one go, once a guess has failed.
_STRIDE = 256
# So many unannounced departures are looked for in one frame; each costs about as much as decoding 100 rids.
_DEPARTURES = 24
# Where guesses fail, as for a step that is split into several frames, the next is made so many frames later.
_LONGEST_PAUSE = 63

_ARRAY_16 = 0xDC  # msgpack: an array of 16 to 65,535 items; their count follows in two bytes
_HEAD = 3
_MOST = 0xFFFF

_encode_into = msgspec.msgpack.Encoder().encode_into
_decode_rids: Callable[[Any], list[str]] = msgspec.msgpack.Decoder(list[str]).decode
_decode_counts: Callable[[Any], list[int]] = msgspec.msgpack.Decoder(list[U32]).decode


class Recall:
    """Reads the frames of one ring, one after another.

    Attributes:
        kept: which stretches of the requests known before the last frame it has taken over; newcomers follow
            them. Empty: none, everybody is new.
    """

    __slots__ = ("_buffer", "_opening", "_pause", "_prompts", "_rids", "_skipped", "kept")

    def __init__(self) -> None:
        self._rids: list[str] = []
        self._prompts: list[int] = []
        # What the last header began with, up to its texts, if it said of all requests that they go on and
        # have one token, and nobody was forgotten since; else empty.
        self._opening = b""
        self._buffer = bytearray()
        self._pause = 0
        self._skipped = 0
        self.kept: Stretches = ()

    def decode(self, body: Any) -> Batch:
        """Read a BATCH body; as `decode` of egress.wire.

        Raises:
            MalformedFrame: as there; what was known stays known.
        """
        known = None
        if self._skipped < self._pause:
            self._skipped += 1
        elif _FEW <= len(self._rids) <= _MOST:
            self._skipped = 0
            try:
                known = self._decode_known(body)
            except (MalformedFrame, *UNREADABLE):
                # Let it be said in the words, and with the rids, that decode_batch finds.
                known = None
        batch, kept, opening = known or (decode_batch(body), (), b"")
        # Whatever comes between two of these stores, no opening stands beside requests it does not name.
        self._opening = b""
        self._rids, self._prompts, self.kept = batch.rids, batch.prompts, kept
        self._opening = opening
        return batch

    def keep(self, stretches: Stretches) -> None:
        """Know only these stretches of the last frame's requests from now on; the others have ended."""
        self._opening = b""
        self._rids, self._prompts = cut(self._rids, stretches), cut(self._prompts, stretches)

    def _decode_known(self, body: Any) -> tuple[Batch, Stretches, bytes] | None:
        """The batch, what it keeps of the requests known, and its opening; None where they are others."""
        if self._opening:
            same = read_repeated(byte_view(body), self._opening, self._rids, self._prompts)
            if same is not None:
                return same, ((0, len(self._rids)),), self._opening
        found = read_raw(body)
        if found is None:
            return None
        view, data_at, header = found
        raw, raw_prompts = bytes(header.rids), bytes(header.prompt_tokens)
        if raw[0] != _ARRAY_16 or raw[:_HEAD] != raw_prompts[:_HEAD]:
            return None
        known = len(self._rids)
        kept: Stretches = ((0, known),)
        rids, prompts = self._rids, self._prompts
        end = self._end_of(raw, rids)
        if end is None:
            kept, end = self._search(raw)
            known = sum([stop - start for start, stop in kept])
            if 2 * known < len(self._rids):
                self._pause = min(2 * self._pause + 1, _LONGEST_PAUSE)
                return None
            rids, prompts = cut(rids, kept), cut(prompts, kept)
        self._pause = 0
        n = int.from_bytes(raw[1:_HEAD], "big")
        newcomers = bytes((_ARRAY_16,)) + (n - known).to_bytes(2, "big")
        if end < len(raw):
            rids = rids + _decode_rids(newcomers + raw[end:])
        prompts_end = self._end_of(raw_prompts, prompts)
        if prompts_end is None:
            prompts = _decode_counts(raw_prompts)
        elif prompts_end < len(raw_prompts):
            prompts = prompts + _decode_counts(newcomers + raw_prompts[prompts_end:])
        batch = accept_bulk(view, data_at, header, rids, prompts)
        return batch, kept, opening_of(view, data_at, header) if batch.is_usual else b""

    def _end_of(self, raw: bytes, guess: list[Any]) -> int | None:
        """Where the entries behind `guess` begin in this column; None if it does not begin with those."""
        buffer = self._buffer
        _encode_into(guess, buffer)
        if buffer[0] != _ARRAY_16:
            return None
        buffer[1:_HEAD] = raw[1:_HEAD]
        end = len(buffer)
        return end if raw[:end] == buffer else None

    def _search(self, raw: bytes) -> tuple[Stretches, int]:
        """The stretches of the known rids that this column begins with, and where they end in it."""
        rids = self._rids
        stretches: list[tuple[int, int]] = []
        at, end, start, departures = _HEAD, 0, 0, 0
        while end < len(rids) and departures < _DEPARTURES:
            far = min(end + _STRIDE, len(rids))
            size = self._size_there(raw, at, rids[end:far])
            if size:
                at, end = at + size, far
                continue
            # rids[end] to rids[far - 1] are not all there: find the first that is not.
            while far - end > 1:
                middle = (end + far) // 2
                size = self._size_there(raw, at, rids[end:middle])
                if size:
                    at, end = at + size, middle
                else:
                    far = middle
            if start < end:
                stretches.append((start, end))
            start = end = end + 1
            departures += 1
        if start < end:
            stretches.append((start, end))
        return stretches, at

    def _size_there(self, raw: bytes, at: int, guess: list[str]) -> int:
        """Bytes of these rids, if they are what stands here in the column; else 0."""
        buffer = self._buffer
        _encode_into(guess, buffer)
        items = buffer[_HEAD:] if buffer[0] == _ARRAY_16 else buffer[1:]
        return len(items) if raw[at : at + len(items)] == items else 0


def cut(column: list[Any], stretches: Stretches) -> list[Any]:
    """The entries in these stretches."""
    kept: list[Any] = []
    for start, end in stretches:
        kept += column[start:end]
    return kept

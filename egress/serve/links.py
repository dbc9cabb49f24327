"""One shard as a worker sees it: the ring its frames come from, the ring that requests go into, who it is
now.

Counterpart of `egress.serve.peers`. A link is *up* once the shard has answered this worker's greeting; only
then may requests be written, and each names the epoch of the shard it was written for. What must not be
lost (aborts, greetings) waits here while the request ring is full, and goes out with a later `flush`.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Iterable

import ringbuf
from egress.serve.config import Settings, frame_ring, request_ring
from egress.serve.peers import open_producer
from egress.wire.requests import Abort, AbortClient, Control, Generate, Hello, encode_request

__all__ = ["Link"]

log = logging.getLogger(__name__)

# An ABORT frame of this many rids stays far under the smallest ring's largest frame.
ABORT_RIDS = 16


class Link:
    """One shard.

    Args:
        settings: names and sizes.
        shard, worker: which shard it is, which worker we are.
        epoch: this life of the worker.
    """

    def __init__(self, settings: Settings, shard: int, worker: int, epoch: str) -> None:
        self.shard = shard
        self.epoch = ""
        self.pid = 0
        self.is_up = False
        self.answered = 0.0
        self.request_ring = request_ring(settings.instance, shard, worker)
        self._frame_ring = frame_ring(settings.instance, shard, worker)
        self._our_epoch = epoch
        self._max_frame = settings.max_frame_bytes
        self.producer = open_producer(self.request_ring, settings.ring_bytes)
        self.frames: ringbuf.Consumer | None = None
        self._unsent: deque[Hello | Abort | AbortClient] = deque()

    def attach(self) -> ringbuf.Consumer | None:
        """Attach to the shard's frame ring if it is there by now, and greet; the end it is read at."""
        if self.frames is None:
            try:
                # What a dead predecessor left unread is nobody's any more.
                self.frames = ringbuf.attach(self._frame_ring, start="latest", timeout=0.0)
            except ringbuf.RingNotFound:
                return None
            except ringbuf.RingError as error:
                log.error("frame ring of shard %d: %s", self.shard, error)
                return None
            self.greet()
        return self.frames

    def detach(self) -> None:
        """Let go of the frame ring: it ended, or is not to be trusted; `attach` may find a new one."""
        if self.frames is not None:
            self.frames.close()
            self.frames = None

    def down(self) -> None:
        """The shard's life has ended: nothing that waits is worth sending."""
        self.is_up = False
        self.epoch = ""
        self._unsent.clear()

    def greet(self) -> None:
        """Say who we are, and which life of the shard we know."""
        self._send_surely(Hello(epoch=self._our_epoch, peer=self.epoch, pid=os.getpid()))

    def try_send(self, frame: tuple[int, bytes]) -> bool:
        """Write an encoded request unless the ring is full."""
        return self.flush() and self.producer.try_write(*frame)

    def ask(self, question: Control) -> bool:
        """Write a control request unless the ring is full."""
        return self.try_send(encode_request(question))

    def encode(self, request: Generate) -> tuple[int, bytes]:
        """The frame of `request`.

        Raises:
            ValueError: a string in it is no valid UTF-8, or it is larger than a frame may be.
        """
        frame = encode_request(request)
        if len(frame[1]) > self._max_frame:
            raise ValueError(f"the request takes {len(frame[1])} bytes, a frame holds {self._max_frame}")
        return frame

    def abort(self, rids: Iterable[str]) -> None:
        """Tell the shard to forget these; never lost while the shard lives."""
        wanted = list(rids)
        for at in range(0, len(wanted), ABORT_RIDS):
            self._send_surely(Abort(rids=wanted[at : at + ABORT_RIDS]))

    def abort_client(self, client_rid: str) -> None:
        """Tell the shard to end every request that carries this client's id."""
        self._send_surely(AbortClient(client_rid=client_rid))

    def flush(self) -> bool:
        """Write what waits and fits now; whether nothing waits any more."""
        while self._unsent:
            if not self.producer.try_write(*encode_request(self._unsent[0])):
                return False
            self._unsent.popleft()
        return True

    def _send_surely(self, request: Hello | Abort | AbortClient) -> None:
        self._unsent.append(request)
        self.flush()

    def close(self) -> None:
        """Give the rings up and take the request ring's name away."""
        self.detach()
        self.producer.close(unlink=True)

"""A shard: one engine, its detokenizer, a ring to and from every worker.

The loop takes requests, runs one step, writes what it made, and waits only when there is nothing to do:
then it is parked in one epoll call on the doorbells of all request rings and the supervisor's lifeline. It
never waits for a worker; what a worker does not take is the worker's backlog (`egress.stream.ring_sink`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import select
import sys
import time
from typing import Any

import msgspec

import ringbuf
from egress.engine import Engine, TokenBatch, load_engine, verify_batch
from egress.errors import MalformedFrame
from egress.serve import logs
from egress.serve.child import announce_failure, take_start, tokenizer_of
from egress.serve.config import Settings
from egress.serve.lifeline import Drain, Lifeline, Lost, Ping, Pong, Ready
from egress.serve.metrics import FLUSH_S, ShardMetrics
from egress.serve.peers import Peer
from egress.serve.roster import Roster
from egress.text import Tokenizer
from egress.wire import Abort as AbortReason
from egress.wire.requests import Abort, AbortClient, Control, Generate, Hello, Request, decode_request

__all__ = ["Shard", "main"]

log = logging.getLogger(__name__)

# Requests taken from one worker before the next step: a flood of requests must not hold the running ones up.
TURN_REQUESTS = 256
# While something waits for room in a ring there is no doorbell to wait on: look again after this long. A look
# at a full ring takes 3 us (5 in the Python body), so 200 a second are nothing.
BACKLOG_WAIT_S = 0.005
# A worker's request ring that is not there yet is looked for this often, at start only.
ATTACH_WAIT_S = 0.02
# An engine that has requests but made nothing (it keeps a pace of its own) is asked again after this long.
NOTHING_MADE_WAIT_S = 0.001


class Shard:
    """The process's state and loop.

    Args:
        settings: the server's.
        index: which shard this is.
        lifeline: orders come in here, and the supervisor's death.
    """

    def __init__(self, settings: Settings, index: int, lifeline: Lifeline) -> None:
        self._settings = settings
        self._index = index
        self._lifeline = lifeline
        self._epoch = secrets.token_hex(8)
        self._started = time.monotonic()
        self._is_stopping = False
        self._metrics = ShardMetrics(index)
        self._flushed = 0.0
        self._said = logs.RateLimit(every_s=10.0)
        self._poller = select.epoll()
        self._poller.register(lifeline.fileno(), select.EPOLLIN)
        self._by_fd: dict[int, Peer] = {}
        self.peers = [Peer(settings, index, worker, self._epoch) for worker in range(settings.workers)]
        self._tokenizer: Tokenizer | None = None
        self._engine: Engine
        self._roster: Roster
        self._step_s = settings.step_ms / 1000
        self._next_step = 0.0

    def load(self) -> None:
        """Load the tokenizer and the engine: seconds, in which requests already wait in the rings.

        Raises:
            EgressError, ValueError, ImportError, OSError: they cannot be loaded as the settings say.
        """
        settings = self._settings
        # The engine is built from it even where no text leaves the shard.
        self._tokenizer = tokenizer_of(settings)
        self._engine = load_engine(settings.engine, self._tokenizer, dict(settings.engine_options))
        self._step_s = max(self._step_s, getattr(self._engine, "step_s", 0.0))
        detokenizing = None if settings.skip_tokenizer_init else self._tokenizer
        self._roster = Roster(self._engine, detokenizing, settings.max_running)

    def run(self) -> None:
        """Serve until told to stop, or until the supervisor is gone.

        Raises:
            Lost: the supervisor is gone.
        """
        for peer in self.peers:
            peer.greet()
        self._attach()
        self._lifeline.send(Ready(rings=[peer.frame_ring for peer in self.peers]))
        while not self._is_stopping:
            ready = self._poller.poll(self._wait_s())
            for fd, _ in ready:
                if fd in self._by_fd:
                    self._take_requests(self._by_fd[fd])
                else:
                    self._obey()
            if len(self._by_fd) < len(self.peers):
                self._attach()
            for peer in self.peers:
                if peer.sink.has_backlog:
                    peer.sink.flush()
            now = time.monotonic()
            if len(self._roster) and now >= self._next_step:
                self._step(now)
            if now - self._flushed >= FLUSH_S:
                self._look_around(now)

    def close(self) -> None:
        """Give the rings up and take their names away."""
        for peer in self.peers:
            peer.detach()
            peer.producer.close(unlink=True)
        self._metrics.running.set(0)
        self._metrics.flush()
        self._poller.close()

    def _wait_s(self) -> float:
        """Seconds this turn may be parked: 0 while there is work to do."""
        wait = FLUSH_S
        if len(self._roster):
            wait = max(0.0, self._next_step - time.monotonic())
        if any(peer.sink.has_backlog for peer in self.peers):
            wait = min(wait, BACKLOG_WAIT_S)
        elif len(self._by_fd) < len(self.peers):
            wait = min(wait, ATTACH_WAIT_S)
        return wait

    def _obey(self) -> None:
        for order in self._lifeline.receive():
            if isinstance(order, Ping):
                self._lifeline.send(Pong(number=order.number, facts={"running": len(self._roster)}))
            elif isinstance(order, Drain):
                self._is_stopping = True

    def _attach(self) -> None:
        for peer in self.peers:
            if not peer.is_attached and peer.attach():
                self._by_fd[peer.fileno()] = peer
                self._poller.register(peer.fileno(), select.EPOLLIN)

    def _detach(self, peer: Peer) -> None:
        for fd in [fd for fd, known in self._by_fd.items() if known is peer]:
            self._poller.unregister(fd)
            del self._by_fd[fd]
        peer.detach()

    # Requests

    def _take_requests(self, peer: Peer) -> None:
        try:
            for frame in peer.read(TURN_REQUESTS):
                with frame:
                    try:
                        request = decode_request(frame.tag, frame.payload)
                    except MalformedFrame as error:
                        self._refuse(peer, error)
                        continue
                self._take(peer, request)
        except ringbuf.PeerDead as error:
            log.warning("worker %d died: %s", peer.index, error)
            self._lose(peer)
        except ringbuf.RingClosed:
            self._lose(peer)
            self._detach(peer)
        except ringbuf.RingCorrupt as error:
            log.error("request ring of worker %d is corrupt: %s", peer.index, error)
            self._lose(peer)
            self._detach(peer)

    def _take(self, peer: Peer, request: Request) -> None:
        if isinstance(request, Generate):
            # Written for a life of this shard that has ended: its worker has failed it already.
            if request.epoch == self._epoch:
                self._generate(peer, request)
        elif isinstance(request, Abort):
            self._metrics.ended("aborted", sum(map(self._roster.drop, request.rids)))
        elif isinstance(request, AbortClient):
            self._abort_client(request.client_rid)
        elif isinstance(request, Control):
            self._answer(peer, request)
        else:
            self._greeted(peer, request)

    def _generate(self, peer: Peer, request: Generate) -> None:
        if peer.sink.is_over:
            peer.sink.send_error(request.rid, f"overloaded: {peer.sink.backlog_text()}", 503)
            return
        refusal = self._roster.admit(request, peer.index)
        if refusal is not None:
            peer.sink.send_error(request.rid, *refusal)
            self._metrics.ended("refused")
            return
        self._metrics.requests.add()
        self._metrics.prompt_tokens.add(len(request.input_ids))

    def _refuse(self, peer: Peer, error: MalformedFrame) -> None:
        for rid in error.rids:
            peer.sink.send_error(rid, f"internal error: {error}", 500)
        if (held := self._said.allow("malformed", time.monotonic())) is not None:
            log.error(
                "worker %d wrote a malformed request: %s", peer.index, error, extra=logs.fields(held=held)
            )

    def _abort_client(self, client_rid: str) -> None:
        reason = AbortReason(message="aborted by its client", status_code=None, err_type=None)
        for rid in self._roster.of_client(client_rid):
            ended = self._roster.end(rid, reason)
            if ended is not None:
                worker, row = ended
                self._send(self.peers[worker], row)
                self._metrics.ended("aborted")

    def _answer(self, peer: Peer, question: Control) -> None:
        if question.op == "ping":
            peer.sink.send_result(question.rid, b"{}")
        elif question.op == "server_info":
            peer.sink.send_result(question.rid, msgspec.json.encode(self.info(), enc_hook=str))
        else:
            peer.sink.send_error(question.rid, f"there is no control operation {question.op!r}", 400)

    def _greeted(self, peer: Peer, hello: Hello) -> None:
        is_new = hello.epoch != peer.epoch
        if is_new:
            if peer.epoch:
                self._lose(peer)
            peer.epoch = hello.epoch
        if is_new or hello.peer != self._epoch:
            peer.greet()

    def _lose(self, peer: Peer) -> None:
        """Forget all that this life of the worker asked for, and what waits for it."""
        rids = self._roster.of_worker(peer.index)
        for rid in rids:
            self._roster.drop(rid)
        peer.sink.discard()
        peer.epoch = ""
        # Should it live after all, it learns from this that nothing it asked for is worked on.
        peer.greet()
        self._metrics.ended("worker_lost", len(rids))
        if rids:
            log.warning(
                "worker %d is gone; aborted its requests", peer.index, extra=logs.fields(count=len(rids))
            )

    # Steps

    def _step(self, now: float) -> None:
        try:
            batch = self._engine.step()
            if batch is not None:
                verify_batch(batch)
        except Exception as error:
            self._fail_all(f"the engine failed: {type(error).__name__}: {error}")
            raise
        if batch is None or not len(batch.rids):
            self._next_step = now + max(self._step_s, NOTHING_MADE_WAIT_S)
            return
        # Steps keep to their grid; one that came too late does not make the next ones hurry.
        self._next_step = max(self._next_step + self._step_s, now)
        self._write(batch)
        self._metrics.steps.add()
        self._metrics.step.observe(time.monotonic() - now)

    def _write(self, batch: TokenBatch) -> None:
        columns_of, ended = self._roster.rows(batch)
        for worker, rid, message in ended.failed:
            self.peers[worker].sink.send_error(rid, message, 500)
        for worker, columns in columns_of.items():
            self._send(self.peers[worker], columns)
        self._metrics.ended("finished", ended.finished)
        self._metrics.ended("failed", len(ended.failed))
        self._metrics.generation_tokens.add(ended.tokens)

    def _send(self, peer: Peer, columns: dict[str, list[Any]]) -> None:
        failed = peer.sink.send_batch(columns)
        if not failed:
            return
        dropped = sum(map(self._roster.drop, failed))
        if peer.sink.is_over:
            # Past the bound nothing of this worker goes on: each of its requests is told why, once there is
            # room.
            reason = f"overloaded: {peer.sink.backlog_text()}"
            log.error("worker %d: %s; its requests are aborted", peer.index, reason)
            for rid in self._roster.of_worker(peer.index):
                dropped += self._roster.drop(rid)
                peer.sink.send_error(rid, reason, 503)
        self._metrics.ended("failed", dropped)

    def _fail_all(self, message: str) -> None:
        """Tell every request why it ends; what the rings have no room for is told by our death."""
        for peer in self.peers:
            for rid in self._roster.of_worker(peer.index):
                peer.sink.send_error(rid, message, 500)
            peer.sink.flush()

    # Once a second

    def _look_around(self, now: float) -> None:
        self._flushed = now
        self._metrics.running.set(len(self._roster))
        frames = 0
        for peer in self.peers:
            if peer.is_attached:
                self._take_requests(peer)  # in case a doorbell was missed
            frames += peer.sink.frames
            peer.sink.frames = 0
            self._metrics.backlog(peer.index, peer.sink.backlog_bytes)
            with contextlib.suppress(ringbuf.RingError):  # somebody may have taken the name away
                info = ringbuf.inspect(peer.frame_ring)
                self._metrics.rings.set(peer.frame_ring, info.used_bytes, info.capacity, info.full_events)
            if peer.sink.has_backlog and (held := self._said.allow(f"slow {peer.index}", now)) is not None:
                log.warning(
                    "worker %d is slow: %s",
                    peer.index,
                    peer.sink.backlog_text(),
                    extra=logs.fields(held=held),
                )
        self._metrics.frames.add(frames)
        self._metrics.flush()

    def info(self) -> dict[str, Any]:
        """What `/server_info` shows of this shard."""
        describe = getattr(self._engine, "info", None)
        return {
            "shard": self._index,
            "pid": os.getpid(),
            "uptime_s": round(time.monotonic() - self._started, 3),
            "model": self._settings.model_name,
            "tokenizer": getattr(self._tokenizer, "name", None),
            "vocab_size": getattr(self._tokenizer, "vocab_size", None),
            "engine": self._settings.engine,
            "engine_info": describe() if callable(describe) else {},
            "hidden_size": getattr(self._engine, "hidden_size", None),
            "step_ms": self._step_s * 1000,
            "running": len(self._roster),
            "max_running": self._settings.max_running,
            "max_context": self._settings.max_context,
            "rings": [peer.frame_ring for peer in self.peers],
            "ringbuf": ringbuf.__impl__,
        }


def main() -> int:
    """Run one shard under its supervisor; returns the exit status."""
    lifeline, start, settings = take_start("shard")
    try:
        shard = Shard(settings, start.index, lifeline)
        shard.load()
    except Exception as error:
        # A user's engine may raise anything; what it says belongs on the user's screen.
        return announce_failure(lifeline, f"shard {start.index}: {type(error).__name__}: {error}")
    try:
        shard.run()
    except Lost:
        log.warning("the supervisor is gone; leaving")
        shard.close()
        return 1
    shard.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())

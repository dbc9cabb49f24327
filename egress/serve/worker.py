"""An API worker: uvicorn on the listening socket it inherited, and the rings of all shards on the same loop.

The loop wakes on a ring's doorbell like on any socket, takes a bounded turn of frames, and runs the handlers
before the next turn. Nothing polls: one timer a second pings the shards, reports what was counted, and looks
once more at the rings in case a doorbell was missed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
import sys
import time
from collections.abc import Iterator

import uvicorn
import uvloop

import ringbuf
from egress.errors import EgressError
from egress.serve.child import announce_failure, take_start, tokenizer_of
from egress.serve.config import Settings
from egress.serve.http import create_app
from egress.serve.lifeline import Drain, Lifeline, Lost, Ping, Pong, Ready
from egress.serve.links import Link
from egress.serve.metrics import WorkerMetrics
from egress.serve.router import Router

__all__ = ["Worker", "main"]

log = logging.getLogger(__name__)

# A frame ring that is not there yet is looked for this often, at start only.
ATTACH_WAIT_S = 0.02
# A new worker's first client is better served by the others than told that a shard is down which has only
# not greeted yet; where shards still load, or are dead, clients are to hear that after this long.
GREETINGS_S = 2.0
# After the last requests were ended, how long their handlers may take to say so to their clients.
GOODBYE_S = 1.0


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers (the supervisor decides) and without its ten wake-ups a second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._leaving = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the process's signals alone."""
        yield

    async def main_loop(self) -> None:
        """Wait for `leave`; a tick renews the Date header, once a second as it says."""
        while not self._leaving.is_set():
            await self.on_tick(0)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._leaving.wait(), 1.0)

    def leave(self) -> None:
        """Accept nothing more, wait for the answers under way, return from `serve`."""
        self.should_exit = True
        self._leaving.set()


class Worker:
    """The process's state.

    Args:
        settings: the server's.
        index: which worker this is.
        lifeline: orders come in here, and the supervisor's death.
        listener: the socket that all workers accept from.
    """

    def __init__(self, settings: Settings, index: int, lifeline: Lifeline, listener: socket.socket) -> None:
        self._settings = settings
        self._lifeline = lifeline
        self._listener = listener
        self._metrics = WorkerMetrics(index)
        epoch = secrets.token_hex(6)
        self._links = [Link(settings, shard, index, epoch) for shard in range(settings.shards)]
        self._router = Router(settings, epoch, self._links, self._metrics, self._detach)
        self._app = create_app(
            self._router,
            None if settings.skip_tokenizer_init else tokenizer_of(settings),
            settings,
            self._metrics,
        )
        self._server: _Server
        self._loop: asyncio.AbstractEventLoop
        self._is_orphan = False
        self._deadline: asyncio.TimerHandle | None = None
        self._is_turn_due = False
        self._reported = dict.fromkeys(("frames", "events", "late", "sink_full", "sink_closed"), 0)

    async def serve(self) -> bool:
        """Serve until told to drain, or until the supervisor is gone; whether it was told."""
        self._loop = asyncio.get_running_loop()
        config = uvicorn.Config(
            self._app,
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
        )
        self._server = _Server(config)
        self._loop.add_reader(self._lifeline.fileno(), self._obey)
        tending = [asyncio.create_task(self._attach()), asyncio.create_task(self._tend())]
        try:
            await self._greetings()
            await self._server.serve(sockets=[self._listener])
        finally:
            for task in tending:
                task.cancel()
            await asyncio.gather(*tending, return_exceptions=True)
            self._loop.remove_reader(self._lifeline.fileno())
            for link in self._links:
                self._detach(link)
        return not self._is_orphan

    def close(self) -> None:
        """Give the rings up and take the request rings' names away."""
        for link in self._links:
            link.close()
        self._report()

    # Orders

    def _obey(self) -> None:
        try:
            for order in self._lifeline.receive():
                if isinstance(order, Ping):
                    self._lifeline.send(Pong(number=order.number, facts={"live": self._router.n_live}))
                elif isinstance(order, Drain):
                    self._drain(order.seconds)
        except Lost:
            log.warning("the supervisor is gone; leaving")
            self._is_orphan = True
            self._loop.remove_reader(self._lifeline.fileno())
            self._drain(0.0)

    def _drain(self, seconds: float) -> None:
        self._router.drain()
        self._server.leave()
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self._loop.call_later(seconds, self._end_all)

    def _end_all(self) -> None:
        self._router.fail_all("the server shut down before the answer was complete")
        self._deadline = self._loop.call_later(GOODBYE_S, self._force)

    def _force(self) -> None:
        self._server.force_exit = True

    # Rings

    async def _greetings(self) -> None:
        """Wait for every shard's greeting, but not for long."""
        deadline = self._loop.time() + GREETINGS_S
        while not (self._router.health()["ready"] or self._server.should_exit):
            if self._loop.time() > deadline:
                return
            await asyncio.sleep(ATTACH_WAIT_S)

    async def _attach(self) -> None:
        """Attach to every shard's ring as soon as it is there, then say that we are ready."""
        while not all([self._attach_link(link) for link in self._links]):
            await asyncio.sleep(ATTACH_WAIT_S)
        self._lifeline.send(Ready(rings=[link.request_ring for link in self._links]))

    def _attach_link(self, link: Link) -> bool:
        if link.frames is not None:
            return True
        frames = link.attach()
        if frames is None:
            return False
        self._router.source.attach(link.shard, frames)
        self._loop.add_reader(frames.fileno(), self._turn)
        return True

    def _detach(self, link: Link) -> None:
        if link.frames is not None:
            self._loop.remove_reader(link.frames.fileno())
            self._router.source.detach(link.shard)
            link.detach()

    def _turn(self) -> None:
        # One turn per round of the loop: a second would merge what handlers have had no chance to take.
        if not self._is_turn_due and self._router.source.turn():
            # call_soon puts the next turn behind the handlers that this one woke.
            self._is_turn_due = True
            self._loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._is_turn_due = False
        self._turn()

    # Once per ping

    async def _tend(self) -> None:
        while True:
            await asyncio.sleep(self._settings.ping_s)
            for link in self._links:
                self._attach_link(link)
            self._router.ping(time.monotonic())
            self._turn()
            for link in self._links:
                info = ringbuf.inspect(link.request_ring)
                self._metrics.rings.set(info.name, info.used_bytes, info.capacity, info.full_events)
            self._report()

    def _report(self) -> None:
        counts, metrics = self._router.source.counts, self._metrics
        for name, into in (
            ("frames", metrics.frames),
            ("events", metrics.frame_events),
            ("late", metrics.late_chunks),
            ("sink_full", metrics.sinks_full),
            ("sink_closed", metrics.sinks_closed),
        ):
            seen = getattr(counts, name)
            into.add(seen - self._reported[name])
            self._reported[name] = seen
        metrics.flush()


def main(listen_fd: int | None = None) -> int:
    """Run one worker under its supervisor; returns the exit status.

    Args:
        listen_fd: the listening socket where it is not the descriptor that the first line names.
    """
    lifeline, start, settings = take_start("worker")
    try:
        listener = socket.socket(fileno=start.listen_fd if listen_fd is None else listen_fd)
        worker = Worker(settings, start.index, lifeline, listener)
    except (EgressError, ringbuf.RingError, ImportError, OSError, ValueError) as error:
        return announce_failure(lifeline, f"worker {start.index}: {type(error).__name__}: {error}")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        was_told = runner.run(worker.serve())
    worker.close()
    return 0 if was_told else 1


if __name__ == "__main__":
    sys.exit(main())

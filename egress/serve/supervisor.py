"""The supervisor: starts the shards and the workers, keeps them alive, and ends them in order.

It holds the listening socket and the name of the instance, serves nothing itself, and touches no ring. It
starts one template process first, which loads what all children need and is then forked for each of them
(`egress.serve.template`); a template's end touches no child. The loop waits on the children's lifelines and
pidfds and on its own signals; the only timer is the next ping or restart.

Ending. The first SIGTERM or SIGINT closes the socket and gives the workers `drain_s` seconds for what they
have begun; the second ends what still runs at once; the third kills. Shards end after the workers. Whatever
happens, nothing is left behind: rings and directory are taken away at the end, or by the next server's
start.
"""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import selectors
import shlex
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from egress.errors import EgressError
from egress.serve import logs
from egress.serve.children import START_S, Child
from egress.serve.config import Settings
from egress.serve.forks import Template, adopt_orphans, reap_strays
from egress.serve.instances import Instance, free_shm_bytes, reap_dead

__all__ = ["StartError", "Supervisor", "serve"]

log = logging.getLogger(__name__)

# Per ring: header, producer, wake and slot pages, and the FIFOs' directory entries.
RING_OVERHEAD_BYTES = 64 << 10
# Connections that wait while all workers are busy or being replaced.
LISTEN_BACKLOG = 2048
# Loading takes most of a second of processor time, and may be what the machine has no memory for.
MAX_KILLED_LOADING = 3
# Beyond a worker's drain time: for its last error events to go out. For a shard: to give its rings up.
GOODBYE_S = 5.0


class StartError(EgressError):
    """The server cannot start; the message says why and what to change."""


class Supervisor:
    """One server's supervisor.

    Args:
        settings: verified; instance, metrics_dir and runtime_dir are filled in here.
        instance: name and directory; closed by the caller.
        listener: bound and listening; owned from now on.
    """

    def __init__(self, settings: Settings, instance: Instance, listener: socket.socket) -> None:
        self.settings = msgspec.structs.replace(
            settings,
            instance=instance.name,
            metrics_dir=str(instance.metrics_directory),
            runtime_dir=str(instance.directory),
        )
        self._listener = listener
        environment = dict(os.environ, PROMETHEUS_MULTIPROC_DIR=self.settings.metrics_dir)
        self._template = template = Template(self.settings, environment)
        self._shards = [Child("shard", i, self.settings, None, template) for i in range(settings.shards)]
        self._workers = [
            Child("worker", i, self.settings, listener.fileno(), template) for i in range(settings.workers)
        ]
        # Children wait for the first template to have loaded, or to have failed at it; never for a later one.
        self._load_by = 0.0
        # Templates in a row that were killed before they had loaded.
        self._killed_loading = 0
        self._selector = selectors.DefaultSelector()
        self._signals = 0
        self._was_ready = False
        self._draining: list[Child] = []
        self._deadline = float("inf")
        self._next_ping = 0.0

    @property
    def _children(self) -> list[Child]:
        return [*self._shards, *self._workers]

    @property
    def rings(self) -> list[str]:
        """The rings the children have made."""
        return sorted(ring for child in self._children for ring in child.rings)

    def run(self, on_ready: Callable[[], None]) -> None:
        """Run the server until a signal ends it.

        Args:
            on_ready: called once, when every child is ready for the first time.

        Raises:
            StartError: a child cannot start, and trying again would not help.
        """
        with self._signal_wakeups():
            try:
                if adopt_orphans(True):
                    self._load_by = time.monotonic() + START_S
                    self._start_template()
                while self._children_run() or not self._signals:
                    self._turn()
                    # Not once it ends: there is no address to tell then.
                    is_ready = not self._signals and all(child.is_up for child in self._children)
                    if is_ready and not self._was_ready:
                        self._was_ready = True
                        on_ready()
            finally:
                self._end_children()
                adopt_orphans(False)
                self._selector.close()

    def _turn(self) -> None:
        """Wait for the next thing to do, and do it."""
        now = time.monotonic()
        for key, _ in self._selector.select(max(0.0, self._next_timer() - now)):
            key.data(time.monotonic())
        now = time.monotonic()
        if self._signals:
            self._drain_on(now)
            return
        if now >= self._load_by:
            for child in self._children:
                if child.process is None and child.start_at <= now:
                    self._start(child, now)
        if now >= self._next_ping:
            self._next_ping = now + self.settings.ping_s
            for child in self._children:
                child.ping(now)
            reap_strays(pid for pid in self._pids() if pid is not None)

    def _next_timer(self) -> float:
        if self._signals:
            return self._deadline
        waiting = [max(child.start_at, self._load_by) for child in self._children if child.process is None]
        return min([self._next_ping, *waiting])

    # Children

    def _start(self, child: Child, now: float) -> None:
        if child.start_at:
            child.restarts += 1
            log.info("restarting %s", child, extra=logs.fields(restarts=child.restarts))
        try:
            child.start(now)
        except OSError as error:
            log.error("%s cannot be started: %s", child, error)
            return
        assert child.lifeline is not None
        self._selector.register(child.lifeline, selectors.EVENT_READ, lambda at: self._listen(child, at))
        self._selector.register(child.pidfd, selectors.EVENT_READ, lambda at: self._bury(child, at))

    def _listen(self, child: Child, now: float) -> None:
        lifeline = child.lifeline
        if lifeline is not None:
            fd = lifeline.fileno()
            child.receive(now)
            if child.lifeline is None:
                self._forget(fd)

    def _bury(self, child: Child, now: float) -> None:
        if child.process is None:
            return
        if child.lifeline is not None:
            self._forget(child.lifeline.fileno())
        self._forget(child.pidfd)
        pid = child.pid
        status = child.ended(now)
        if self._signals:
            return
        if child.failure is not None and not self._was_ready:
            raise StartError(child.failure)
        log.error(
            "%s ended",
            child,
            extra=logs.fields(pid=pid, status=_status_text(status), reason=child.failure or ""),
        )

    def _forget(self, fd: int) -> None:
        with contextlib.suppress(KeyError, ValueError):  # it was forgotten before, or closed
            self._selector.unregister(fd)

    def _children_run(self) -> bool:
        return any(child.process is not None for child in self._children)

    def _pids(self) -> list[int | None]:
        template = self._template.process
        return [*(child.pid for child in self._children), None if template is None else template.pid]

    # The template

    def _start_template(self) -> None:
        try:
            self._template.start()
        except OSError as error:
            # Children are started by themselves then, which takes longer and is as good.
            log.error("the template cannot be started: %s", error)
            self._load_by = 0.0
            return
        self._selector.register(self._template, selectors.EVENT_READ, self._hear_template)
        self._selector.register(self._template.pidfd, selectors.EVENT_READ, self._bury_template)

    def _hear_template(self, now: float) -> None:
        """It is ready, or has ended; it says nothing else unasked."""
        self._forget(self._template.fileno())
        self._template.receive()
        if self._template.is_ready:
            self._load_by = 0.0
            self._killed_loading = 0
            if self._was_ready:
                log.info("another template is ready")

    def _bury_template(self, now: float) -> None:
        """Start another, unless this one failed to load, or was the last of some killed at it."""
        has_loaded = self._template.has_loaded
        self._forget(self._template.fileno())
        self._forget(self._template.pidfd)
        status = self._template.ended()
        self._load_by = 0.0
        if not self._signals:
            log.error("the template ended", extra=logs.fields(status=_status_text(status)))
            was_killed = not has_loaded and status < 0
            self._killed_loading += was_killed
            if has_loaded or (was_killed and self._killed_loading <= MAX_KILLED_LOADING):
                self._start_template()

    # The end

    def _drain_on(self, now: float) -> None:
        """Go on with ending: workers first, then shards, and kill what is over its time."""
        if not self._draining and self._listener.fileno() >= 0:
            self._listener.close()
            self._forget(self._template.fileno())
            self._template.leave()
        workers = [child for child in self._workers if child.process is not None]
        running = workers or [child for child in self._shards if child.process is not None]
        if running and running[0] not in self._draining:
            self._draining = running
            seconds = self.settings.drain_s if workers and self._signals == 1 else 0.0
            self._deadline = now + seconds + GOODBYE_S
            for child in running:
                if child.is_up:
                    child.drain(seconds)
                else:
                    child.kill()  # it still loads, and has nothing to end
        elif now >= self._deadline:
            for child in running:
                log.error("%s did not end in time; it is killed", child)
                child.kill()
            self._deadline = now + GOODBYE_S

    def _end_children(self) -> None:
        """After an error, or as a last resort: let nothing outlive this."""
        self._listener.close()
        self._template.kill()
        if self._template.process is not None:
            self._template.ended()
        for child in self._children:
            child.kill()
            if child.process is not None:
                child.ended(time.monotonic())

    # Signals

    @contextlib.contextmanager
    def _signal_wakeups(self) -> Iterator[None]:
        """Make SIGTERM and SIGINT readable for the selector; restore everything afterwards."""
        reader, writer = socket.socketpair()
        reader.setblocking(False)
        writer.setblocking(False)
        wakeup = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        before = {s: signal.signal(s, lambda *_: None) for s in (signal.SIGTERM, signal.SIGINT)}
        self._selector.register(reader, selectors.EVENT_READ, lambda now: self._signalled(reader, now))
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(wakeup)
            reader.close()
            writer.close()

    def _signalled(self, reader: socket.socket, now: float) -> None:
        for number in reader.recv(64):
            if number not in (signal.SIGTERM, signal.SIGINT):
                continue
            self._signals += 1
            log.info(
                "stopping",
                extra=logs.fields(signal=signal.Signals(number).name, drain_s=self.settings.drain_s),
            )
            if self._signals == 2:
                for child in self._draining:
                    child.drain(0.0)
                self._deadline = now + GOODBYE_S
            elif self._signals > 2:
                self._deadline = now


def _status_text(status: int) -> str:
    return f"exit {status}" if status >= 0 else signal.Signals(-status).name


def serve(settings: Settings, say: Callable[[str], None]) -> None:
    """Run a server in the foreground until a signal ends it; everything is gone when this returns.

    Args:
        settings: what the command line says.
        say: prints a line for the user.

    Raises:
        ValidationError: a setting is out of its range.
        StartError: it cannot start: no memory for the rings, the port is taken, the engine cannot be loaded.
    """
    settings.verify()
    logs.configure(settings, "supervisor")
    for name in reap_dead():
        log.info("took away what a dead server left", extra=logs.fields(name=name))
    check_memory(settings, say)
    raise_descriptor_limit()
    listener = listen(settings)
    instance = Instance()
    try:
        supervisor = Supervisor(settings, instance, listener)
        supervisor.run(lambda: say(greeting(supervisor.settings, listener, supervisor.rings)))
    finally:
        instance.close()


def check_memory(settings: Settings, say: Callable[[str], None]) -> None:
    """Compare what all rings take with what /dev/shm has, before any is made.

    Raises:
        StartError: it does not fit; names both numbers and the setting to change.
    """
    count = 2 * settings.shards * settings.workers
    needed = settings.total_ring_bytes + count * RING_OVERHEAD_BYTES
    free = free_shm_bytes()
    say(f"{count} rings of {settings.ring_bytes:,} bytes take {needed:,} of {free:,} free bytes in /dev/shm")
    if needed > free:
        fitting = max(0, free // count - RING_OVERHEAD_BYTES)
        largest = 1 << (fitting.bit_length() - 1) if fitting else 0
        raise StartError(
            f"the rings need {needed:,} bytes and /dev/shm has {free:,} free: lower --ring-bytes from "
            f"{settings.ring_bytes} to {largest} or less, or give the machine more (docker run --shm-size)"
        )


def raise_descriptor_limit() -> None:
    """Let this process and its children have as many descriptors as they may: each client takes one.

    Shells and service managers start programs with a soft limit of 1,024, made for select(); nothing here
    uses that.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def listen(settings: Settings) -> socket.socket:
    """The listening socket, inheritable.

    Raises:
        StartError: the address cannot be had.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.host, settings.port))
        listener.listen(LISTEN_BACKLOG)
    except OSError as error:
        listener.close()
        raise StartError(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror or error}; "
            "choose another --host or --port"
        ) from error
    listener.setblocking(False)
    return listener


def greeting(settings: Settings, listener: socket.socket, rings: list[str]) -> str:
    """What a ready server says: its address, its rings, three commands to try."""
    host = "127.0.0.1" if settings.host in ("0.0.0.0", "") else settings.host
    url = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
    key = f" -H 'Authorization: Bearer {settings.api_key}'" if settings.api_key else ""
    model = settings.model_name
    prompt = '"text": "Once upon a time"'
    if settings.skip_tokenizer_init:
        prompt = '"input_ids": [1, 2, 3]'
    lines = [
        f"egress listens on {url}",
        f"  shards   {settings.shards} (engine {settings.engine}, tokenizer {settings.tokenizer})",
        f"  workers  {settings.workers}",
        *(f"  ring     {ring}" for ring in rings),
        "",
        "try:",
        f"  curl -N {url}/generate{key} -d '{{{prompt}, \"stream\": true}}'",
        f'  curl {url}/generate{key} -d \'{{{prompt}, "sampling_params": {{"max_new_tokens": 32}}}}\'',
        f'  {_interpreter()} -c "import openai; print(openai.OpenAI('
        f"base_url='{url}/v1', api_key='{settings.api_key or 'none'}').chat.completions.create("
        f"model='{model}', messages=[{{'role': 'user', 'content': 'Hello'}}]).choices[0].message.content)\"",
    ]
    return "\n".join(lines)


def _interpreter() -> str:
    """This interpreter as one would type it here."""
    path, here = Path(sys.executable), Path.cwd()
    return shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))

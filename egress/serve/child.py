"""How a child process of the supervisor begins: its standard input is the lifeline, its first line the
settings, and its tokenizer perhaps already there."""

from __future__ import annotations

import functools
import logging
import select
import signal
import socket
import sys

from egress.serve import logs
from egress.serve.config import Settings
from egress.serve.lifeline import Failed, Lifeline, Lost, Start
from egress.text import LoadedTokenizer, load_tokenizer

__all__ = ["announce_failure", "take_start", "tokenizer_of"]

log = logging.getLogger(__name__)

# A supervisor sends the first line right after it has made the process.
START_WAIT_S = 30.0


def take_start(role: str) -> tuple[Lifeline, Start, Settings]:
    """Take the lifeline, wait for the first line, set up signals and logs.

    Ctrl-C reaches a whole process group; it is the supervisor's to answer, so children ignore it. SIGTERM
    keeps its default action: whoever sends it to a child wants that child gone, and the supervisor starts
    another.

    Raises:
        SystemExit: standard input is no lifeline, or its other end is gone.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        lifeline = Lifeline(socket.socket(fileno=sys.stdin.fileno()), is_child=True)
        select.select([lifeline], [], [], START_WAIT_S)
        start = next(lifeline.receive(), None)
    except (OSError, Lost):
        start = None
    if not isinstance(start, Start):
        raise SystemExit(f"egress.serve.{role} is started by `egress serve`, not by hand")
    settings = Settings.from_json(bytes(start.settings))
    logs.configure(settings, f"{role} {start.index}")
    return lifeline, start, settings


def announce_failure(lifeline: Lifeline, message: str) -> int:
    """Tell the supervisor that starting is hopeless; returns the exit status."""
    log.debug("cannot start", exc_info=True)
    try:
        lifeline.send(Failed(message=message))
    except Lost:
        log.error("%s", message)
    return 1


def tokenizer_of(settings: Settings) -> LoadedTokenizer:
    """The server's tokenizer, loaded once: in a child that was forked it is the template's.

    Raises:
        EgressError, ValueError, ImportError, OSError: see `load_tokenizer`.
    """
    return _loaded(settings.tokenizer)


# A server has one tokenizer; what could not be loaded is tried again.
_loaded = functools.lru_cache(maxsize=1)(load_tokenizer)

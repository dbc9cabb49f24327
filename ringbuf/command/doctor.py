"""doctor: looks for what goes wrong with shared memory, and prints the remedy of each finding.

Each check is a function of the files it looks at, so that tests can show it a machine of their own.
"""

from __future__ import annotations

import argparse
import configparser
import dataclasses
import os
import platform
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from ringbuf import _ops
from ringbuf.command.show import amount, print_json
from ringbuf.command.survey import BEING_MADE, HALF_MADE, Entry, survey
from ringbuf.doorbell import SHM_DIR
from ringbuf.layout import BARRIER_SLEEPER
from ringbuf.wait import best_barrier

__all__ = ["Finding", "doctor"]

# What Docker and Kubernetes give a container that asks for nothing.
_CONTAINER_DEFAULT = 64 << 20
# A ring is wanted this much room for beside what is there: the default capacity, and its control pages.
_WANTED = (16 << 20) + (64 << 10)
_FIRST_PERSON_UID = 1000


@dataclasses.dataclass(frozen=True)
class Finding:
    """Something a check has found.

    Attributes:
        level: "ok", "note" (worth knowing), "warning" (will go wrong) or "error" (goes wrong now).
        check: which check.
        text: what is the case.
        remedy: what to do, where possible a command; "" for ok.
    """

    level: str
    check: str
    text: str
    remedy: str = ""


def check_directory(path: str = SHM_DIR, mounts: str = "/proc/mounts") -> Iterator[Finding]:
    """Whether the shared-memory directory is there, in memory, and may be written."""
    mount = f"mount -t tmpfs -o size=50%,mode=1777,nosuid,nodev tmpfs {path}"
    if not os.path.isdir(path):
        yield Finding("error", "directory", f"{path} is missing", f"mkdir {path} && {mount}")
        return
    found = os.stat(path)
    if not os.access(path, os.W_OK | os.X_OK):
        why = "read-only" if os.statvfs(path).f_flag & os.ST_RDONLY else "not writable for this user"
        yield Finding(
            "error", "directory", f"{path} is {why}", f"mount -o remount,rw {path}; chmod 1777 {path}"
        )
        return
    if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        yield Finding(
            "warning",
            "directory",
            f"in {path} anybody may remove anybody's rings (mode {stat.S_IMODE(found.st_mode):o})",
            f"chmod 1777 {path}",
        )
    kind = _file_system(path, mounts)
    if kind not in (None, "tmpfs", "ramfs"):
        yield Finding("warning", "directory", f"{path} is on {kind}, so rings go to a disk", mount)
    else:
        yield Finding("ok", "directory", f"{path} is a writable {kind or 'directory'}")


def _file_system(path: str, mounts: str) -> str | None:
    kind: str | None = None
    try:
        for line in Path(mounts).read_text(encoding="utf-8", errors="replace").splitlines():
            fields = line.split()
            if len(fields) > 2 and fields[1] == path:
                kind = fields[2]
    except OSError:
        return None
    return kind


def check_size(entries: Iterable[Entry], path: str = SHM_DIR) -> Iterator[Finding]:
    """Whether the file system has room for the rings there are, and one more."""
    try:
        room = os.statvfs(path)
    except OSError:
        return
    total, free = room.f_blocks * room.f_frsize, room.f_bavail * room.f_frsize
    rings = sum(entry.nbytes for entry in entries)
    text = f"{path} has {amount(total)}, {amount(free)} free; rings take {amount(rings)}"
    larger = "docker run --shm-size=1g; Kubernetes: an emptyDir of medium Memory at /dev/shm"
    remedy = f"mount -o remount,size=1G {path} (containers: {larger})"
    if 0 < total <= _CONTAINER_DEFAULT:
        yield Finding(
            "warning",
            "size",
            f"{text}: the default of containers, full after {max(1, total // _WANTED)} rings of 16 MiB",
            remedy,
        )
    elif free < _WANTED:
        yield Finding(
            "warning", "size", f"{text}: too little for one more ring of 16 MiB", f"ringbuf reap; {remedy}"
        )
    else:
        yield Finding("ok", "size", text)


def check_leftovers(entries: Iterable[Entry], path: str = SHM_DIR) -> Iterator[Finding]:
    """Whether the dead left something."""
    entries = list(entries)
    dead = [entry for entry in entries if entry.info is not None and not entry.info.in_use]
    for entry in dead:
        yield Finding(
            "warning",
            "leftovers",
            f"ring {entry.name} ({entry.state}) keeps {amount(entry.nbytes)} and no process uses it",
            "ringbuf reap (or resume it)",
        )
    unmade = [entry for entry in entries if entry.state == HALF_MADE]
    for entry in unmade:
        text = f"half-made segment {entry.name} keeps {amount(entry.nbytes)}: its maker died"
        yield Finding("warning", "leftovers", text, "ringbuf reap")
    known = {entry.name.partition("~")[0] for entry in entries}
    try:
        files = sorted(os.listdir(path))
    except OSError:
        return
    parts = [match for file in files if (match := re.fullmatch(r"ringbuf\.(.+)~[0-9a-f]{16}\.\w+", file))]
    orphans = sorted({match[1] for match in parts} - known)
    if orphans:
        yield Finding(
            "note",
            "leftovers",
            f"parts of rings that are no more, or are being made: {', '.join(orphans)}",
            "ringbuf reap (it spares what is being made)",
        )
    elif not dead and not unmade:
        yield Finding("ok", "leftovers", "no ring is left over")


def check_rings(entries: Iterable[Entry], path: str = SHM_DIR) -> Iterator[Finding]:
    """Whether every ring can be read, by the right people only, and is not held up."""
    for entry in entries:
        file = f"{path}/ringbuf.{entry.name}"
        if entry.state in (BEING_MADE, HALF_MADE):
            continue
        if entry.state == "forbidden":
            yield Finding("note", "rings", f"{entry.problem}", f"ask its owner: ls -l {file}")
        elif entry.info is None:
            yield Finding(
                "error",
                "rings",
                f"{entry.problem}",
                f"python -c \"import ringbuf; ringbuf.unlink('{entry.name}')\"",
            )
        else:
            yield from _check_ring(entry, file)


def _check_ring(entry: Entry, file: str) -> Iterator[Finding]:
    info = entry.info
    assert info is not None
    try:
        mode = stat.S_IMODE(os.stat(file).st_mode)
    except OSError:
        return
    if mode & stat.S_IWOTH:
        yield Finding(
            "warning",
            "rings",
            f"anybody may write to ring {entry.name} (mode {mode:o})",
            f"chmod o-rwx {file}",
        )
    if info.producer.waiting and info.producer.alive:
        slowest = max((c for c in info.consumers if c.alive), key=lambda c: c.lag_bytes, default=None)
        who = (
            "no consumer is attached"
            if slowest is None
            else f"pid {slowest.pid} is {slowest.lag_bytes} bytes behind"
        )
        if slowest is not None and slowest.leases:
            who += f" with {slowest.leases} leases since seq {slowest.oldest_lease}"
        yield Finding(
            "note",
            "rings",
            f"the producer of ring {entry.name} waits for room: {who}",
            f"ringbuf stat {entry.name}",
        )


def check_login(
    root: str = "/", uid: int | None = None, running: str = "run/systemd/system"
) -> Iterator[Finding]:
    """Whether the login manager removes this user's shared memory when its last session ends."""
    uid = os.geteuid() if uid is None else uid
    if not Path(root, running).exists():
        yield Finding("ok", "login", "no login manager runs here")
        return
    value, where = "yes", "its default"
    # Mirrors: logind.conf(5); of all files, sorted by name, the last one that sets it counts.
    files = [Path(root, "etc/systemd/logind.conf")]
    drop_ins: dict[str, Path] = {}
    for folder in ("usr/lib/systemd", "run/systemd", "etc/systemd"):
        for file in Path(root, folder, "logind.conf.d").glob("*.conf"):
            drop_ins[file.name] = file
    files += [drop_ins[name] for name in sorted(drop_ins)]
    for file in files:
        parser = configparser.ConfigParser(strict=False, interpolation=None)
        try:
            parser.read_string(file.read_text(encoding="utf-8", errors="replace"))
        except (OSError, configparser.Error):
            continue
        if parser.has_option("Login", "RemoveIPC"):
            value, where = parser.get("Login", "RemoveIPC"), str(file)
    removes = value.strip().lower() in ("yes", "true", "on", "1", "y", "t")
    if removes and uid >= _FIRST_PERSON_UID:
        yield Finding(
            "warning",
            "login",
            f"RemoveIPC={value} ({where}): rings of uid {uid} vanish when its last login session ends",
            f"loginctl enable-linger {uid}; or: mkdir -p /etc/systemd/logind.conf.d && printf "
            "'[Login]\\nRemoveIPC=no\\n' > /etc/systemd/logind.conf.d/ringbuf.conf && systemctl restart "
            "systemd-logind; or run under a system account",
        )
    else:
        spared = f"RemoveIPC={value}" if not removes else f"uid {uid} is a system account"
        yield Finding("ok", "login", f"the login manager leaves shared memory alone ({spared})")


def check_memory(
    entries: Iterable[Entry], limit_file: str = "/sys/fs/cgroup/memory.max"
) -> Iterator[Finding]:
    """Whether the rings fit into the memory this process may use; the pages of the dead count too."""
    rings = sum(entry.nbytes for entry in entries)
    try:
        limit = int(Path(limit_file).read_text(encoding="ascii"))
    except (OSError, ValueError):
        yield Finding("ok", "memory", f"no memory limit; rings take {amount(rings)}")
        return
    text = f"rings take {amount(rings)} of the limit of {amount(limit)}"
    if rings > limit // 2:
        yield Finding("warning", "memory", text, "make rings smaller, raise the limit, or: ringbuf reap")
    else:
        yield Finding("ok", "memory", text)


def check_body(impl: str | None = None, barrier: int | None = None) -> Iterator[Finding]:
    """Which body runs, and whether sleeping costs what it should."""
    impl = _ops.impl if impl is None else impl
    if impl == "python":
        yield Finding(
            "note",
            "body",
            f"the pure-Python body runs ({platform.machine()}): it is correct, and several times slower",
            "install a C compiler, then: pip install --force-reinstall --no-binary egress-ring egress-ring",
        )
    else:
        yield Finding("ok", "body", "the C body runs")
    if (best_barrier() if barrier is None else barrier) != BARRIER_SLEEPER:
        yield Finding(
            "note",
            "barrier",
            "membarrier(2) is not allowed here, so every publication pays for a barrier",
            "allow the system call membarrier in the seccomp profile, and unset RINGBUF_BARRIER",
        )


def _all_checks(entries: list[Entry]) -> list[Finding]:
    checks: list[Callable[[], Iterator[Finding]]] = [
        check_directory,
        lambda: check_size(entries),
        lambda: check_memory(entries),
        lambda: check_leftovers(entries),
        lambda: check_rings(entries),
        check_login,
        check_body,
    ]
    return [finding for check in checks for finding in check()]


def doctor(args: argparse.Namespace) -> int:
    """Run every check; 1 when one of them warns."""
    findings = _all_checks(survey() if os.path.isdir(SHM_DIR) else [])
    if args.json:
        print_json([dataclasses.asdict(finding) for finding in findings])
    else:
        for finding in findings:
            print(f"{finding.level:8} {finding.check:10} {finding.text}")
            if finding.remedy:
                print(f"{'':19} remedy: {finding.remedy}")
    return int(any(finding.level in ("warning", "error") for finding in findings))

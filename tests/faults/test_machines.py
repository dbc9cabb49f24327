"""Machines that are not as one would like: a small, read-only or missing /dev/shm, other users, namespaces.

Each case runs in a child with namespaces of its own; without the rights for these the case is skipped, with
the reason.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from support import ROOT, files_of, unique_name

import ringbuf

UNSHARE = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-Urm"]
NOBODY = 65534


def can_unshare(*flags: str) -> bool:
    try:
        return not subprocess.run(
            [*UNSHARE, *flags, "true"], capture_output=True, timeout=30, check=False
        ).returncode
    except OSError:
        return False


namespaces = pytest.mark.skipif(not can_unshare(), reason="mount namespaces are not permitted here")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


def in_namespace(setup: str, code: str, *flags: str) -> subprocess.CompletedProcess[str]:
    """Run Python `code` after the shell lines `setup`, in a mount namespace."""
    return subprocess.run(
        [*UNSHARE, *flags, "sh", "-c", f'set -e\n{setup}\nexec "$0" -c "$1"', sys.executable, code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def small(size: str) -> str:
    return f"mount -t tmpfs -o size={size},mode=1777 tmpfs /dev/shm"


@namespaces
def test_a_small_shared_memory_is_an_error_with_needed_free_and_remedy() -> None:
    """R002: never a bus error."""
    done = in_namespace(
        small("64k"),
        """
import os, ringbuf
try:
    ringbuf.create("a", 1 << 20)
except ringbuf.SharedMemoryFull as error:
    assert error.needed > 1 << 20 and 0 <= error.free <= 65536, error
    print(error)
assert os.listdir("/dev/shm") == [], os.listdir("/dev/shm")
with ringbuf.create("b", 4096, 1) as producer, ringbuf.attach("b") as consumer:
    while producer.try_write(1, b"x" * 100):
        pass
    print(len(consumer.read_many()), "frames")
""",
    )
    assert done.returncode == 0, done.stderr
    assert "--shm-size" in done.stdout
    assert "frames" in done.stdout


@namespaces
def test_a_shared_memory_filled_by_others_is_an_error() -> None:
    """R002, R039: dead rings make room before the new one asks for it."""
    done = in_namespace(
        small("2m"),
        """
import os, signal, subprocess, sys, ringbuf
code = "import os, ringbuf; p = ringbuf.create('a', 1 << 20, 1); os.kill(os.getpid(), 9)"
for _ in range(3):
    assert subprocess.run([sys.executable, "-c", code]).returncode == -signal.SIGKILL
ringbuf.create("a", 1 << 20, 1).close()
open("/dev/shm/other", "wb").write(bytes(1800 << 10))
try:
    ringbuf.create("b", 1 << 20, 1)
except ringbuf.SharedMemoryFull as error:
    print("free", error.free)
assert os.listdir("/dev/shm") == ["other"]
""",
    )
    assert done.returncode == 0, done.stderr
    assert "free" in done.stdout


@namespaces
@pytest.mark.parametrize(
    ("setup", "error"),
    [
        (f"{small('1m')}; mount -o remount,ro /dev/shm", "Read-only file system"),
        (
            "mkdir /tmp/empty$$; mount --bind /tmp/empty$$ /dev; rmdir /tmp/empty$$ || true",
            "no shared-memory directory",
        ),
    ],
    ids=["read-only", "missing"],
)
def test_a_shared_memory_that_cannot_be_written_is_a_plain_os_error(setup: str, error: str) -> None:
    done = in_namespace(
        setup,
        """
import ringbuf
print(ringbuf.rings(), ringbuf.reap())
try:
    ringbuf.create("a", 4096)
except OSError as error:
    print(type(error).__name__, error)
try:
    ringbuf.attach("a", timeout=0)
except ringbuf.RingNotFound as error:
    print(error)
""",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[] []\n")
    assert error in done.stdout
    assert "ring 'a' is missing" in done.stdout


@namespaces
@pytest.mark.parametrize(
    ("setup", "finding"),
    [
        (small("64m"), "the default of containers"),
        (small("1m"), "the default of containers"),
        (f"{small('1m')}; mount -o remount,ro /dev/shm", "read-only"),
        ("mkdir /tmp/empty$$; mount --bind /tmp/empty$$ /dev; rmdir /tmp/empty$$ || true", "is missing"),
    ],
    ids=["container", "tiny", "read-only", "missing"],
)
def test_doctor_names_the_fault_of_the_machine_and_its_remedy(setup: str, finding: str) -> None:
    done = in_namespace(setup, "from ringbuf.__main__ import main; raise SystemExit(main(['doctor']))")
    assert done.returncode == 1, done.stderr
    assert finding in done.stdout
    assert "remedy: " in done.stdout


@pytest.fixture
def ring_of_nobody() -> Iterator[str]:
    """A ring that another user has made, and still holds."""
    name = unique_name("theirs")
    ready, told = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            producer = ringbuf.create(name, 4096, 2, mode=0o666)
            producer.write(1, b"theirs")
            os.write(told, b"!")
            signal.pause()
        finally:
            os._exit(1)
    os.close(told)
    try:
        assert os.read(ready, 1) == b"!"
        yield name
    finally:
        os.close(ready)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        for file in files_of(name):
            os.unlink(f"/dev/shm/{file}")


@as_root
def test_a_ring_of_another_user_is_refused_unless_asked_for(ring_of_nobody: str) -> None:
    """R010, R050."""
    for refused in (
        lambda: ringbuf.attach(ring_of_nobody, timeout=0),
        lambda: ringbuf.create(ring_of_nobody, 4096),
        lambda: ringbuf.create(ring_of_nobody, 4096, replace=True),
        lambda: ringbuf.resume(ring_of_nobody),
        lambda: ringbuf.inspect(ring_of_nobody),
        lambda: ringbuf.unlink(ring_of_nobody),
    ):
        with pytest.raises(ringbuf.RingForbidden, match=f"belongs to uid {NOBODY}, not to uid 0"):
            refused()
    assert ring_of_nobody not in ringbuf.reap(prefix=ring_of_nobody)
    with ringbuf.attach(ring_of_nobody, owner=NOBODY) as consumer:
        assert consumer.read(1).payload == b"theirs"


@as_root
def test_a_user_cannot_touch_the_private_ring_of_another() -> None:
    name = unique_name("mine")
    with ringbuf.create(name, 4096) as producer:
        producer.write(1, b"secret")
        code = f"""
import os, ringbuf
os.setuid({NOBODY})
for owner in (None, 0):
    try:
        ringbuf.attach({name!r}, timeout=0, owner=owner)
    except ringbuf.RingForbidden as error:
        print(error)
print(ringbuf.reap())
"""
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd="/",
            env={"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if "ModuleNotFoundError" in done.stderr or "PermissionError" in done.stderr:
            pytest.skip("the other user may not read this installation")
        assert done.stdout.count("belongs to uid 0") == 2, done.stderr
        assert ringbuf.inspect(name).state == "live"


@pytest.mark.skipif(not can_unshare("-pf"), reason="pid namespaces are not permitted here")
@pytest.mark.parametrize("end", ["kill", "leave"])
def test_life_and_death_are_seen_across_pid_namespaces(end: str) -> None:
    """R005: pid 1 there is another process here, and the same pid again after a restart."""
    name = unique_name("pidns")
    code = f"""
import os, sys, ringbuf
producer = ringbuf.create({name!r}, 4096, 2) if sys.argv[1] == "create" else ringbuf.resume({name!r})
producer.write(1, b"%d" % os.getpid())
print("ready", flush=True)
sys.stdin.readline()
os.kill(os.getpid(), 9)  # pid 1 of a namespace does not hear its own
os._exit(7)
"""

    def start(how: str) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [*UNSHARE, "-pf", "--kill-child", sys.executable, "-c", code, how],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        return child

    def stop(child: subprocess.Popen[str]) -> None:
        if end == "kill":
            child.kill()
        child.communicate("\n", timeout=30)

    first = start("create")
    with ringbuf.attach(name) as consumer:
        assert consumer.read(5).payload == b"1"
        info = ringbuf.inspect(name)
        assert (info.state, info.producer.pid, info.producer.alive) == ("live", 1, True)
        with pytest.raises(ringbuf.ProducerAlive, match="pid 1"):
            ringbuf.resume(name)
        stop(first)
        with pytest.raises(ringbuf.PeerDead):
            consumer.read(30)
        second = start("resume")
        assert consumer.read(5).payload == b"1"
        assert ringbuf.inspect(name).producer.incarnation == 2
        stop(second)
        with pytest.raises(ringbuf.PeerDead):
            consumer.read(30)
    ringbuf.create(name, 4096).close()
    assert files_of(name) == []

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from support import MS, files_of, spawn_python

import ringbuf
from ringbuf import _hooks, layout, monitor
from ringbuf.liveness import lock_all

pytestmark = pytest.mark.usefixtures("body")

SHM = Path("/dev/shm")


def segment(name: str) -> Path:
    return SHM / f"ringbuf.{name}"


def test_create_makes_one_segment_and_a_fifo_for_each_party(name: str) -> None:
    producer = ringbuf.create(name, 4096, slots=2)
    files = files_of(name)
    assert len(files) == 4
    assert files[0] == f"ringbuf.{name}"
    assert [file.rpartition(".")[2] for file in files[1:]] == ["c0", "c1", "p"]
    assert segment(name).stat().st_size == layout.slot_page(2) + 4096
    producer.close()
    assert files_of(name) == []


def test_every_page_is_reserved(name: str) -> None:
    with ringbuf.create(name, 1 << 20):
        found = segment(name).stat()
        assert found.st_blocks * 512 >= found.st_size


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o660, 0o666, 0o400])
@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o777])
def test_the_mode_asked_for_is_the_mode_obtained(name: str, mode: int, umask: int) -> None:
    before = os.umask(umask)
    try:
        with ringbuf.create(name, 4096, slots=1, mode=mode):
            for file in files_of(name):
                assert stat.S_IMODE((SHM / file).stat().st_mode) == mode
    finally:
        now = os.umask(before)
    assert now == umask


@pytest.mark.parametrize("mode", [-1, 0o1777, 0o4600, None, "600", True])
def test_modes_are_permission_bits(name: str, mode: object) -> None:
    with pytest.raises(ValueError, match="permission bits"):
        ringbuf.create(name, mode=mode)  # type: ignore[arg-type]


def test_create_never_touches_the_umask_of_other_threads(name: str, tmp_path: Path) -> None:
    stop = threading.Event()
    wrong: list[int] = []

    def ordinary() -> None:
        for i in range(10_000):
            if stop.is_set():
                break
            path = tmp_path / str(i)
            path.touch()
            if stat.S_IMODE(path.stat().st_mode) != 0o644:
                wrong.append(i)

    before = os.umask(0o022)
    try:
        thread = threading.Thread(target=ordinary)
        thread.start()
        for _ in range(50):
            ringbuf.create(name, 4096, slots=1, mode=0o666).close()
        stop.set()
        thread.join()
    finally:
        os.umask(before)
    assert wrong == []


def test_a_living_ring_is_not_replaced(name: str) -> None:
    with ringbuf.create(name, 4096) as producer:
        with pytest.raises(ringbuf.RingExists) as caught:
            ringbuf.create(name, 8192)
        assert isinstance(caught.value, FileExistsError)
        assert caught.value.pids == (os.getpid(),)
        with ringbuf.attach(name) as consumer:
            producer.write(1, b"still here")
            assert consumer.read(0).payload == b"still here"


def test_a_ring_with_a_living_consumer_is_not_replaced(name: str) -> None:
    producer = ringbuf.create(name, 4096)
    with ringbuf.attach(name):
        producer.close(unlink=False)
        with pytest.raises(ringbuf.RingExists):
            ringbuf.create(name, 4096)
    ringbuf.create(name, 4096).close()


@pytest.mark.parametrize("capacity", [1024, 4096, 1 << 20])
def test_a_dead_ring_is_replaced_at_any_size(name: str, capacity: int) -> None:
    child = spawn_python(
        "import sys, os, signal, ringbuf\n"
        "p = ringbuf.create(sys.argv[1], 4096)\np.write(1, b'old')\nos.kill(os.getpid(), signal.SIGKILL)",
        name,
    )
    child.communicate()
    assert ringbuf.inspect(name).state == "dead"
    with ringbuf.create(name, capacity) as producer, ringbuf.attach(name) as consumer:
        producer.write(1, b"new")
        assert [bytes(frame.payload) for frame in consumer.read_many()] == [b"new"]
        assert len(files_of(name)) == 10


def test_replace_ends_a_living_ring_for_everybody(name: str) -> None:
    old = ringbuf.create(name, 4096)
    reader = ringbuf.attach(name)
    old.write(1, b"last")
    with ringbuf.create(name, 1024, replace=True) as new, ringbuf.attach(name) as other:
        assert reader.read(0).payload == b"last"
        with pytest.raises(ringbuf.RingClosed, match="by a replacement"):
            reader.read()
        new.write(1, b"new")
        assert other.read(0).payload == b"new"
        with pytest.raises(ringbuf.RingClosed, match="by a replacement"):  # noqa: PT012
            for _ in range(100):
                old.write(1, b"x" * 100, timeout=5)
        old.close()
        assert ringbuf.inspect(name).state == "live"
    reader.close()


def test_replace_wakes_whoever_waits(name: str) -> None:
    old = ringbuf.create(name, 4096)
    reader = ringbuf.attach(name)
    timer = threading.Timer(50 * MS, lambda: ringbuf.create(name, 4096, replace=True).close())
    timer.start()
    with pytest.raises(ringbuf.RingClosed, match="by a replacement"):
        reader.read()
    timer.join()
    reader.close()
    old.close()


def test_close_without_unlink_leaves_the_ring_to_late_readers(name: str) -> None:
    producer = ringbuf.create(name, 4096)
    producer.write(1, b"late")
    producer.close(unlink=False)
    with ringbuf.attach(name) as consumer:
        assert [bytes(frame.payload) for frame in consumer] == [b"late"]
    with pytest.raises(ringbuf.RingClosed):
        ringbuf.resume(name)
    ringbuf.unlink(name)
    assert files_of(name) == []
    with pytest.raises(ringbuf.RingNotFound):
        ringbuf.unlink(name)


def test_close_removes_only_its_own_segment(name: str) -> None:
    old = ringbuf.create(name, 4096)
    ringbuf.unlink(name)
    with ringbuf.create(name, 4096):
        old.close()
        assert ringbuf.inspect(name).state == "live"


def test_a_readers_exit_removes_nothing(producer: ringbuf.Producer) -> None:
    producer.write(1, b"x")
    for end in ("", "import os, signal; os.kill(os.getpid(), signal.SIGTERM)", "raise SystemExit(3)", "1/0"):
        child = spawn_python(
            f"import sys, ringbuf\nc = ringbuf.attach(sys.argv[1])\nc.read()\n{end}", producer.name
        )
        _, errors = child.communicate()
        assert "tracker" not in errors
        with ringbuf.attach(producer.name) as consumer:
            assert consumer.read(0).payload == b"x"


# ------------------------------------------------------------------------------------------------- attaching


def test_attach_waits_for_the_ring_to_appear(name: str) -> None:
    made: list[ringbuf.Producer] = []
    timer = threading.Timer(50 * MS, lambda: made.append(ringbuf.create(name, 4096)))
    timer.start()
    ringbuf.attach(name, timeout=60).close()
    timer.join()
    made[0].close()


def test_attach_gives_up_after_its_time(name: str) -> None:
    started = time.monotonic()
    with pytest.raises(ringbuf.RingNotFound) as caught:
        ringbuf.attach(name, timeout=40 * MS)
    assert time.monotonic() - started >= 40 * MS
    assert caught.value.reason == "missing"
    assert isinstance(caught.value, FileNotFoundError)


@pytest.mark.parametrize(
    ("content", "reason"), [(b"", "empty"), (bytes(4096), "not ready"), (bytes(1 << 16), "not ready")]
)
def test_attach_tells_half_made_states_apart(name: str, content: bytes, reason: str) -> None:
    segment(name).write_bytes(content)
    with pytest.raises(ringbuf.RingNotFound, match=reason) as caught:
        ringbuf.attach(name, timeout=10 * MS)
    assert caught.value.reason == reason
    assert segment(name).read_bytes() == content


@pytest.mark.parametrize("content", [b"x", b"x" * 50, b"\xff" * 4096, b"\xff" * 100_000])
def test_attach_to_something_else_is_corruption_at_once(name: str, content: bytes) -> None:
    segment(name).write_bytes(content)
    for call in (ringbuf.attach, ringbuf.resume, ringbuf.inspect):
        with pytest.raises(ringbuf.RingCorrupt):
            call(name)
    assert segment(name).read_bytes() == content


def test_another_layout_version_is_named(producer: ringbuf.Producer) -> None:
    path = segment(producer.name)
    with path.open("r+b") as file:
        file.seek(layout.H_VERSION * layout.WORD)
        file.write((99).to_bytes(8, "little"))
    for call in (ringbuf.attach, ringbuf.inspect, ringbuf.resume):
        with pytest.raises(ringbuf.RingVersion, match="99"):
            call(producer.name)


STEPS = [
    "create.opened",
    "create.locked",
    "create.sized",
    "create.filled",
    "create.fifos",
    "create.link",
]


@pytest.mark.parametrize("where", STEPS)
def test_a_ring_in_the_making_is_neither_attached_nor_reaped_nor_lost(
    name: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, go_on = threading.Event(), threading.Event()

    def pause(step: str) -> None:
        if step == where and threading.current_thread() is not threading.main_thread():
            reached.set()
            go_on.wait(60)

    monkeypatch.setattr(_hooks, "on_step", pause)
    made: list[ringbuf.Producer] = []
    thread = threading.Thread(target=lambda: made.append(ringbuf.create(name, 4096)))
    thread.start()
    assert reached.wait(60)
    with pytest.raises(ringbuf.RingNotFound):
        ringbuf.attach(name, timeout=5 * MS)
    if where != "create.opened":
        assert name not in ringbuf.reap(prefix=name)
    else:
        ringbuf.reap(prefix=name)  # may take what is not locked yet: the creator starts over
    go_on.set()
    thread.join()
    with made[0] as producer, ringbuf.attach(name) as consumer:
        producer.write(1, b"x")
        assert consumer.read(0).payload == b"x"
    assert files_of(name) == []


@pytest.mark.parametrize("where", [*STEPS, "create.linked"])
def test_what_a_killed_creator_left_is_reaped_and_in_nobodys_way(name: str, where: str) -> None:
    code = (
        "import sys, os, signal, ringbuf\nfrom ringbuf import _hooks\n"
        "_hooks.on_step = lambda s: s == sys.argv[2] and os.kill(os.getpid(), signal.SIGKILL)\n"
        "ringbuf.create(sys.argv[1], 4096)"
    )
    spawn_python(code, name, where).communicate()
    left = files_of(name)
    assert left
    with ringbuf.create(name, 4096) as producer, ringbuf.attach(name) as consumer:
        producer.write(1, b"x")
        assert consumer.read(0).payload == b"x"
        ringbuf.reap(prefix=name)
        assert len(files_of(name)) == 10
    assert files_of(name) == []
    spawn_python(code, name, where).communicate()
    assert name in ringbuf.reap(prefix=name)
    assert files_of(name) == []


def test_a_creator_that_starts_over_leaves_nothing_to_a_reaper_that_dies(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[int] = []

    def hold(step: str) -> None:
        if step == "create.opened" and not held:
            (file,) = files_of(name)
            held.append(os.open(f"/dev/shm/{file}", os.O_RDWR))
            assert lock_all(held[0], layout.MAX_SLOTS)

    monkeypatch.setattr(_hooks, "on_step", hold)
    with ringbuf.create(name, 4096):
        # The reaper's end: it has removed nothing.
        os.close(held[0])
        assert not [file for file in files_of(name) if file.endswith(".new")]


def test_reap_takes_only_what_begins_with_the_prefix(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    monkeypatch.setattr(monitor, "_reap_segment", lambda name, path, removed: looked.append(name))
    monkeypatch.setattr(monitor, "_reap_fifo", lambda name, path, removed: looked.append(name))
    parts = [f"{name}.{which}" for which in ("a.1", "a.2", "b.1")]
    files = [f"ringbuf.{part}{end}" for part in parts for end in ("", f"~{1:016x}.new", f"~{2:016x}.c0")]
    monkeypatch.setattr(monitor, "shared_names", lambda: files)
    ringbuf.reap(prefix=f"{name}.a.")
    assert sorted(looked) == [parts[0]] * 3 + [parts[1]] * 3
    looked.clear()
    ringbuf.reap()
    assert set(looked) == set(parts)


def test_an_error_while_creating_leaves_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for where in [*STEPS, "create.linked"]:

        def fail(step: str, where: str = where) -> None:
            if step == where:
                raise KeyboardInterrupt

        monkeypatch.setattr(_hooks, "on_step", fail)
        with pytest.raises(KeyboardInterrupt):
            ringbuf.create(name, 4096)
        assert files_of(name) == [], where


# ---------------------------------------------------------------------------------------------- the machine


def test_a_ring_larger_than_shared_memory_is_refused(name: str) -> None:
    with pytest.raises(ringbuf.SharedMemoryFull) as caught:
        ringbuf.create(name, 1 << 40)
    error = caught.value
    assert isinstance(error, OSError)
    assert error.needed > 1 << 40
    assert 0 < error.free < error.needed
    assert "--shm-size" in str(error)
    assert files_of(name) == []


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for a mount namespace")
def test_a_small_dev_shm_fails_cleanly_and_never_with_a_bus_error(name: str) -> None:
    code = (
        "import sys, os, ringbuf\n"
        "try:\n    ringbuf.create(sys.argv[1], 1 << 20)\n"
        "except ringbuf.SharedMemoryFull as e:\n"
        "    print(e.needed > 1 << 20, e.free <= 65536, os.listdir('/dev/shm'))\n"
        "p = ringbuf.create(sys.argv[1], 4096, slots=1)\n"
        "while p.try_write(1, b'x' * 500): pass\np.close()\nprint(os.listdir('/dev/shm'))"
    )
    mount = 'mount -t tmpfs -o size=64k tmpfs /dev/shm && exec "$@"'
    done = subprocess.run(
        [*["unshare", "-m", "sh", "-c"], mount, "sh", sys.executable, "-c", code, name],
        capture_output=True,
        text=True,
        check=False,
    )
    if "unshare" in done.stderr or "mount" in done.stderr:
        pytest.skip(f"no mount namespace here: {done.stderr.strip()}")
    assert done.stdout.splitlines() == ["True True []", "[]"], done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_a_ring_of_another_user_is_refused_by_name_of_its_owner(name: str) -> None:
    with ringbuf.create(name, 4096, mode=0o666):
        code = (
            "import os, sys\nimport ringbuf\n"
            "ringbuf.attach(sys.argv[1]).close()\n"  # everything is imported before the user changes
            "os.setuid(12345)\n"
            "for call in (ringbuf.attach, ringbuf.resume, ringbuf.inspect, ringbuf.create, ringbuf.unlink):\n"
            "    try:\n        call(sys.argv[1])\n"
            "    except PermissionError as e:\n        print(type(e).__name__, e)\n"
            "print(ringbuf.reap(), ringbuf.rings())\n"
            "with ringbuf.attach(sys.argv[1], owner=0) as c: print(c.slot)\n"
        )
        out, errors = spawn_python(code, name).communicate()
        lines = out.splitlines()
        expected = f"RingForbidden ring {name!r} belongs to uid 0, not to uid 12345: refused"
        assert lines == [expected] * 5 + ["[] []", "0"], errors
    with ringbuf.create(name, 4096):
        code = (
            "import os, sys, ringbuf\nringbuf.attach(sys.argv[1]).close()\nos.setuid(12345)\n"
            "ringbuf.attach(sys.argv[1], owner=0)"
        )
        assert "RingForbidden" in spawn_python(code, name).communicate()[1]


def test_a_planted_symlink_is_not_followed(name: str, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"precious")
    segment(name).symlink_to(target)
    for call in (ringbuf.attach, ringbuf.create, ringbuf.inspect):
        with pytest.raises(ringbuf.RingForbidden):
            call(name)
    assert target.read_bytes() == b"precious"

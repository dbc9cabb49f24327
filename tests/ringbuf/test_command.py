"""The command, on rings in every state, as people see it and as JSON."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import ROOT, files_of, spawn_python

import ringbuf
from ringbuf import layout, monitor
from ringbuf.command import main, show


@pytest.fixture
def ring(name: str) -> Iterator[tuple[ringbuf.Producer, ringbuf.Consumer]]:
    """Seven frames, two of them read."""
    with ringbuf.create(name, 4096, 3) as producer, ringbuf.attach(name) as consumer:
        producer.write_many([(tag, b"frame %d" % tag) for tag in (1, 2, 3, 16, 17, 200, 1)])
        consumer.read(0), consumer.read(0)
        yield producer, consumer


@pytest.fixture
def dead(name: str) -> str:
    """A ring whose producer and consumer were killed, with a frame written and not published."""
    code = """
import os, sys, ringbuf
from ringbuf.testing import at_step, kill_here
with at_step("write.publish", kill_here, nth=4):
    producer = ringbuf.create(sys.argv[1], 4096, 3)
    consumer = ringbuf.attach(sys.argv[1])
    for number in range(4):
        producer.write(1 + number, b"left %d" % number)
        if not number:
            consumer.read(0)
"""
    child = spawn_python(code, name)
    child.communicate(timeout=60)
    assert child.returncode == -signal.SIGKILL
    return name


def run(capsys: pytest.CaptureFixture[str], *argv: str, code: int = 0) -> str:
    assert main(argv) == code
    return capsys.readouterr().out


def poke(name: str, offset: int, value: int) -> None:
    fd = os.open(f"/dev/shm/ringbuf.{name}", os.O_RDWR)
    os.pwrite(fd, struct.pack("=Q", value), offset)
    os.close(fd)


Ring = tuple[ringbuf.Producer, ringbuf.Consumer]
Out = pytest.CaptureFixture[str]


def test_ls_has_a_line_for_each_ring(ring: Ring, capsys: Out) -> None:
    line = next(line for line in run(capsys, "ls").splitlines() if line.startswith(ring[0].name))
    assert line.split()[1:7] == ["live", "pid", str(os.getpid()), "1/3", "4", "KiB"]


def test_ls_as_json_is_what_inspect_says(ring: Ring, capsys: Out) -> None:
    found = {entry["name"]: entry for entry in json.loads(run(capsys, "ls", "--json"))}
    assert found[ring[0].name]["frames"] == 7
    assert found[ring[0].name]["segment_bytes"] == layout.slot_page(3) + 4096


@pytest.mark.parametrize("kind", ["fifo", "folder", "link", "empty", "text", "version", "magic"])
def test_whatever_bears_a_rings_name_gets_a_line_and_its_reason(
    name: str, kind: str, capsys: Out, tmp_path: Path
) -> None:
    path = f"/dev/shm/ringbuf.{name}"
    holder = None
    if kind in ("version", "magic"):
        # Held, so that nobody's reap takes it meanwhile.
        holder = ringbuf.create(name, 4096)
        poke(name, 8 if kind == "version" else 0, 99)
    else:
        {
            "fifo": lambda: os.mkfifo(path),
            "folder": lambda: os.mkdir(path),
            "link": lambda: os.symlink(tmp_path, path),
            "empty": lambda: Path(path).touch(),
            "text": lambda: Path(path).write_text("no ring\n" * 100),
        }[kind]()
    try:
        assert f"{name}: ring {name!r} " in run(capsys, "ls")
        entry = next(e for e in json.loads(run(capsys, "ls", "--json")) if e["name"] == name)
        assert entry["state"] in ("forbidden", "corrupt", "version", "not ready")
        for command in (["stat", name], ["tail", name, "--timeout", "0"], ["dump", name]):
            assert main(command) == 1
            assert name in capsys.readouterr().err
        assert name in run(capsys, "top", "--count", "1")
        main(["doctor"])
        assert name in capsys.readouterr().out
    finally:
        if holder is not None:
            holder.close()
        if kind == "folder":
            os.rmdir(path)


def test_stat_tells_all(ring: Ring, capsys: Out) -> None:
    text = run(capsys, "stat", ring[0].name)
    assert "7 frames" in text
    assert f"pid {os.getpid()}, alive, incarnation 1" in text
    assert json.loads(run(capsys, "stat", ring[0].name, "--json"))["consumers"][0]["lag_frames"] == 5


def test_a_missing_ring_is_an_error_on_stderr(name: str, capsys: Out) -> None:
    for command in ("stat", "tail", "dump"):
        assert main([command, name]) == 1
        assert capsys.readouterr().err.startswith(f"ringbuf: ring {name!r} is missing")


def test_top_counts_what_passed_between_two_looks(
    ring: Ring, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer, consumer = ring

    def sleep(seconds: float) -> None:
        producer.write_many([(1, b"x")] * 20)
        consumer.read_many()

    monkeypatch.setattr("time.sleep", sleep)
    first, second = map(json.loads, run(capsys, "top", "--count", "2", "--json").splitlines())
    before, after = (next(row for row in rows if row["name"] == producer.name) for rows in (first, second))
    assert before["frames_per_s"] == 0
    assert after["frames_per_s"] > 20
    assert after["slowest_pid"] == os.getpid()


def test_tail_names_tags_and_numbers_requests(ring: Ring, capsys: Out) -> None:
    lines = run(capsys, "tail", ring[0].name, "--oldest", "--timeout", "0").splitlines()[1:]
    assert [line.split()[1] for line in lines] == ["RESULT", "BATCH", "ERROR", "16", "17", "200", "RESULT"]
    assert lines[3].endswith("frame 16")


def test_tail_takes_no_slot_and_holds_nobody_up(ring: Ring, capsys: Out) -> None:
    producer, _ = ring
    before = ringbuf.inspect(producer.name)
    frames = [
        json.loads(line)
        for line in run(capsys, "tail", producer.name, "--oldest", "-n", "2", "--json").splitlines()
    ]
    assert [(frame["seq"], frame["tag_name"]) for frame in frames] == [(0, "RESULT"), (1, "BATCH")]
    assert bytes.fromhex(frames[0]["payload_hex"]) == b"frame 1"
    assert ringbuf.inspect(producer.name) == before


def test_tail_counts_what_it_missed(name: str, capsys: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    with ringbuf.create(name, 1024, 1) as producer, ringbuf.attach(name) as consumer:
        producer.write(1, b"first")
        looks = 0

        def sleep(seconds: float) -> None:
            nonlocal looks
            looks += 1
            for _ in range(50):
                while not producer.try_write(2, b"x" * 100):
                    consumer.read_many()
            if looks == 2:
                producer.close()

        monkeypatch.setattr("time.sleep", sleep)
        out = run(capsys, "tail", name, "--oldest")
    assert "-- missed " in out
    assert out.splitlines()[-1].startswith("-- the ring")


def test_tail_of_a_dead_ring_says_so(dead: str, capsys: Out) -> None:
    out = run(capsys, "tail", dead, "--oldest", "--timeout", "0.1")
    assert "left 2" in out
    assert "-- the ring is dead, waiting for a new producer" in out


def test_dump_shows_what_the_dead_left_and_what_they_never_published(dead: str, capsys: Out) -> None:
    text = run(capsys, "dump", dead)
    assert f"ring {dead}, dead: 3 frames" in text
    assert "slot 0: pid " in text
    assert ", dead, 48 bytes behind" in text
    published, _, rest = text.partition("-- written and never published")
    assert "left 2" in published
    assert "left 3" not in published
    assert "left 3" in rest
    found = json.loads(run(capsys, "dump", dead, "--json"))
    assert [frame["seq"] for frame in found["frames"]] == [0, 1, 2]
    assert [frame["seq"] for frame in found["unpublished"]] == [3]


def test_dump_begins_where_a_consumer_stands_and_writes_payloads(
    dead: str, capsys: Out, tmp_path: Path
) -> None:
    file = tmp_path / "payloads"
    found = json.loads(run(capsys, "dump", dead, "--slot", "0", "--json", "--raw", str(file)))
    assert [frame["seq"] for frame in found["frames"]] == [1, 2]
    assert file.read_bytes() == b"left 1left 2"
    assert main(["dump", dead, "--slot", "2"]) == 1
    assert "no consumer in slot 2" in capsys.readouterr().err


def test_dump_shows_what_comes_before_the_damage(ring: Ring, capsys: Out) -> None:
    name = ring[0].name
    poke(name, layout.slot_page(3) + 48, 1 << 40)
    text = run(capsys, "dump", name, code=1)
    assert "frame 2" in text
    assert "frame 3" not in text
    assert f"-- ring {name!r} is corrupt at byte {layout.slot_page(3) + 48}" in text


def test_reap_removes_the_dead_and_spares_the_living(dead: str) -> None:
    """In a process with a /dev/shm of its own, where nobody else's dead are."""
    code = """
import contextlib, io, json, os, subprocess, sys
from tests.stress._kit import private_shm
if not private_shm():
    print("not permitted"); raise SystemExit
import ringbuf
from ringbuf.command import main
code = "import os, ringbuf; p = ringbuf.create('gone', 4096); os.kill(os.getpid(), 9)"
subprocess.run([sys.executable, "-c", code])
with ringbuf.create("kept", 4096):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(["doctor"]) == 1
        assert main(["reap", "--json"]) == 0
    text = out.getvalue()
    assert "ring gone (dead) keeps" in text and "remedy: ringbuf reap" in text, text
    assert text.endswith('[\\n  "gone"\\n]\\n'), text
    assert [info.name for info in ringbuf.rings()] == ["kept"]
    assert main(["reap"]) == 0
"""
    child = spawn_python(code)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 0, err
    assert "nothing to remove" in out or "not permitted" in out


def test_python_m_ringbuf_is_the_command_and_a_closed_pipe_no_error(ring: Ring) -> None:
    command = f"{sys.executable} -m ringbuf tail {ring[0].name} --oldest --timeout 0.3 | head -n 1"
    done = subprocess.run(
        command, shell=True, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.split() == ["seq", "tag", "bytes", "payload"]
    assert done.stderr == ""


def test_a_wrong_command_line_is_exit_2(capsys: Out) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["stat"])
    assert caught.value.code == 2


@pytest.mark.parametrize("rich", [True, False])
def test_tables_are_plain_where_nobody_looks(
    rich: bool, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(show, "HAS_RICH", rich)
    show.Table(("name", "n>"), [("a", "1"), ("bc", "20")]).print()
    assert capsys.readouterr().out == "name   n\na      1\nbc    20\n"


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (1 << 40, "1.0 TiB")],
)
def test_amounts_are_for_people(nbytes: int, text: str) -> None:
    assert show.amount(nbytes) == text


def see_only(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the command see nothing of the tests that run beside this one, least of all to remove it."""
    every = monitor.shared_names
    monkeypatch.setattr(monitor, "shared_names", lambda: [file for file in every() if name in file])


@pytest.mark.parametrize("where", ["create.opened", "create.sized", "create.link"])
def test_a_half_made_segment_is_shown_and_removed(
    name: str, where: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A creator was killed: what it left bears no ring's name."""
    code = """
import sys, ringbuf
from ringbuf.testing import at_step, kill_here
with at_step(sys.argv[2], kill_here):
    ringbuf.create(sys.argv[1], 4096)
"""
    see_only(name, monkeypatch)
    spawn_python(code, name, where).communicate(timeout=60)
    (file,) = (file for file in files_of(name) if file.endswith(".new"))
    temporary = file.removeprefix("ringbuf.")
    (row,) = (row for row in json.loads(run(capsys, "ls", "--json")) if row["name"] == temporary)
    assert (row["state"], "reap" in row["problem"]) == ("half-made", True)
    assert temporary in run(capsys, "ls")
    findings = json.loads(run(capsys, "doctor", "--json", code=1))
    (finding,) = (finding for finding in findings if temporary in finding["text"])
    assert (finding["level"], finding["check"], finding["remedy"]) == ("warning", "leftovers", "ringbuf reap")
    assert name in run(capsys, "reap")
    assert files_of(name) == []


def test_a_segment_in_the_making_is_shown_and_spared(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    see_only(name, monkeypatch)
    code = """
import sys, ringbuf
from ringbuf.testing import at_step
def wait():
    print("there", flush=True)
    sys.stdin.readline()
with at_step("create.filled", wait):
    ringbuf.create(sys.argv[1], 4096).close()
"""
    child = spawn_python(code, name, stdin=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == "there\n"
    rows = [row for row in json.loads(run(capsys, "ls", "--json")) if row["name"].startswith(f"{name}~")]
    assert [row["state"] for row in rows] == ["being made"]
    run(capsys, "reap")
    child.communicate("go on\n", timeout=60)
    assert child.returncode == 0
    assert files_of(name) == []

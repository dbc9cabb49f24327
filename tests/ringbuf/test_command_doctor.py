"""Each check of the doctor, shown a machine of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringbuf.command import doctor
from ringbuf.command.doctor import Finding
from ringbuf.command.survey import survey
from ringbuf.layout import BARRIER_SLEEPER, BARRIER_WAKER
from ringbuf.testing import open_pair


def levels(findings: list[Finding]) -> list[str]:
    return [finding.level for finding in findings]


def test_every_finding_that_is_not_ok_has_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    findings = [
        *doctor.check_directory(str(tmp_path / "missing")),
        *doctor.check_login(str(tmp_path), 1000),
        *doctor.check_body("python", BARRIER_WAKER),
    ]
    assert levels(findings) == ["error", "warning", "note", "note"]
    assert all(finding.remedy for finding in findings)


@pytest.mark.parametrize(
    ("files", "uid", "level"),
    [
        ({}, 1000, "warning"),
        ({}, 0, "ok"),
        ({"etc/systemd/logind.conf": "[Login]\nRemoveIPC=no\n"}, 1000, "ok"),
        ({"etc/systemd/logind.conf": "[Login]\n#RemoveIPC=no\n"}, 1000, "warning"),
        (
            {
                "etc/systemd/logind.conf": "[Login]\nRemoveIPC=no\n",
                "usr/lib/systemd/logind.conf.d/50-vendor.conf": "[Login]\nRemoveIPC=yes\n",
            },
            1000,
            "warning",
        ),
        (
            {
                "usr/lib/systemd/logind.conf.d/50-a.conf": "[Login]\nRemoveIPC=yes\n",
                "etc/systemd/logind.conf.d/50-a.conf": "[Login]\nRemoveIPC=no\n",
            },
            1000,
            "ok",
        ),
        ({"etc/systemd/logind.conf": "no sections, no sense"}, 1000, "warning"),
    ],
)
def test_the_login_manager_is_judged_by_the_last_file_that_sets_it(
    tmp_path: Path, files: dict[str, str], uid: int, level: str
) -> None:
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert levels(list(doctor.check_login(str(tmp_path), uid))) == [level]


def test_without_a_login_manager_nothing_is_removed(tmp_path: Path) -> None:
    assert levels(list(doctor.check_login(str(tmp_path), 1000))) == ["ok"]


def test_a_folder_where_anybody_may_remove_is_a_warning(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    assert "warning" in levels(list(doctor.check_directory(str(tmp_path))))


def test_a_folder_on_a_disk_is_a_warning(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/sda1 {tmp_path} ext4 rw 0 0\n")
    (finding,) = doctor.check_directory(str(tmp_path), str(mounts))
    assert (finding.level, "ext4" in finding.text) == ("warning", True)


def test_rings_beyond_half_the_memory_limit_are_a_warning(tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    with open_pair() as (producer, _):
        entries = [entry for entry in survey() if entry.name == producer.name]
        for text, level in (("max", "ok"), ("1000000000", "ok"), ("30000", "warning")):
            limit.write_text(text)
            assert levels(list(doctor.check_memory(entries, str(limit)))) == [level]


def test_a_ring_anybody_may_write_and_one_that_is_full_are_named(name: str) -> None:
    with open_pair(64, name=name) as (producer, consumer):
        Path(f"/dev/shm/ringbuf.{name}").chmod(0o666)
        entries = [entry for entry in survey() if entry.name == name]
        (finding,) = doctor.check_rings(entries)
        assert finding.text == f"anybody may write to ring {name} (mode 666)"
        assert not consumer.closed
        assert not producer.closed


def test_leftover_parts_are_named(tmp_path: Path) -> None:
    (tmp_path / "ringbuf.lost~0123456789abcdef.c0").touch()
    (finding,) = doctor.check_leftovers([], str(tmp_path))
    assert (finding.level, "lost" in finding.text) == ("note", True)
    assert levels(list(doctor.check_leftovers([], str(tmp_path / "nothing")))) == []


def test_the_c_body_and_its_barrier_are_fine() -> None:
    assert levels(list(doctor.check_body("c", BARRIER_SLEEPER))) == ["ok"]

"""What a server's dead children left under its name."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import files_of, spawn_python

from egress.serve.instances import Instance, reap_dead

KILLED = """
import sys, ringbuf
from ringbuf.testing import at_step, kill_here
with at_step("create.sized", kill_here):
    ringbuf.create(sys.argv[1], 4096)
"""


@pytest.mark.parametrize("how", ["close", "reap"])
def test_a_ring_that_a_killed_child_was_making_goes_with_its_instance(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    instance = Instance()
    ring = f"{instance.name}.s0.w0"
    spawn_python(KILLED, ring).communicate(timeout=60)
    if how == "reap":
        # A directory whose lock is free is that of a dead instance.
        directory = instance.directory
        instance.close()
        spawn_python(KILLED, ring).communicate(timeout=60)
        directory.mkdir()
        assert str(directory) in reap_dead()
    else:
        instance.close()
    assert files_of(ring) == []

"""The floors of ARCHITECTURE.md: imports point down, never up, and without cycles."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from support import ROOT

MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for package in ("ringbuf", "egress")
    for path in sorted((ROOT / package).rglob("*.py"))
}

# Rooms of egress from the ground up; a room imports its own and lower floors only.
EGRESS_FLOORS = [
    {"egress.errors"},
    {"egress.wire"},
    {"egress.request", "egress.text"},
    {"egress.engine", "egress.stream"},
    {"egress", "egress.testing"},
    {"egress.serve", "egress.cli", "egress.__main__"},
]
PURE = ("egress.errors", "egress.wire", "egress.request", "egress.text")
PROCESS_MODULES = {"multiprocessing", "signal", "socket", "asyncio", "selectors", "subprocess"}


def imports_of(name: str) -> set[str]:
    """Absolute names of the modules that `name` imports anywhere, relative imports resolved."""
    path = MODULES[name]
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                base = ".".join(package[: len(package) - node.level + 1])
                module = f"{base}.{node.module}" if node.module else base
            else:
                module = node.module or ""
            for alias in node.names:
                full = f"{module}.{alias.name}"
                found.add(full if full in MODULES else module)
    return found


def room_of(module: str) -> str | None:
    parts = module.split(".")
    if parts[0] != "egress":
        return None
    return "egress" if len(parts) == 1 else ".".join(parts[:2])


def floor_of(module: str) -> int:
    room = room_of(module)
    for floor, rooms in enumerate(EGRESS_FLOORS):
        if room in rooms:
            return floor
    raise AssertionError(f"{module} stands on no floor: add its room to EGRESS_FLOORS")


@pytest.mark.parametrize("name", [name for name in MODULES if name.startswith("egress")])
def test_egress_imports_point_down(name: str) -> None:
    for target in imports_of(name):
        if room_of(target) and room_of(target) != room_of(name):
            assert floor_of(target) <= floor_of(name), f"{name} imports {target} from a higher floor"


@pytest.mark.parametrize("name", [name for name in MODULES if name.startswith("ringbuf")])
def test_the_ring_knows_nothing_of_the_message_layer(name: str) -> None:
    assert not any(target.split(".")[0] in ("egress", "msgspec") for target in imports_of(name))


@pytest.mark.parametrize("name", [name for name in MODULES if name.startswith(PURE)])
def test_pure_rooms_know_no_ring_and_no_process(name: str) -> None:
    roots = {target.split(".")[0] for target in imports_of(name)}
    assert not roots & ({"ringbuf"} | PROCESS_MODULES)


def test_only_the_chooser_names_a_body() -> None:
    bodies = {f"ringbuf.{name}" for name in ("_cops", "_pyframes", "_pyops", "_pyreader", "_pywriter")}
    namers = {
        name
        for name in MODULES
        if name.startswith("ringbuf") and imports_of(name) & bodies and name not in bodies
    }
    # Outside tests only the chooser and the shipped test kit, which instruments the Python body.
    assert {name for name in namers if not name.startswith("ringbuf.testing")} == {"ringbuf._ops"}


def test_the_door_of_the_ring_is_the_only_one_egress_uses() -> None:
    for name in MODULES:
        if name.startswith("egress"):
            inner = {t for t in imports_of(name) if t.startswith("ringbuf.")}
            assert inner <= {"ringbuf.testing", "ringbuf.errors"}, (
                f"{name} reaches behind ringbuf's door: {inner}"
            )


def test_there_are_no_import_cycles() -> None:
    graph = {name: {t for t in imports_of(name) if t in MODULES and t != name} for name in MODULES}
    # A package's door imports its rooms, which may name the package only through another module.
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            raise AssertionError("import cycle: " + " -> ".join((*path[path.index(name) :], name)))
        if name not in done:
            for target in sorted(graph[name]):
                visit(target, (*path, name))
            done.add(name)

    for name in sorted(graph):
        visit(name, ())


def test_source_files_stay_readable() -> None:
    long = {
        path.relative_to(ROOT): lines
        for path in MODULES.values()
        if (lines := len(Path(path).read_text(encoding="utf-8").splitlines())) > 450
    }
    assert not long, "look for the second noun in each"

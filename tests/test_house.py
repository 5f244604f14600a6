"""The rules of the house: who may import whom, how long a file may be, and what must not be named where."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "bppsa"
MODULES = sorted(PACKAGE.rglob("*.py"))
SOURCES = sorted(
    path
    for folder in ("bppsa", "tests", "examples", "benchmarks", "figures")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in {".py", ".h", ".cpp"}
)
LONGEST_FILE = 400

# A room is a sub-package, or a single file where that file may do more than its neighbours. It may import from itself,
# from the rooms named here, and from errors and report. All other imports inside bppsa are forbidden.
ROOMS: dict[str, set[str]] = {
    "errors": set(),
    "report": set(),
    "chain": set(),  # the records that the passes hand to the rooms after them
    "schedule": set(),
    "sparsity": set(),
    "stages": {"schedule"},  # the same for a model that is cut for a schedule
    "plan": {"chain", "sparsity"},
    "codegen": {"chain", "plan", "sparsity"},
    "runtime": {"chain", "codegen", "plan", "sparsity"},
    "runtime.worker": {"codegen", "plan", "stages", "schedule.messages", "schedule.program"},
    "fxpasses": {"chain", "sparsity"},
    "fxpasses.partition": {"stages", "schedule"},
    "fxpasses.over_time": {"stages"},
    "cells": set(),
    "strategies": {"plan"},
}
# Not in the table: the drivers, whose names begin with an underscore (`_api`, `_modules`, ...). They see every room,
# and only the face of the package, `bppsa/__init__.py`, and other drivers see them.
FOR_ALL = {"errors", "report"}

# What may be imported from outside the standard library.
LIBRARIES: dict[str, set[str]] = {
    "errors": set(),
    "report": set(),
    "schedule": set(),
    "sparsity": {"torch"},
    "cells": {"torch"},
    "chain": {"torch"},
    "stages": {"torch"},
}
LIBRARIES_ELSEWHERE = {"torch", "numpy", "networkx", "triton"}


def dotted(path: Path) -> str:
    """bppsa/codegen/ir.py -> "codegen.ir"; bppsa/codegen/__init__.py -> "codegen"; bppsa/__init__.py -> ""."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = {dotted(path) for path in MODULES}


def within(name: str, rooms: set[str]) -> bool:
    return any(name == room or name.startswith(room + ".") for room in rooms)


def room_of(name: str) -> str:
    """The most particular room that holds the module."""
    return max((room for room in ROOMS if within(name, {room})), key=len, default="")


def imported(path: Path) -> Iterator[str]:
    """Absolute dotted names of all that a file imports, also inside functions and under TYPE_CHECKING."""
    package = ["bppsa", *path.relative_to(PACKAGE).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = [*base, *(node.module.split(".") if node.module else [])]
            yield from (".".join([*base, alias.name]) for alias in node.names)


def module_named(name: str) -> str:
    """The module of ours that an absolute name reaches into: "bppsa.codegen.ir.Kernel" -> "codegen.ir"."""
    name = name.removeprefix("bppsa").removeprefix(".")
    while name and name not in NAMES:
        name = name.rpartition(".")[0]
    return name


def of_this_package(name: str) -> bool:
    return name.split(".")[0] == "bppsa"


@pytest.mark.parametrize("path", MODULES, ids=dotted)
def test_imports_stay_within_the_rules(path: Path) -> None:
    name = dotted(path)
    if name == "" or name.startswith("_"):
        return
    room = room_of(name)
    assert room, f"{name} has no row in ROOMS"
    own = {room, room.split(".")[0]}
    ours = {module_named(target) for target in imported(path) if of_this_package(target)}
    assert not {target for target in ours if not within(target, own | ROOMS[room] | FOR_ALL)}


@pytest.mark.parametrize("path", MODULES, ids=dotted)
def test_libraries_stay_within_the_rules(path: Path) -> None:
    top_level = {target.split(".")[0] for target in imported(path) if not of_this_package(target)}
    allowed = LIBRARIES.get(dotted(path).split(".")[0], LIBRARIES_ELSEWHERE)
    assert not top_level - allowed - set(sys.stdlib_module_names)


@pytest.mark.parametrize("module", ["bppsa", "bppsa.errors", "bppsa.report", "bppsa.schedule"])
def test_loads_no_torch(module: str) -> None:
    program = f"import {module}, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize("path", MODULES, ids=dotted)
def test_every_module_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))


def test_every_folder_of_code_is_a_package() -> None:
    assert not [path.parent for path in MODULES if not (path.parent / "__init__.py").exists()]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_are_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= LONGEST_FILE


def test_no_module_is_shadowed_by_a_function() -> None:
    """`from bppsa.scan import scan` in the package's face would hide the module of that name for good."""
    assert not {path.stem for path in MODULES} & {"compile", "explain", "scan"}


def test_code_generation_knows_no_model_by_name() -> None:
    model = re.compile(r"GRU|LSTM|(?<![A-Za-z])(gru|lstm)")
    files = [path for path in (PACKAGE / "codegen").rglob("*") if path.suffix in {".py", ".h"}]
    assert files
    assert not {path.name: found.group() for path in files if (found := model.search(path.read_text()))}

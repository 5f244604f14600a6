"""The rules of the house: who may import whom, how long a file may be, and what must not be named where."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import networkx
import pytest

import bppsa

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
MOST_ENTRIES = 16  # of a folder, itself a package

# A room is a folder, or a file at the root. It may import from itself, from the rooms below it, from those named here
# with all that is below them, and from what is for all (FOR_ALL). All other imports inside bppsa are forbidden.
LOWER = {"common.chain", "plan", "sparsity"}
PASSES = {"fxpasses.environment", "fxpasses.network", "fxpasses.recording"}
ROOMS: dict[str, set[str]] = {
    "errors": set(),
    "decisions": set(),
    "common": set(),
    "common.process": set(),
    "common.chain": set(),  # what the passes hand to the rooms after them
    "common.stages": {"schedule"},  # the same for a model that is cut for a schedule
    "common.terms": set(),  # who cuts a model marks them, and who runs it counts them
    "common.graph": set(),
    "common.recent": set(),
    "cells": set(),  # a file a family
    "schedule": set(),
    "strategies": {"plan"},
    "sparsity": set(),
    "sparsity.patterns": set(),
    "sparsity.operators": {"sparsity.patterns"},
    "sparsity.rules": {"sparsity.patterns", "sparsity.operators"},
    "plan": {"common.chain", "sparsity"},
    "fxpasses": set(),
    "fxpasses.recording": {"common.chain", "sparsity", "fxpasses.theirs", "fxpasses.lines", "fxpasses.replaced"},
    "fxpasses.network": {"common.chain", "sparsity", "fxpasses.recording", "fxpasses.theirs"},
    "fxpasses.environment": {"fxpasses.network"},
    "fxpasses.axes": {"common.chain", "fxpasses.recording"},
    "fxpasses.spelling": {"common.chain", "sparsity", "fxpasses.recording"},
    "fxpasses.cartesian": {"common.chain"},
    "fxpasses.cell": {
        *("common.chain", "sparsity", "fxpasses.axes", "fxpasses.network", "fxpasses.recording", "fxpasses.theirs"),
        *("fxpasses.cartesian", "fxpasses.environment", "fxpasses.lines", "fxpasses.spelling"),
    },
    "fxpasses.partition": {*PASSES, "fxpasses.theirs", "fxpasses.lines", "common.stages"},
    "fxpasses.partition.call": {"fxpasses.network", "fxpasses.theirs", "fxpasses.lines", "common.stages"},
    "fxpasses.partition.ops": {"fxpasses.theirs", "fxpasses.lines", "common.stages"},
    "fxpasses.partition.capture": {
        *PASSES,
        *("fxpasses.theirs", "fxpasses.lines", "fxpasses.replaced"),
        *("fxpasses.partition.call", "fxpasses.partition.ops"),
    },
    "fxpasses.partition.cut": {f"fxpasses.partition.{room}" for room in ("call", "capture", "ops")}
    | {"common.stages", "common.terms"},
    "fxpasses.partition.means": {f"fxpasses.partition.{room}" for room in ("call", "capture", "check", "ops")}
    | {"fxpasses.theirs", "common.terms"},
    "fxpasses.partition.losses": {f"fxpasses.partition.{room}" for room in ("call", "capture", "cut", "means", "ops")}
    | {"common.stages", "common.terms"},
    "fxpasses.partition.check": {f"fxpasses.partition.{room}" for room in ("call", "capture", "ops")}
    | {"fxpasses.theirs", "common.stages"},
    "fxpasses.reroll": {
        *PASSES,
        *("common.chain", "sparsity", "fxpasses.cell", "fxpasses.theirs", "fxpasses.lines", "fxpasses.replaced"),
        *("fxpasses.partition.call", "fxpasses.partition.capture"),
    },
    "fxpasses.over_time": {"fxpasses.partition", "fxpasses.theirs", "fxpasses.lines", "common.stages"},
    "codegen": LOWER,
    "codegen.language": LOWER,
    "codegen.lowering": LOWER | {"codegen.language"},
    "codegen.assembling": LOWER | {"codegen.language", "codegen.lowering"},
    "codegen.arrange": LOWER | {"codegen.isa", "codegen.language"},
    "codegen.cpu": LOWER | {"codegen.arrange", "codegen.isa", "codegen.cache", "codegen.language", "codegen.lowering"},
    "codegen.gpu": LOWER | {"codegen.cache", "codegen.language"},
    "codegen.gpu.triton": LOWER | {"codegen.language"},
    "codegen.gpu.cuda": LOWER | {"codegen.cache", "codegen.language", "codegen.gpu.native"},
    "codegen.sparse_conv": LOWER | {"codegen.cpu", "codegen.isa", "codegen.language", "codegen.lowering"},
    "runtime": LOWER | {"codegen"},
    "runtime.programs": LOWER | {"codegen", "runtime.memory", "runtime.pool"},
    "runtime.recurrent": LOWER
    | {"codegen", "runtime.cotangents", "runtime.memory", "runtime.pool", "runtime.programs", "runtime.sparse"}
    | {"runtime.untraced"},
    "runtime.chain": LOWER | {"codegen", "runtime.cotangents", "runtime.recurrent"},
    "runtime.sparse_conv": LOWER
    | {"codegen", "runtime.cotangents", "runtime.pool", "runtime.programs", "runtime.sparse", "runtime.untraced"},
    "runtime.transport": {"schedule"},
    "runtime.worker": {"codegen", "plan", "common.stages", "schedule", "runtime.recurrent", "runtime.transport"},
    "frontend": LOWER | {"runtime.recurrent", "runtime.worker"},
    "frontend.planning": LOWER | {"codegen", "runtime", "fxpasses", "frontend.call_log"},
    "frontend.rnn": LOWER | {"fxpasses", "runtime", "frontend"},
    "frontend.cell": LOWER | {"codegen", "fxpasses", "runtime", "frontend"},
    "frontend.feedforward": LOWER | {"fxpasses", "runtime", "frontend"},
    "frontend.loops": LOWER | {"codegen", "fxpasses", "runtime", "frontend"},
    "frontend.jacobian": LOWER | {"fxpasses"},
    "frontend.dynamo": LOWER | {"codegen", "fxpasses", "runtime", "frontend"},
    "frontend.pruned": LOWER | {"codegen", "fxpasses", "runtime", "frontend"},
    "distributed": LOWER | {"fxpasses", "runtime", "schedule", "common.stages", "common.terms", "frontend"},
    "plan_training": {"api"},
    "api": LOWER | {"cells", "fxpasses", "runtime", "schedule", "common.stages", "frontend", "distributed"},
}
FOR_ALL = {"errors", "decisions", *(f"common.{name}" for name in ("graph", "leaves", "process", "recent"))}

# What may be imported from outside the standard library.
LIBRARIES: dict[str, set[str]] = {
    "errors": set(),
    "decisions": set(),
    "schedule": set(),
    "sparsity": {"torch"},
    "cells": {"torch"},
    "common": {"torch"},
}
LIBRARIES_ELSEWHERE = {"cuda", "torch", "numpy", "networkx", "sympy", "triton"}  # sympy: torch brings it along


def dotted(path: Path) -> str:
    """bppsa/codegen/language/ir.py -> "codegen.ir"; bppsa/codegen/__init__.py -> "codegen"; bppsa/__init__.py -> ""."""
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
    """The module of ours that an absolute name reaches into: "bppsa.plan.cost.Machine" -> "plan.cost"."""
    name = name.removeprefix("bppsa").removeprefix(".")
    while name and name not in NAMES:
        name = name.rpartition(".")[0]
    return name


def of_this_package(name: str) -> bool:
    return name.split(".")[0] == "bppsa"


def offenders(check: Callable[[Path], object], paths: list[Path]) -> dict[str, object]:
    """What `check` finds wrong with each file, for all files with which it finds something wrong."""
    assert paths
    return {str(path.relative_to(ROOT)): found for path in paths if (found := check(path))}


def imports_against_the_rules(path: Path) -> object:
    name = dotted(path)
    if name == "":
        return None
    room = room_of(name)
    if not room:
        return "has no row in ROOMS"
    ours = {module_named(target) for target in imported(path) if of_this_package(target)}
    return {target for target in ours if not within(target, {room} | ROOMS[room] | FOR_ALL)}


def libraries_against_the_rules(path: Path) -> object:
    top_level = {target.split(".")[0] for target in imported(path) if not of_this_package(target)}
    allowed = LIBRARIES.get(dotted(path).split(".")[0], LIBRARIES_ELSEWHERE)
    return top_level - allowed - set(sys.stdlib_module_names)


def test_imports_stay_within_the_rules() -> None:
    assert not offenders(imports_against_the_rules, MODULES)
    assert not offenders(libraries_against_the_rules, MODULES)


def test_arrows_point_one_way() -> None:
    """Between folders, whatever ROOMS allows."""
    arrows = networkx.DiGraph()
    for path in MODULES:
        folder = str(path.parent.relative_to(PACKAGE)).replace("/", ".")
        for target in map(module_named, filter(of_this_package, imported(path))):
            found = PACKAGE.joinpath(*target.split("."))
            other = str((found if found.is_dir() else found.parent).relative_to(PACKAGE)).replace("/", ".")
            if "." not in (folder, other) and folder != other:
                arrows.add_edge(folder, other)
    assert not [circle for circle in networkx.strongly_connected_components(arrows) if len(circle) > 1]


@pytest.mark.parametrize("module", ["bppsa", "bppsa.errors", "bppsa.decisions", "bppsa.schedule"])
def test_loads_no_torch(module: str) -> None:
    program = f"import {module}, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0


def test_files_and_folders_have_their_shape() -> None:
    """A file is short and says what it is; a folder of code is a package with few entries."""
    lines = {path: len(path.read_text().splitlines()) for path in SOURCES}
    entries = Counter(
        path.parent for path in PACKAGE.rglob("*") if path.suffix in {".py", ".h"} or (path / "__init__.py").exists()
    )
    wrong = {
        "too long": {path for path, count in lines.items() if count > LONGEST_FILE},
        "without a docstring": {path for path in MODULES if not ast.get_docstring(ast.parse(path.read_text()))},
        "crowded": {folder for folder, count in entries.items() if count > MOST_ENTRIES},
        "no package": {path.parent for path in MODULES if not (path.parent / "__init__.py").exists()},
    }
    assert lines
    assert entries
    assert not {rule: list(map(str, paths)) for rule, paths in wrong.items() if paths}


SHARES = "# shares its name: "  # with the reason behind it, on the line of the later class


def names_of_types(path: Path) -> Iterator[str]:
    """A file's classes and aliases that do not say why another has their name too; `_Call` is a `Call` as well."""
    text = path.read_text()
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        targets = getattr(node, "targets", [getattr(node, "target", None)])
        names = [node.name] if isinstance(node, ast.ClassDef) else [t.id for t in targets if isinstance(t, ast.Name)]
        if (
            isinstance(node, (ast.ClassDef, ast.Assign, ast.AnnAssign))
            and not lines[node.lineno - 1].partition(SHARES)[2]
        ):
            yield from (name for name in (given.lstrip("_") for given in names) if TYPE.fullmatch(name))


TYPE = re.compile(r"[A-Z]\w*[a-z]\w*")


def test_types_share_no_name_without_a_reason() -> None:
    """One word for one thing; of those that share one, one needs no reason."""
    homes: dict[str, list[str]] = {}
    for path in MODULES:
        for name in names_of_types(path):
            homes.setdefault(name, []).append(dotted(path))
    assert not {name: rooms for name, rooms in homes.items() if len(rooms) > 1}


# Functions that remember every call, and why there are few different ones.
FEW_CALLS = {
    **dict.fromkeys((f"runtime.sparse_conv.pointwise.{name}" for name in ("product", "zeros")), "an element type each"),
    "runtime.sparse.native_sparse": "an element type each",
    **dict.fromkeys(
        (f"codegen.cpu.calls.{name}" for name in ("entry_points", "runner", "products_workspace")),
        "an element type each",
    ),
    **dict.fromkeys(
        (f"codegen.sparse_conv.native.{name}" for name in ("images", "runner", "adder")), "an element type each"
    ),
    **dict.fromkeys(
        (f"codegen.cpu.{name}.source" for name in ("sparse", "products", "stretches")), "an element type each"
    ),
    **dict.fromkeys(("runtime.sparse.triton_sparse", "runtime.sparse.native_symbolic"), "no argument"),
    **dict.fromkeys(("frontend.ordinary._plain_on_gpu", "codegen.cpu.build._target"), "no argument"),
    "frontend.pruned.capture.frames.dynamo": "no argument",
    **dict.fromkeys(("codegen.isa.chosen", "codegen.isa.cpu_features"), "no argument"),
    **dict.fromkeys(("codegen.cpu.shipped.abi", "codegen.cpu.shipped._share_openmp"), "no argument"),
    "codegen.cpu.print_cpp.skeleton": "a file of the package each",
    "frontend.rewritten._ordering": "a metaclass each",
    "fxpasses.environment.libraries.is_library": "an installed package each",
    "fxpasses.environment.libraries.recorded": "a folder of packages each",
}


def remembers_all(decorator: ast.expr) -> bool:
    """functools.cache, or lru_cache(maxsize=None)."""
    name = ast.unparse(decorator).removeprefix("functools.")
    return name == "cache" or (name.startswith("lru_cache(") and "None" in name)


# Where PyTorch itself is changed while it looks at a user's code, and the test that notices when a new one differs.
# TorchDynamo is changed within its own lock, by `frontend/pruned/capture/refusals.py`.
PATCHES = {"fxpasses.partition.capture.whole": "tests/fxpasses/partition/test_export.py"}


def test_exceptions_are_listed() -> None:
    """What remembers every call, and what patches PyTorch, is known with its reason, and nothing is listed in vain."""
    remembering = {
        f"{dotted(path)}.{node.name}"
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and any(map(remembers_all, node.decorator_list))
    }
    assert remembering == set(FEW_CALLS)
    assert {dotted(path) for path in MODULES if "setattr(owner" in path.read_text()} == PATCHES.keys()
    assert all((ROOT / test).exists() for test in PATCHES.values())


def test_no_module_is_shadowed_by_a_function() -> None:
    """`from bppsa.scan import scan` in the package's face would hide the module of that name for good."""
    functions = {name for name in bppsa.__all__ if callable(getattr(bppsa, name))}
    assert {"compile", "explain", "report", "scan"} <= functions
    both = {path.stem for path in PACKAGE.iterdir()} & functions
    assert both == {"plan_training"}  # for `python -m`, and an ImportError for everybody else
    with pytest.raises(ImportError, match="is a function"):
        importlib.import_module("bppsa.plan_training")
    assert callable(bppsa.plan_training)


def test_code_generation_knows_no_model_by_name() -> None:
    model = re.compile(r"GRU|LSTM|(?<![A-Za-z])(gru|lstm)")
    files = [path for path in (PACKAGE / "codegen").rglob("*") if path.suffix in {".py", ".h"}]
    assert files
    assert not {path.name: found.group() for path in files if (found := model.search(path.read_text()))}

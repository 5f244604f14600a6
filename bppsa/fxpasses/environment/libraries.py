"""Whose code something is: the user's, which may change while the process runs, or a library's."""

from __future__ import annotations

import functools
import sys
import types
from pathlib import Path
from typing import Any

INSTALLED = {"site-packages", "dist-packages"}
NOT_THE_USERS = sys.stdlib_module_names | {"torch", "numpy", "bppsa"}


@functools.cache
def is_library(package: str) -> bool:
    file = Path(getattr(sys.modules.get(package), "__file__", None) or "")
    return package in NOT_THE_USERS or not INSTALLED.isdisjoint(file.parts) or was_installed(file)


def was_installed(file: Path) -> bool:
    """Whether an installer put a module or a package there, as `pip install --target` does: its record has the file."""
    if not file.name:
        return False
    file = file.absolute()
    folder = file.parents[1] if file.name == "__init__.py" else file.parent
    return file.relative_to(folder).as_posix() in recorded(folder)


@functools.cache
def recorded(folder: Path) -> frozenset[str]:
    """The files that installers have put into a folder, by their records there: lines of path, hash and size."""
    texts = [record.read_text(errors="replace") for record in folder.glob("*.dist-info/RECORD")]
    return frozenset(line.rsplit(",", 2)[0] for text in texts for line in text.splitlines())


def is_users_name(module: str | None) -> bool:
    """Whether a Python module of this name is the user's."""
    return not is_library((module or "").partition(".")[0])


def homes_of(cell: Any) -> frozenset[str]:
    """The packages that the cell is from; none for torch's: nn.Sequential is no reason to walk through it."""
    while isinstance(cell, functools.partial):
        cell = cell.func
    if isinstance(cell, types.FunctionType):
        return frozenset({(cell.__module__ or "").partition(".")[0]} - NOT_THE_USERS)
    return homes_of_class(type(owner(cell)))


def homes_of_class(kind: type) -> frozenset[str]:
    """The package of a class, and those of the classes whose forward it inherits, or calls by `super`."""
    found = {kind.__module__.partition(".")[0]}
    for base in kind.__mro__:
        forward = vars(base).get("forward")
        if forward is not None:
            found.add(base.__module__.partition(".")[0])
            if not calls_next_forward(forward):
                break
    return frozenset(found - NOT_THE_USERS)


def calls_next_forward(forward: Any) -> bool:
    """Whether it names `super` and a forward."""
    return {"super", "forward"} <= {*getattr(getattr(forward, "__code__", None), "co_names", ())}


def owner(cell: Any) -> Any:
    """The object of a bound method, which is made anew for each call; else the cell itself."""
    return cell.__self__ if isinstance(cell, types.MethodType) else cell

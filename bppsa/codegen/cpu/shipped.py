"""Kernels that were built ahead and came with the package: a library for each level of instructions and ABI, in which
they are found by their text.

They are asked for before any compiler. A checkout has none: `make wheel` builds them into a wheel. They have no OpenMP
runtime of their own: what they call is found in the one that torch has loaded, whatever its file is named.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
from pathlib import Path
from typing import Any

from bppsa.codegen import isa
from bppsa.decisions import warn_once

INDEX = Path(__file__).parents[2] / "shipped"
RUNTIMES = ("libgomp", "libiomp5", "libomp")


class Shipped(ctypes.CDLL):
    """One text's part of the library of a level: entry points by the names that they have in the text."""

    def __init__(self, path: Path, key: str) -> None:
        self._key = key
        super().__init__(str(path))

    def __getitem__(self, name_or_ordinal: Any) -> Any:
        return super().__getitem__(name(name_or_ordinal, self._key))


def library(source: str) -> ctypes.CDLL | None:
    """The kernel of a C++ text; None where none was shipped for this machine, or what was does not load, of which one
    line warns."""
    path = _path()
    if path is None:
        return None
    try:
        found = _loaded(path, source)
    except OSError as error:
        why = str(error).removeprefix(f"{path}: ")
        warn_once(f"bppsa: kernels that came with the package do not load: {why}; install bppsa again")
        return None
    return found if hasattr(found, "") else None


def is_any() -> bool:
    """Whether some were shipped for this machine."""
    return _path() is not None


def missed(source: str) -> str:
    """What to say first where a compiler is asked for; nothing where no kernel was shipped."""
    path = _path()
    if path is None:
        return ""
    try:
        _loaded(path, source)
    except OSError:
        return "the shipped kernels do not load, and "
    return "no kernel of this text was shipped, and "


def _path() -> Path | None:
    level = isa.chosen().shipped
    path = INDEX / place(level, abi())
    return path if level and path.exists() else None


def _loaded(path: Path, source: str) -> Shipped:
    _share_openmp()
    return Shipped(path, key(source))


def place(level: str, abi: str) -> str:
    """The path of a library in the index."""
    return f"{abi}/{level}.so"


def key(source: str) -> str:
    return hashlib.sha256(source.encode()).hexdigest()[:32]


def name(entry: str, key: str) -> str:
    """The name in a library of an entry point in the text of this key; of `sign` where it is none."""
    return f"{entry}_{key}"


def sign(key: str) -> str:
    """What is added to a text, by which a library is seen to hold it."""
    return f'\nextern "C" const char {name("", key)} = 0;\n'


@functools.cache
def abi() -> str:
    """How libraries of this process call each other, such as "linux-x86_64-glibc"."""
    return f"{platform.system()}-{platform.machine()}-{c_library().split(' ')[0]}".lower()


def c_library() -> str:
    """Name and version, such as "glibc 2.36"; "" where it does not say."""
    name = "CS_GNU_LIBC_VERSION"
    return os.confstr(name) or "" if name in os.confstr_names else ""


@functools.cache
def _share_openmp() -> None:
    """Let libraries that name no OpenMP runtime find torch's."""
    for path in _libraries():
        if os.path.basename(path).startswith(RUNTIMES):
            ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
            return


def _libraries() -> list[str]:
    """Files of shared libraries in this process, those of torch first."""
    with open("/proc/self/maps") as file:
        paths = {line.split(maxsplit=5)[5].strip() for line in file if ".so" in line}
    return sorted(paths, key=lambda path: ("torch" not in path, path))

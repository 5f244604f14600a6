"""Kernels that were built ahead and came with the package, by their text, the instructions they need and the ABI.

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

from bppsa.codegen import isa
from bppsa.decisions import warn_once

INDEX = Path(__file__).parents[2] / "shipped"
RUNTIMES = ("libgomp", "libiomp5", "libomp")


def library(source: str) -> ctypes.CDLL | None:
    """The loaded library of a C++ text; None where none was shipped for this machine, or what was does not load, of
    which one line warns."""
    path = _path(source)
    if path is None:
        return None
    _share_openmp()
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        why = str(error).removeprefix(f"{path}: ")  # the same for all kernels, so that one line tells of them
        warn_once(f"bppsa: a kernel that came with the package does not load: {why}; install bppsa again")
        return None


def is_any() -> bool:
    """Whether some were shipped for this machine."""
    level = isa.chosen().shipped
    return bool(level) and (INDEX / abi() / level).is_dir()


def missed(source: str) -> str:
    """What to say first where a compiler is asked for; nothing where no kernel was shipped."""
    if _path(source) is not None:
        return "the shipped kernel does not load, and "
    return "no kernel of this text was shipped, and " if is_any() else ""


def _path(source: str) -> Path | None:
    level = isa.chosen().shipped
    path = INDEX / place(source, level, abi())
    return path if level and path.exists() else None


def place(source: str, level: str, abi: str) -> str:
    """The path of a library in the index."""
    return f"{abi}/{level}/{hashlib.sha256(source.encode()).hexdigest()[:32]}.so"


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
    for path in _loaded():
        if os.path.basename(path).startswith(RUNTIMES):
            ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
            return


def _loaded() -> list[str]:
    """Files of shared libraries in this process, those of torch first."""
    with open("/proc/self/maps") as file:
        paths = {line.split(maxsplit=5)[5].strip() for line in file if ".so" in line}
    return sorted(paths, key=lambda path: ("torch" not in path, path))

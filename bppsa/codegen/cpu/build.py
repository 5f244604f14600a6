"""C++ text -> loaded library: one that was shipped, else by the system compiler, once for each text, compiler and
machine; `cache` keeps it."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import json
import os
import platform
import shutil
import subprocess
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import torch  # noqa: F401  its OpenMP runtime must be in the process before our libraries look for one: one thread pool

from bppsa.codegen import cache, isa
from bppsa.codegen.cpu import progress, shipped
from bppsa.common.process.forks import in_children
from bppsa.errors import BuildError, MachineError, Reason

BASE = ("-std=c++17", "-O3", "-fno-math-errno", "-shared", "-fPIC")
PROBE = """
#include <cmath>
#ifdef _OPENMP
#include <omp.h>
#endif
extern "C" double probe(double x) { return std::sqrt(x); }
"""
# Flags for a kernel of very many ops, in which a compiler goes over one long function again and again: it takes a third
# of the time, and its machine code 3 % longer, because its vectors are written down as such.
LONG_TEXT, LONG_FLAGS = 120_000, ("-O1",)
COMPILERS = ("c++", "g++", "clang++")
LONGEST_BUILD_S = 300.0
LINES_SHOWN = 6
MEND_COMPILE = "set CXX to another C++17 compiler, e.g. a current g++"
MEND_LOAD = "set BPPSA_CACHE_DIR to a directory that programs may be run from (not one mounted noexec)"
MEND_ROOM = "set TMPDIR to a directory with free space"
INSTALL = "install g++ (Debian, Ubuntu: apt install g++) or set CXX to a C++17 compiler"


@dataclass(frozen=True)
class Compiler:
    """The system compiler as it will be called: all of it is part of a library's key in the cache."""

    command: tuple[str, ...]  # absolute path first; more words where CXX has them, e.g. "ccache g++"
    flags: tuple[str, ...]
    version: str


class _LibrarySlot:
    """One source text: who holds the lock builds, the rest find what came of it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.library: ctypes.CDLL | None = None
        self.looked = False  # among the shipped ones, where it was not, or does not load
        self.refusal = ""  # the text of the BuildError: what was refused once is not tried again in this process


_slots: dict[str, _LibrarySlot] = {}


@in_children
def _unlock_in_child() -> None:
    """A build that another thread was in the middle of does not go on in a forked child: its lock would stay held."""
    for slot in _slots.values():
        slot.lock = threading.Lock()


def available() -> Reason | None:
    """Why there are no kernels here; None if a compiler exists, or some were shipped. Cheap: looks at PATH, starts
    nothing."""
    found = _find_compiler()
    return found if isinstance(found, Reason) and not shipped.is_any() else None


def library(source: str) -> ctypes.CDLL:
    """The loaded library of a C++ text, built if neither this process nor the disk has it. Raises `BuildError`, and
    `MachineError` where this machine, or the compiler, lacks the instructions that were asked for."""
    slot = _slots.get(source) or _slots.setdefault(source, _LibrarySlot())
    if slot.library is None:
        with slot.lock:
            if slot.library is None and not slot.refusal:
                isa.check_runs_here(isa.chosen())
                slot.library = None if slot.looked else shipped.library(source)
                slot.looked = True
            if slot.library is None and not slot.refusal:
                command = _find_compiler()
                if isinstance(command, Reason):  # not remembered: a compiler may be installed meanwhile
                    raise BuildError(shipped.missed(source) + str(command))
                try:
                    slot.library = _load(source, _compiler(command))
                except BuildError as error:
                    slot.refusal = str(error)
                except OSError as error:
                    slot.refusal = f"no room to build a kernel in: {error}; {MEND_ROOM}"
    if slot.library is None:
        raise BuildError(slot.refusal)
    return slot.library


def build_many(sources: Sequence[str]) -> list[ctypes.CDLL]:
    """`library` of each, built side by side."""
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        return list(pool.map(library, sources))


def _load(source: str, compiler: Compiler) -> ctypes.CDLL:
    flags = (*compiler.flags, *LONG_FLAGS) if len(source) > LONG_TEXT else compiler.flags
    name = _key(source, *compiler.command, *flags, compiler.version, *_target()) + ".so"

    def make(path: Path) -> None:
        with progress.building(cache.place()):
            _compile(source, path, compiler.command, flags)

    with cache.entry(name, make) as path:
        try:
            return ctypes.CDLL(str(path))
        except OSError as error:
            raise BuildError(f"a compiled kernel does not load: {error}; {MEND_LOAD}") from error


def _find_compiler() -> tuple[str, ...] | Reason:
    """The words that start the compiler: those of CXX, else the first of the usual names on PATH."""
    if os.name != "posix":
        return Reason(f"kernels are not built on {platform.system()}")
    chosen = os.environ.get("CXX", "").split()
    for name in chosen[:1] or COMPILERS:
        if found := shutil.which(name):
            return (os.path.abspath(found), *chosen[1:])
    if chosen:
        return Reason(f"CXX={' '.join(chosen)} is not a program", mend=f"unset CXX, or {INSTALL}")
    return Reason(f"no C++ compiler ({', '.join(COMPILERS)}) on PATH", mend=INSTALL)


def _compiler(command: tuple[str, ...]) -> Compiler:
    status = os.stat(command[0])
    target = isa.chosen()
    found = _probed(command, flag_sets(target), status.st_mtime_ns, status.st_size)
    if not set(target.flags) <= set(found.flags) and target.name != isa.NATIVE:
        raise MachineError(
            f"{isa.VARIABLE}={target.name}: {' '.join(command)} does not know {' '.join(target.flags)}; unset it, or "
            "set CXX to a newer compiler, e.g. g++ 11"
        )
    return found


@functools.lru_cache
def _probed(command: tuple[str, ...], sets: tuple[tuple[str, ...], ...], mtime_ns: int, size: int) -> Compiler:
    """Asking a compiler for its version and flags takes 10-100 ms: the answer is kept on disk for this very file."""

    def make(path: Path) -> None:
        version = _run((*command, "--version"), path.parent).strip()
        path.write_text(json.dumps(asdict(Compiler(command, _accepted_flags(command, sets, path), version))))

    name = "compiler-" + _key(*command, str(mtime_ns), str(size), repr(sets), PROBE) + ".json"
    with cache.entry(name, make) as path:
        kept = json.loads(path.read_text())
    return Compiler(command, tuple(kept["flags"]), kept["version"])


def flag_sets(target: isa.Isa) -> tuple[tuple[str, ...], ...]:
    """A compiler gets the first set that it takes: Apple's clang has no -fopenmp, some compilers for ARM no
    -march=native. One that does not know a level by its name is refused (`_compiler`)."""
    openmp, march = ("-fopenmp",), target.flags
    return tuple((*BASE, *more) for more in ((*march, *openmp), openmp, march, ()))


def _accepted_flags(command: tuple[str, ...], sets: tuple[tuple[str, ...], ...], scratch: Path) -> tuple[str, ...]:
    for flags in sets[:-1]:
        try:
            _compile(PROBE, scratch.with_suffix(".so"), command, flags)
        except BuildError:
            continue
        return flags
    _compile(PROBE, scratch.with_suffix(".so"), command, sets[-1])  # what it says now is what is wrong
    return sets[-1]


def _compile(source: str, path: Path, command: tuple[str, ...], flags: tuple[str, ...]) -> None:
    text = path.with_suffix(".cpp")
    text.write_text(source)
    _run((*command, *flags, text.name, "-o", path.name), path.parent)


def _run(command: tuple[str, ...], directory: Path) -> str:
    """What the command prints. It runs inside `directory`: relative names keep the text of an error short."""
    shown = " ".join(command)
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            env={**os.environ, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LONGEST_BUILD_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{shown}: {error}; {MEND_COMPILE}") from error
    if done.returncode:
        said = done.stderr.strip().splitlines()
        lines = ([line for line in said if "error" in line.lower()] or said)[:LINES_SHOWN]
        raise BuildError("\n".join([f"{shown}: exit status {done.returncode}", *lines, MEND_COMPILE]))
    return done.stdout


def _key(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:40]


@functools.cache
def _target() -> tuple[str, ...]:
    """What the result depends on besides the compiler: a home directory may be shared by many machines."""
    target = isa.chosen()
    features = isa.cpu_features() if target.name == isa.NATIVE else ""
    return platform.system(), platform.machine(), target.name, features, shipped.c_library()

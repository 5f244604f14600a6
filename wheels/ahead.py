"""Build kernels for the index of shipped ones (`shipped`): without an OpenMP runtime of their own, and stripped.

The kernels of a level are one library. Functions of one name stand side by side in it: those of kernels that differ
little are nearly the same bytes, which is what a wheel's compression finds within its 32 KB.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bppsa.codegen import isa
from bppsa.codegen.cpu import build, shipped

# Two steps: what links with -fopenmp names the runtime of the compiler, and torch's may have another name. Nothing in a
# kernel throws, and tables for that are a twentieth of it.
COMPILE = ("-fopenmp", "-fno-exceptions", "-fno-asynchronous-unwind-tables", "-fno-ident", "-ffunction-sections", "-w")
# Nothing in a kernel is to be done when it is loaded or left, which is what start files are for.
LINK = ("-shared", "-s", "-nostartfiles", "-Wl,--build-id=none", "-Wl,-z,noseparate-code", "-Wl,-O1")
SIDE_BY_SIDE = ("-Wl,--sort-section=name",)


def compile_into(folder: Path, source: str, target: isa.Isa) -> Path:
    """The object file of a C++ text, unless the folder has it: its entry points have names that no other text's have.
    Raises `CalledProcessError`."""
    key = shipped.key(source)
    path = folder / f"{key}.o"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made = _compiled(Path(scratch), source + shipped.sign(key), target, ("c++",))
        _rename(made, key)
        made.replace(path)
    return path


def _rename(made: Path, key: str) -> None:
    """Entry points of an object file, which has signed with the key."""
    command = ["nm", "--extern-only", "--defined-only", "--format=posix", str(made)]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    names = {line.split()[0] for line in told.splitlines()} - {shipped.name("", key)}
    words = [f"--redefine-sym={name}={shipped.name(name, key)}" for name in sorted(names)]
    subprocess.run(["objcopy", *words, str(made)], check=True)


def join(objects: Sequence[Path], path: Path) -> None:
    """One library of them all."""
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        linked = Path(scratch, path.name)
        _link(objects, linked, ("c++",), *SIDE_BY_SIDE)
        linked.replace(path)


def build_into(folder: Path, source: str, target: isa.Isa, compiler: Sequence[str] = ("c++",)) -> Path:
    """A library of one text, unless the folder has it, with entry points as they are named there. Raises
    `CalledProcessError`."""
    path = folder / f"{shipped.key(source)}.so"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        linked = Path(scratch, path.name)
        _link([_compiled(Path(scratch), source, target, compiler)], linked, compiler)
        linked.replace(path)
    return path


def _compiled(scratch: Path, source: str, target: isa.Isa, compiler: Sequence[str]) -> Path:
    text, made = scratch / "kernel.cpp", scratch / "kernel.o"
    text.write_text(source)
    flags = [flag for flag in build.BASE if flag != "-shared"]
    subprocess.run([*compiler, *flags, *target.flags, *COMPILE, "-c", text, "-o", made], check=True)
    return made


def _link(objects: Sequence[Path], path: Path, compiler: Sequence[str], *more: str) -> None:
    subprocess.run([*compiler, *LINK, *more, *objects, "-o", path], check=True)

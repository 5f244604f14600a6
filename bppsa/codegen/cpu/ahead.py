"""Build kernels for the index of shipped ones (`shipped`): without an OpenMP runtime of their own, and stripped."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bppsa.codegen import isa
from bppsa.codegen.cpu import build, shipped

# Two steps: what links with -fopenmp names the runtime of the compiler, and torch's may have another name. Nothing in a
# kernel throws, and tables for that are a twentieth of it.
COMPILE = ("-fopenmp", "-fno-exceptions", "-fno-asynchronous-unwind-tables", "-w", "-c")
LINK = ("-shared", "-s", "-Wl,-z,noseparate-code", "-Wl,-O1")


def build_into(
    index: Path, source: str, target: isa.Isa, abi: str, compiler: Sequence[str] = ("c++",), more: Sequence[str] = ()
) -> Path:
    """The library of a C++ text, in its place in an index. more: flags that come last. Raises `CalledProcessError`."""
    path = index / shipped.place(source, target.name, abi)
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    flags = [flag for flag in build.BASE if flag != "-shared"]
    with tempfile.TemporaryDirectory(dir=index) as scratch:
        text, made, linked = (Path(scratch, f"kernel{end}") for end in (".cpp", ".o", ".so"))
        text.write_text(source)
        subprocess.run([*compiler, *flags, *target.flags, *COMPILE, *more, text, "-o", made], check=True)
        subprocess.run([*compiler, *LINK, made, "-o", linked], check=True)
        linked.replace(path)
    return path

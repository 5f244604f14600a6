"""The instructions that kernels are made of: one setting, which is this machine's unless BPPSA_ISA names another.

Printers ask it how wide a register is, the build asks it for the compiler's flags, and the index of shipped kernels
for the level that was built ahead.
"""

from __future__ import annotations

import functools
import os
import platform
from dataclasses import dataclass

from bppsa.errors import MachineError

VARIABLE = "BPPSA_ISA"
AUTO, NATIVE = "auto", "native"


@dataclass(frozen=True)
class IsaLevel:
    """A set of instructions that compilers know by name. needs: the words for them in /proc/cpuinfo. wide: as of
    `Isa`."""

    name: str
    machine: str
    needs: frozenset[str] = frozenset()
    wide: bool = False


V3 = frozenset({"avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"})
V4 = V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
# The most able one first.
LEVELS = (
    IsaLevel("x86-64-v4", "x86_64", V4, wide=True),
    IsaLevel("x86-64-v3", "x86_64", V3),
    IsaLevel("x86-64", "x86_64"),
    IsaLevel("armv8-a", "aarch64"),
)


@dataclass(frozen=True)
class Isa:
    """What kernels of this process are made for.

    name: of a level, or "native". flags: those of a compiler. wide: whether there are 32 registers of 64 bytes;
    elsewhere 16 of 32 bytes are counted on. shipped: the level whose shipped kernels may run in their place; "" for
    none. needs: as of the level."""

    name: str
    flags: tuple[str, ...]
    wide: bool
    shipped: str
    needs: frozenset[str] = frozenset()


@functools.cache
def chosen() -> Isa:
    """The setting of this process. Raises `MachineError` where BPPSA_ISA names none."""
    return named(os.environ.get(VARIABLE) or AUTO)


def named(name: str) -> Isa:
    """name: of a level; "native": built for this very machine; "auto": the same, and shipped kernels of its level."""
    if name not in (AUTO, NATIVE):
        level = next((level for level in LEVELS if level.name == name), None)
        if level is None:
            known = ", ".join((AUTO, NATIVE, *(level.name for level in LEVELS)))
            raise MachineError(f"{VARIABLE}={name} is no set of instructions known here; choose from {known}")
        return Isa(name, (f"-march={name}",), level.wide, name, level.needs)
    level = of_machine(platform.machine(), frozenset(cpu_features().split()))
    shipped = level.name if level and name == AUTO else ""
    return Isa(NATIVE, ("-march=native",), level is not None and level.wide, shipped)


def of_machine(machine: str, features: frozenset[str]) -> IsaLevel | None:
    """The most able level that it runs."""
    return next((level for level in LEVELS if level.machine == machine and level.needs <= features), None)


def check_runs_here(isa: Isa) -> None:
    """Raises `MachineError` where this machine lacks instructions, with which a kernel would end the process."""
    features = frozenset(cpu_features().split())
    missing = sorted(isa.needs - features) if features else []
    if missing:
        raise MachineError(f"{VARIABLE}={isa.name}: this CPU has no {', '.join(missing)}; unset it")


@functools.cache
def cpu_features() -> str:
    """The kernel's list of the first core's instruction sets; "" where there is none to read."""
    try:
        with open("/proc/cpuinfo", "rb", buffering=0) as file:
            text = file.read(1 << 16)  # one call gives the first few cores; on large machines all of them take long
    except OSError:
        return ""
    lines = text.decode(errors="replace").splitlines()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")

"""Kernels for 64-bit ARM, built by a cross compiler and run by an emulator on this process's tensors."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
import threading
from array import array
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from bppsa.codegen import isa
from wheels import ahead

COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
PACKAGES = {COMPILER: "g++-aarch64-linux-gnu", EMULATOR: "qemu-user"}
SYSROOT = "/usr/aarch64-linux-gnu"  # where Debian has the libraries of programs for ARM
LEVEL = "armv8-a"
PLACE = Path(__file__).parents[2] / "build" / "aarch64"  # of what was built
HARNESS = Path(__file__).with_name("harness.cpp")
NUMBER, ADDRESS, ROOM_OF_LAST = range(3)  # as harness.cpp has them
LINE = 64
LONGEST_S = 300
BUILDING = threading.Lock()


@dataclass(frozen=True)
class Room:
    """Memory, of as many bytes as the call before has returned."""


Argument = int | Tensor | array | Room | None


def missing() -> str:
    """What to install before kernels for ARM can be tried; "" where nothing is missing."""
    packages = [package for program, package in PACKAGES.items() if shutil.which(program) is None]
    return f"needs {' and '.join(PACKAGES)} (Debian: apt install {' '.join(packages)})" if packages else ""


@dataclass
class Job:
    """Calls of one library. Tensors that only words refer to are named by `hold` first, and words before those that
    refer to them."""

    source: str
    memory: bytearray = field(default_factory=bytearray)
    held: dict[int, tuple[int, int]] = field(default_factory=dict)  # address: bytes, offset in the memory
    tensors: list[Tensor] = field(default_factory=list)
    addresses: list[int] = field(default_factory=list)
    calls: list[list[int]] = field(default_factory=list)

    def hold(self, *tensors: Tensor) -> None:
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage.nbytes() and storage.data_ptr() not in self.held:
                self.tensors.append(tensor)
                data = ctypes.string_at(storage.data_ptr(), storage.nbytes())
                self.held[storage.data_ptr()] = len(data), self._add(data)

    def words(self, numbers: array[int]) -> int:
        """Where they are in the memory; those that are addresses of tensors are so there, too."""
        found = [self.offset(number) for number in numbers]
        here = [number if at is None else at for number, at in zip(numbers, found, strict=True)]
        start = self._add(array("q", here).tobytes())
        self.addresses += [start + 8 * i for i, at in enumerate(found) if at is not None]
        return start

    def offset(self, address: int) -> int | None:
        spans = self.held.items()
        return next((at + address - start for start, (size, at) in spans if start <= address < start + size), None)

    def call(self, name: str, *arguments: Argument) -> None:
        start = self._add(name.encode() + b"\0")
        self.calls.append([start, len(arguments), *(word for a in arguments for word in self._argument(a))])

    def run(self) -> None:
        """Results are in the tensors then. Raises `CalledProcessError`."""
        PLACE.mkdir(parents=True, exist_ok=True)
        library = ahead.build_into(PLACE, self.source, isa.named(LEVEL), [COMPILER])
        head = [
            len(self.memory),
            len(self.addresses),
            len(self.calls),
            *self.addresses,
            *(word for call in self.calls for word in call),
        ]
        with tempfile.TemporaryDirectory() as scratch:
            job, result = Path(scratch, "job"), Path(scratch, "result")
            job.write_bytes(array("q", head).tobytes() + self.memory)
            subprocess.run([EMULATOR, "-L", SYSROOT, harness(), library, job, result], check=True, timeout=LONGEST_S)
            data = result.read_bytes()
        for start, (size, at) in self.held.items():
            ctypes.memmove(start, data[at : at + size], size)

    def _add(self, data: bytes) -> int:
        self.memory += bytes(-len(self.memory) % LINE)
        start = len(self.memory)
        self.memory += data
        return start

    def _argument(self, argument: Argument) -> tuple[int, int]:
        if isinstance(argument, Room):
            return ROOM_OF_LAST, 0
        if isinstance(argument, array):
            return ADDRESS, self.words(argument)
        if isinstance(argument, Tensor):
            self.hold(argument)
            found = self.offset(argument.data_ptr())
            return (NUMBER, 0) if found is None else (ADDRESS, found)
        return NUMBER, int(argument or 0)


def harness() -> Path:
    """The program that makes the calls. It has the OpenMP runtime that libraries look for."""
    program = PLACE / "harness"
    with BUILDING:  # jobs run side by side
        if not program.exists() or program.stat().st_mtime < HARNESS.stat().st_mtime:
            made = program.with_suffix(".new")
            subprocess.run([COMPILER, "-O1", "-fopenmp", "-Wl,--no-as-needed", HARNESS, "-o", made, "-ldl"], check=True)
            made.replace(program)
    return program


def differs(got: Tensor, expected: Tensor) -> float:
    """By the largest of these numbers; NaN where one of both is not finite and the other is, or has another sign."""
    got, finite = got.double(), expected.isfinite()
    if not torch.equal(got[~finite].nan_to_num(), expected[~finite].nan_to_num()):
        return float("nan")
    if not bool(finite.any()):
        return 0.0
    scale = max(1.0, float(expected[finite].abs().max()))
    return float((got - expected)[finite].abs().max()) / scale

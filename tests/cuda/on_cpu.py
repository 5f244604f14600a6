"""A printed CUDA kernel as a function on CPU tensors, through `shim.h`: called as `interpret.run` is."""

from __future__ import annotations

import ctypes
import hashlib
import subprocess
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from bppsa.codegen import cache
from bppsa.codegen.gpu.cuda.native import arguments_of
from bppsa.codegen.gpu.cuda.print_cuda import CudaText, printed
from bppsa.codegen.language.ir import Kernel

SHIM = Path(__file__).parent / "shim.h"
QUADS = (
    "inline Quad load_quad(Image i, int at) { return {i.load(at), i.load(at + 1), i.load(at + 2), i.load(at + 3)}; }"
)
LAUNCH = """\
static void** given;
static void enter_kernel() {{ sweep({values}); }}
extern "C" long launch(void** arguments, int rows, int backwards) {{
    given = arguments;
    shim::faults = 0;
    shim::body = enter_kernel;
    for (int row = 0; row < rows; ++row) {{
        shim::Words<real> words({size});
        shared = &words;
        blockIdx.x = row;
        if (!shim::run({threads}, backwards)) return -1;
    }}
    return shim::faults;
}}
"""


class ShimKernel:
    """faults: how often threads did not wait for each other, in all calls together; -1 where some waited for ever."""

    def __init__(self, kernel: Kernel, real: str, text: CudaText | None = None) -> None:
        """text: another one than what is printed."""
        text = text or printed(kernel, real)
        assert isinstance(text, CudaText), text
        self.kernel, self.text = kernel, text
        self.library = ctypes.CDLL(str(compiled(with_shim(text, real))))
        self.library.launch.restype = ctypes.c_long
        self.faults = 0

    def __call__(
        self,
        tensors: Sequence[Tensor],
        *,
        steps: int,
        rows: int,
        active: Tensor | None = None,
        reverse: bool = False,
        backwards: bool = False,
    ) -> None:
        given, sums, lengths = arguments_of(self.kernel, tensors, steps, rows, active, reverse)
        values = [ctypes.c_longlong(value) for value in given]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        found = self.library.launch(pointers, rows, int(backwards))
        self.faults = -1 if found < 0 else self.faults + found
        for total, parts in sums:
            torch.sum(parts, 0, out=total)
        del lengths


def with_shim(text: CudaText, real: str) -> str:
    values = ", ".join(f"({kind}) *(long long*) given[{i}]" for i, (kind, _) in enumerate(text.parameters))
    launch = LAUNCH.format(values=values, size=text.image, threads=text.lanes.threads)
    head, marked, rest = text.source.partition("#ifndef BPPSA_SHIM")
    return (
        f"typedef {real} real;\n{SHIM.read_text().replace('#pragma once', '')}\n{head}{QUADS}\n{marked}{rest}\n{launch}"
    )


def compiled(source: str) -> Path:
    name = f"shim_{hashlib.sha256(source.encode()).hexdigest()[:32]}.so"

    def build(path: Path) -> None:
        text = path.with_suffix(".cpp")
        text.write_text(source)
        subprocess.run(["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-w", str(text), "-o", str(path)], check=True)
        text.unlink()

    with cache.entry(name, build) as path:
        return path

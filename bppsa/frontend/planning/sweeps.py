"""From a cell to a sweep that runs: record, split, transpose, lower, build. Where the rooms of the house meet."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch.utils._python_dispatch import _disable_current_modes

from bppsa.codegen.assembling import program, reduction
from bppsa.codegen.cpu import build as compiler
from bppsa.codegen.cpu import print_cpp, products
from bppsa.codegen.cpu.native import REAL, NativeKernel
from bppsa.codegen.cpu.stretches import NativeStretches
from bppsa.codegen.gpu.cuda.native import CudaKernel, cuda_kernel
from bppsa.codegen.gpu.native import PRECISION, TritonKernel
from bppsa.codegen.gpu.native_scan import boundaries, corrections
from bppsa.codegen.language.expr import SPECIAL
from bppsa.codegen.language.ir import Kernel
from bppsa.codegen.language.stretches import StretchWork
from bppsa.common.chain import Recurrence, Structure
from bppsa.decisions import Decision
from bppsa.errors import MachineError, Unsupported
from bppsa.frontend.call_log import explaining
from bppsa.fxpasses.cell import modules
from bppsa.fxpasses.cell import structure as patterns
from bppsa.fxpasses.cell.diagonal import with_diagonals
from bppsa.fxpasses.cell.recurrence import split
from bppsa.fxpasses.network import jacobian
from bppsa.fxpasses.recording.capture import record
from bppsa.runtime import pool
from bppsa.runtime.recurrent.multiply import Faster, on_gpu
from bppsa.runtime.recurrent.reduce import Reduction
from bppsa.runtime.recurrent.sweep import Sweep

GPU_PRINTER = "BPPSA_GPU_PRINTER"
GPU_PRINTERS: dict[str, Callable[[Kernel, str], TritonKernel | CudaKernel]] = {
    "triton": TritonKernel,
    "cuda": cuda_kernel,
}
UNSCANNED = ("sequential", "pytorch")  # strategies that multiply no J^T
TRACED_ROWS = 2  # any number but 1, which broadcasts


@contextmanager
def apart() -> Iterator[None]:
    """What is recorded here is kept for all calls: the first one may be traced, or under autocast."""
    with _disable_current_modes(), torch.autocast("cpu", enabled=False):
        yield


@functools.lru_cache(maxsize=1024)
def compile_recurrence(recurrence: Recurrence, dtype: torch.dtype, inline: bool, device: str = "cpu") -> Sweep:
    """Raises `Unsupported` for what cannot be fused. `inline`: see `program.build`. device: a type, "cpu" or "cuda"."""
    with apart():
        lowered = program.build(recurrence, jacobian.transpose(recurrence), inline=inline)
    make = functools.partial(reduction_of, recurrence, dtype, inline, device)
    if device == "cuda":
        check_functions((lowered.forward, lowered.backward))
        kernels = functools.partial(gpu_kernels, REAL[dtype])
        return Sweep(lowered, dtype, kernels, make, on_gpu, boundaries, corrections)
    real = REAL[dtype]

    def build(kernels: Sequence[Kernel]) -> list[NativeKernel]:
        sources = [print_cpp.source(kernel, real) for kernel in kernels]
        sources += [products.source(real)] * any(not kernel.along for kernel in kernels)
        compiler.build_many(sources)
        return [NativeKernel(kernel, real) for kernel in kernels]

    def in_stretches(work: StretchWork, runners: Sequence[NativeKernel]) -> None:
        NativeStretches(real, pool.take)(work, runners)

    return Sweep(lowered, dtype, build, make, Faster(real), in_stretches=in_stretches)


def check_functions(kernels: Sequence[Kernel]) -> None:
    """Raises `Unsupported` for functions that no GPU's kernel has."""
    nodes = (node for kernel in kernels for group in kernel.groups for node in group.nodes())
    if found := sorted({node.op.value[0] for node in nodes if node.op in SPECIAL}):
        what = f"special functions of the carry ({', '.join(found)}) have no kernel on a GPU"
        raise Unsupported(what, mend="compute them of x alone, or run the cell on a CPU")


def gpu_kernels(real: str, kernels: Sequence[Kernel]) -> list[TritonKernel | CudaKernel]:
    """The kernels of Triton, or of CUDA where this process asks for them (`GPU_PRINTER`)."""
    asked = os.environ.get(GPU_PRINTER) or "triton"
    if asked not in GPU_PRINTERS:
        raise MachineError(f"{GPU_PRINTER}={asked!r}; known: {', '.join(GPU_PRINTERS)}")
    return [GPU_PRINTERS[asked](kernel, real) for kernel in kernels]


@functools.lru_cache(maxsize=256)
def reduction_of(
    recurrence: Recurrence, dtype: torch.dtype, inline: bool, device: str, *, diagonal: bool = False
) -> Reduction:
    """The reduction for scans over chunks of the recurrence's steps; on a CPU in float64, where it costs twice and not
    64 times. diagonal: of `with_diagonals`."""
    taken, weights = with_diagonals(recurrence) if diagonal else (recurrence, ())
    structure = structure_of(taken)
    with apart():
        transposed = jacobian.transpose(recurrence)
        simplified = jacobian.transpose(taken) if diagonal else None
        kernel = reduction.reduction(
            recurrence, transposed, inline=inline, diagonal=structure.width == 1, simplified=simplified
        )
    if device == "cuda":
        exact = TritonKernel(kernel, REAL[dtype], PRECISION)  # a product of many Jacobians needs all its digits
        return Reduction(structure, kernel, recurrence.carries, dtype, exact, weights)
    wide = torch.float64
    return Reduction(structure, kernel, recurrence.carries, wide, NativeKernel(kernel, REAL[wide]), weights)


@functools.lru_cache(maxsize=1024)
def structure_of(recurrence: Recurrence) -> Structure:
    """The structure of one step's J^T."""
    with apart():
        return patterns.structure_of(recurrence)


@functools.lru_cache(maxsize=1024)
def module_recurrence(mode: str, inputs: int, hidden: int, projection: int, bias: bool, shown: int = 0) -> Recurrence:
    """One layer and direction of nn.RNN, nn.GRU or nn.LSTM. shown: so many carries are known before, and given as
    sources beside x: what is left is a recurrence of the others, without outputs."""
    cell, states, gates = modules.KINDS[mode]
    out = projection or hidden
    if projection:
        cell = modules.projected_lstm
    weights = [(gates * hidden, inputs), (gates * hidden, out), *[(gates * hidden,)] * 2 * bias]
    weights += [(out, hidden)] if projection else []
    with apart():
        carry = [torch.empty(TRACED_ROWS, width) for width in (out, hidden)[:states]]
        x = torch.empty(TRACED_ROWS, inputs)
        given = (carry[shown:], [x, *carry[:shown]]) if shown else (carry, x)
        recording = record(modules.behind(cell, shown) if shown else cell, (*given, *map(torch.empty, weights)))
        nexts, y = recording.result
        return split(recording, states - shown, 1 + shown, [] if shown else [y], nexts)


def with_structure(decision: Decision, recurrence: Recurrence) -> Decision:
    """The decision with what J^T looks like, where a scan runs or somebody asked for an explanation."""
    asked = explaining() and not patterns.is_too_wide(recurrence)
    if decision.strategy in UNSCANNED and not asked:
        return decision
    return replace(decision, numbers={**decision.numbers, "J^T": str(structure_of(recurrence))})

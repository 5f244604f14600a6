"""Compile the Triton kernels of the tests' models for GPUs that need not be there.

    make aot                                     exits with 1 where a kernel of DEFAULT's spills registers
    make aot ARGS="--models GRU --widths 128"    other kernels: only prints

What was compiled once is kept by Triton: a second run takes seconds.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from bppsa.codegen.gpu.native_scan import WIDEST_LEVEL
from bppsa.codegen.language.ir import Kernel
from bppsa.codegen.language.traffic import traffic
from tests.codegen.programs import kernels
from tests.scan.support import reduction_of
from tests.triton.models import MODELS, WITH_HEADS, built
from tests.triton.usage import Usage, boundaries_usage, level_usage, sums_usage, usage

WIDTHS = (20, 32, 64)
CAPABILITIES = (80, 90, 100)
SCAN = 4
LEVELS = ("up_level", "middle", "down_level")
SWEEPS = 3  # forward, inference, backward: all that is compiled of models with heads
HEAD_WIDTHS = (16,)  # of their four heads
DEFAULT = ("RNN", "GRU", "LSTM", *WITH_HEADS)  # whose kernels keep all they have in registers


@dataclass(frozen=True)
class Job:
    model: str
    width: int
    kernel: int  # of forward, inference, backward, reduction, the scan over chunks, and LEVELS
    real: str
    precision: str


def run(job: Job) -> tuple[str, str, list[Usage]]:
    """The kernel's name, its bytes and flops for a row and step, and its usage for each capability."""
    program = built(job.model, job.width)
    if job.model in WITH_HEADS:
        return of_sweep(kernels(program)[job.kernel], job)
    reduction = reduction_of(program.recurrence, False)
    if job.kernel == SCAN:
        size, diagonal = reduction.size, reduction.structure.width == 1
        return "boundaries", "", [boundaries_usage(size, diagonal, job.real, c) for c in CAPABILITIES]
    if job.kernel > SCAN:
        name = LEVELS[job.kernel - SCAN - 1]
        wide = reduction.size > WIDEST_LEVEL  # then torch combines the pairs
        return name, "", [] if wide else [level_usage(name, reduction.size, job.real, c) for c in CAPABILITIES]
    kernel = (*kernels(program), reduction.kernel)[job.kernel]
    return of_sweep(kernel, job, reduction.columns if kernel is reduction.kernel else 1)


def of_sweep(kernel: Kernel, job: Job, columns: int = 1) -> tuple[str, str, list[Usage]]:
    work = traffic(kernel, job.real)
    used = [usage(kernel, job.real, c, job.precision, columns) for c in CAPABILITIES]
    return kernel.name, f"{work.bytes} B, {work.flops + work.folded}", used


def widths_of(model: str) -> tuple[int, ...]:
    return HEAD_WIDTHS if model in WITH_HEADS else WIDTHS


def shown(used: Usage) -> str:
    stack = f" [bold red]stack {used.stack}[/]" if used.stack else ""
    return f"{used.registers} x {used.warps * 32}{stack}, {used.shared / 1024:.0f} KiB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", help="of all models' states, or of each of four heads")
    parser.add_argument(
        "--models", default=";".join([*MODELS, *WITH_HEADS]), help="names, with semicolons between them"
    )
    parser.add_argument("--real", default="float", choices=("float", "double"))
    parser.add_argument("--precision", default="tf32x3")
    chosen = parser.parse_args()
    asked = [int(width) for width in chosen.widths.split(",")] if chosen.widths else []
    jobs = [
        Job(model, width, kernel, chosen.real, chosen.precision)
        for model in chosen.models.split(";")
        for width in asked or widths_of(model)
        for kernel in range(SWEEPS if model in WITH_HEADS else SCAN + 1 + len(LEVELS))
    ]
    table = Table("model", "H", "kernel", "bytes, flops", *(f"sm_{c}" for c in CAPABILITIES))
    spilled: list[str] = []
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        for job, (name, work, used) in zip(jobs, pool.imap(run, jobs), strict=True):
            table.add_row(job.model, str(job.width), name, work, *map(shown, used))
            if any(u.stack for u in used) and job.model in DEFAULT and job.width in widths_of(job.model):
                spilled.append(f"{job.model} {job.width} {name}")
    for matrix in (False, True):
        sums = [sums_usage(chosen.real, c, matrix=matrix) for c in CAPABILITIES]
        table.add_row("sparse", "", "matrix times vectors" if matrix else "product", "", *map(shown, sums))
        spilled += ["sparse"] * any(u.stack for u in sums)
    console = Console(width=140)
    console.print(f"H: of {', '.join(WITH_HEADS)} the width of each of four heads")
    console.print("bytes and flops of a row (of a reduction: a column) and step")
    console.print("registers of a thread x threads; bytes a thread spills; shared memory of a program")
    console.print(table)
    if spilled:
        sys.exit(f"these spill registers: {', '.join(spilled)}")


if __name__ == "__main__":
    main()

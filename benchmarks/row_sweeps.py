"""Sweeps of a GPU alone, a warp or a block of threads a row: microseconds a step, beside those that are modelled.

    python benchmarks/row_sweeps.py             a minute; keeps what it finds in benchmarks/results/<gpu>.json
    python benchmarks/row_sweeps.py --quick     few steps, keeps nothing

Of each kernel the first number to look at is that of one row: no other row shares its multiprocessor. What `make aot`
has modelled is in tests/cuda/aot.json.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console

from bppsa.codegen.assembling import program
from bppsa.codegen.gpu.cuda.native import CudaKernel, cuda_kernel
from bppsa.codegen.language.ir import Buffer, Kernel
from bppsa.frontend.planning import sweeps
from bppsa.fxpasses.network import jacobian
from harness import device, machine, store
from harness.tables import terminal
from tests.codegen.kernels import SHAPES

HERE = Path(__file__).parent
PART = "row_sweeps"
MODES = {"RNN": "RNN_TANH", "GRU": "GRU", "LSTM": "LSTM"}
WIDTHS, ROWS = (20, 32, 64), (1, 16, 64, 256)
STEPS, SAMPLES = 10_000, 5


def kernels_of(mode: str, hidden: int) -> Iterator[Kernel]:
    recurrence = sweeps.module_recurrence(mode, hidden, hidden, 0, True)
    lowered = program.build(recurrence, jacobian.transpose(recurrence), inline=False)
    yield from (lowered.forward, lowered.inference, lowered.backward)


def operand(buffer: Buffer, steps: int, rows: int) -> torch.Tensor:
    """Small numbers, so that no step leaves the range of float32."""
    return torch.rand(SHAPES[buffer.kind](buffer, steps, rows), device=device.NAME).sub_(0.5).mul_(0.2)


def microseconds(kernel: CudaKernel, steps: int, rows: int) -> float:
    """Of a step: the median of some sweeps, by the device's clock."""
    given = [operand(b, steps, rows) for b in kernel.kernel.arguments]
    taken = []
    for _ in range(SAMPLES + 1):  # the first one loads the kernel
        begin = device.mark()
        kernel(given, steps=steps, rows=rows)
        end = device.mark()
        device.synchronize()
        taken.append(1e6 * device.seconds(begin, end) / steps)
    return median(taken[1:])


def measured(steps: int) -> Iterator[dict[str, Any]]:
    modelled = json.loads((HERE.parent / "tests/cuda/aot.json").read_text())
    for name, mode in MODES.items():
        for hidden in WIDTHS:
            for kernel in kernels_of(mode, hidden):
                compiled = cuda_kernel(kernel, "float")
                if not isinstance(compiled, CudaKernel):
                    continue
                row = {"kernel": f"{name} {hidden} {kernel.name}"}
                row |= {f"B={rows}": round(microseconds(compiled, steps, rows), 3) for rows in ROWS}
                yield row | {"modelled": round(modelled.get(row["kernel"], {}).get("us", 0.0), 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    device.require()
    hardware = {**device.hardware(), **machine.hardware()}
    rows: list[dict[str, Any]] = []
    for row in measured(10 if quick else STEPS):
        rows.append(row)
        if not quick:  # after each kernel: what stops the run does not take the rest along
            kept = HERE / "results" / f"{machine.slug(hardware['gpu'])}.json"
            on = {**machine.software(), **device.software(), "steps": STEPS}
            store.save(kept, {**store.load(kept), "machine": hardware, PART: [{"on": on, "rows": rows}]})
    Console(width=160).print(terminal(PART, rows))


if __name__ == "__main__":
    main()

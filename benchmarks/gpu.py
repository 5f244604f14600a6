"""Recurrences on a CUDA device: bppsa beside cuDNN, interleaved, by the device's own clock.

    python benchmarks/gpu.py            everything, some five minutes; keeps benchmarks/results/<gpu>.json
    python benchmarks/gpu.py --quick    sizes of nothing: only shows that all of it runs
    python benchmarks/gpu.py --check    measures nothing: fails where there is no CUDA device
    BPPSA_GPU_PRINTER=cuda python benchmarks/gpu.py      kernels of CUDA C++, where they fit; kept apart

A way that raises, or that is left to PyTorch, is a row that says so; the others go on.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict

import torch
from rich.console import Console
from torch import Tensor, nn

import bppsa
from bppsa import cells
from bppsa.errors import BppsaError
from bppsa.frontend.planning.sweeps import GPU_PRINTER
from harness import device, machine, store
from harness.command import Command
from harness.comparison import Row
from harness.tables import terminal
from harness.timing import interleave, ratio, significant
from rows.problems import KINDS, Problem, Shape

WIDTH = 200  # of the table
PEER, SCAN = "cuDNN", "MinGRU"
STRATEGIES = ("sequential", "chunked")  # each with the forward that auto takes beside it
WAYS = ("auto", *STRATEGIES)
SIZES = [(T, 16, H) for T in (1000, 10000, 30000) for H in (20, 32, 64)]  # T, B, H
CASE_S = 2.0  # of interleaved samples
LEAST_SAMPLES = 3
WALL = 2  # phase of a sample, after forward and backward
LONGEST_ERROR = 600  # characters

FAILURES: tuple[type[Exception], ...] = (RuntimeError, BppsaError)
if importlib.util.find_spec("triton"):
    from triton.errors import TritonError  # what its compiler raises is no RuntimeError

    FAILURES += (TritonError,)


class Scanned(nn.Module):
    """A cell over x [T, B, I], called as nn.GRU is: compiled, its scan follows the model's strategy."""

    def __init__(self, cell: cells.Cell) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h, y = bppsa.scan(self.cell, h, x)
        return y, h


def problem_of(shape: Shape) -> Problem:
    with torch.device(device.NAME):
        if shape.kind != SCAN:
            return Problem.of(shape)
        torch.manual_seed(0)
        x, cotangent = torch.randn(2, shape.T, shape.B, shape.H)
        state = torch.randn(shape.B, shape.H, requires_grad=True)
        return Problem(Scanned(cells.MinGRU(shape.H, shape.H)), x.requires_grad_(), (state,), cotangent)


def measure(shape: Shape, repeats: int) -> list[Row]:
    """A row for each way to compute it; the first one that runs is what the others' results are compared with."""
    try:
        problem = problem_of(shape)
    except FAILURES as failure:  # after some errors a device answers nothing else
        return [shape.row() | {"way": "any", "error": said(failure)}]
    rows: list[Row] = []
    ways: dict[str, tuple[nn.Module, Row]] = {}
    expected = None
    for way in WAYS if shape.kind == SCAN else (PEER, *WAYS):
        row = shape.row() | {"way": way}
        rows.append(row)
        try:
            module = problem.module if way == PEER else bppsa.compile(problem.module, strategy=way, forward=ahead(way))
            found = results(problem, module)
            expected = expected or found
            row |= {"difference": difference(found, expected)} | ({"ran": PEER} if way == PEER else ran(module))
            if row["ran"] != "pytorch" or way == "auto":  # which is cuDNN once more, or a loop over the steps
                row["launches"] = launches(problem, module)
                ways[way] = module, row
        except FAILURES as failure:
            row["error"] = said(failure)
    try:
        time_them(problem, ways, repeats)
    except FAILURES as failure:
        for _, row in ways.values():
            row["error"] = said(failure)
    return rows


def by_cuda() -> bool:
    return os.environ.get(GPU_PRINTER, "triton") == "cuda"


def ahead(way: str) -> str:
    """The forward beside a strategy: with kernels of CUDA C++ a sweep's is to be seen too."""
    return "sequential" if by_cuda() and way == "sequential" else "auto"


def time_them(problem: Problem, ways: dict[str, tuple[nn.Module, Row]], repeats: int) -> None:
    """Adds medians to the rows: of the device's forward and backward, and of the wall clock."""
    steps = {
        way: device.training_step(problem.output(module), problem.inputs, problem.cotangent)
        for way, (module, _) in ways.items()
    }
    if not steps:
        return
    round_s = sum(step()[WALL] for step in steps.values())
    samples = interleave(steps, max(LEAST_SAMPLES, min(repeats, int(CASE_S / round_s))))
    for way, taken in samples.items():
        forward, backward, wall = (significant(1e3 * statistics.median(phase)) for phase in zip(*taken, strict=True))
        row = ways[way][1]
        row |= {"forward_ms": forward, "backward_ms": backward, "wall_ms": wall, "samples": len(taken)}
        if PEER in samples and way != PEER:
            row["ratio"] = asdict(ratio(*([sample[:WALL] for sample in samples[w]] for w in (PEER, way))))


def ran(module: nn.Module) -> Row:
    """What a compiled module's last call was run by, and where that is PyTorch, why."""
    decision = next(iter(module.report.decisions), None)
    if decision is None or decision.strategy == "pytorch":
        return {"ran": "pytorch", "reason": "nothing was found to rewrite" if decision is None else decision.reason}
    return {"ran": decision.strategy, "forward": decision.forward}


def results(problem: Problem, module: nn.Module) -> list[Tensor]:
    """The output and all gradients, in float32 throughout: what is compared must not have TF32's rounding."""
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        y = problem.output(module)()
        return [y.detach(), *torch.autograd.grad(y, problem.inputs, problem.cotangent)]


def difference(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The largest relative one in norm."""
    pairs = zip(found, expected, strict=True)
    return significant(max(((a - b).norm() / b.norm()).item() for a, b in pairs), 2)


def launches(problem: Problem, module: nn.Module) -> int:
    """Of one backward."""
    y = problem.output(module)()
    return device.launches(lambda: torch.autograd.grad(y, problem.inputs, problem.cotangent))


def said(failure: Exception) -> str:
    return f"{type(failure).__name__}: {failure}"[:LONGEST_ERROR]


def main() -> None:
    command = Command("bppsa beside cuDNN on a CUDA device.", (15, 3))
    command.add_argument("--minutes", type=float, default=5, help="no case begins after these")
    command.add_argument("--check", action="store_true", help="measure nothing: is there a device?")
    arguments = command.given()
    device.require()
    if arguments.check:
        return
    console = Console()
    quick = [Shape(kind, 3, 2, 4) for kind in (*KINDS, SCAN)]
    shapes = quick if arguments.quick else [Shape(kind, *sizes) for sizes in SIZES for kind in (*KINDS, SCAN)]
    on = {**machine.software(), **device.software(), "repeats": arguments.repeats}
    hardware = {**device.hardware(), **machine.hardware()}
    kept = arguments.results and arguments.results / f"{machine.slug(hardware['gpu'])}.json"
    part = "gpu_cuda" if by_cuda() else "gpu"
    others = {name: kept_part for name, kept_part in store.load(kept).items() if name != part} if kept else {}
    rows: list[Row] = []
    end = time.monotonic() + 60 * arguments.minutes
    for at, shape in enumerate(shapes):
        if time.monotonic() > end:
            console.print(f"[yellow]{arguments.minutes:g} minutes are over: {len(shapes) - at} cases are not measured")
            break
        console.print(f"{at + 1} of {len(shapes)}: {shape}")
        rows += measure(shape, arguments.repeats)
        if kept:  # after each case: what stops the run does not take the rest along
            store.save(kept, others | {"machine": hardware, part: [{"on": on, "rows": rows}]})
    Console(width=max(WIDTH, console.width)).print(terminal("gpu", rows))
    if kept:
        console.print(f"results are in {kept}")


if __name__ == "__main__":
    main()

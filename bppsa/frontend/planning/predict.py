"""What the planner predicts with: a layer's or cell's kernels, counted for a row and a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import torch

from bppsa.codegen.assembling.program import Program
from bppsa.codegen.cpu.native import REAL
from bppsa.codegen.gpu.triton.columns import blocks, padded
from bppsa.codegen.gpu.triton.print_triton import holds_weights, printed
from bppsa.codegen.gpu.triton.sweep_axes import has_axes
from bppsa.codegen.language.ir import Kernel, Kind
from bppsa.codegen.language.traffic import Traffic, traffic
from bppsa.codegen.lowering.lower import ColumnRun
from bppsa.common.chain import Recurrence, Structure
from bppsa.frontend.planning.rates import machine_of
from bppsa.frontend.planning.sweeps import compile_recurrence, structure_of
from bppsa.plan.choose import Choice, PlannedCall, choose, multiply_inline
from bppsa.plan.forward import Forward
from bppsa.plan.recompute import steps_between
from bppsa.plan.strategy import Strategy
from bppsa.plan.work import ITERATIONS, LOOP, PYTORCH, Counts, Each, Products, Size
from bppsa.runtime.recurrent.recompute import sizes_of

ProductSizes = Sequence[tuple[int, int]]  # of the weights of some products

SINGLE = 4  # bytes
ALONE = 3  # launches on a CPU, where a sweep is no part of a program: by torch's calls around it, T = 10, B = 1, H = 20
OPS_OF_A_STEP = 8  # about, of the loops that the rates are fitted to
# Whatever is predicted of them: nobody has run these kernels on a GPU.
UNMEASURED = 'kernels of values of several axes were not measured on a GPU; strategy="sequential" runs them'


@lru_cache(maxsize=1024)
def counts_of(
    recurrence: Recurrence,
    dtype: torch.dtype,
    inline: bool,
    device: str,
    peer: str,
    structure: Structure | None = None,
    *,
    recomputed: bool = False,
) -> Counts:
    """peer: whose rates PyTorch has. structure: of J^T; without, it counts as dense. recomputed: the backward computes
    states again, which then never leave a cache.
    Raises Unsupported, as `compile_recurrence` does."""
    count, width = (1, sum(recurrence.carries)) if structure is None else (structure.count, structure.width)
    program, word = compile_recurrence(recurrence, dtype, inline, device).program, dtype.itemsize
    real = REAL[dtype]
    kernels = (program.inference, program.forward, program.backward, program.replay)
    inference, forward, backward, replay = (counted(traffic(kernel, real), word) for kernel in kernels)
    again = None
    if recomputed:
        both = (traffic(held(kernel), real) for kernel in program.recomputing)
        again = inference, counted(Traffic(*map(sum, zip(*both, strict=True))), word)
    hoisted, gpu = sum(depth * width for depth, width in before(program)), device == "cuda"
    text = printed(program.backward, REAL[dtype]) if gpu else None
    return Counts(
        peer=peer,
        ops=sum(node.op == "call_function" for graph in graphs(recurrence) for node in graph.nodes),
        inference=inference,
        forward=forward,
        backward=backward,
        before=summed(before(program), word),
        after=summed(after(program), word),
        weights=word * (sum(b.width * b.depth for b in program.forward.buffers if b.kind is Kind.WEIGHT) + hoisted),
        blocks=count,
        width=width,
        word=word,
        tile=1 if text is None else text.block.rows,
        warps=1 if text is None else text.warps,
        padding=tile_padding(recurrence) if gpu else 1.0,
        fits=not gpu or all(holds_weights(kernel, REAL[dtype]) for kernel in (program.forward, program.backward)),
        again=again,
        iterations=1 if structure is not None and structure.solves_at_once else ITERATIONS,
        replay=replay if program.replay.groups else None,
        launches=1 if gpu else ALONE,
    )


@lru_cache(maxsize=4096)
def choose_scan(
    recurrence: Recurrence,
    dtype: torch.dtype,
    asked: Strategy,
    steps: int,
    rows: int,
    training: bool,
    device: str,
    ahead: Forward,
    explained: bool,
) -> Choice:
    """Chooses how a scan over a cell of the user's own runs. ahead: the forward that is asked for. Only a scan and
    Newton's iteration depend on how J^T looks, which takes a while to find out."""
    if device == "cuda" and asked.name == "auto" and of_several_axes(recurrence, dtype):
        return Choice(PYTORCH, UNMEASURED, {})
    asks = explained or (device == "cuda" and (training or ahead.name != "sequential"))
    structure = structure_of(recurrence) if asks else None
    rows *= recurrence.heads
    inline = multiply_inline(rows, device)
    sizes = sizes_of(compile_recurrence(recurrence, dtype, inline, device))
    length = steps_between(sizes, steps, rows) if training and device == "cpu" else None
    counts = counts_of(recurrence, dtype, inline, device, LOOP, structure, recomputed=length is not None)
    call = PlannedCall([counts], Size(steps, rows), training, machine_of(device))
    return choose(asked, call, {}, ahead=ahead, explained=explained).keeping(length, steps)


def of_several_axes(recurrence: Recurrence, dtype: torch.dtype) -> bool:
    """Whether its kernels on a GPU work on values of several axes."""
    program = compile_recurrence(recurrence, dtype, False, "cuda").program
    return has_axes(program.forward) or has_axes(program.backward)


def held(kernel: Kernel) -> Kernel:
    """The kernel with the states of one step, and what it saves in one: they count as what stays in a cache."""
    stay = {b: replace(b, kind=Kind.RUNNING) for b in kernel.buffers if b.kind is Kind.STATE or b.name == "saved"}
    return replace(kernel, buffers=tuple(stay.get(b, b) for b in kernel.buffers))


def ms_of_ops(count: int, training: bool) -> float:
    """What PyTorch takes, on a CPU, to call so many ops of little work; in training, their backwards too. Of what a
    step of a loop takes beside its ops' launches, each op is given an even part."""
    rates = machine_of("cpu").rates
    found = (rates[f"{LOOP} {name}"] for name in (("forward", "backward") if training else ("inference",)))
    return count * sum(rate.launch + rate.step / OPS_OF_A_STEP for rate in found) / 1e3


def tile_padding(recurrence: Recurrence) -> float:
    """Columns of the tiles that hold the carries, for each of theirs."""
    tiles = [padded(width) for carry in recurrence.carries for _, width in blocks(carry)]
    return sum(tiles) / sum(recurrence.carries)


def counted(found: Traffic, word: int) -> Each:
    """A flop of float64 counts twice: half as many fit a register."""
    return Each(found.flops * word / SINGLE, found.bytes, found.folded * word / SINGLE)


def graphs(recurrence: Recurrence) -> list[torch.fx.Graph]:
    return [graph for graph in (recurrence.hoisted, recurrence.body, recurrence.tail) if graph is not None]


def before(program: Program) -> ProductSizes:
    """The streams that are products of a source, where the sweep does not multiply itself."""
    read, streams = {b.name for b in program.forward.arguments}, program.recurrence.streams
    return [(s.depth, s.width) for k, s in enumerate(streams) if s.weight is not None and f"stream{k}" in read]


def after(program: Program) -> ProductSizes:
    """Gradients of sources and weights: products with the cotangents of what each weight gave."""
    sizes = [(outer.left.width, wide(outer.runs)) for outer in program.outers]
    for stream, runs in zip(program.recurrence.streams, program.stream_runs, strict=True):
        if stream.weight is not None and runs is not None:
            sizes += [(stream.depth, wide(runs))] * 2
    return sizes


def summed(sizes: ProductSizes, word: int) -> Products:
    flops = sum(2 * depth * width for depth, width in sizes)
    moved = word * sum(depth + width for depth, width in sizes)
    return Products(len(sizes), counted(Traffic(moved, flops, 0), word))


def wide(runs: Sequence[ColumnRun]) -> int:
    return sum(run.width for run in runs)

"""Cells whose state is a matrix or has heads, beside a Python loop and beside the chunked forms of their papers.

Letters: h heads, D x N a head's state; q, k [T, B, h, D], v [T, B, h, N]. Run by benchmarks/cells.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils import _pytree as pytree

import bppsa
from bppsa.codegen.language.traffic import traffic
from bppsa.frontend.cell import plans
from bppsa.frontend.planning.sweeps import compile_recurrence
from bppsa.plan.choose import multiply_inline
from bppsa.runtime.recurrent.reference import loop
from harness.comparison import Options, Row, compare
from harness.timing import Step, interleave, milliseconds, significant
from rows import chunked
from rows.problems import difference, training_step

STATES, CHUNKED = "states", "chunked"
SIDE = 1024  # of a large matmul, whose rate stands for the peak of flops
COPIED = 64 << 20  # bytes of a copy, whose rate stands for the memory's
LENGTHS = (16, 32, 64)  # of chunks: the fastest counts


class Sizes(NamedTuple):
    T: int
    B: int
    h: int
    D: int
    N: int

    def __str__(self) -> str:
        return f"{self.h}x{self.D}x{self.N}"


class Stated(NamedTuple):
    cell: Callable[[Tensor, Any], tuple[Tensor, Tensor]]
    carry: Tensor
    xs: Any
    inputs: list[Tensor]


def leaf(value: Tensor) -> Tensor:
    return value.detach().requires_grad_()


def given(sizes: Sizes, cell: Callable[..., Any], *more: Tensor, parameters: tuple[Tensor, ...] = ()) -> Stated:
    """A cell over q, k, v and more."""
    T, B, h, D, N = sizes
    shapes = (T, B, h, D), (T, B, h, D), (T, B, h, N)
    xs = (*(leaf(torch.randn(shape) / shape[-1] ** 0.5) for shape in shapes), *map(leaf, more))
    carry = leaf(torch.randn(B, h, D, N))
    return Stated(cell, carry, xs, [carry, *xs, *parameters])


def gated(S: Tensor, x: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """Gated linear attention; log_a [B, h, D]."""
    q, k, v, log_a = x
    S = log_a.exp().unsqueeze(-1) * S + k.unsqueeze(-1) * v.unsqueeze(-2)
    return S, (q.unsqueeze(-1) * S).sum(-2)


def decayed(S: Tensor, x: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """Mamba-2: one decay a head, log_a [B, h]."""
    q, k, v, log_a = x
    S = log_a.exp()[..., None, None] * S + k.unsqueeze(-1) * v.unsqueeze(-2)
    return S, (q.unsqueeze(-1) * S).sum(-2)


def delta(S: Tensor, x: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """DeltaNet; beta [B, h], k of length 1."""
    q, k, v, beta = x
    k = F.normalize(k, dim=-1)
    error = beta.unsqueeze(-1) * (v - (k.unsqueeze(-1) * S).sum(-2))
    S = S + k.unsqueeze(-1) * error.unsqueeze(-2)
    return S, (q.unsqueeze(-1) * S).sum(-2)


def of_gated(sizes: Sizes) -> Stated:
    """Decays as in the paper: sigmoids to the power of 1/16."""
    return given(sizes, gated, F.logsigmoid(torch.randn(*sizes[:4])) / 16)


def of_decayed(sizes: Sizes) -> Stated:
    return given(sizes, decayed, -F.softplus(torch.randn(*sizes[:3]) - 3))


def of_delta(sizes: Sizes) -> Stated:
    return given(sizes, delta, torch.sigmoid(torch.randn(*sizes[:3])))


def of_mamba(sizes: Sizes) -> Stated:
    """Mamba's scan over D channels with N states each; dt and x [T, B, D], its B and C [T, B, N]."""
    T, B, _, D, N = sizes
    A = leaf(torch.arange(1.0, N + 1).log().expand(D, N))

    def cell(h: Tensor, x: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        dt, u, b, c = x
        dt = F.softplus(dt)
        h = torch.exp(-dt.unsqueeze(-1) * A.exp()) * h + (dt * u).unsqueeze(-1) * b.unsqueeze(1)
        return h, (h * c.unsqueeze(1)).sum(-1)

    xs = tuple(leaf(torch.randn(T, B, width)) for width in (D, D, N, N))
    carry = leaf(torch.randn(B, D, N))
    return Stated(cell, carry, xs, [carry, *xs, A])


CELLS: dict[str, Callable[[Sizes], Stated]] = {
    "gated linear attention": of_gated,
    "DeltaNet": of_delta,
    "Mamba-2": of_decayed,
    "Mamba": of_mamba,
}
PARALLEL = {"gated linear attention": chunked.gated, "DeltaNet": chunked.delta, "Mamba-2": chunked.decayed}
SMALL, LARGE, CHANNELS = Sizes(200, 8, 4, 16, 16), Sizes(200, 8, 4, 64, 64), Sizes(200, 8, 1, 64, 16)
AT = [
    *((name, sizes) for name in ("gated linear attention", "DeltaNet") for sizes in (SMALL, LARGE)),
    ("Mamba", CHANNELS),
]


def cases(options: Options) -> list[tuple[str, Sizes]]:
    return [(name, Sizes(8, 2, *sizes[2:])) for name, sizes in AT] if options.quick else AT


def beside_chunks(options: Options) -> list[tuple[str, Sizes]]:
    sizes = Sizes(80, 2, 2, 8, 8) if options.quick else Sizes(512, 8, 4, 64, 64)
    return [(name, sizes) for name in PARALLEL]


def measure_states(case: tuple[str, Sizes], options: Options) -> list[Row]:
    """A training step beside a loop's, what both keep for the backward, and the shares of what the machine can do."""
    name, sizes = case
    torch.manual_seed(0)
    stated = CELLS[name](sizes)
    run, peer = (over(scan, stated) for scan in (bppsa.scan, loop))
    cotangents = [torch.randn_like(output) for output in run()]
    row: Row = {"cell": f"{name} {sizes}", "T": sizes.T, "B": sizes.B}
    row |= {"kept_mb": kept_mb(run, stated.inputs), "loop_mb": kept_mb(peer, stated.inputs)}
    steps = (training_step(way, stated.inputs, cotangents) for way in (peer, run))
    row |= compare(*steps, options.repeats)
    flops, moved = least_work(stated, sizes, row["kept_mb"])
    rates = machine_rates(options)
    row["flops_share"] = significant(flops / (row["ours_ms"] * 1e-3) / rates["flops"])
    row["bytes_share"] = significant(moved / (row["ours_ms"] * 1e-3) / rates["bytes"])
    return [row]


def measure_chunked(case: tuple[str, Sizes], options: Options) -> list[Row]:
    """A training step beside the fastest chunked form's; ratio > 1: ours is faster."""
    name, sizes = case
    torch.manual_seed(0)
    stated = CELLS[name](sizes)
    cotangent = torch.randn(sizes.T, sizes.B, sizes.h, sizes.N)
    ours = lambda: bppsa.scan(stated.cell, stated.carry, stated.xs)[1]  # noqa: E731
    forms = {length: in_chunks(PARALLEL[name], stated, length) for length in LENGTHS}
    worst = max(difference(ours, form, stated.inputs, cotangent) for form in forms.values())
    steps = {length: training_step(form, stated.inputs, cotangent) for length, form in forms.items()}
    found = interleave({str(length): step for length, step in steps.items()}, 2)
    best = min(LENGTHS, key=lambda length: milliseconds(found[str(length)]))
    row: Row = {"cell": f"{name} {sizes}", "T": sizes.T, "B": sizes.B, "chunk": best, "difference": worst}
    row |= compare(steps[best], training_step(ours, stated.inputs, cotangent), options.repeats)
    return [row]


def in_chunks(form: Callable[..., Tensor], stated: Stated, length: int) -> Callable[[], Tensor]:
    return lambda: form(stated.carry, *stated.xs, length=length)


def over(scan: Callable[..., Any], stated: Stated) -> Callable[[], list[Tensor]]:
    return lambda: pytree.tree_leaves(scan(stated.cell, stated.carry, stated.xs))


def kept_mb(run: Callable[[], list[Tensor]], inputs: list[Tensor]) -> float:
    """What autograd keeps between forward and backward, but for the inputs themselves."""
    given = {tensor.untyped_storage().data_ptr() for tensor in inputs}
    kept: dict[int, Tensor] = {}  # holds them, so that no address is given twice

    def pack(tensor: Tensor) -> Tensor:
        at = tensor.untyped_storage().data_ptr()
        if at not in given:
            kept[at] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        outputs = run()
    del outputs
    return significant(sum(tensor.untyped_storage().nbytes() for tensor in kept.values()) / 1e6)


def least_work(stated: Stated, sizes: Sizes, kept: float) -> tuple[float, float]:
    """Flops of a forward and a backward without anything twice; bytes: inputs and outputs with their gradients, what is
    kept written and read once."""
    leaves, spec = pytree.tree_flatten(stated.xs)
    found = plans.find(stated.cell, [stated.carry], pytree.tree_structure(stated.carry), leaves, spec)
    assert isinstance(found, tuple), found
    plan = found[0]
    program = compile_recurrence(plan.recurrence, plan.dtype, multiply_inline(sizes.B, "cpu")).program
    counted = [traffic(kernel, "float") for kernel in (program.forward, program.backward)]
    flops = sum(one.flops + one.folded for one in counted) * sizes.T * sizes.B * plan.recurrence.heads
    outputs = sizes.T * sizes.B * sum(program.recurrence.outputs) * stated.carry.element_size()
    return flops, 3 * sum(t.nbytes for t in stated.inputs) + 2 * outputs + 2e6 * kept


def machine_rates(options: Options) -> dict[str, float]:
    """Flops a second of a large matmul, and bytes a second, read and written, of a large copy."""
    a, b, out = torch.randn(3, SIDE, SIDE)
    source = torch.zeros(COPIED // 4)
    target = torch.empty_like(source)
    steps = {"flops": timed(lambda: torch.mm(a, b, out=out)), "bytes": timed(lambda: target.copy_(source))}
    samples = interleave(steps, options.repeats)
    seconds = {name: milliseconds(of) * 1e-3 for name, of in samples.items()}
    return {"flops": 2 * SIDE**3 / seconds["flops"], "bytes": 2 * COPIED / seconds["bytes"]}


def timed(run: Callable[[], Any]) -> Step:
    def step() -> tuple[float]:
        start = time.perf_counter()
        run()
        return (time.perf_counter() - start,)

    return step

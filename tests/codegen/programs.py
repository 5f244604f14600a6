"""Recurrences as programs, run by any runner: forward, inference and backward, as `recurrent.sweep` calls them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bppsa.codegen.assembling import program
from bppsa.codegen.assembling.program import Program
from bppsa.codegen.language.ir import Kernel
from bppsa.common.chain import Recurrence
from bppsa.fxpasses.network import jacobian
from bppsa.runtime.recurrent import reference
from bppsa.runtime.recurrent.scan.extent import Extent
from bppsa.runtime.recurrent.sweep import Needs, Sweep
from tests.fxpasses.graphs import split_cell
from tests.scan.support import interpreters, reduction_of
from tests.scan.zoo import Example


@dataclass(frozen=True)
class Operands:
    """sources [T, B, n], carries [B, n], parameters as the recurrence numbers them; cotangents of all results."""

    sources: list[Tensor]
    carries: list[Tensor]
    params: list[Tensor]
    g_outputs: list[Tensor]
    g_finals: list[Tensor]


def build(example: Example, *, inline: bool = False) -> Program:
    recurrence = split_cell(example)
    return program.build(recurrence, jacobian.transpose(recurrence), inline=inline)


def operands(recurrence: Recurrence, extent: Extent, seed: int = 0) -> Operands:
    """Random ones; truth values are the numbers 0 and 1."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    steps, rows = extent.steps, extent.rows
    kinds = {
        (n.meta["role"].kind, n.meta["role"].index): n.meta["val"] for n in recurrence.body.nodes if "role" in n.meta
    }
    widths: dict[int, int] = {}
    truths = set()
    for k, stream in enumerate(recurrence.streams):
        depth = stream.width if stream.weight is None else stream.depth
        assert widths.setdefault(stream.source, depth) == depth
        value = kinds.get(("stream", k))
        if value is not None and value.dtype is torch.bool:
            truths.add(stream.source)
    sources = [
        (draw(steps, rows, widths.get(i, 1)) > 0).double() if i in truths else draw(steps, rows, widths.get(i, 1))
        for i in range(max(widths, default=-1) + 1)
    ]
    count = 1 + max([index for kind, index in kinds if kind == "param"], default=-1)
    params = []
    for j in range(count):
        like = kinds.get(("param", j))
        value = draw(*(() if like is None else like.shape))
        params.append((value > 0).double() if like is not None and like.dtype is torch.bool else value)
    return Operands(
        sources,
        [draw(rows, width) for width in recurrence.carries],
        params,
        [draw(steps, rows, width) for width in recurrence.outputs],
        [draw(rows, width) for width in recurrence.carries],
    )


def by_sweep(sweep: Sweep, given: Operands, extent: Extent) -> list[Tensor]:
    """Outputs, last carries, and gradients of sources, carries and parameters."""
    passed = sweep.forward(given.sources, given.carries, given.params, extent, save=True)
    needs = Needs([True] * len(given.sources), [True] * len(given.params))
    got = sweep.backward(passed, given.sources, given.params, given.g_outputs, given.g_finals, extent, needs)
    zeros = [
        torch.zeros_like(like) if g is None else g
        for like, g in zip((*given.sources, *given.params), (*got.sources, *got.params), strict=True)
    ]
    return [*taking_part(passed.outputs, extent), *passed.finals, *got.carries, *zeros]


def by_inference(sweep: Sweep, given: Operands, extent: Extent) -> list[Tensor]:
    passed = sweep.forward(given.sources, given.carries, given.params, extent, save=False)
    return [*taking_part(passed.outputs, extent), *passed.finals]


def taking_part(outputs: Sequence[Tensor], extent: Extent) -> list[Tensor]:
    """Zeros where a packed row has ended: what stands there is nobody's."""
    if extent.active is None:
        return list(outputs)
    there = torch.arange(extent.rows) < extent.active[:, None]
    return [output.where(there[..., None], 0.0) for output in outputs]


def by_autograd(recurrence: Recurrence, given: Operands, extent: Extent) -> list[Tensor]:
    """The same by PyTorch, each row of a packed batch by itself for as many steps as it has."""
    inputs = [t.clone().requires_grad_() for t in (*given.sources, *given.carries, *given.params)]
    first, second = len(given.sources), len(given.sources) + len(given.carries)
    sources, carries, params = inputs[:first], inputs[first:second], inputs[second:]
    lengths = [extent.steps] * extent.rows if extent.lengths is None else extent.lengths.tolist()
    outputs: list[list[Tensor]] = []
    finals: list[Any] = []
    for b, steps in enumerate(lengths):
        row = slice(b, b + 1)
        ys, last = reference.run(
            recurrence,
            [s[:steps, row] for s in sources],
            [c[row] for c in carries],
            params,
            Extent(steps, 1, extent.reverse),
        )
        outputs.append([torch.nn.functional.pad(y, (0, 0, 0, 0, 0, extent.steps - steps)) for y in ys])
        finals.append(last)
    results = [torch.cat(column, 1) for column in zip(*outputs, strict=True)]
    results += [torch.cat(column) for column in zip(*finals, strict=True)]
    loss = sum((r * g).sum() for r, g in zip(results, (*given.g_outputs, *given.g_finals), strict=True))
    grads = torch.autograd.grad(loss, inputs, allow_unused=True)
    filled = [torch.zeros_like(t) if g is None else g for t, g in zip(inputs, grads, strict=True)]
    return [r.detach() for r in (*results, *filled[first:second], *filled[:first], *filled[second:])]


def packed(lengths: Sequence[int], *, reverse: bool = False) -> Extent:
    """Rows sorted longest first."""
    steps = max(lengths)
    active = torch.tensor([sum(length > t for length in lengths) for t in range(steps)])
    return Extent(steps, len(lengths), reverse, active, torch.tensor(lengths))


def interpreted(built: Program) -> Sweep:
    return Sweep(built, torch.float64, interpreters, functools.partial(reduction_of, built.recurrence, False))


def kernels(built: Program) -> tuple[Kernel, ...]:
    return built.forward, built.inference, built.backward

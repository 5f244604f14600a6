"""The matmuls after a backward sweep: gradients of x and of parameters as products over all rows and steps at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bppsa.chain import Weight
from bppsa.codegen.lower import Run
from bppsa.codegen.program import Program, Rows
from bppsa.runtime.extent import Extent, Given, flat

Named = Mapping[str, Tensor]

# MKL sums a product of so few rows or columns one by one: over BLOCK rows at a time the sum rounds much less.
NARROW, BLOCK = 32, 32


def logical(params: Sequence[Tensor], weight: Weight) -> Tensor:
    """The right operand of a product, [K, N]."""
    return params[weight.param].t() if weight.transposed else params[weight.param]


@dataclass(frozen=True)
class Product:
    """weight.grad += left^T cotangents; `left`: rows the sweep knows, or the number of a source."""

    weight: Weight
    left: Rows | int
    runs: tuple[Run, ...]


class After:
    """The matmuls and sums after a backward sweep: gradients of sources and parameters, over all steps at once."""

    def __init__(self, program: Program) -> None:
        self.streams = [
            (stream, runs)
            for stream, runs in zip(program.recurrence.streams, program.stream_runs, strict=True)
            if runs is not None
        ]
        self.products = [Product(outer.weight, outer.left, outer.runs) for outer in program.outers]
        self.products += [Product(s.weight, s.source, runs) for s, runs in self.streams if s.weight is not None]
        self.sums = program.sum_runs

    def of_sources(
        self, tensors: Named, sources: Given, params: Sequence[Tensor], needed: Sequence[bool]
    ) -> list[Tensor | None]:
        """[T, B, n] each, None where not needed or where no gradient flows."""
        grads: list[Any] = [None] * len(sources)
        for stream, runs in self.streams:
            source = sources[stream.source]
            if not needed[stream.source] or source is None:
                continue
            cotangents = [columns(tensors["cotangents"], run.column, run.width) for run in runs]
            if stream.weight is None:
                parts = [torch.cat(cotangents, 1)]
            else:
                weight = logical(params, stream.weight).t()
                parts = [
                    torch.mm(g, weight[run.start : run.start + run.width])
                    for g, run in zip(cotangents, runs, strict=True)
                ]
            for part in parts:
                known = grads[stream.source]
                grads[stream.source] = part if known is None else known.add_(part)
        return [g if g is None else g.view(s.shape) for g, s in zip(grads, sources, strict=True)]

    def of_params(
        self,
        tensors: Named,
        extent: Extent,
        sources: Given,
        params: Sequence[Tensor],
        needed: Sequence[bool],
    ) -> list[Tensor | None]:
        grads: list[Any] = [None] * len(params)
        for product in self.products:
            j = product.weight.param
            if not needed[j]:
                continue
            left = flat(sources[product.left]) if isinstance(product.left, int) else rows(tensors, product.left, extent)
            multiply: Callable[..., object] = add_product
            if grads[j] is None:
                grads[j] = torch.empty_like(params[j], memory_format=torch.contiguous_format)
                multiply = store_product
            for run in product.runs:
                g = columns(tensors["cotangents"], run.column, run.width)
                part = slice(run.start, run.start + run.width)
                if product.weight.transposed:
                    multiply(grads[j][part], g.t(), left)
                else:
                    multiply(grads[j][:, part], left.t(), g)
        for j, runs in self.sums:
            if needed[j]:
                parts = [tensors["sums"][run.column : run.column + run.width] for run in runs]
                total = torch.cat(parts)  # storage of its own: two parameters may have one gradient
                total = (total if total.numel() == params[j].numel() else total.sum()).view(params[j].shape)
                grads[j] = total if grads[j] is None else grads[j] + total
        return grads


def store_product(out: Tensor, a: Tensor, b: Tensor) -> None:
    """out = a b; a: [N, R], b: [R, K]"""
    whole = a.shape[1] // BLOCK * BLOCK
    if min(out.shape) >= NARROW or whole <= BLOCK:
        torch.mm(a, b, out=out)
        return
    blocks = torch.bmm(a[:, :whole].unflatten(1, (-1, BLOCK)).transpose(0, 1), b[:whole].unflatten(0, (-1, BLOCK)))
    torch.sum(blocks, 0, out=out).addmm_(a[:, whole:], b[whole:])


def add_product(out: Tensor, a: Tensor, b: Tensor) -> None:
    product = torch.empty_like(out)
    store_product(product, a, b)
    out += product


def columns(tensor: Tensor, start: int, width: int) -> Tensor:
    """[T, B, n] -> [T * B, width]"""
    return tensor.view(-1, tensor.shape[-1])[:, start : start + width]


def rows(tensors: Named, at: Rows, extent: Extent) -> Tensor:
    """[T * B, width]"""
    tensor = tensors[at.buffer]
    if at.buffer.startswith("carry"):
        tensor = extent.after(tensor) if at.after else extent.before(tensor)
    return flat(tensor)[:, at.column : at.column + at.width]

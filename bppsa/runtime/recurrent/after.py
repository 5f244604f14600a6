"""After a backward sweep: gradients of x and of parameters as products over all rows and steps at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bppsa.codegen.assembling.program import Program
from bppsa.codegen.assembling.sweeps import BufferRows
from bppsa.codegen.cpu.products import OuterProduct, Projection
from bppsa.codegen.lowering.lower import ColumnRun
from bppsa.common.chain import Weight
from bppsa.runtime.recurrent.multiply import Multiply
from bppsa.runtime.recurrent.scan.extent import Extent, Given, flat, rows_contiguous

Named = Mapping[str, Tensor]


def logical(params: Sequence[Tensor], weight: Weight) -> Tensor:
    """The right operand of a product, [K, N]."""
    return params[weight.param].t() if weight.transposed else params[weight.param]


@dataclass(frozen=True)
class Product:
    """weight.grad += left^T cotangents; `left`: rows the sweep knows, or the number of a source."""

    weight: Weight
    left: BufferRows | int
    runs: tuple[ColumnRun, ...]


class After:
    """The matmuls and sums after a backward sweep: gradients of sources and parameters, over all steps at once."""

    def __init__(self, program: Program, multiply: Multiply) -> None:
        self.multiply = multiply
        pairs = enumerate(zip(program.recurrence.streams, program.stream_runs, strict=True))
        self.streams = [(k, stream, runs) for k, (stream, runs) in pairs if runs is not None]
        self.products = [Product(outer.weight, outer.left, outer.runs) for outer in program.outers]
        self.products += [Product(s.weight, s.source, runs) for _, s, runs in self.streams if s.weight is not None]
        self.sums = program.sum_runs

    def __call__(
        self,
        tensors: Named,
        extent: Extent,
        sources: Given,
        params: Sequence[Tensor],
        needs_source: Sequence[bool],
        needs_param: Sequence[bool],
    ) -> tuple[list[Tensor | None], list[Tensor | None]]:
        """Gradients of sources, [T, B, n] each, and of params; None where not needed or where no gradient flows."""
        of_sources, of_params = PartialSums(len(sources)), PartialSums(len(params))
        projections = self.projections(tensors, sources, params, needs_source, of_sources)
        outers = self.outers(tensors, extent, sources, params, needs_param, of_params)
        self.multiply(outers, projections)
        for j, runs in self.sums:
            if needs_param[j]:
                parts = [tensors["sums"][run.column : run.column + run.width] for run in runs]
                total = torch.cat(parts)  # storage of its own: two parameters may have one gradient
                total = total if total.numel() == params[j].numel() else total.sum()
                of_params.add(j, total.view(params[j].shape))
        g_sources = of_sources.totals()
        return [
            g if g is None else g.view(s.shape) for g, s in zip(g_sources, sources, strict=True)
        ], of_params.totals()

    def projections(
        self, tensors: Named, sources: Given, params: Sequence[Tensor], needed: Sequence[bool], found: PartialSums
    ) -> list[Projection]:
        """What gives the gradients of sources once it is computed; a source that is read as it is needs no product."""
        result = []
        for k, stream, runs in self.streams:
            source = sources[stream.source]
            if not needed[stream.source] or source is None:
                continue
            if stream.weight is None:
                part = flat(tensors[f"g_stream{k}"])
            else:
                cotangents = flat(tensors["cotangents"])
                part = cotangents.new_empty(len(cotangents), source.shape[-1])
                result.append(Projection(part, cotangents, logical(params, stream.weight).t(), runs))
            found.add(stream.source, part)
        return result

    def outers(
        self,
        tensors: Named,
        extent: Extent,
        sources: Given,
        params: Sequence[Tensor],
        needed: Sequence[bool],
        found: PartialSums,
    ) -> list[OuterProduct]:
        """What gives the gradients of weights once it is computed."""
        result = []
        for product in self.products:
            weight = product.weight
            if not needed[weight.param]:
                continue
            if isinstance(product.left, int):
                left = rows_contiguous(flat(sources[product.left]))
            else:
                left = rows(tensors, product.left, extent)
            part = torch.empty_like(params[weight.param], memory_format=torch.contiguous_format)
            found.add(weight.param, part)
            out = part.t() if weight.transposed else part
            result.append(OuterProduct(out, left, flat(tensors["cotangents"]), product.runs))
        return result


class PartialSums:
    """Tensors that add up to each of some totals; their contents may come later."""

    def __init__(self, count: int) -> None:
        self.parts: list[list[Tensor]] = [[] for _ in range(count)]

    def add(self, i: int, part: Tensor) -> None:
        self.parts[i].append(part)

    def totals(self) -> list[Any]:
        for first, *rest in filter(None, self.parts):
            for part in rest:
                first += part
        return [parts[0] if parts else None for parts in self.parts]


def rows(tensors: Named, at: BufferRows, extent: Extent) -> Tensor:
    """[T * B, width]"""
    tensor = tensors[at.buffer]
    if at.buffer.startswith("carry"):
        tensor = extent.after(tensor) if at.after else extent.before(tensor)
    return flat(tensor)[:, at.column : at.column + at.width]

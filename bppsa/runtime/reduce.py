"""Each chunk of steps as one pair (J^T, b): the steps' own J^T applied to all columns of a basis at once.

A step's J^T is never formed. It is applied as back-propagation applies it, in its own structure: weights stay shared by
the batch, diagonal parts stay diagonal, a reset selects. Where J^T is made of blocks, one column serves all blocks.
Besides the basis two more columns go along: the cotangents that enter on the way (b), and one of NaN, which comes out
wherever anything gets through: what stays finite is cut off (`Pair.live`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from bppsa.chain import FILLS, Recurrence, Structure, Transposed
from bppsa.runtime.extent import Extent, Given
from bppsa.runtime.pairs import Pair, Rows, scaled

aten = torch.ops.aten
REAL = torch.float64
MOST = 1 << 22  # numbers of one value of the body; more rows than that are reduced in turn


@dataclass(frozen=True)
class Steps:
    """What the steps of a chunked call read. sources, g_outputs [L, R, n]; states [L+1, R, n]; None for zeros."""

    recurrence: Recurrence
    transposed: Transposed
    structure: Structure
    sources: Given
    states: Sequence[Tensor]
    params: Sequence[Tensor]
    g_outputs: Given
    extent: Extent

    def rows(self, part: slice) -> Steps:
        """The same for some of the rows."""
        active, lengths = self.extent.active, self.extent.lengths
        sources, g_outputs = (
            [t if t is None else t[:, part] for t in tensors] for tensors in (self.sources, self.g_outputs)
        )
        states = [state[:, part] for state in self.states]
        count = len(range(*part.indices(self.extent.rows)))
        if lengths is not None:
            lengths = lengths[part]
            active = (lengths > torch.arange(self.extent.steps).unsqueeze(1)).sum(1)
        extent = Extent(self.extent.steps, count, self.extent.reverse, active, lengths)
        return Steps(self.recurrence, self.transposed, self.structure, sources, states, self.params, g_outputs, extent)


def reduce(steps: Steps) -> Pair:
    """[R, count, ...]: the pair of every row's chunk."""
    columns = steps.structure.width + 2
    most = max(1, MOST // (columns * sum(steps.recurrence.carries)))
    parts = [Columns(steps.rows(slice(at, at + most))).run() for at in range(0, steps.extent.rows, most)]
    matrices, vectors = ([getattr(pair, name) for pair in parts] for name in ("matrix", "vector"))
    live = torch.cat([pair.live for pair in parts if pair.live is not None])
    return Pair(joined(matrices), joined(vectors), None if bool(live.all()) else live)


def joined(parts: Sequence[Rows]) -> Rows:
    return Rows(torch.cat([rows.values for rows in parts]), torch.cat([rows.exponents for rows in parts]))


class Columns:
    """The columns of all rows' chunks on their way from the last step to the first, [R, m + 2, N]: a basis of m, then
    b, then NaN. A basis column has a power of two beside each block, [R, m, count]."""

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        structure, rows, total = steps.structure, steps.extent.rows, sum(steps.recurrence.carries)
        self.width, self.count = structure.width, structure.count
        self.g = torch.zeros(rows, self.width + 2, total, dtype=REAL)
        for j in range(self.width):
            self.g[:, j, structure.order[:, j]] = 1.0
        self.g[:, -1] = torch.nan
        self.exponents = torch.zeros(rows, self.width, self.count, dtype=torch.int32)

    def run(self) -> Pair:
        extent = self.steps.extent
        order = range(extent.steps) if extent.reverse else reversed(range(extent.steps))
        for t in order:
            active = extent.rows if extent.active is None else int(extent.active[t])
            if active:
                self.g[:active] = self.step(t, active)
                self.rescale()
        blocks = self.blocks()
        matrix = blocks[:, : self.width].permute(0, 2, 3, 1)  # [R, count, m, m]
        exponents = self.exponents.permute(0, 2, 1).unsqueeze(-2)
        largest = torch.where(matrix == 0, -(1 << 16), torch.frexp(matrix).exponent + exponents).amax(-1)
        rows = Rows.of(scaled(matrix, exponents - largest.unsqueeze(-1)), largest)
        return Pair(rows, Rows.of(blocks[:, -2].unsqueeze(-1)), blocks[:, -1].isnan())

    def blocks(self) -> Tensor:
        """[R, m + 2, count, m]"""
        return self.g[..., self.steps.structure.order]

    def rescale(self) -> None:
        """The largest number of each basis column brought near 1, block by block."""
        blocks = self.blocks()[:, : self.width]
        largest = blocks.abs().amax(-1)
        shift = torch.where(largest.isfinite() & (largest > 0), torch.frexp(largest).exponent, 0)
        self.g[:, : self.width, self.steps.structure.order] = scaled(blocks, -shift.unsqueeze(-1))
        self.exponents += shift

    def step(self, t: int, active: int) -> Tensor:
        """J^T of step t applied to the columns of the first `active` rows, and what enters at the step added to b."""
        steps, recurrence = self.steps, self.steps.recurrence
        columns = self.width + 2
        values = body_values(steps, t, active)

        def repeated(value: Tensor) -> Tensor:
            return value.repeat_interleave(columns, 0)

        def given(node: fx.Node) -> Tensor:
            role = node.meta["role"]
            if role.kind == "g_carry":
                return g[role.index].reshape(-1, *node.meta["val"].shape[1:])
            if role.kind == "g_output":
                return entering(role.index).reshape(-1, *node.meta["val"].shape[1:])
            value = values[role.index if role.kind == "value" else f"{role.kind}{role.index}"]
            return value if role.kind == "param" else repeated(value)

        def entering(k: int) -> Tensor:
            whole = torch.zeros(active, columns, recurrence.outputs[k], dtype=REAL)
            if steps.g_outputs[k] is not None:
                whole[:, -2] = steps.g_outputs[k][t, :active]
            return whole.flatten(0, 1)

        g = self.g[:active].flatten(0, 1).split(recurrence.carries, 1)
        known = evaluate(steps.transposed.graph, active * columns, given)
        parts = [
            torch.zeros(active * columns, width, dtype=REAL) if node is None else known[node].reshape(-1, width)
            for node, width in zip(steps.transposed.carries, recurrence.carries, strict=True)
        ]
        return torch.cat(parts, 1).unflatten(0, (active, columns))


def body_values(steps: Steps, t: int, active: int) -> dict[str, Tensor]:
    """Every value of the forward body at step t by name, float64."""
    recurrence, extent = steps.recurrence, steps.extent

    def given(node: fx.Node) -> Tensor:
        role = node.meta["role"]
        if role.kind == "param":
            return steps.params[role.index].to(REAL)
        rows = steps.states[role.index][t + extent.reverse] if role.kind == "carry" else stream(role.index)
        return rows[:active].to(REAL).reshape(-1, *node.meta["val"].shape[1:])

    def stream(k: int) -> Tensor:
        described = recurrence.streams[k]
        rows = steps.sources[described.source][t].to(REAL)
        if described.weight is None:
            return rows
        weight = steps.params[described.weight.param].to(REAL)
        return rows @ (weight.t() if described.weight.transposed else weight)

    return {node.name: value for node, value in evaluate(recurrence.body, active, given).items()}


def evaluate(graph: fx.Graph, rows: int, given: Callable[[fx.Node], Tensor]) -> Mapping[fx.Node, Tensor]:
    """The values of a graph's nodes for so many rows, in float64, whatever the graph was recorded with."""
    values: dict[fx.Node, Any] = {}
    for node in graph.nodes:
        if node.op == "placeholder" and node.users:
            truth = node.meta["val"].dtype is torch.bool  # which sweeps keep as numbers
            values[node] = given(node).to(torch.bool if truth else REAL)
        elif node.op == "call_function":
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
            values[node] = as_real(node.target(*resized(node, args, rows), **kwargs))
    return values


def resized(node: fx.Node, args: tuple, rows: int) -> tuple:
    """Arguments that give a size count the rows of the recording; what has no rows is as good with one for each."""
    if node.target is aten.view.default:
        return (args[0], [-1, *args[1][1:]])
    if node.target is not aten.expand.default and node.target not in FILLS:
        return args
    return tuple([rows, *arg[1:]] if isinstance(arg, (list, tuple)) and len(arg) else arg for arg in args)


def as_real(value: Tensor) -> Tensor:
    return value.to(REAL) if value.dtype.is_floating_point else value

"""A call of a recurrent model whose time axis is cut: its batch is cut into micro-batches, and each into chunks.

Part b * K + k is chunk k of micro-batch b: losses, outputs, cotangents and gradients of arguments are by part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from bppsa._workers.batches import Batch, by_leaf
from bppsa._workers.losses import Share
from bppsa._workers.time_losses import TimeLoss, by_part, time_loss
from bppsa._workers.training import Training
from bppsa.errors import InputError, ScheduleError
from bppsa.runtime.worker.draws import Seed
from bppsa.runtime.worker.modes import Modes
from bppsa.runtime.worker.over_time.work import reads, writes
from bppsa.runtime.worker.pipeline import Call
from bppsa.runtime.worker.results import Outcome
from bppsa.schedule.messages import Items
from bppsa.schedule.spec import Schedule
from bppsa.stages import Axes, OverTime


@dataclass(frozen=True)
class TimeBatch(Batch):
    """steps: of each chunk. axes: of each tensor of each argument."""

    model: OverTime
    steps: list[int]
    axes: list[list[Axes]]

    def gradients(self, found: Mapping[tuple[int, int], Sequence[Tensor | None]]) -> list[Tensor | None]:
        parts = range(len(self.sizes) * len(self.steps))
        return [
            self.joined([found[part, v][at] for part in parts], self.axes[v][at], shape=list(x.shape))
            for v, tensors in enumerate(self.arguments)
            for at, x in enumerate(tensors)
            if x.requires_grad
        ]

    def joined(self, pieces: Sequence[Tensor | None], axes: Axes, shape: list[int]) -> Tensor | None:
        """A gradient of this shape from those of the parts. What has not been cut has been read by several."""
        K = len(self.steps)

        def over(parts: Sequence[Tensor | None], axis: int | None, sizes: Sequence[int], shape: list[int]) -> Any:
            known = [part for part in parts if part is not None]
            if not known or axis is None:
                return reduce(torch.add, known) if known else None
            at = [[*shape[:axis], size, *shape[axis + 1 :]] for size in sizes]
            filled = zip(parts, at, strict=True)
            return torch.cat([known[0].new_zeros(size) if part is None else part for part, size in filled], axis)

        rows = []
        for b, size in enumerate(self.sizes):
            of_rows = [size if axis == axes.rows else n for axis, n in enumerate(shape)]
            rows.append(over(pieces[b * K : b * K + K], axes.time, self.steps, of_rows))
        return over(rows, axes.rows, self.sizes, shape)

    def cotangents(self, grads: Sequence[Tensor | None]) -> list[list[Tensor | None]]:
        """Of each part. grads: of each leaf of what the module returns."""
        cut = [self.cut(grad, axes) for grad, axes in zip(grads, self.model.outputs_axes, strict=True)]
        return [list(column) for column in zip(*cut, strict=True)]

    def cut(self, grad: Tensor | None, axes: Axes) -> list[Tensor | None]:
        """What is of the last step goes to the last chunk."""
        K = len(self.steps)
        if grad is None:
            return [None] * (len(self.sizes) * K)
        found: list[Tensor | None] = []
        for rows in [grad] if axes.rows is None else grad.split(self.sizes, axes.rows):
            found += [None] * (K - 1) + [rows] if axes.time is None else list(rows.split(self.steps, axes.time))
        return found

    def outputs(self, made: Mapping[int, Any]) -> Any:
        """made: what the module returned, by part."""
        K, flat = len(self.steps), [tree_flatten(made[part]) for part in sorted(made)]

        def whole(pieces: Sequence[Any], axes: Axes) -> Any:
            if not isinstance(pieces[0], Tensor):
                return pieces[-1]
            of_rows = [pieces[b * K : b * K + K] for b in range(len(self.sizes))]
            rows = [chunks[-1] if axes.time is None else torch.cat(list(chunks), axes.time) for chunks in of_rows]
            return rows[0] if axes.rows is None else torch.cat(rows, axes.rows)

        columns = zip(*(leaves for leaves, _ in flat), strict=True)
        found = [whole(pieces, axes) for pieces, axes in zip(columns, self.model.outputs_axes, strict=True)]
        return self.model.assemble(tree_unflatten(found, flat[0][1]))


class TimeTraining(Training):
    """Of a model cut over time."""

    stages: OverTime
    losses: TimeLoss | None = None  # as the first step's target shows

    def items(self, schedule: Schedule) -> tuple[Items, Items]:
        assert schedule.inputs is not None
        return partial(reads, schedule.inputs, self.stages.chunks), writes

    def batch(self, args: Sequence[Any], kwargs: Mapping[str, Any], modes: Modes) -> TimeBatch:
        """Cut into micro-batches; jobs cut these into chunks. Raises InputError where there are too few steps."""
        if self.settings.local:
            raise ScheduleError("data='local' goes with ranks that have rows of their own; blelloch(K) cuts time")
        arguments, model = self.stages.bind(*args, **kwargs), self.stages
        leaves, spec = tree_flatten(arguments)
        steps = self.length(leaves, "time", 1)
        rows = self.length(leaves, "rows", 1)
        if steps < model.chunks:
            raise InputError(f"{steps} steps cannot be cut into {model.chunks} chunks; give more, or blelloch({steps})")
        count = min(self.settings.microbatches, rows)
        sizes = lengths(rows, count)
        cut = [by_part(x, Axes(rows=of.rows), sizes, [0]) for x, of in zip(leaves, model.arguments_axes, strict=True)]
        seeds = [Seed(self.seed, self.calls, b) for b in range(count)]
        self.calls += 1
        tensors = [[x for x in tree_leaves(argument) if isinstance(x, Tensor)] for argument in arguments]
        axes = iter([of for x, of in zip(leaves, model.arguments_axes, strict=True) if isinstance(x, Tensor)])
        shapes = [(tuple(x.shape), x.dtype) for of_argument in tensors for x in of_argument]
        parts = [tree_unflatten([pieces[b] for pieces in cut], spec) for b in range(count)]
        return TimeBatch(
            Call(parts, modes, seeds, repr((modes, shapes))),
            range(count),
            rows,
            sizes,
            tensors,
            model,
            lengths(steps, model.chunks),
            [[next(axes) for _ in of_argument] for of_argument in tensors],
        )

    def length(self, leaves: Sequence[Any], axis: str, otherwise: int) -> int:
        """Raises InputError where arguments disagree."""
        found = {
            leaf.shape[at]
            for leaf, of in zip(leaves, self.stages.arguments_axes, strict=True)
            if (at := getattr(of, axis)) is not None
        }
        if len(found) > 1:
            raise InputError(f"arguments have {' and '.join(map(str, sorted(found)))} {axis}, which have to be as many")
        return found.pop() if found else otherwise

    def loss(self, batch: Batch, target: Any) -> Share:
        assert isinstance(batch, TimeBatch)
        if self.losses is None:
            settings = self.settings
            self.losses = time_loss(
                self.stages, settings.loss_fn, settings.loss_weight, target, sum(batch.sizes), sum(batch.steps)
            )
        return self.losses.share(target, batch.sizes, batch.steps)

    def outputs(self, found: Outcome, batch: Batch) -> Any:
        return batch.outputs(found.outputs)

    def cotangents(self, made: Any, batch: Batch, grads: Sequence[Tensor | None]) -> list[list[Tensor | None]]:
        return batch.cotangents(by_leaf(self.stages.example, self.stages.assemble, grads))


def lengths(size: int, count: int) -> list[int]:
    """Of the parts that torch.tensor_split makes."""
    return [size // count + (part < size % count) for part in range(count)]

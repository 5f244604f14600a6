"""A batch cut into micro-batches and chunks of time: losses, outputs, cotangents and gradients are by part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from bppsa.common.stages import Axes, OverTime
from bppsa.distributed.batch.batches import Batch
from bppsa.distributed.over_time.parts import Parts, gradients, values


@dataclass(frozen=True)
class TimeBatch(Batch):
    """axes: of each tensor of each argument."""

    model: OverTime
    parts: Parts
    axes: list[list[Axes]]

    def gradients(self, found: Mapping[tuple[int, int], Sequence[Tensor | None]]) -> list[Tensor | None]:
        """The gradients of `wanted`. found: those of each part and argument, for the argument's tensors."""
        return [
            self.parts.joined([found[part, v][at] for part in range(len(self.parts))], self.axes[v][at], gradients)
            for v, tensors in enumerate(self.arguments)
            for at, x in enumerate(tensors)
            if x.requires_grad
        ]

    def cotangents(self, grads: Sequence[Tensor | None]) -> list[list[Tensor | None]]:
        """The cotangents of each part. grads: those of each leaf of what the graph returns."""
        cut = [
            [None] * len(self.parts) if grad is None else self.parts.cut_at_end(grad, axes)
            for grad, axes in zip(grads, self.model.outputs_axes, strict=True)
        ]
        return [list(column) for column in zip(*cut, strict=True)]

    def outputs(self, made: Mapping[int, Any]) -> Any:
        """What the model returns for the batch. made: what the graph returned, by part."""
        flat = [tree_flatten(made[part]) for part in range(len(self.parts))]
        columns = zip(*(leaves for leaves, _ in flat), strict=True)
        found = [
            self.parts.joined(column, axes, values)
            for column, axes in zip(columns, self.model.outputs_axes, strict=True)
        ]
        return self.model.assemble(tree_unflatten(found, flat[0][1]))

"""The loss of a chunk of time as its share of the whole batch's.

A loss over all steps is read as a mean over rows and steps, or as a sum where its `reduction` says so. A loss whose
target has no steps is of the last chunk's output, as one that reads the last step is. Before the first step this
reading is tried on a short output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from bppsa._workers.losses import LossFunction, LossWeight, Share
from bppsa.errors import ArgumentError, ScheduleError
from bppsa.stages import Axes, OverTime


@dataclass(frozen=True)
class TimeLoss:
    """axes: of each leaf of the target."""

    loss_fn: LossFunction
    loss_weight: LossWeight | None
    axes: tuple[Axes, ...]

    @property
    def of_all_steps(self) -> bool:
        return any(of.time is not None for of in self.axes)

    def share(self, target: Any, sizes: Sequence[int], steps: Sequence[int]) -> Share:
        """sizes: rows of each micro-batch; steps: of each chunk. By part."""
        sums = getattr(self.loss_fn, "reduction", "mean") == "sum"
        targets, counted = self.cut(target, sizes, steps), []
        for part, of_part in enumerate(targets):
            b, k = divmod(part, len(steps))
            if not self.of_all_steps and k < len(steps) - 1:
                counted.append(0.0)
            elif sums:
                counted.append(1.0)
            elif self.loss_weight is not None:
                counted.append(float(self.loss_weight(of_part)))
            else:
                counted.append(float(sizes[b] * steps[k] if self.of_all_steps else sizes[b]))
        total = 1.0 if sums else sum(counted)
        return Share(self.loss_fn, targets, [count / total if total else count for count in counted])

    def cut(self, target: Any, sizes: Sequence[int], steps: Sequence[int]) -> list[Any]:
        leaves, spec = tree_flatten(target)
        columns = [by_part(leaf, of, sizes, steps) for leaf, of in zip(leaves, self.axes, strict=True)]
        if not columns:
            return [target] * (len(sizes) * len(steps))
        return [tree_unflatten(list(pieces), spec) for pieces in zip(*columns, strict=True)]


def by_part(x: Any, axes: Axes, sizes: Sequence[int], steps: Sequence[int]) -> list[Any]:
    """Its piece for each part, chunk by chunk of each micro-batch; what has no such axis goes along whole."""
    found: list[Any] = []
    for rows in [x] * len(sizes) if axes.rows is None else x.split(list(sizes), axes.rows):
        found += [rows] * len(steps) if axes.time is None else rows.split(list(steps), axes.time)
    return found


def time_loss(
    model: OverTime, loss_fn: LossFunction | None, loss_weight: LossWeight | None, target: Any, rows: int, steps: int
) -> TimeLoss:
    """For targets like this one, of so many rows and steps.

    Raises ArgumentError where there is no loss, ScheduleError where that of the whole output is not that of its chunks.
    """
    if loss_fn is None:
        raise ArgumentError("a model cut over time returns outputs, and no loss of all its steps; give loss_fn=")
    like = min(model.outputs_axes, key=lambda of: of.time is None, default=Axes())
    leaves, spec = tree_flatten(target)
    axes = tuple(axes_of(leaf, like, rows, steps) for leaf in leaves)
    loss = TimeLoss(loss_fn, loss_weight, axes)
    if model.chunks > 1:
        short = tree_unflatten([narrowed(leaf, of, model) for leaf, of in zip(leaves, axes, strict=True)], spec)
        check(model, loss, short)
    return loss


def axes_of(leaf: Any, like: Axes, rows: int, steps: int) -> Axes:
    """like: of an output."""
    if not isinstance(leaf, Tensor):
        return Axes()

    def found(size: int, usual: int | None, taken: int | None = None) -> int | None:
        places = [axis for axis in range(leaf.dim()) if leaf.shape[axis] == size and axis != taken]
        return None if usual is None else min(places, key=lambda axis: axis != usual, default=None)

    across = found(rows, like.rows)
    return Axes(found(steps, like.time, across), across)


def narrowed(leaf: Any, axes: Axes, model: OverTime) -> Any:
    """To the rows and steps of the model's example."""
    rows, steps = example_size(model)
    for axis, size in ((axes.time, steps), (axes.rows, rows)):
        leaf = leaf if axis is None else leaf.narrow(axis, 0, size)
    return leaf


def example_size(model: OverTime) -> tuple[int, int]:
    """Its rows and steps; of one step where outputs are of the last."""
    rows, steps = 1, 1
    for leaf, of in zip(tree_leaves(model.example), model.outputs_axes, strict=True):
        rows = rows if of.rows is None else leaf.shape[of.rows]
        steps = steps if of.time is None else leaf.shape[of.time]
    return rows, steps


@torch.no_grad()
def check(model: OverTime, loss: TimeLoss, target: Any) -> None:
    rows, steps = example_size(model)
    if steps < 2:
        steps = 2  # no output has steps: all of them are the last chunk's
    leaves, spec = tree_flatten(model.example)
    halves = [steps - steps // 2, steps // 2]
    columns = [by_part(leaf, of, [rows], halves) for leaf, of in zip(leaves, model.outputs_axes, strict=True)]
    for column, of in zip(columns, model.outputs_axes, strict=True):
        if of.time is None and isinstance(column[0], Tensor) and column[0].is_floating_point():
            column[0] = torch.randn_like(column[0])  # the first chunk's last step is another than the second's
    whole = loss.loss_fn(model.assemble(model.example), target)
    share = loss.share(target, [rows], halves)
    outputs = [model.assemble(tree_unflatten(list(pieces), spec)) for pieces in zip(*columns, strict=True)]
    total = sum((share(output, part) for part, output in enumerate(outputs)), torch.zeros(()))
    difference = float(total) - float(whole)
    if abs(difference) > torch.finfo(total.dtype).eps ** 0.5 * max(1.0, abs(float(whole))):
        raise ScheduleError(
            f"the time axis cannot be cut under this loss: of {steps} steps at once it is {float(whole):.6g}, and "
            f"{'put together from two chunks' if loss.of_all_steps else 'of the last chunk alone'} {float(total):.6g}; "
            f"{MENDS[loss.of_all_steps]}"
        )


MENDS = {
    True: "let loss_fn be a mean over rows and steps, give it reduction='sum', or say what a part counts by "
    "loss_weight(target)",
    False: "a target without steps goes with a loss of the last step; let the model return that step alone, or give a "
    "target for each step",
}

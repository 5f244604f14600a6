"""The losses of chunks of time, weighted so that their sum is the whole batch's.

It is read in one of two ways. Of all steps: a mean over rows and steps, or a sum; what of the target has steps is cut
as the output is. Of the last step: of the last chunk's output and the whole target, and nothing of others. Before
the first step these are tried on a short output, and the loss has to be one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from bppsa.common.stages import Axes, OverTime
from bppsa.distributed.batch.whole import MEND, check_is_no_array
from bppsa.distributed.losses.counts import LossFunction, LossWeight, is_sum, is_torchs
from bppsa.distributed.losses.metrics import split_loss
from bppsa.distributed.losses.reads import NameOf, unnamed
from bppsa.distributed.losses.weighted import UNREAD, WeightedLoss
from bppsa.distributed.over_time.parts import Parts, lengths
from bppsa.errors import ArgumentError, InputError, ScheduleError, first_line
from bppsa.fxpasses.partition.call.arguments import LeafShape, named_leaves, shapes_of
from bppsa.fxpasses.theirs import raise_if_ours, theirs

WHAT_LOSSES_RAISE = (ArgumentError, RuntimeError, ValueError, TypeError, LookupError)  # of other sizes


@dataclass(frozen=True)
class TimeLoss:
    """axes: of each leaf of the target."""

    loss_fn: LossFunction
    loss_weight: LossWeight | None
    axes: tuple[Axes, ...]
    of_all_steps: bool
    sums: bool
    shapes: tuple[LeafShape, ...]  # of the target that it was tried with

    def fits(self, target: Any, parts: Parts) -> bool:
        """Whether a target has its axes where the one has that the loss was tried with."""
        shapes, sizes = shapes_of(tree_leaves(target)), Axes(sum(parts.steps), sum(parts.rows))
        if len(shapes) != len(self.shapes):
            return False
        return all(
            shape == like if shape is None or like is None else resized(like, of, sizes) == shape
            for shape, like, of in zip(shapes, self.shapes, self.axes, strict=True)
        )

    @property
    def of_last_step(self) -> TimeLoss:
        return replace(self, axes=tuple(Axes(None, of.rows) for of in self.axes), of_all_steps=False)

    def weighted(self, target: Any, parts: Parts, names: NameOf = unnamed) -> WeightedLoss:
        """The losses of all parts."""
        leaves, spec = tree_flatten(target)
        columns = [parts.cut(leaf, of) for leaf, of in zip(leaves, self.axes, strict=True)]
        targets = [tree_unflatten([column[part] for column in columns], spec) for part in range(len(parts))]
        counted = [self.counts(part, targets[part], parts) for part in range(len(parts))]
        total = 1.0 if self.sums else sum(counted)
        weights = [count / total if total else count for count in counted]
        read = [target if self.reads(part, parts) else UNREAD for part, target in enumerate(targets)]
        return WeightedLoss(self.loss_fn, read, weights, names=names)

    def reads(self, part: int, parts: Parts) -> bool:
        """Whether the loss is of this part's output."""
        return self.of_all_steps or parts.is_last(part)

    def counts(self, part: int, target: Any, parts: Parts) -> float:
        """What a part counts in the batch's loss."""
        if not self.reads(part, parts):
            return 0.0
        if self.sums:
            return 1.0
        if self.loss_weight is not None:
            return float(theirs(self.loss_weight, target))
        b, k = divmod(part, len(parts.steps))
        return float(parts.rows[b] * parts.steps[k] if self.of_all_steps else parts.rows[b])

    def readings(self) -> list[TimeLoss]:
        """What the loss is tried as: a sum only where nothing says what a part of a mean counts."""
        ways = [self.sums] if self.sums or self.loss_weight is not None else [False, True]
        return [one for sums in ways for of in (self, self.of_last_step) for one in (replace(of, sums=sums),)]


def time_loss(
    model: OverTime, loss_fn: LossFunction | None, loss_weight: LossWeight | None, target: Any, parts: Parts
) -> TimeLoss:
    """How the loss is cut for targets like this one, of a batch with these parts.

    Raises ArgumentError where there is no loss, ScheduleError where that of the whole output is not that of its chunks.
    """
    if loss_fn is None:
        raise ArgumentError("a model cut over time returns outputs, and no loss of all its steps; give loss_fn=")
    like = min(model.outputs_axes, key=lambda of: of.time is None, default=Axes())
    rows, steps = sum(parts.rows), sum(parts.steps)
    axes = tuple(axes_of(leaf, like, rows, steps) for leaf in tree_leaves(target))
    if len(parts.rows) > 1:
        check_rows_of(target, axes, rows)
    read = TimeLoss(loss_fn, loss_weight, axes, True, is_sum(loss_fn), shapes_of(tree_leaves(target)))
    if len(parts) == 1 or (model.chunks == 1 and is_torchs(loss_fn)):
        return read
    short = Short.of(model, min(model.chunks, 2), cut_rows=len(parts.rows) > 1)
    whole = short.whole(loss_fn, model, target, axes, parts)
    target = short.target(target, axes)
    for reading in read.readings():
        if short.gives(reading, target, whole):
            return reading
    raise ScheduleError(
        f"the time axis cannot be cut under this loss: for {sum(short.parts.steps)} steps at once it is {whole:.6g}, "
        f"and neither chunks' losses put together nor the last chunk's alone give that; let loss_fn be of the last "
        f"step alone, or a mean or a sum over rows and steps, or say what a part counts by loss_weight(target)"
    )


def resized(shape: tuple[int, ...], axes: Axes, sizes: Axes) -> tuple[int, ...]:
    """The shape with other sizes of what is cut."""
    others = dict(zip(axes, sizes, strict=True))
    return tuple(others.get(axis) or size for axis, size in enumerate(shape))


def check_rows_of(target: Any, axes: Sequence[Axes], rows: int) -> None:
    """Raises InputError where a tensor of the target has no axis of rows, and would be repeated."""
    for (name, leaf), of in zip(named_leaves("target", target), axes, strict=True):
        check_is_no_array(name, leaf)
        if isinstance(leaf, Tensor) and leaf.dim() and of.rows is None:
            raise InputError(
                f"{name} is a tensor {list(leaf.shape)}, and the batch has {rows} rows: a target is cut into "
                f"micro-batches with the batch; give it an axis of {rows}, or {MEND}"
            )


def axes_of(leaf: Any, like: Axes, rows: int, steps: int) -> Axes:
    """The axes of a leaf of the target. like: those of an output."""
    if not isinstance(leaf, Tensor):
        return Axes()

    def found(size: int, usual: int | None, taken: int | None = None) -> int | None:
        places = [axis for axis in range(leaf.dim()) if leaf.shape[axis] == size and axis != taken]
        return None if usual is None else min(places, key=lambda axis: axis != usual, default=None)

    across = found(rows, like.rows)
    return Axes(found(steps, like.time, across), across)


@dataclass(frozen=True)
class Short:
    """What the model returns for its short example, cut over time as the model is, in two at most. outputs: by part."""

    parts: Parts
    outputs: list[Any]
    tolerance: float  # relative

    @staticmethod
    def of(model: OverTime, chunks: int, *, cut_rows: bool) -> Short:
        leaves, spec = tree_flatten(model.example)
        rows, steps = 1, 2  # where no output has steps, all of them are the last chunk's
        for leaf, of in zip(leaves, model.outputs_axes, strict=True):
            rows = rows if of.rows is None else leaf.shape[of.rows]
            steps = steps if of.time is None else leaf.shape[of.time]
        parts = Parts(lengths(rows, 2 if cut_rows and rows > 1 else 1), lengths(steps, chunks))
        columns = [parts.cut(leaf, of) for leaf, of in zip(leaves, model.outputs_axes, strict=True)]
        for column, of in zip(columns, model.outputs_axes, strict=True):
            if of.time is None:  # the first chunk's last step is another than the second's
                column[:] = [x if parts.is_last(part) else drawn_like(x) for part, x in enumerate(column)]
        outputs = [tree_unflatten([column[part] for column in columns], spec) for part in range(len(parts))]
        real = [x.dtype for x in leaves if isinstance(x, Tensor) and x.is_floating_point()]
        tolerance = max((torch.finfo(dtype).eps for dtype in (*real, torch.get_default_dtype())), default=0.0) ** 0.5
        return Short(parts, [model.assemble(output) for output in outputs], tolerance)

    def whole(self, loss_fn: LossFunction, model: OverTime, target: Any, axes: Sequence[Axes], parts: Parts) -> float:
        """The loss of the whole example. Raises InputError where loss_fn cannot take a target like this one."""
        output, short = model.assemble(model.example), self.target(target, axes)
        try:
            loss, metrics = split_loss(theirs(loss_fn, output, short))
            found = float(loss)
        except WHAT_LOSSES_RAISE as error:
            raise_if_ours(error)
            given = ", ".join(
                f"{name} {list(x.shape)}" for name, x in named_leaves("target", target) if isinstance(x, Tensor)
            )
            raise InputError(
                f"{given or 'the target'} and a batch of {sum(parts.steps)} steps and {sum(parts.rows)} rows: for a "
                f"few of its steps and rows loss_fn raises {first_line(error)!r}; give a target that goes with the "
                f"model's output"
            ) from error
        if metrics is not None:
            raise ArgumentError(
                "loss_fn gives more than the loss, and metrics of chunks of time are not put together; let it return "
                "the loss alone, and compute metrics from outputs"
            )
        return found

    def target(self, target: Any, axes: Sequence[Axes]) -> Any:
        """A target of so many rows and steps."""
        leaves, spec = tree_flatten(target)
        return tree_unflatten([self.shortened(leaf, of) for leaf, of in zip(leaves, axes, strict=True)], spec)

    def shortened(self, leaf: Any, axes: Axes) -> Any:
        """A short leaf; one of whole numbers has all kinds of them, sorted by steps, or rows where it has no steps:
        what is counted otherwise than others, such as `ignore_index`, is then in one part."""
        short = leaf
        for axis, size in ((axes.time, sum(self.parts.steps)), (axes.rows, sum(self.parts.rows))):
            if axis is not None:  # a batch may be smaller than the example
                short = short.index_select(axis, torch.arange(size, device=leaf.device) % leaf.shape[axis])
        along = axes.rows if axes.time is None else axes.time
        if along is None or leaf.is_floating_point() or leaf.is_complex():
            return short
        kinds = leaf.unique()
        some = kinds[torch.linspace(0, len(kinds) - 1, short.numel(), device=leaf.device).long()]
        return some.view_as(short.movedim(along, 0)).movedim(0, along)

    def gives(self, loss: TimeLoss, target: Any, whole: float) -> bool:
        """Whether the parts' losses add up to the whole's."""
        try:
            weighted = loss.weighted(target, self.parts)
            total = sum(float(weighted(output, part)[0]) for part, output in enumerate(self.outputs))
        except WHAT_LOSSES_RAISE as error:
            raise_if_ours(error)
            return False
        return abs(total - whole) <= self.tolerance * max(1.0, abs(whole))


def drawn_like(x: Any) -> Any:
    """Other numbers of its size, the same on every rank, and none of the caller's."""
    if not (isinstance(x, Tensor) and x.is_floating_point()):
        return x
    return torch.randn(x.shape, generator=torch.Generator().manual_seed(0)).to(x)

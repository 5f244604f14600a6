"""Arguments that have the batch's rows in another dimension than the first, as the state [L, B, H] of a recurrent layer
has: micro-batches are cut along the first, so such a model is refused where it is cut into stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_structure

from bppsa.common.stages import Stages
from bppsa.errors import PartitionError
from bppsa.fxpasses.partition.call.arguments import Arguments
from bppsa.fxpasses.partition.call.kept import is_on_meta
from bppsa.fxpasses.partition.check.rows import PartRuns, RowsReading, evaluating, parts


@dataclass(frozen=True)
class SidewaysRuns(PartRuns):
    """axes: the dimension of rows of some leaves, which are given with this dimension in front."""

    axes: Mapping[int, int]

    def run(self, leaves: Sequence[Any]) -> list[Any]:
        return super().run([x.movedim(0, self.axes[i]) if i in self.axes else x for i, x in enumerate(leaves)])


def check_sideways(model: nn.Module, stages: Stages, arguments: Arguments, reading: RowsReading) -> None:
    """Raises PartitionError with the argument's name where the model gives for parts of the batch what it gives for
    these among all if such arguments are cut with it, and something else, or an error, if they are whole."""
    leaves = arguments.leaves
    rows = next((len(x) for x, yes in zip(leaves, reading, strict=True) if yes), 0)
    axes = {i: axis for i, x in enumerate(leaves) if not reading[i] and (axis := axis_of(x, rows))}
    if not axes or rows < 2 or is_on_meta(model):
        return
    runs = model, stages, tree_structure(list(arguments.examples)), rows, parts(rows)
    moved = [x.movedim(axes[i], 0) if i in axes else x for i, x in enumerate(leaves)]
    cut = tuple(yes or i in axes for i, yes in enumerate(reading))
    with evaluating(model, stages):
        if fits(PartRuns(*runs), leaves, reading) or not fits(SidewaysRuns(*runs, axes), moved, cut):
            return
    i, axis = next(iter(axes.items()))
    name = arguments.leaf_names[i]
    raise PartitionError(
        f"{type(model).__name__}: argument {name} is a tensor {list(leaves[i].shape)} with the batch's rows in "
        f"dimension {axis}, as parts of the batch show, and micro-batches are cut along dimension 0; give it with rows "
        f"first, as {list(moved[i].shape)}, and let the forward read {name}.movedim(0, {axis})"
    )


def axis_of(x: Any, rows: int) -> int:
    """The first dimension but 0 that is as long as the batch; 0 where there is none."""
    shape = x.shape[1:] if isinstance(x, Tensor) else ()
    return next((axis for axis, size in enumerate(shape, 1) if size == rows), 0)


def fits(runs: PartRuns, leaves: Sequence[Any], reading: RowsReading) -> bool:
    ends = runs.ends(leaves)
    verdict = None if ends is None else runs.verdict(leaves, ends, reading)
    return verdict is not None and verdict.fits

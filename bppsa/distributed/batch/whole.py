"""What goes along with every micro-batch as it is, and must not: tensors that have rows, but not the batch's.

Such a tensor may fit a micro-batch by its size, or be broadcast to a micro-batch of one row. The model would then train
on it as often as there are micro-batches, where PyTorch refuses the whole batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from torch import Tensor

from bppsa.common.stages import Axes
from bppsa.distributed.batch.batches import is_batched
from bppsa.errors import InputError
from bppsa.fxpasses.partition.call.arguments import LeafShape, named_leaves

MEND = "bind what holds for all rows to loss_fn with functools.partial"


def check_target(target: Any, rows: int) -> None:
    """Raises InputError where a tensor of the target has not the batch's rows in dimension 0."""
    for name, leaf in named_leaves("target", target):
        check_is_no_array(name, leaf)
        if isinstance(leaf, Tensor) and leaf.dim() and not is_batched(leaf, rows):
            raise InputError(
                f"{name} is a tensor {list(leaf.shape)}, and the batch has {rows} rows: a target is cut into "
                f"micro-batches with the batch; give it {rows} in dimension 0, or {MEND}"
            )


def check_is_no_array(name: str, leaf: Any) -> None:
    if hasattr(leaf, "shape") and not isinstance(leaf, Tensor):
        raise InputError(f"{name} is a {type(leaf).__name__}, which is not cut into micro-batches; give a tensor")


def check_wholes(
    leaves: Sequence[Any], batched: Sequence[bool], known: Sequence[LeafShape], rows: int, sizes: Sequence[int]
) -> None:
    """Raises InputError where an argument that goes along whole may have become one of rows.

    known: shapes in the example that the model was cut with. sizes: rows of each micro-batch. Another size of
    dimension 0 is that of a mask over steps where what is cut has such a dimension besides its rows.
    """
    cut = [leaf for leaf, rows_here in zip(leaves, batched, strict=True) if rows_here]
    others = set(chain.from_iterable(leaf.shape[1:] for leaf in cut))
    for leaf, rows_here, shape in zip(leaves, batched, known, strict=True):
        if rows_here or not isinstance(leaf, Tensor) or not leaf.dim():
            continue
        size, before = leaf.shape[0], shape[:1] if shape else ()
        fits = 1 in sizes or size == rows or size in sizes
        if (size,) != before and size != 1 and size not in others and fits:
            was = "no tensor" if shape is None else f"a tensor {list(shape)}"
            raise InputError(
                f"an argument is a tensor {list(leaf.shape)}, and the batch has {rows} rows: it was {was} in the "
                f"example, so it goes along whole with every micro-batch; give it {rows} rows, in example_inputs= too"
            )


def check_wholes_over_time(leaves: Sequence[Any], axes: Sequence[Axes], known: Sequence[LeafShape]) -> None:
    """Raises InputError where a tensor has other sizes than in the example along what is cut into no parts; where the
    rows are not cut either, they may be along any of these."""
    rows_are_cut = any(of.rows is not None for of in axes)
    for leaf, of, shape in zip(leaves, axes, known, strict=True):
        if not isinstance(leaf, Tensor):
            continue
        if shape is None or leaf.dim() != len(shape) or (rows_are_cut and uncut(leaf.shape, of) != uncut(shape, of)):
            was = "no tensor" if shape is None else f"a tensor {list(shape)}"
            raise InputError(
                f"an argument is a tensor {list(leaf.shape)}, and in the example it was {was}: along these axes it is "
                f"not cut, and goes along with every part of the batch; compile the model with such example_inputs="
            )


def uncut(shape: Sequence[int], axes: Axes) -> tuple[int, ...]:
    """The shape with 0 where it is cut."""
    return tuple(0 if axis in axes else size for axis, size in enumerate(shape))

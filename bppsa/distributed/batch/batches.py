"""A batch cut into micro-batches, and what comes of them put together."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import is_
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from bppsa.common.graph import tensors_in
from bppsa.errors import InputError
from bppsa.fxpasses.partition.losses.outputs import own_loss
from bppsa.runtime.worker.pipeline import PipelineCall


def rows_of(arguments: Any) -> int:
    """The size of the batch. Raises InputError where there are no rows."""
    rows = rows_in(arguments)
    if not rows:
        raise InputError("a schedule cuts the batch into micro-batches, and the arguments hold no tensor with rows")
    return rows


def rows_in(value: Any) -> int:
    """Dimension 0 of the first tensor that has one, 0 where none has: a model may also select no row of those that it
    was given."""
    return next((x.shape[0] for x in tensors_in(value) if x.dim()), 0)


def comparable(leaves: Sequence[Any]) -> tuple[Any, ...]:
    """The leaves of a batch that ranks can compare: dense tensors, numbers and text."""
    strided = [leaf for leaf in leaves if not isinstance(leaf, Tensor) or leaf.layout is torch.strided]
    return tuple(leaf for leaf in strided if isinstance(leaf, (Tensor, bool, int, float, str)))


def parts(value: Any, batched: Sequence[bool], count: int) -> list[Any]:
    """A pytree for each micro-batch: leaves that are batched are cut as torch.tensor_split does, all else goes along
    as it is."""
    leaves, spec = tree_flatten(value)
    cut = [x.tensor_split(count) if rows else [x] * count for x, rows in zip(leaves, batched, strict=True)]
    return [tree_unflatten([pieces[b] for pieces in cut], spec) for b in range(count)]


def check_rows(leaves: Sequence[Any], batched: Sequence[bool], rows: int) -> None:
    """Raises InputError where what is batched has not that many rows."""
    for leaf, cut in zip(leaves, batched, strict=True):
        if cut and not is_batched(leaf, rows):
            got = f"a tensor {list(leaf.shape)}" if isinstance(leaf, Tensor) else repr(leaf)
            raise InputError(f"the batch has {rows} rows, as its first tensor does, and {got} has not as many")


def is_batched(x: Any, rows: int) -> bool:
    return isinstance(x, Tensor) and x.dim() > 0 and x.shape[0] == rows


def joined(values: Sequence[Any], sizes: Sequence[int], join: Callable[[Sequence[Any], Sequence[int]], Any]) -> Any:
    """Trees of micro-batches, which are alike, as one of the batch. sizes: their rows; join: of one leaf of each."""
    flat = [tree_flatten(value)[0] for value in values]
    leaves = [join(column, sizes) for column in zip(*flat, strict=True)]
    return tree_unflatten(leaves, tree_flatten(values[0])[1])


def output_of(pieces: Sequence[Any], sizes: Sequence[int]) -> Any:
    """What the model returned for each micro-batch as what it returns for the batch. Raises InputError where a tensor
    has no dimension of rows."""
    if not isinstance(pieces[0], Tensor):
        if any(piece is not pieces[0] and piece != pieces[0] for piece in pieces):
            raise InputError(
                f"the model returns {', '.join(map(repr, pieces))} for the micro-batches, which cannot be joined; "
                f"return tensors with rows in dimension 0, or use step()"
            )
        return pieces[0]
    for piece, size in zip(pieces, sizes, strict=True):
        if not is_batched(piece, size):
            raise InputError(
                f"the model returns a tensor {list(piece.shape)} for a micro-batch of {size} rows: without rows in "
                f"dimension 0 those of the micro-batches cannot be joined; compute it in loss_fn, and use step(), or "
                f"return it as loss, where it is a mean or a sum over rows"
            )
    return torch.cat(list(pieces))


@dataclass(frozen=True)
class Batch:
    """call: of all micro-batches. mine: those whose rows are here; all, but where each rank brings its own. rows: of
    these; sizes: the rows of each micro-batch. arguments: of each argument of the model, its tensors, whole; values:
    the arguments. weights: of the micro-batches' losses, where the model returns one."""

    call: PipelineCall
    mine: Sequence[int]
    rows: int
    sizes: list[int]
    arguments: list[list[Tensor]]
    values: Sequence[Any] = field(default=(), kw_only=True)
    weights: Sequence[float] = field(default=(), kw_only=True)

    @property
    def wanted(self) -> list[Tensor]:
        """Tensors that a gradient flows to."""
        return [x for tensors in self.arguments for x in tensors if x.requires_grad]

    def gradients(self, found: Mapping[tuple[int, int], Sequence[Tensor | None]]) -> list[Tensor | None]:
        """The gradients of `wanted`. found: those of each micro-batch and argument, for the argument's tensors."""
        grads = []
        for v, tensors in enumerate(self.arguments):
            cut = tensors_in(self.call.arguments[self.mine[0]][v])
            for at, x in enumerate(tensors):
                if x.requires_grad:
                    pieces = [found[b, v][at] if (b, v) in found else None for b in self.mine]
                    sizes = [self.sizes[b] for b in self.mine] if cut[at] is not x else None
                    grads.append(whole(x, pieces, sizes))
        return grads

    def cotangents(self, grads: Sequence[Tensor | None]) -> list[list[Tensor | None]]:
        """The cotangents of each micro-batch. grads: the batch's, for each tensor that the last stage returned."""
        return [list(column) for column in zip(*map(self.cotangents_of, grads), strict=True)]

    def cotangents_of(self, grad: Tensor | None) -> list[Tensor | None]:
        if grad is None:
            return [None] * len(self.sizes)
        if grad.dim():
            return list(grad.split(self.sizes))
        return [grad * weight if weight else None for weight in self.weights]  # of the loss: no other has no rows

    def outputs(self, made: Mapping[int, Any]) -> Any:
        """made: what the model returned, by micro-batch."""
        trees = [made[b] for b in self.mine]
        losses = [own_loss(tree) for tree in trees] if self.weights else []
        sums = [isinstance(loss, Tensor) and not loss.dim() for loss in losses]

        def join(pieces: Sequence[Any], sizes: Sequence[int]) -> Any:
            if sums and all(sums) and all(map(is_, pieces, losses)):
                return sum(loss * weight for loss, weight in zip(losses, self.weights, strict=True) if weight)
            return output_of(pieces, sizes)

        return joined(trees, [self.sizes[b] for b in self.mine], join)


@dataclass(frozen=True)
class Mark:
    """Stands for a leaf of what the last stage or the module of a model returns."""

    leaf: int


def by_leaf(made: Any, assemble: Callable[[Any], Any], grads: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Gradients of the leaves of `made`, from those of the leaves of assemble(made): a tensor may stand in several
    places of what the model returns."""
    leaves, spec = tree_flatten(made)
    marks = tree_leaves(assemble(tree_unflatten([Mark(i) for i in range(len(leaves))], spec)))
    totals: list[Tensor | None] = [None] * len(leaves)
    for mark, grad in zip(marks, grads, strict=True):
        if isinstance(mark, Mark) and grad is not None:
            before = totals[mark.leaf]
            totals[mark.leaf] = grad if before is None else before + grad
    return totals


def whole(x: Tensor, pieces: Sequence[Tensor | None], sizes: Sequence[int] | None) -> Tensor | None:
    """A tensor's gradient from those of its pieces, or, with sizes=None, from those of each micro-batch."""
    if all(piece is None for piece in pieces):
        return None
    if sizes is None:
        return functools.reduce(torch.add, [piece for piece in pieces if piece is not None])
    filled = [
        x.new_zeros(size, *x.shape[1:]) if piece is None else piece for piece, size in zip(pieces, sizes, strict=True)
    ]
    return torch.cat(filled)

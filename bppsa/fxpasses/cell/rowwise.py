"""Which ops treat every row of a batch alike, so that all steps may be stacked into one batch and rows may be cut over
threads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx

from bppsa.common.chain import ALONG_BATCH, FILLS, HANDED_ON, is_pointwise
from bppsa.errors import Unsupported
from bppsa.sparsity.rules.matrix_ops import MATRICES

aten = torch.ops.aten

# op -> positions of the arguments that name dimensions; dimension 0 is the batch and must not be among them
ALONG_DIMS: dict[Any, tuple[int, ...]] = {
    aten.slice.Tensor: (1,),
    aten.select.int: (1,),
    aten.unsqueeze.default: (1,),
    aten.squeeze.dim: (1,),
    aten.squeeze.dims: (1,),
    aten.transpose.int: (1, 2),
    aten.cat.default: (1,),
    aten.sum.dim_IntList: (1,),
    aten.amax.default: (1,),
    aten.amin.default: (1,),
    aten.logsumexp.default: (1,),
    aten.flip.default: (1,),
    aten.std.correction: (1,),
    aten.linalg_vector_norm.default: (2,),
    aten._softmax.default: (1,),
    aten._log_softmax.default: (1,),
    aten.cumsum.default: (1,),
}
# Views whose result has the rows where its source has them, in front; `rows_first.py` sees to it.
VIEWS = {aten.view.default, aten._unsafe_view.default, aten.permute.default, aten.transpose.int, aten.expand.default}
# Row for row whatever the value is.
SAME_SHAPE = {*HANDED_ON, aten.view_as_real.default, aten.view_as_complex.default}


def check_rowwise(node: fx.Node, rows: int, is_param: Callable[[fx.Node], bool]) -> None:
    """Raise `Unsupported` unless the op computes each row of its result from the same row of its operands."""
    target: Any = node.target
    if not isinstance(node.meta["val"], torch.Tensor):
        raise Unsupported("gives several tensors", op=str(target), mend="use ops that give one")
    if node.meta["val"].numel() == 0:
        raise Unsupported("makes a value without columns", op=str(target))
    if target in FILLS or target in SAME_SHAPE:
        return
    if target in MATRICES and not is_param(node.args[0]):
        return check_matrices(node)
    if target is aten.mm.default and not is_param(node.args[0]) and is_param(node.args[1]):
        return
    if target in VIEWS and not is_param(node.args[0]):
        return check_view(node, rows)
    if target in ALONG_DIMS:
        if not all(names_no_batch(node, position) for position in ALONG_DIMS[target]):
            raise Unsupported(replace(ALONG_BATCH, op=str(target)))
        return check_joined(node, is_param)
    if target is aten.expand.default and node.args[1][:1] == [-1]:
        return
    if is_pointwise(target):
        return check_broadcast(node, is_param)
    if node.meta["val"].dim() == 0 and any(arg.meta["val"].dim() for arg in node.all_input_nodes):  # as h.sum() gives
        raise Unsupported(replace(ALONG_BATCH, op=str(target)))
    raise Unsupported("is not one of the ops a fused cell may contain", op=str(target))


def names_no_batch(node: fx.Node, position: int) -> bool:
    value: Any = node.args[0]
    rank = (value[0] if isinstance(value, (list, tuple)) else value).meta["val"].dim()
    rank += node.target is aten.unsqueeze.default
    dims: Any = node.args[position] if len(node.args) > position else 0
    if dims is None:  # all of them
        return False
    return bool(dims != []) and all(d % rank != 0 for d in (dims if isinstance(dims, (list, tuple)) else [dims]))


def check_view(node: fx.Node, rows: int) -> None:
    source, value = node.args[0].meta["val"], node.meta["val"]
    in_front = source.dim() > 0 and value.dim() > 0 and source.shape[0] == rows == value.shape[0]
    in_front &= node.target is not aten.permute.default or node.args[1][0] % value.dim() == 0
    in_front &= node.target is not aten.transpose.int or all(d % value.dim() for d in node.args[1:])
    in_front &= node.target is not aten.expand.default or source.dim() == value.dim()
    if not in_front:
        raise Unsupported(f"makes {list(value.shape)} of {list(source.shape)}, across the batch", op=str(node.target))


def check_matrices(node: fx.Node) -> None:
    if node.args[0].meta["val"].dim() != 3:
        raise Unsupported("takes the batch for a side of a matrix", op=str(node.target))


def check_joined(node: fx.Node, is_param: Callable[[fx.Node], bool]) -> None:
    """Nor may a parameter stand beside rows, as each row would have another of its rows."""
    for arg in node.all_input_nodes:
        if is_param(arg):
            what = f"puts a tensor of shape {list(arg.meta['val'].shape)}, the same for all steps, beside the batch"
            raise Unsupported(what, op=str(node.target), mend="pass per-row tensors in xs or in the carry")


def check_broadcast(node: fx.Node, is_param: Callable[[fx.Node], bool]) -> None:
    """Rows line up with rows, and a parameter must not reach into the batch dimension."""
    rank = node.meta["val"].dim()
    for arg in node.all_input_nodes:
        value: Tensor = arg.meta["val"]
        if arg.target in FILLS or value.dim() == 0:
            continue
        if is_param(arg):
            fits = value.dim() < rank or value.shape[0] == 1
        else:
            fits = value.dim() == rank
        if not fits:
            what = f"lines up a tensor of shape {list(value.shape)} with the batch of {list(node.meta['val'].shape)}"
            raise Unsupported(what, op=str(node.target), mend="pass per-row tensors in xs or in the carry")

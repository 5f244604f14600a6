"""Which ops treat every row of a batch alike, so that all steps may be stacked into one batch and rows may be cut over
threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from bppsa.chain import FILLS, is_pointwise
from bppsa.errors import Reason, Unsupported

aten = torch.ops.aten

# op -> positions of the arguments that name dimensions; dimension 0 is the batch and must not be among them
ALONG_DIMS: dict[Any, tuple[int, ...]] = {
    aten.slice.Tensor: (1,),
    aten.select.int: (1,),
    aten.unsqueeze.default: (1,),
    aten.squeeze.dim: (1,),
    aten.cat.default: (1,),
    aten.sum.dim_IntList: (1,),
    aten.amax.default: (1,),
    aten._softmax.default: (1,),
    aten._log_softmax.default: (1,),
    aten.cumsum.default: (1,),
}
SAME_SHAPE = {aten.clone.default, aten.alias.default, aten.detach.default, aten._to_copy.default}


def check_rowwise(node: fx.Node, rows: int, is_param: Callable[[fx.Node], bool]) -> None:
    """Raise `Unsupported` unless the op computes each row of its result from the same row of its operands."""
    target: Any = node.target
    if not isinstance(node.meta["val"], torch.Tensor):
        raise Unsupported(Reason("gives several tensors", op=str(target), mend="use ops that give one"))
    if node.meta["val"].numel() == 0:
        raise Unsupported(Reason("makes a value without columns", op=str(target)))
    if target in FILLS or target in SAME_SHAPE:
        return
    if target is aten.mm.default and not is_param(node.args[0]) and is_param(node.args[1]):
        return
    if target in ALONG_DIMS:
        if all(names_no_batch(node, position) for position in ALONG_DIMS[target]):
            return
        raise Unsupported(Reason("works along the batch dimension", op=str(target)))
    if is_pointwise(target):
        return check_broadcast(node, is_param)
    raise Unsupported(Reason("is not one of the ops a fused cell may contain", op=str(target)))


def names_no_batch(node: fx.Node, position: int) -> bool:
    value: Any = node.args[0]
    rank = (value[0] if isinstance(value, (list, tuple)) else value).meta["val"].dim()
    rank += node.target is aten.unsqueeze.default
    dims: Any = node.args[position] if len(node.args) > position else 0
    if dims is None:  # all of them
        return False
    return bool(dims != []) and all(d % rank != 0 for d in (dims if isinstance(dims, (list, tuple)) else [dims]))


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
            raise Unsupported(Reason(what, op=str(node.target), mend="pass per-row tensors in xs or in the carry"))

"""F.one_hot as one op: PyTorch's looks at the classes that it is given, and raises an error for those that are none."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional

from bppsa.errors import Reason, Unsupported
from bppsa.sparsity.rules.matrix_ops import LIBRARY

aten = torch.ops.aten

LIBRARY.define("one_hot(Tensor x, int classes) -> Tensor")
LIBRARY.impl("one_hot", lambda x, classes: functional.one_hot(x, classes), "CompositeExplicitAutograd")
ONE_HOT = torch.ops.bppsa.one_hot.default
torch.library.register_vmap(
    "bppsa::one_hot", lambda info, dims, x, classes: (ONE_HOT(x.movedim(dims[0], 0), classes), 0), lib=LIBRARY
)
# What hands its operand's numbers on as they are.
SAME_NUMBERS = {
    *(aten.view.default, aten._unsafe_view.default, aten.expand.default, aten.permute.default, aten.transpose.int),
    *(aten.unsqueeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.select.int, aten.slice.Tensor),
    *(aten._to_copy.default, aten.clone.default, aten.detach.default, aten.alias.default),
}


def one_hot(x: Tensor, num_classes: int = -1) -> Any:
    """In the place of F.one_hot; NotImplemented where the number of classes is the largest number of x."""
    return ONE_HOT(x, num_classes) if num_classes > 0 else NotImplemented


def as_comparison(x: Tensor, classes: int) -> Tensor:
    return (x.unsqueeze(-1) == torch.arange(classes)).long()


def check_classes(node: fx.Node) -> None:
    """Raises `Unsupported` where a number may be none of the classes, of which PyTorch raises an error."""
    number, classes = node.args
    while isinstance(number, fx.Node) and number.target in SAME_NUMBERS:
        number = number.args[0]
    low, high = number.args[1:] if is_clamp(number) else (None, None)
    if low is None or high is None or low < 0 or high >= classes:
        what = f"is given numbers that may be none of its {classes} classes"
        raise Unsupported(Reason(what, mend=f"clamp(0, {classes - 1}) them, or compare them with torch.arange"))


def is_clamp(node: Any) -> bool:
    return isinstance(node, fx.Node) and node.target is aten.clamp.default and len(node.args) == 3

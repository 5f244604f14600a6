"""F.one_hot as one op: PyTorch's looks at the classes that it is given, and raises an error for those that are none."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from bppsa.sparsity.rules.matrix_ops import LIBRARY

LIBRARY.define("one_hot(Tensor x, int classes) -> Tensor")
LIBRARY.impl("one_hot", lambda x, classes: functional.one_hot(x, classes), "CompositeExplicitAutograd")
ONE_HOT = torch.ops.bppsa.one_hot.default
torch.library.register_vmap(
    "bppsa::one_hot", lambda info, dims, x, classes: (ONE_HOT(x.movedim(dims[0], 0), classes), 0), lib=LIBRARY
)


def one_hot(input: Tensor, num_classes: int = -1) -> Any:
    """Stands in for F.one_hot; NotImplemented where the number of classes is the largest number that is given."""
    return ONE_HOT(input, num_classes) if num_classes > 0 else NotImplemented


def as_comparison(x: Tensor, classes: int) -> Tensor:
    return (x.unsqueeze(-1) == torch.arange(classes)).long()

"""Whether a graph gives what its model gives: a forward may do what calls of PyTorch's functions do not show."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from bppsa.errors import PartitionError
from bppsa.fxpasses.partition.arguments import Arguments
from bppsa.fxpasses.partition.effects import Watch


def called(model: nn.Module, arguments: Arguments) -> Any:
    """What the model returns for the example, its ops seen one by one as while it is traced."""
    args, kwargs = arguments.call(arguments.examples)
    with torch.no_grad(), Watch():
        return model(*args, **kwargs)


def check_same(model: nn.Module, found: Any, expected: Any, otherwise: str) -> None:
    """Raises PartitionError where the two results are not those of the same computation."""
    (leaves, spec), (others, other_spec) = tree_flatten(found), tree_flatten(expected)
    if spec == other_spec and all(map(same, leaves, others)):
        return
    raise PartitionError(f"{type(model).__name__}: {otherwise}")


def same(a: Any, b: Any) -> bool:
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return type(a) is type(b) and a == b
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.is_meta:
        return True
    if not a.dtype.is_floating_point:
        return bool((a == b).all())
    tolerance = torch.finfo(a.dtype).eps ** 0.5
    return bool(torch.isclose(a, b, rtol=tolerance, atol=tolerance * magnitude(b), equal_nan=True).all())


def magnitude(x: Tensor) -> float:
    finite = x[x.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0

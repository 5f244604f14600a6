"""What a model returns: whether tensors are found in it, in PyTorch's pytrees and those that others have told it of,
and whether two results are the same."""

from __future__ import annotations

import importlib
from contextlib import suppress
from dataclasses import is_dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves

from bppsa.errors import PartitionError

PLAIN = (Tensor, bool, int, float, complex, str, type(None))
# By library, the function that tells PyTorch of the caches that its models return.
TELLING = {"transformers": ("transformers.exporters.exporter_dynamo", "register_cache_pytrees_for_model")}


def check_result(model: nn.Module, result: Any) -> None:
    """Raises PartitionError where it holds an object in which nobody would find tensors."""
    unknown = others_in(result)
    if unknown and (tell := TELLING.get(type(unknown[0]).__module__.partition(".")[0])):
        module, function = tell
        with suppress(ModuleNotFoundError):  # an older version of the library
            getattr(importlib.import_module(module), function)(model)
            unknown = others_in(result)
    if unknown:
        name = type(unknown[0]).__name__
        known = "export.register_dataclass" if is_dataclass(unknown[0]) else "utils._pytree.register_pytree_node"
        raise PartitionError(
            f"{type(model).__name__} returns a {name}, in which no tensors are found; leave it out, by an option of "
            f"the model if it has one, such as use_cache=False, return a tuple or a dict, or say what is in it by "
            f"torch.{known}({name}{'' if is_dataclass(unknown[0]) else ', ...'})"
        )


def others_in(result: Any) -> list[Any]:
    return [leaf for leaf in tree_leaves(result) if not isinstance(leaf, PLAIN)]


def are_same_results(found: Any, expected: Any) -> bool:
    """Whether the two results are those of the same computation."""
    (leaves, spec), (others, other_spec) = tree_flatten(found), tree_flatten(expected)
    return spec == other_spec and all(map(same, leaves, others))


def same(a: Any, b: Any) -> bool:
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return type(a) is type(b) and a == b
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.is_meta:
        return True
    if a.is_sparse and b.is_sparse:  # gradients of nn.Embedding(sparse=True)
        return same(a.to_dense(), b.to_dense())
    if not a.dtype.is_floating_point:
        return bool((a == b).all())
    tolerance = torch.finfo(a.dtype).eps ** 0.5
    return bool(torch.isclose(a, b, rtol=tolerance, atol=tolerance * magnitude(b), equal_nan=True).all())


def magnitude(x: Tensor) -> float:
    finite = x[x.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0

"""What is wrong with a call of bppsa.scan: errors that name the leaf, what it was and what it should be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from bppsa.errors import CarryError, InputError

Cell = Callable[[Any, Any], tuple[Any, Any]]


def check_inputs(carry: Sequence[Any], xs: Sequence[Any]) -> None:
    for name, leaves in (("carry", carry), ("xs", xs)):
        for leaf in leaves:
            if not isinstance(leaf, Tensor):
                raise CarryError(f"bppsa.scan: a leaf of {name} is a {type(leaf).__name__}; give a pytree of tensors")
    if not xs:
        raise InputError("bppsa.scan: xs has no tensors, so there is no number of steps; pass at least one [T, ...]")
    lengths = [leaf.shape[0] if leaf.dim() else 0 for leaf in xs]
    if len(set(lengths)) > 1 or lengths[0] == 0:
        raise InputError(f"bppsa.scan: the leaves of xs have {lengths} steps; give all the same number, at least 1")


def cell_result(result: Any) -> tuple[Any, Any]:
    if not isinstance(result, tuple) or len(result) != 2:
        raise CarryError(f"bppsa.scan: the cell returned a {type(result).__name__}; return (next carry, y)")
    return result


def check_carry(leaves: Sequence[Tensor], spec: Any, nexts: Any) -> list[Tensor]:
    """The leaves of the next carry; raises CarryError naming the first that is not like its predecessor."""
    with_paths, next_spec = pytree.tree_flatten_with_path(nexts)
    if next_spec != spec:
        raise CarryError(f"bppsa.scan: the cell changed the structure of its carry from {spec} to {next_spec}")
    for old, (path, new) in zip(leaves, with_paths, strict=True):
        name = f"carry{pytree.keystr(path)}"
        if not isinstance(new, Tensor):
            raise CarryError(f"bppsa.scan: {name} is a {type(new).__name__} after a step; return a tensor")
        if (old.shape, old.dtype) != (new.shape, new.dtype):
            was, now = f"{list(old.shape)} {old.dtype}", f"{list(new.shape)} {new.dtype}"
            raise CarryError(
                f"bppsa.scan: {name} was {was} and is {now} after a step; a carry keeps its shape and dtype"
            )
    return [new for _, new in with_paths]


def checked(cell: Cell, leaves: Sequence[Tensor], spec: Any) -> Cell:
    def step(carry: Any, x: Any) -> tuple[Any, Any]:
        nexts, y = cell_result(cell(carry, x))
        check_carry(leaves, spec, nexts)
        return nexts, y

    return step


def name_of(cell: Any) -> str:
    return getattr(cell, "__qualname__", type(cell).__qualname__)

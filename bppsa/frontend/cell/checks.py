"""What is wrong with a call of bppsa.scan: errors that name the leaf or the cell, what it was and what it should be."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from bppsa.errors import OURS, ArgumentError, CarryError, InputError, kind_of
from bppsa.fxpasses.theirs import is_ours, theirs

CellFunction = Callable[[Any, Any], tuple[Any, Any]]
RETURN = "return (next carry, y), a tuple"
ADAPTERS = {  # to PyTorch's own cells, which take x before the carry and return the carry alone
    nn.RNNCell: "def step(h, x): h = cell(x, h); return h, h",
    nn.GRUCell: "def step(h, x): h = cell(x, h); return h, h",
    nn.LSTMCell: "def step(state, x): h, c = cell(x, state); return (h, c), h",
}


def check_inputs(carry: Sequence[Any], xs: Sequence[Any]) -> None:
    for name, leaves in (("carry", carry), ("xs", xs)):
        for leaf in leaves:
            if not isinstance(leaf, Tensor):
                raise CarryError(f"bppsa.scan: a leaf of {name} is {kind_of(leaf)}; give a pytree of tensors")
    if not xs:
        raise InputError("bppsa.scan: xs has no tensors, so there is no number of steps; pass at least one [T, ...]")
    lengths = [leaf.shape[0] if leaf.dim() else 0 for leaf in xs]
    if len(set(lengths)) > 1 or lengths[0] == 0:
        raise InputError(f"bppsa.scan: the leaves of xs have {lengths} steps; give all the same number, at least 1")


def step(cell: CellFunction, carry: Any, x: Any) -> tuple[Any, Any]:
    """`cell(carry, x)`, or what is wrong with it; the next carry is for `check_carry`."""
    if not callable(cell):
        kind = type(cell).__name__
        raise ArgumentError(f"bppsa.scan: the cell is a {kind}; give a function or Module (carry, x_t) -> (carry, y_t)")
    if type(cell) in ADAPTERS:
        kind = type(cell).__name__
        raise CarryError(f"bppsa.scan: nn.{kind} takes (x, carry) and returns a carry; give {ADAPTERS[type(cell)]}")
    if isinstance(cell, nn.RNNBase) and type(cell).forward.__module__.partition(".")[0] in ("torch", "bppsa"):
        kind = type(cell).__name__
        mend = f"call it directly, or bppsa.compile it, or give a step of nn.{kind}Cell"
        raise ArgumentError(f"bppsa.scan: nn.{kind} runs whole sequences; {mend}")
    try:
        result = theirs(cell, carry, x)
    except tuple(OURS) as error:
        if type(error) not in OURS or is_ours(error):  # a class of the cell's own, or a bug
            raise
        raise OURS[type(error)](
            f"bppsa.scan: the cell {name_of(cell)} fails on {kinds('carry', carry)} and {kinds('x_t', x)}: {error}; "
            "does it expect what a step is given (x_t is one of xs, whose first dimension is time)?"
        ) from error
    if not isinstance(result, tuple):
        raise CarryError(f"bppsa.scan: the cell {name_of(cell)} returned {kind_of(result)}; {RETURN}")
    if len(result) != 2:
        raise CarryError(f"bppsa.scan: the cell {name_of(cell)} returned {len(result)} values; {RETURN}")
    check_y(result[1])
    return result


def check_y(y: Any) -> None:
    if isinstance(y, Tensor):
        return
    for path, leaf in pytree.tree_flatten_with_path(y)[0]:
        if not isinstance(leaf, Tensor):
            mend = "return a pytree of tensors as y: (carry, carry), or (carry, ()) where only the last carry is wanted"
            raise CarryError(f"bppsa.scan: y{pytree.keystr(path)} is {kind_of(leaf)}; {mend}")


def kinds(name: str, value: Any) -> str:
    """Its leaves by their shapes and dtypes: "carry[0] [16, 32] torch.float32, carry[1] ..."."""
    leaves = pytree.tree_flatten_with_path(value)[0]
    return ", ".join(f"{name}{pytree.keystr(path)} {list(leaf.shape)} {leaf.dtype}" for path, leaf in leaves)


def check_carry(leaves: Sequence[Tensor], spec: Any, nexts: Any) -> list[Tensor]:
    """The leaves of the next carry; raises CarryError naming the first that is not like its predecessor."""
    with_paths, next_spec = pytree.tree_flatten_with_path(nexts)
    if next_spec != spec:
        raise CarryError(
            f"bppsa.scan: the carry was {structure(spec)} and is {structure(next_spec)} after a step; a carry keeps "
            f"its structure"
        )
    for old, (path, new) in zip(leaves, with_paths, strict=True):
        name = f"carry{pytree.keystr(path)}"
        if not isinstance(new, Tensor):
            raise CarryError(f"bppsa.scan: {name} is {kind_of(new)} after a step; return a tensor")
        if (old.shape, old.dtype) != (new.shape, new.dtype):
            was, now = f"{list(old.shape)} {old.dtype}", f"{list(new.shape)} {new.dtype}"
            raise CarryError(
                f"bppsa.scan: {name} was {was} and is {now} after a step; a carry keeps its shape and dtype"
            )
    return [new for _, new in with_paths]


class Leaf:
    def __repr__(self) -> str:
        return "Tensor"


def structure(spec: pytree.TreeSpec) -> str:
    """A tree as Python would write it: (Tensor, {'a': Tensor})."""
    return repr(pytree.tree_unflatten([Leaf()] * spec.num_leaves, spec))


def checked(cell: CellFunction, leaves: Sequence[Tensor], spec: Any) -> CellFunction:
    def checked_step(carry: Any, x: Any) -> tuple[Any, Any]:
        nexts, y = step(cell, carry, x)
        check_carry(leaves, spec, nexts)
        return nexts, y

    return checked_step


def with_zero(cell: CellFunction, state: tuple[Any, Tensor], x: Any) -> tuple[tuple[Any, Tensor], Any]:
    """A step of a cell beside a number that stays what it is."""
    carry, zero = state
    nexts, y = cell(carry, x)
    return (nexts, zero), y


def name_of(cell: Any) -> str:
    """The name of a cell as a reader would look for it: "decay", "Model.decay", "MinGRU", "lambda (model.py:12)"."""
    while isinstance(cell, functools.partial):
        cell = cell.args[0] if cell.func is with_zero else cell.func
    if isinstance(cell, types.FunctionType) and cell.__name__ == "<lambda>":
        return place_of(cell.__code__)
    return str(getattr(cell, "__qualname__", type(cell).__qualname__)).rpartition("<locals>.")[2]


@functools.lru_cache(maxsize=1024)
def place_of(code: types.CodeType) -> str:
    return f"lambda ({Path(code.co_filename).name}:{code.co_firstlineno})"

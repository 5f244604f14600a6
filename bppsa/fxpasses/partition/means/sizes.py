"""What a node of a captured graph is known to make, and what its op is given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from typing import Any

from torch import fx
from torch.utils._sympy.functions import ToFloat

from bppsa.common.graph import nodes_in

OF_TORCH = ("aten", "prims")


def name_of(node: fx.Node) -> str:
    """The name of what is called; an op of another library than PyTorch's own may do anything, by whatever name."""
    packet = getattr(node.target, "overloadpacket", None)
    if packet is None:
        return getattr(node.target, "__name__", "")
    return packet.__name__ if is_torchs(node) else f"{node.target.namespace}::{packet.__name__}"


def is_torchs(node: fx.Node) -> bool:
    return getattr(node.target, "namespace", None) in OF_TORCH


def arguments_of(node: fx.Node) -> Sequence[Any]:
    """The arguments in the schema of an op of PyTorch's own, none of anything else."""
    schema: Any = getattr(node.target, "_schema", None)
    return schema.arguments if schema is not None and is_torchs(node) else ()


def written(node: fx.Node) -> list[fx.Node]:
    """The arguments that an op changes in place, of whichever library it is."""
    return nodes_in([arg for given, arg in operands(node) if given.alias_info and given.alias_info.is_write])


def operands(node: fx.Node) -> Iterator[tuple[Any, Any]]:
    """Each argument in the schema of an op, of whichever library it is, and what it is given."""
    schema: Any = getattr(node.target, "_schema", None)
    for i, given in enumerate(schema.arguments if schema is not None else ()):
        yield given, node.args[i] if i < len(node.args) else node.kwargs.get(given.name)


def argument(node: fx.Node, name: str, default: Any) -> Any:
    """The argument of an ATen op's call that has this name in the schema."""
    for i, given in enumerate(arguments_of(node)):
        if given.name == name:
            return node.args[i] if i < len(node.args) else node.kwargs.get(name, given.default_value)
    return default


def size_of(node: fx.Node) -> Any:
    """The shape of the tensor that a node gives, or the number that it gives; None for anything else."""
    return node.meta.get("made", (None, None))[1]


def symbols(size: Any) -> set[Any]:
    parts = size if isinstance(size, tuple) else (size,)
    return {s for one in parts for s in getattr(one, "free_symbols", ())}


def number_without_casts(size: Any) -> Any:
    return size.replace(ToFloat, lambda whole: whole)


def is_tensor(node: fx.Node) -> bool:
    return node.meta.get("made", (None,))[0] is not None


def dtype(node: fx.Node) -> Any:
    return node.meta["made"][0]


def rows_at(node: Any, rows: Set[Any]) -> list[int]:
    """Returns the dimensions of a tensor whose sizes depend on those of `rows`; none for what is no tensor."""
    if not isinstance(node, fx.Node) or not is_tensor(node):
        return []
    return [i for i, size in enumerate(size_of(node)) if symbols(size) & rows]

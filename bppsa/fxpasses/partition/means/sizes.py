"""What a node of a captured graph is known to make, and what its op is given."""

from __future__ import annotations

from typing import Any

from torch import fx
from torch.utils._sympy.functions import ToFloat


def name_of(node: fx.Node) -> str:
    packet = getattr(node.target, "overloadpacket", None)
    return packet.__name__ if packet is not None else getattr(node.target, "__name__", "")


def argument(node: fx.Node, name: str, default: Any) -> Any:
    """The argument of an ATen op's call that has this name in the schema."""
    schema: Any = getattr(node.target, "_schema", None)
    for i, given in enumerate(schema.arguments if schema is not None else ()):
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

"""A call of a model as a flat list of arguments, one for each placeholder of its graph."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import Parameter
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import (
    keystr,
    tree_flatten_with_path,
    tree_leaves,
    tree_map_only,
    tree_structure,
)

from bppsa.errors import ArgumentError, PartitionError
from bppsa.fxpasses.partition.call.kept import is_on_meta

LONGEST_SHOWN = 60  # characters of a value in an error
LeafShape = tuple[int, ...] | None  # None: of what is no tensor


def shapes_of(leaves: Iterable[Any]) -> tuple[LeafShape, ...]:
    return tuple(tuple(leaf.shape) if isinstance(leaf, Tensor) else None for leaf in leaves)


def sized(shape: Sequence[Any], like: Sequence[int], sizes: Mapping[Any, int]) -> list[int]:
    """The shape with numbers for its symbols; of one that is not known, the number that it was."""
    found = [size.xreplace(sizes) if hasattr(size, "xreplace") else size for size in shape]
    return [
        int(size) if isinstance(size, int) or size.is_Integer else was for size, was in zip(found, like, strict=True)
    ]


def named_leaves(name: str, value: Any) -> list[tuple[str, Any]]:
    """The leaves of an argument, and how a reader would write them."""
    return [(f"{name}{keystr(path)}", leaf) for path, leaf in tree_flatten_with_path(value)[0]]


@dataclass(frozen=True)
class Arguments:
    """names: of the arguments, in the order of the model's signature; those of *args and **kwargs are one each."""

    signature: inspect.Signature
    names: tuple[str, ...]
    examples: tuple[Any, ...]

    @property
    def leaves(self) -> list[Any]:
        """The leaves of the examples."""
        return tree_leaves(list(self.examples))

    @property
    def leaf_names(self) -> list[str]:
        """How a reader would write each leaf."""
        pairs = zip(self.names, self.examples, strict=True)
        return [name for argument in pairs for name, _ in named_leaves(*argument)]

    def bind(self, *args: Any, **kwargs: Any) -> list[Any]:
        """The arguments of a call, with defaults filled in.

        Raises TypeError where the model cannot be called like this, and PartitionError where the call is not one that
        the graph was traced for: it has other arguments, containers or flags.
        """
        found = self.taken(*args, **kwargs)
        for name, value, example in zip(self.names, found, self.examples, strict=True):
            check(name, value, example)
        return found

    def taken(self, *args: Any, **kwargs: Any) -> list[Any]:
        """The same, where the call may be one that another graph is for: None for a tensor, or the other way round."""
        found = flatten(self.signature, args, kwargs)
        if tuple(found) != self.names:  # a forward may look at the order of **kwargs
            raise PartitionError(
                f"called with arguments {', '.join(found)}, and partitioned for {', '.join(self.names)}; "
                f"call it as the example was called, or partition it for such a call"
            )
        return list(found.values())

    def like(self, values: Sequence[Any]) -> Arguments:
        """The same with copies of these as examples."""
        return replace(self, examples=tuple(tree_map_only(Tensor, lambda x: x.detach().clone(), list(values))))

    def call(self, values: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """The inverse of bind: what to call the model with. A default is left out, as the caller may have left it."""
        rest = iter(values)
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        parameters = self.signature.parameters
        variable = any(p.kind is Parameter.VAR_POSITIONAL for p in parameters.values())
        named = False  # whether one before was left out
        several = len(self.names) - sum(p.kind not in VARIADIC for p in parameters.values())
        for parameter in parameters.values():
            if parameter.kind is Parameter.VAR_POSITIONAL:
                count = sum(name.startswith(f"{parameter.name}[") for name in self.names)
                args += [next(rest) for _ in range(count)]
                several -= count
            elif parameter.kind is Parameter.VAR_KEYWORD:
                kwargs |= {name: next(rest) for name in self.names[len(self.names) - several :]}
            else:
                value = next(rest)
                place = parameter.kind is Parameter.POSITIONAL_ONLY or (
                    parameter.kind is Parameter.POSITIONAL_OR_KEYWORD and (variable or not named)
                )
                if value is parameter.default and not (place and variable):
                    named = True
                elif place:
                    args.append(value)
                else:
                    kwargs[parameter.name] = value
        return args, kwargs


VARIADIC = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


def arguments_of(model: nn.Module, example: Any, keywords: Mapping[str, Any]) -> Arguments:
    """example: a tuple or list of positional arguments, or the only one.

    Raises ArgumentError where the model cannot be called with these.
    """
    args = tuple(example) if type(example) in (tuple, list) else (example,)
    signature = inspect.signature(model.forward)
    try:
        found = flatten(signature, args, keywords)
    except ArgumentError as error:
        raise ArgumentError(
            f"example_inputs do not fit {type(model).__name__}.forward{signature}: {error}; give a tuple of positional "
            f"arguments, and those by keyword as example_kwargs"
        ) from None
    for name, leaf in ((name, leaf) for name, value in found.items() for leaf in tree_leaves(value)):
        if not isinstance(leaf, Tensor) and any(isinstance(a, Tensor) for a in getattr(leaf, "__dict__", {}).values()):
            kind = type(leaf).__name__
            raise ArgumentError(
                f"argument {name} is a {kind}, in which no tensors are found; give a tuple or a dict, or say what is "
                f"in it by torch.export.register_dataclass({kind})"
            )
    on_meta = is_on_meta(model)
    copies = tree_map_only(Tensor, lambda a: a.detach().to("meta") if on_meta else a.detach().clone(), found)
    return Arguments(signature, tuple(found), tuple(copies.values()))


def parameters_of(signature: inspect.Signature) -> str:
    """Writes the parameters out as a message shows them: with defaults, without types."""
    return ", ".join(str(each.replace(annotation=each.empty)) for each in signature.parameters.values())


def flatten(signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        takes = parameters_of(signature)
        raise ArgumentError(
            f"the model takes ({takes}): {error}; step(x, target) needs loss_fn=; without it every argument goes to "
            f"the model, which must return the loss"
        ) from error
    bound.apply_defaults()
    found: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = signature.parameters[name].kind
        if kind is Parameter.VAR_POSITIONAL:
            found |= {f"{name}[{i}]": one for i, one in enumerate(value)}
        elif kind is Parameter.VAR_KEYWORD:
            found |= value
        else:
            found[name] = value
    return found


def check(name: str, value: Any, example: Any) -> None:
    if tree_structure(value) != tree_structure(example):
        raise PartitionError(
            f"argument {name} has another structure than that of the example: {form(value)}, and not {form(example)}; "
            f"partition the model for such a call"
        )
    for leaf, expected in zip(tree_leaves(value), tree_leaves(example), strict=True):
        if not (isinstance(expected, Tensor) and isinstance(leaf, Tensor)):
            same = leaf is expected or (type(leaf) is type(expected) and leaf == expected)
            if not same:
                raise PartitionError(
                    f"argument {name} is {shown(leaf)}, and the model was partitioned for {shown(expected)}; give such "
                    f"a one, or partition the model for this call"
                )


def shown(leaf: Any) -> str:
    if isinstance(leaf, Tensor):
        return f"a tensor {list(leaf.shape)}"
    text = repr(leaf)
    return text if len(text) <= LONGEST_SHOWN else f"a {type(leaf).__name__}"


def form(value: Any) -> str:
    """What a container is and holds, in a few words."""
    if not isinstance(value, (list, tuple, dict)):
        return shown(value)
    parts = [form(part) for part in (value.values() if isinstance(value, dict) else value)]
    held = ", ".join(dict.fromkeys(parts))
    return f"a {type(value).__name__} of {len(parts)}" + (f" ({held})" if len(held) <= LONGEST_SHOWN else "")


def leaf_of(argument: Any, number: int) -> Any:
    """One of the leaves of an argument that is a container."""
    return tree_leaves(argument)[number]

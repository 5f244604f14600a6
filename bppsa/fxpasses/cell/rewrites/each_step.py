"""Ops that do not treat every row alike, run for each step by itself and for all steps at once, by torch.vmap.

What needs no carry leaves the loop this way whatever it is: a sort, a mean over the batch, a lookup.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from bppsa.errors import Reason, Unsupported
from bppsa.fxpasses.theirs import theirs

TRIED_STEPS = 2
# What PyTorch raises where it cannot run an op for many steps at once.
CANNOT = (RuntimeError, ValueError, IndexError, TypeError)


# What an op is tried on: 0 is a place in any tensor, but nothing to divide by; some take probabilities alone.
EXAMPLES = ((torch.randn, 0), (torch.randn, 1), (torch.rand, 0))


def each_step(op: Any, moving: Sequence[bool], args: Any, kwargs: Any) -> Any:
    """`op(*args, **kwargs)` at every step. moving: for each leaf of args and kwargs, whether it is a tensor of all
    steps, [T, *shape]; the others are the same at all of them. Results are [T, *shape]."""
    leaves, spec = tree_flatten((args, kwargs))

    def one(*moved: Tensor) -> Any:
        given = iter(moved)
        own = [next(given) if moves else leaf for leaf, moves in zip(leaves, moving, strict=True)]
        args, kwargs = tree_unflatten(own, spec)
        return op(*args, **kwargs)

    return torch.vmap(one)(*(leaf for leaf, moves in zip(leaves, moving, strict=True) if moves))


def beside(value: Tensor, x: Tensor) -> Tensor:
    """What stands in one step for `beside_all`."""
    return value


def beside_all(value: Tensor, xs: Tensor) -> Tensor:
    """`value` for each step of xs [T, ...], without a copy."""
    return value.expand(xs.shape[0], *value.shape)


def check_each_step(node: fx.Node, moving: Sequence[bool]) -> None:
    """Raise `Unsupported` unless the op gives for two steps at once what it gives for each."""
    _, spec = tree_flatten((node.args, node.kwargs))
    with _disable_current_modes(), torch.no_grad():
        given, found = tried_at_once(node, moving)
        for t in range(TRIED_STEPS):
            own = [leaf[t] if moves else leaf for leaf, moves in zip(given, moving, strict=True)]
            args, kwargs = tree_unflatten(own, spec)
            expected = tree_leaves(node.target(*args, **kwargs))
            if not all(alike(a[t], b) for a, b in zip(found, expected, strict=True)):
                raise Unsupported("gives something else for all steps at once", op=str(node.target))


def tried_at_once(node: fx.Node, moving: Sequence[bool]) -> tuple[list[Any], list[Any]]:
    raised: Exception | None = None
    for draw, whole in EXAMPLES:
        try:
            return at_once(node, moving, draw, whole)
        except CANNOT as error:
            raised = error
    reason = Reason("cannot run for all steps at once", op=str(node.target), path=node.meta.get("line", ""))
    raise Unsupported(reason) from raised


def at_once(node: fx.Node, moving: Sequence[bool], draw: Any, whole: int) -> tuple[list[Any], list[Any]]:
    """What the op is given as an example, and what it gives for all steps. whole: the integers among it."""
    leaves, spec = tree_flatten((node.args, node.kwargs))
    generator = torch.Generator().manual_seed(0)
    given = [
        example(leaf.meta["val"], moves, generator, draw, whole) if isinstance(leaf, fx.Node) else leaf
        for leaf, moves in zip(leaves, moving, strict=True)
    ]
    args, kwargs = tree_unflatten(given, spec)
    return given, tree_leaves(theirs(each_step, node.target, moving, args, kwargs))


def example(like: Tensor, moves: bool, generator: torch.Generator, draw: Any, whole: int) -> Tensor:
    """Random numbers; an integer is `whole`."""
    shape = (TRIED_STEPS, *like.shape) if moves else like.shape
    if not (like.is_floating_point() or like.is_complex()):
        return torch.full(shape, whole, dtype=like.dtype)
    wide = torch.complex128 if like.is_complex() else torch.float64
    return draw(shape, generator=generator, dtype=wide).to(like.dtype)


def alike(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    rounded = a.is_floating_point() or a.is_complex()
    return torch.allclose(a, b, equal_nan=True) if rounded else torch.equal(a, b)


def depends(node: fx.Node, moves: Any) -> list[bool]:
    """Whether `moves` says so, for each leaf of a node's arguments."""
    leaves = tree_leaves((node.args, node.kwargs))
    return [isinstance(leaf, fx.Node) and bool(moves(leaf)) for leaf in leaves]


def counts_rows(graph: fx.Graph) -> bool:
    """Whether the graph holds for one batch size only."""
    return any(node.target in (each_step, beside_all) for node in graph.nodes)

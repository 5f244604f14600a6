"""Which of a model's arguments have the batch's rows: found once, with the example that the model is cut for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten

from bppsa.fxpasses.partition.call.arguments import Arguments
from bppsa.fxpasses.partition.call.certain import Certain
from bppsa.fxpasses.partition.call.kept import kept
from bppsa.fxpasses.partition.call.refusals import WHAT_FORWARDS_RAISE
from bppsa.fxpasses.partition.check.verify import in_a_row, same
from bppsa.fxpasses.theirs import is_ours
from bppsa.stages import Stages

Known = Sequence[bool | None]


def by_rows(model: nn.Module, stages: Stages, arguments: Arguments, known: Known | None = None) -> tuple[bool, ...]:
    """Of each leaf of the arguments. The first tensor has rows; another of as many may have them by chance, such as a
    mask [T, T]: where it is cut, the model does not give for some rows what it gives for these among all.

    known: where that is known already.
    """
    leaves, spec = tree_flatten(list(arguments.examples))
    rows = next((len(leaf) for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim()), 0)
    likely = [isinstance(leaf, Tensor) and leaf.dim() > 0 and len(leaf) == rows for leaf in leaves]
    sure = known or [True if i == likely.index(True) else None for i in range(len(leaves))] if any(likely) else likely
    flags = tuple(yes if it is None else it for it, yes in zip(sure, likely, strict=True))
    open_ones = [i for i, it in enumerate(sure) if it is None and likely[i]]
    if not open_ones or rows < 2 or any(parameter.is_meta for parameter in model.parameters()):
        return flags
    with evaluating(model, stages), Certain():
        try:
            whole = in_a_row(stages, tree_unflatten(leaves, spec))
        except WHAT_FORWARDS_RAISE as error:  # what the model cannot do in evaluation
            if is_ours(error):
                raise
            return flags
        tries = readings(flags, open_ones)
        return next((one for one in tries if agrees(stages, leaves, spec, one, rows, whole)), flags)


def readings(flags: tuple[bool, ...], open_ones: Sequence[int]) -> Iterator[tuple[bool, ...]]:
    """All that may have rows has them, or all but one, or none of these."""
    yield flags
    for other in open_ones:
        yield tuple(yes and i != other for i, yes in enumerate(flags))
    yield tuple(yes and i not in open_ones for i, yes in enumerate(flags))


def agrees(
    stages: Stages, leaves: Sequence[Any], spec: TreeSpec, flags: tuple[bool, ...], rows: int, whole: Any
) -> bool:
    half = rows // 2
    part = [leaf[:half] if cut else leaf for leaf, cut in zip(leaves, flags, strict=True)]
    try:
        found = in_a_row(stages, tree_unflatten(part, spec))
    except WHAT_FORWARDS_RAISE as error:
        if is_ours(error):
            raise
        return False
    ends = [(a, b) for a, b in zip(tree_leaves(found), tree_leaves(whole), strict=True) if has_rows(b, rows)]
    return bool(ends) and all(same(a, b[:half]) for a, b in ends)


def has_rows(x: Any, rows: int) -> bool:
    return isinstance(x, Tensor) and x.dim() > 0 and len(x) == rows


@contextmanager
def evaluating(model: nn.Module, stages: Stages) -> Iterator[None]:
    modules = [module for stage in stages.stages for module in stage.module.modules()]
    modes = [(module, module.training) for module in modules]
    try:
        with kept(model), torch.no_grad():
            for module in modules:
                module.training = False
            yield
    finally:
        for module, training in modes:
            module.training = training

"""Which of a model's arguments have the batch's rows: found once, with the example that the model is cut for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten

from bppsa._workers.batches import is_batched, rows_of
from bppsa.fxpasses.partition.kept import kept
from bppsa.fxpasses.partition.refusals import WHAT_FORWARDS_RAISE
from bppsa.fxpasses.partition.verify import same
from bppsa.stages import Stages


def by_rows(model: nn.Module, stages: Stages, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[bool, ...]:
    """Of each leaf of the arguments. The first tensor has rows; another of as many may have them by chance, such as a
    mask [T, T]: where it is cut, the model does not give for some rows what it gives for these among all."""
    leaves, spec = tree_flatten(stages.bind(*args, **kwargs))
    rows = rows_of(leaves)
    likely = tuple(is_batched(leaf, rows) for leaf in leaves)
    if sum(likely) < 2 or rows < 2 or any(parameter.is_meta for parameter in model.parameters()):
        return likely
    with evaluating(model, stages):
        try:
            whole = run(stages, leaves, spec)
        except WHAT_FORWARDS_RAISE:  # what the model cannot do in evaluation
            return likely
        for flags in readings(likely):
            if agrees(stages, leaves, spec, flags, rows, whole):
                return flags
    return likely


def readings(likely: tuple[bool, ...]) -> Iterator[tuple[bool, ...]]:
    """All that may have rows has them, or all but one, or the first alone."""
    first, *others = (i for i, yes in enumerate(likely) if yes)
    yield likely
    for other in others:
        yield tuple(yes and i != other for i, yes in enumerate(likely))
    yield tuple(i == first for i in range(len(likely)))


def agrees(
    stages: Stages, leaves: Sequence[Any], spec: TreeSpec, flags: tuple[bool, ...], rows: int, whole: Any
) -> bool:
    half = rows // 2
    part = [leaf[:half] if cut else leaf for leaf, cut in zip(leaves, flags, strict=True)]
    try:
        found = run(stages, part, spec)
    except WHAT_FORWARDS_RAISE:
        return False
    pairs = [(a, b[:half]) for a, b in zip(tree_leaves(found), tree_leaves(whole), strict=True) if is_batched(b, rows)]
    return bool(pairs) and all(same(a, b) for a, b in pairs)


def run(stages: Stages, leaves: Sequence[Any], spec: TreeSpec) -> Any:
    """What the stages return, one after another."""
    values = dict(enumerate(tree_unflatten(list(leaves), spec)))
    outputs: tuple[Any, ...] = ()
    for stage in stages.stages:
        outputs = stage.module(*(values[i] for i in stage.inputs))
        values.update(zip(stage.outputs, outputs, strict=False))  # the last stage's are no values
    return stages.assemble(outputs)


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

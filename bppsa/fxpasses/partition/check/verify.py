"""Whether stages give what their model gives, gradients too: a forward may do what its ops do not show."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from bppsa.common.graph import differentiable_in
from bppsa.common.stages import Stages
from bppsa.errors import PartitionError
from bppsa.fxpasses.partition.call.arguments import Arguments
from bppsa.fxpasses.partition.call.kept import is_on_meta, kept
from bppsa.fxpasses.partition.call.refusals import WHAT_FORWARDS_RAISE
from bppsa.fxpasses.partition.call.results import are_same_results
from bppsa.fxpasses.partition.capture.sizes import Sizes
from bppsa.fxpasses.partition.ops.effects import EffectWatch
from bppsa.fxpasses.theirs import is_ours, raise_if_ours, theirs

R = TypeVar("R")
HIDDEN = (
    "its stages give something else than the model, so the forward does something that calls of PyTorch's functions "
    "do not show, such as looking into tensors by numpy; take that out, or cut the model by hand, with "
    "stages=[module, ...]"
)


# Whether gradients of arguments, and of Parameters, are compared; the first way that works is taken. Forwards may take
# no argument that wants one, and torch.utils.checkpoint with use_reentrant=True can only be called .backward() on.
WAYS = ((True, True), (False, True), (False, False))


def called(model: nn.Module, arguments: Arguments) -> Any:
    """What the model returns for the example, its ops seen one by one as while it is traced."""
    args, kwargs = arguments.call(arguments.examples)
    with torch.no_grad(), EffectWatch():
        return theirs(model, *args, **kwargs)


def in_a_row(stages: Stages, arguments: Sequence[Any]) -> Any:
    """What the stages return, one after another."""
    values = dict(enumerate(arguments))
    outputs: tuple[Any, ...] = ()
    for stage in stages.stages:
        outputs = theirs(stage.module, *(values[i] for i in stage.inputs))
        values.update(zip(stage.outputs, outputs, strict=False))  # the last stage's are no values
    return stages.assemble(outputs)


def differentiated(
    model: nn.Module, call: Callable[[Sequence[Any]], Any], arguments: Sequence[Any], way: tuple[bool, bool]
) -> Any:
    """What the call returns, and gradients of a loss that touches all of it."""
    of_arguments, of_parameters = way
    given = tree_map_only(
        Tensor, lambda x: x.clone().requires_grad_(of_arguments and x.is_floating_point()), list(arguments)
    )
    with torch.enable_grad():
        result = call(given)
    sources = (*model.parameters(), given) if of_parameters else ()
    wanted = differentiable_in(sources)
    random = torch.Generator().manual_seed(0)
    ends = differentiable_in(result)
    drawn = [torch.randn(x.shape, generator=random, dtype=torch.float64).to(x) for x in ends]
    none = not (ends and wanted)
    grads = () if none else theirs(torch.autograd.grad, ends, wanted, drawn, allow_unused=True)
    return tree_map_only(Tensor, Tensor.detach, (result, list(grads)))


def check_stages(model: nn.Module, stages: Stages, arguments: Arguments) -> None:
    """Raises PartitionError where the stages do not give what the model gives, and what the model raises. On the meta
    device there is nothing to see."""
    if is_on_meta(model):
        return
    expected = of_model(model, arguments, arguments.examples)
    if not are_same_results(of_stages(model, stages, arguments.examples, expected.way), expected.made):
        raise PartitionError(f"{type(model).__name__}: {HIDDEN}")


def never_one(model: nn.Module, stages: Stages, arguments: Arguments, sizes: Sizes) -> frozenset[Any]:
    """Symbols of sizes that export takes to be two or more, and that make a difference where they are one. What the
    model itself cannot do, the stages need not."""
    if is_on_meta(model):
        return frozenset()
    leaves, spec = tree_flatten(list(arguments.examples))
    found: set[Any] = set()
    for symbols in sizes.groups():
        values = tree_unflatten(sizes.narrowed(leaves, symbols), spec)
        expected = tried(partial(of_model, model, arguments, values))
        if expected is None:
            continue
        made = tried(partial(of_stages, model, stages, values, expected.way))
        if made is None or not are_same_results(made, expected.made):
            found |= symbols
    return frozenset(found)


def tried(call: Callable[[], R]) -> R | None:
    """What it gives; None where it raises what a forward may raise, of which torch.fx prints the graph's code."""
    try:
        with redirect_stderr(io.StringIO()):
            return call()
    except WHAT_FORWARDS_RAISE as error:
        raise_if_ours(error)
        return None


class Expected(NamedTuple):
    """What the model gives, and of which of WAYS."""

    made: Any
    way: tuple[bool, bool]


def of_stages(model: nn.Module, stages: Stages, values: Sequence[Any], way: tuple[bool, bool]) -> Any:
    with kept(model):
        return differentiated(model, lambda given: in_a_row(stages, given), values, way)


def of_model(model: nn.Module, arguments: Arguments, values: Sequence[Any]) -> Expected:
    """What the model gives, in the first of WAYS in which it can be differentiated. Raises what the model raises."""

    def whole(given: Sequence[Any]) -> Any:
        args, kwargs = arguments.call(given)
        return theirs(model, *args, **kwargs)

    for way in WAYS:
        try:
            with kept(model):
                return Expected(differentiated(model, whole, values, way), way)
        except RuntimeError as error:
            if is_ours(error) or way == WAYS[-1]:
                raise
    raise AssertionError("the last way returns or raises")

"""What a call of `step` gives: the model's arguments, and a target where there is a loss function."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from inspect import Parameter
from typing import Any, NamedTuple

from torch import nn

from bppsa.errors import ArgumentError


class StepInputs(NamedTuple):
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    target: Any = None


def given_for(model: nn.Module, inputs: Sequence[Any], kwargs: Mapping[str, Any], *, has_target: bool) -> StepInputs:
    """What the arguments of `step` are for. has_target: whether there is a loss function.

    A batch may be one mapping, or keywords. Of these the model takes what its forward has parameters for; with a loss
    function the rest is the target, one entry as it is and several as a dict, and otherwise the last positional one.

    Raises ArgumentError where no target is left.
    """
    if has_target and inputs and not (kwargs or isinstance(inputs[0], Mapping)):
        return StepInputs(tuple(inputs[:-1]), {}, inputs[-1])
    takes = parameters_of(model)
    if len(inputs) == 1 and not kwargs and isinstance(inputs[0], Mapping):
        batch = dict(inputs[0])
        if has_target or (batch.keys() <= takes.keys() if takes is not None else True):
            inputs, kwargs = (), batch
    if not has_target:
        return StepInputs(tuple(inputs), dict(kwargs))
    own = {name: value for name, value in kwargs.items() if takes is None or name in takes}
    rest = {name: value for name, value in kwargs.items() if name not in own}
    if inputs and not rest:
        return StepInputs(tuple(inputs[:-1]), own, inputs[-1])
    if not rest:
        said = f", and the model takes {', '.join(own)} itself" if own else ""
        raise ArgumentError(
            f"step(x, target) takes the model's arguments and then a target{said}: give the target as the last "
            f"argument, or in a batch under a name that the forward does not take"
        )
    return StepInputs(tuple(inputs), own, next(iter(rest.values())) if len(rest) == 1 else rest)


def parameters_of(model: nn.Module) -> Mapping[str, Parameter] | None:
    """Returns the parameters of a forward that can be given by name; None where it takes any name."""
    found = inspect.signature(model.forward).parameters
    if any(parameter.kind is Parameter.VAR_KEYWORD for parameter in found.values()):
        return None
    named = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    return {name: parameter for name, parameter in found.items() if parameter.kind in named}

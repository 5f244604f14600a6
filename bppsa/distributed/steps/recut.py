"""A model that has been cut, cut once more for another mode: with the weights that are here, or with drawn ones."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from bppsa.common.stages import Stages
from bppsa.runtime.worker.shell import on_meta

Source = Callable[[], nn.Module]


def recutting(stages: Stages, compiled: nn.Module, source: Source) -> Callable[[Sequence[Any]], Stages] | None:
    """A function of the model's arguments, as `Stages.taken` gives them.

    source: gives the model that was cut; its modules are to be in the modes that those of `compiled` are in. None where
    the stages serve all modes.
    """
    again = stages.again
    if again is None:
        return None

    def recut(values: Sequence[Any]) -> Stages:
        model = source()
        for path, module in model.named_modules():
            module.training = compiled.get_submodule(path).training
        return again(model, values)

    return recut


class Twin:
    """A copy of a model without its weights, which a rank keeps of those that others own.

    Called, it is a model with drawn weights, with which the cut can be compared; a model that was on the meta device
    stays there.
    """

    def __init__(self, model: nn.Module) -> None:
        self.devices = {name: p.device for name, p in model.named_parameters(remove_duplicate=False)}
        self.model = copy.deepcopy(model, {id(p): on_meta(p) for p in model.parameters()})

    def __call__(self) -> nn.Module:
        named = self.model.named_parameters(remove_duplicate=False)
        drawn = {id(p): drawn_like(p, self.devices[name]) for name, p in named if self.devices[name].type != "meta"}
        return copy.deepcopy(self.model, drawn)


def drawn_like(parameter: nn.Parameter, device: torch.device) -> nn.Parameter:
    real = parameter.is_floating_point() or parameter.is_complex()
    values = (torch.randn_like if real else torch.zeros_like)(parameter, device=device)
    return nn.Parameter(values * 0.1 if real else values, parameter.requires_grad)

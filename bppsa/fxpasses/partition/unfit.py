"""Parts of a model that no stage can hold, or that cannot be traced, told before it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from bppsa.errors import PartitionError
from bppsa.fxpasses.partition.capture.whole import is_one_node


def has_lazy(module: nn.Module) -> bool:
    own = (*module._parameters.values(), *module._buffers.values())
    return any(tensor is not None and is_lazy(tensor) for tensor in own)


def has_old_norm(module: nn.Module) -> bool:
    return any(isinstance(hook, (WeightNorm, SpectralNorm)) for hook in module._forward_pre_hooks.values())


UnfitReasons = tuple[tuple[Callable[[Any], bool], str], ...]
UNFIT: UnfitReasons = (
    (has_lazy, "has parameters without a shape yet; call the model once before it is cut"),
    (
        has_old_norm,
        "sets its weight anew in each forward; take weight_norm or spectral_norm of torch.nn.utils.parametrizations",
    ),
    (
        lambda module: any(isinstance(hook, BasePruningMethod) for hook in module._forward_pre_hooks.values()),
        "is pruned by torch.nn.utils.prune, whose hook sets its weight in each forward; make the pruning permanent by "
        "prune.remove, or register a parametrization that multiplies with the mask",
    ),
)
UNTRACEABLE: UnfitReasons = (
    (
        lambda module: (module._backward_hooks or module._backward_pre_hooks) and not is_one_node(module),
        "has full backward hooks, and no stage is this module; register them on layers of torch.nn",
    ),
    (
        lambda module: isinstance(module, (nn.DataParallel, nn.parallel.DistributedDataParallel)),
        "spreads the batch over devices by itself; cut its .module",
    ),
    (
        lambda module: isinstance(module, torch.jit.ScriptModule),
        "is TorchScript, which cannot be cut; give the unscripted module",
    ),
    (lambda module: hasattr(module, "_orig_mod"), "was made by torch.compile; cut the model as it was before"),
)


def check_fit(model: nn.Module) -> None:
    """Raises PartitionError where a module cannot be part of a stage."""
    check(model, UNFIT)


def check_traceable(model: nn.Module) -> None:
    """Raises PartitionError where a module can only be part of a stage that is cut by hand."""
    check(model, UNTRACEABLE)


def check(model: nn.Module, reasons: UnfitReasons) -> None:
    for path, module in model.named_modules():
        for is_so, why in reasons:
            if is_so(module):
                raise PartitionError(f"{path or 'the model'} ({type(module).__name__}) {why}")

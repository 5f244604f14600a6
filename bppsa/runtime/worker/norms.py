"""Running statistics of batch norms: taken from each micro-batch by its job, added up in the order of micro-batches.

A job of training normalises by its own micro-batch (as GPipe does) and leaves the running statistics alone, because
jobs run in an order of the schedule's. What they saw is applied after the step, as a loop over micro-batches would.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.instancenorm import _InstanceNorm

from bppsa.common.graph import tensors_in
from bppsa.errors import PartitionError, ScheduleError


class NormMoments(NamedTuple):
    """One call of a norm: the mean and the unbiased variance that it normalised by."""

    path: str  # of the norm in the stage's module
    mean: Tensor
    variance: Tensor


def norms_of(module: nn.Module) -> list[tuple[str, _NormBase]]:
    """The norms that keep statistics. Raises PartitionError for one that reads other workers' batches."""
    found = [(path, m) for path, m in module.named_modules() if isinstance(m, _NormBase)]
    for path, norm in found:
        if isinstance(norm, nn.SyncBatchNorm):
            raise PartitionError(
                f"{path} is an nn.SyncBatchNorm, whose collectives have no place in a schedule; use nn.BatchNorm"
            )
    return [(path, norm) for path, norm in found if norm.track_running_stats and norm.running_mean is not None]


@contextmanager
def watched(norms: Sequence[tuple[str, _NormBase]]) -> Iterator[list[NormMoments]]:
    """Within the block norms in training leave their statistics in the list, call by call."""
    seen: list[NormMoments] = []
    training = [(path, norm) for path, norm in norms if norm.training]
    hooks = []
    for path, norm in training:
        if not is_stock(norm) and norm not in _checked:
            hooks.append(norm.register_forward_pre_hook(partial(check, path), with_kwargs=True))
        hooks.append(norm.register_forward_pre_hook(lambda m, args: lend(m)))
        hooks.append(norm.register_forward_hook(lambda m, args, out, path=path: seen.append(taken(path, m))))
    kept = [
        (norm, norm.running_mean, norm.running_var, norm.num_batches_tracked, norm.momentum) for _, norm in training
    ]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()
        for norm, mean, variance, count, momentum in kept:
            norm.running_mean, norm.running_var, norm.num_batches_tracked = mean, variance, count
            norm.momentum = momentum


_checked: WeakSet[nn.Module] = WeakSet()


def is_stock(norm: nn.Module) -> bool:
    """Whether its forward is PyTorch's own."""
    return type(norm).forward.__module__.partition(".")[0] == "torch"


@torch.no_grad()
def check(path: str, norm: Any, args: Any, kwargs: Any) -> None:
    """Raises ScheduleError where a forward of the user's does something else with its statistics than PyTorch's: what
    it gives depends on the running ones, or it changes them in another way."""
    as_it_is, lent = copy.deepcopy(norm), copy.deepcopy(norm)
    lend(lent)
    made = [type(norm).forward(each, *args, **kwargs) for each in (as_it_is, lent)]
    apply(follower := copy.deepcopy(norm), lent.running_mean, lent.running_var)
    states = [(each.running_mean, each.running_var, each.num_batches_tracked) for each in (as_it_is, follower)]
    ends, others = (tensors_in(pair) for pair in zip(made, states, strict=True))
    if not all(map(torch.allclose, ends, others)):
        raise ScheduleError(
            f"{path}: {type(norm).__name__}.forward reads its running statistics in training, or changes them as "
            f"nn.BatchNorm does not, and micro-batches could not follow; let it give them to F.batch_norm alone, with "
            f"its momentum"
        )
    _checked.add(norm)


def lend(norm: Any) -> None:
    """Gives a norm statistics to write over: with momentum 1 it writes the batch's own over the running ones."""
    norm.momentum = 1.0
    norm.running_mean, norm.running_var = torch.zeros_like(norm.running_mean), torch.ones_like(norm.running_var)
    norm.num_batches_tracked = torch.zeros_like(norm.num_batches_tracked)


def taken(path: str, norm: Any) -> NormMoments:
    return NormMoments(path, norm.running_mean, norm.running_var)


@torch.no_grad()
def apply(norm: Any, mean: Tensor, variance: Tensor) -> None:
    """One batch's statistics into a norm's running ones, as its own forward would have."""
    if isinstance(norm, _InstanceNorm):  # which counts no batches
        share = norm.momentum or 0.0
    else:
        norm.num_batches_tracked.add_(1)
        share = norm.momentum if norm.momentum is not None else 1.0 / float(norm.num_batches_tracked)
    norm.running_mean.mul_(1 - share).add_(mean, alpha=share)
    norm.running_var.mul_(1 - share).add_(variance, alpha=share)

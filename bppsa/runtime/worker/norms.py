"""Running statistics of batch norms: taken from each micro-batch by its job, added up in the order of micro-batches.

A job of training normalises by its own micro-batch (as GPipe does) and leaves the running statistics alone, because
jobs run in an order of the schedule's. What they saw is applied after the step, as a loop over micro-batches would.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.instancenorm import _InstanceNorm

from bppsa.errors import PartitionError


class NormMoments(NamedTuple):
    """One call of a norm: the mean and the unbiased variance that it normalised by."""

    path: str  # of the norm in the stage's module
    mean: Tensor
    variance: Tensor


def norms_of(module: nn.Module) -> list[tuple[str, _NormBase]]:
    """Those that keep statistics. Raises PartitionError for one that reads other workers' batches."""
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


def lend(norm: Any) -> None:
    """With momentum 1 a norm writes the batch's own statistics over the running ones: give it some to write over."""
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

"""Losses of each element, with PyTorch's gradients. What sums over the batch too is left as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from bppsa.fxpasses.recording.pieces import taken
from bppsa.fxpasses.spelling.choosing import within
from bppsa.sparsity.rules.own_gradient import ATTACHED

aten = torch.ops.aten
NONE, MEAN = 0, 1  # what PyTorch calls its reductions


def each(loss: Callable[..., Tensor], at: int = 2) -> Callable[..., Tensor]:
    """at: where the reduction stands among the arguments."""

    def spelled(*args: Any) -> Tensor:
        reduction = args[at] if len(args) > at else MEAN
        return loss(*args[:at], *args[at + 1 :]) if reduction == NONE else NotImplemented

    return spelled


def squared(x: Tensor, target: Tensor) -> Tensor:
    rest = x - target
    return rest * rest


def smooth(x: Tensor, target: Tensor, beta: float = 1.0) -> Tensor:
    rest = x - target
    size = rest.abs()
    value = torch.where(size < beta, rest * rest * (0.5 / beta), size - 0.5 * beta)
    return ATTACHED(value.detach(), rest, rest.clamp(-beta, beta) / beta)


def huber(x: Tensor, target: Tensor, delta: float = 1.0) -> Tensor:
    rest = x - target
    size = rest.abs()
    value = torch.where(size <= delta, rest * rest * 0.5, (size - 0.5 * delta) * delta)
    return ATTACHED(value.detach(), rest, rest.clamp(-delta, delta))


def cross_entropy(x: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
    """The logarithms are bounded below, and the gradient is not theirs but has a bound of its own. Of what is outside
    [0, 1], where PyTorch raises an error, a kernel gives NaN."""
    fixed = x.detach()
    one, other = fixed.log().clamp(min=-100), torch.log1p(-fixed).clamp(min=-100)
    value = (target - 1) * other - target * one
    to_target = target.detach()
    value = ATTACHED(value, x, (fixed - to_target) / ((1 - fixed) * fixed).clamp(min=1e-12))
    return value if weight is None else value * weight


def cross_entropy_with_logits(
    x: Tensor, target: Tensor, weight: Tensor | None = None, positive: Tensor | None = None
) -> Tensor:
    """positive: what an element counts of which the target is one."""
    rate = functional.logsigmoid(x)
    value = (1 - target) * x - (rate if positive is None else ((positive - 1) * target + 1) * rate)
    return value if weight is None else value * weight


def of_class(x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignored: int) -> tuple[Tensor, Tensor]:
    """Minus the element of each class, and what PyTorch divides a mean by. x: [B, classes, ...], target: [B, ...]"""
    if reduction != NONE or x.dim() != target.dim() + 1:
        return NotImplemented
    place = target.unsqueeze(1)
    value = -taken(x, 1, place)
    if weight is not None:
        each_class = weight.detach().view(-1, *(1,) * (x.dim() - 2)).expand(x.shape)
        value = value * taken(each_class, 1, place)
    value = within(place, x, 1, value)
    return torch.where(target == ignored, 0.0, value.squeeze(1)), torch.zeros((), dtype=x.dtype)


LOSSES: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((aten.nll_loss_forward.default, aten.nll_loss2d_forward.default), of_class),
    aten.mse_loss.default: each(squared),
    aten.smooth_l1_loss.default: each(smooth),
    aten.huber_loss.default: each(huber),
    aten.binary_cross_entropy.default: each(cross_entropy, at=3),
    aten.binary_cross_entropy_with_logits.default: each(cross_entropy_with_logits, at=4),
    aten.soft_margin_loss.default: each(lambda x, target: torch.log1p(torch.exp(-target * x))),
}

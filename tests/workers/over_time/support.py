"""A model cut over time beside itself: loss and all gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import bppsa
from bppsa.schedule import blelloch

EXACT = 1e-10  # of float64, relative to the largest


def over_time(model: nn.Module, K: int, middle: str = "chain", microbatches: int = 1, **options: Any) -> Any:
    return bppsa.compile(model, schedule=blelloch(K, middle), microbatches=microbatches, **options)


def wanted(model: nn.Module, args: Sequence[Any]) -> list[Tensor]:
    """What has a gradient: of the model's Parameters and of the arguments."""
    return [x for x in (*model.parameters(), *tree_leaves(args)) if isinstance(x, Tensor) and x.requires_grad]


def with_gradients(run: Callable[[], Tensor], wanted: Sequence[Tensor]) -> list[Tensor | None]:
    """What `run` returns, and what it leaves in `.grad`, which is empty before and after."""
    found: list[Tensor | None] = [run().detach()]
    for x in wanted:
        found.append(x.grad)
        x.grad = None
    return found


def plain(model: nn.Module, args: Sequence[Any], loss: Callable[[Any], Tensor]) -> list[Tensor | None]:
    """By PyTorch: the loss, and the gradients of what is wanted."""

    def run() -> Tensor:
        value = loss(model(*args))
        value.backward()
        return value

    return with_gradients(run, wanted(model, args))


def difference(found: Sequence[Tensor | None], expected: Sequence[Tensor | None]) -> float:
    """The largest, of a tensor relative to its largest value; infinite where one has a gradient and the other none."""
    worst = 0.0
    for a, b in zip(found, expected, strict=True):
        if a is None or b is None:
            worst = worst if a is b else torch.inf
        else:
            assert a.shape == b.shape
            worst = max(worst, float((a - b).abs().max() / b.abs().max().clamp(min=1e-30)))
    return worst


def step_difference(model: nn.Module, compiled: Any, args: Sequence[Any], target: Any, loss: Any) -> float:
    """Of a step's loss and gradients from PyTorch's."""
    expected = plain(model, args, lambda output: loss(output, target))
    return difference(with_gradients(lambda: compiled.step(*args, target), wanted(model, args)), expected)

"""A compiled model beside a copy that PyTorch runs: outputs, all gradients, buffers and the random state."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import bppsa
from bppsa.decisions import Decision
from tests.scan.support import as_real

Inputs = Callable[[], tuple[Any, ...]]


class Pair:
    """A model in float64, and its copy compiled. method: of them, that is called."""

    method = "__call__"

    def __init__(self, model: nn.Module, **options: Any) -> None:
        self.plain = model.double()
        self.fast = bppsa.compile(copy.deepcopy(model), **options)

    def both(self, change: Callable[[nn.Module], Any]) -> None:
        for model in (self.plain, self.fast):
            change(model)

    def call(self, *args: Any, seed: int = 0, **kwargs: Any) -> tuple[Decision, ...]:
        """Both models, on copies of the arguments; asserts that all they do is alike; what was decided."""
        ran = [self.run(model, args, kwargs, seed) for model in (self.plain, self.fast)]
        for expected, found in zip(*ran, strict=True):
            assert_alike(expected, found)
        return self.decisions()

    def decisions(self) -> tuple[Decision, ...]:
        """Those of the last call, about loops."""
        return tuple(d for d in bppsa.report(self.fast).decisions if d.kind == "loop")

    def run(self, model: nn.Module, args: Sequence[Any], kwargs: dict[str, Any], seed: int) -> list[Any]:
        self.around(model)
        result = run(model, args, kwargs, seed, self.method)
        self.behind(model)
        return result

    def around(self, model: nn.Module) -> None:
        """Before each call of one of them."""

    def behind(self, model: nn.Module) -> None:
        """After it."""

    def strategies(self, *args: Any, calls: int = 3, **kwargs: Any) -> list[str]:
        """Those of the last of some calls."""
        for seed in range(calls):
            decisions = self.call(*args, seed=seed, **kwargs)
        return [decision.strategy for decision in decisions]


def run(
    model: nn.Module, args: Sequence[Any], kwargs: dict[str, Any], seed: int, method: str = "__call__"
) -> list[Any]:
    def fresh(leaf: Any) -> Any:
        return leaf.detach().clone().requires_grad_(leaf.requires_grad) if isinstance(leaf, Tensor) else leaf

    model.zero_grad()
    args, kwargs = pytree.tree_map(fresh, (tuple(args), kwargs))
    torch.manual_seed(seed)
    result = pytree.tree_leaves(getattr(model, method)(*args, **kwargs))
    state = torch.get_rng_state()
    differentiable = [leaf for leaf in result if isinstance(leaf, Tensor) and leaf.requires_grad]
    if differentiable:
        total = sum((leaf * torch.randn_like(leaf)).sum() for leaf in map(as_real, differentiable))
        assert isinstance(total, Tensor)
        total.backward()
    given = [leaf.grad for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    return [*result, state, *given, *(p.grad for p in model.parameters()), *model.buffers()]


def assert_alike(expected: Any, found: Any) -> None:
    assert type(expected) is type(found)
    if isinstance(expected, Tensor):
        assert (expected.shape, expected.dtype) == (found.shape, found.dtype)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10 * scale(expected), equal_nan=True)
    else:
        assert expected == found


def scale(tensor: Tensor) -> float:
    """Its largest number, or one."""
    numbers = tensor.detach()[tensor.isfinite()].abs() if tensor.is_floating_point() else tensor.new_zeros(0)
    return max(1.0, *numbers.max().reshape(-1).tolist()) if numbers.numel() else 1.0

"""A training step on workers beside the same in one process, and what has to be equal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

EXACT = 1e-10  # relative, in float64


def real(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def loss_of(output: Any, target: Tensor) -> Tensor:
    """A mean over rows that touches every output. target: [B]."""
    found = [x for x in tree_leaves(output) if isinstance(x, Tensor) and x.is_floating_point()]
    return sum(((x - target[:, None] * i) ** 2).mean() for i, x in enumerate(found))


class SumOf(nn.Module):
    reduction = "sum"

    def forward(self, output: Any, target: Tensor) -> Tensor:
        return loss_of(output, target) * len(target)


def gradients(model: nn.Module) -> dict[str, Tensor | None]:
    return {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}


def close(found: Any, expected: Any, tolerance: float = EXACT) -> None:
    """Trees of tensors whose differences are small beside them, by norm, or beside the largest of the tree, whose terms
    may cancel in the others; all else is equal."""
    a, b = tree_leaves(found), tree_leaves(expected)
    assert len(a) == len(b)
    real = [y.detach().abs().max() for y in b if isinstance(y, Tensor) and y.is_floating_point() and y.numel()]
    rounding = tolerance * 1e-3 * float(max(real, default=0))
    for x, y in zip(a, b, strict=True):
        if not isinstance(y, Tensor):
            assert x == y
            continue
        assert x.shape == y.shape
        assert x.dtype == y.dtype
        if y.is_floating_point():
            allowed = tolerance * y.norm() + rounding * y.numel() ** 0.5
            assert (x - y).norm() <= allowed, f"{(x - y).norm():.2g} of {y.norm():.2g}, where {allowed:.2g} is allowed"
        else:
            assert torch.equal(x, y)


def same(found: Mapping[str, Tensor | None], expected: Mapping[str, Tensor | None], tolerance: float = EXACT) -> None:
    """Gradients by name: None where none is."""
    assert {name for name, g in found.items() if g is None} == {name for name, g in expected.items() if g is None}
    close([found[name] for name in expected], list(expected.values()), tolerance)


@contextmanager
def float64() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)

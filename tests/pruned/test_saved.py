"""What may change between a forward and its backward: all that PyTorch's backward does not read."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import bppsa
from tests.pruned.support import kernels, pruned

SIZE = 512


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(SIZE, SIZE), nn.BatchNorm1d(SIZE), nn.Linear(SIZE, SIZE)
        self.register_buffer("memory", torch.zeros(64, SIZE))
        self.finish()

    def finish(self) -> None:
        pass

    def between(self, h: Tensor) -> Tensor:
        return torch.relu(h)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.between(self.first(x)))

    def after(self, x: Tensor) -> None:
        """Between the forward and the backward."""


class RemembersTerm(Layers):
    """A sum does not read its terms in its backward."""

    def between(self, h: Tensor) -> Tensor:
        h = h + self.memory
        self.memory.copy_(h.detach())
        return torch.relu(h)


class RemembersTermOfPointwise(Layers):
    def between(self, h: Tensor) -> Tensor:
        h = torch.sub(h, self.memory, alpha=0.5)
        self.memory.copy_(h.detach())
        return torch.tanh(h)


class FrozenFirst(Layers):
    def finish(self) -> None:
        self.first.requires_grad_(False)

    def after(self, x: Tensor) -> None:
        x.fill_(0.5)


class ChangesShift(Layers):
    def between(self, h: Tensor) -> Tensor:
        return torch.relu(self.norm(h))

    def after(self, x: Tensor) -> None:
        self.norm.bias.add_(1)


class ChangesBiases(Layers):
    def after(self, x: Tensor) -> None:
        self.first.bias.add_(1), self.second.bias.mul_(2)


class FrozenInput(Layers):
    """No gradient goes to its input, so that nobody reads the first layer's weight."""

    def after(self, x: Tensor) -> None:
        self.first.weight_orig.mul_(2)


FREE = (RemembersTerm, RemembersTermOfPointwise, FrozenFirst, ChangesShift, ChangesBiases, FrozenInput)


def pair(case: type[Layers]) -> tuple[Layers, Layers]:
    made = []
    for _ in range(2):
        torch.manual_seed(0)
        made.append(pruned(case().double(), 0.97))
    return made[0], bppsa.compile(made[1])  # type: ignore[return-value]


@pytest.mark.parametrize("case", FREE, ids=lambda case: case.__name__)
def test_what_no_backward_reads_may_change(case: type[Layers]) -> None:
    models = pair(case)
    for turn in range(3):
        found = []
        for model in models:
            model.zero_grad()
            x = torch.randn(64, SIZE, generator=torch.Generator().manual_seed(turn)).double()
            y = model(x)
            with torch.no_grad():
                model.after(x)
            y.square().mean().backward()
            found.append([y, *(p.grad for p in model.parameters())])
        for expected, got in zip(*found, strict=True):
            assert (expected is None) == (got is None)
            assert expected is None or (expected - got.to_dense()).abs().max() < 1e-10
    assert "sparse" in kernels(models[1])


class ScaledByMemory(Layers):
    def between(self, h: Tensor) -> Tensor:
        return torch.relu(self.norm(h * self.memory))


READ: dict[str, Callable[[Layers, Tensor], object]] = {
    "input": lambda model, x: x.mul_(2),
    "scale": lambda model, x: model.norm.weight.mul_(2),
    "factor": lambda model, x: model.memory.add_(1),
}


@pytest.mark.parametrize("change", READ.values(), ids=READ)
def test_what_a_backward_reads_may_not(change: Callable[[Layers, Tensor], object]) -> None:
    for model in pair(ScaledByMemory):
        x = torch.randn(64, SIZE).double()
        y = model(x)
        with torch.no_grad():
            change(model, x)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def test_what_a_second_backward_reads_is_looked_at() -> None:
    """Ours reads the shift then, and says so: no gradient follows from another than the forward's."""
    _, fast = pair(ChangesShift)
    x = torch.randn(64, SIZE).double().requires_grad_()
    y = fast(x)
    with torch.no_grad():
        fast.after(x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(y.square().sum(), x, create_graph=True)

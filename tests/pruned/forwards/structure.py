"""Forwards whose layers are reached, shared, wrapped or read in other ways than by calling them once by name."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import prune

from tests.pruned.forwards.net import Net, table

STRUCTURE, case = table()


def conv() -> nn.Conv2d:
    return nn.Conv2d(3, 4, 3, padding=1)


@case
class UsedTwice(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x) + self.first(x.flip(-1))) + self.lin(x.repeat(1, 2, 1, 1)[:, :4].flatten(1))


@case
class FortyLayers(Net):
    """In a loop, where one line of code calls them all; each has a mask of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(conv() for _ in range(40))

    def finish(self) -> None:
        super().finish()
        for i, layer in enumerate(self.layers):
            prune.random_unstructured(layer, "weight", 0.1 + 0.02 * i)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        for i, layer in enumerate(self.layers):
            h = h + torch.tanh(layer(x * (i + 1)))
        return self.last(h)


@case
class FortyLayersThatBreak(FortyLayers):
    """A value is looked at between them."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        for layer in self.layers:
            h = h + layer(x)
            if h.sum().item() > 1e9:
                break
        return self.last(h)


class ThousandSteps(Net):
    """With a step of PyTorch's between, so that no region holds all of it. Tried by itself, as it takes long."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = self.last(self.first(x))
        y = h
        for _ in range(1000):
            h = torch.tanh(self.cell(h)) + 0.5 * y
        return h


@case
class ByName(Net):
    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleDict({"a": conv(), "b": conv()})
        self.acts = nn.ModuleList([nn.ReLU(), nn.Tanh()])
        self.order = ["a", "b"]

    def forward(self, x: Tensor) -> Tensor:
        h = sum(act(self.convs[name](x)) for name, act in zip(self.order, self.acts, strict=True))
        return self.last(h + self._modules["conv"](x) + getattr(self, "conv")(x))  # noqa: B009

    def change(self, turn: int) -> None:
        self.order = ["b", "a"] if turn % 2 else ["a", "b"]


@case
class Nested(Net):
    class Inner(nn.Module):
        def __init__(self, layer: nn.Module, depth: int) -> None:
            super().__init__()
            self.inner = Nested.Inner(layer, depth - 1) if depth else layer
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, x: Tensor, *, twice: bool = True) -> dict[str, Tensor]:
            h = self.inner(x)
            h = h["h"] if isinstance(h, dict) else h
            return {"h": h * self.scale * (2 if twice else 1)}

    def __init__(self) -> None:
        super().__init__()
        self.nested = self.Inner(conv(), 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x) + self.nested(x, twice=False)["h"])


@case
class PartOfASequential(Net):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(conv(), nn.ReLU(), nn.Flatten(), self.lin)

    def forward(self, x: Tensor) -> Tensor:
        h = self.layers[:2](x)
        for layer in list(self.layers.children())[2:]:
            h = layer(h)
        return h


@case
class TiedWeights(Net):
    """A layer, its twin, and a transposed use."""

    def __init__(self) -> None:
        super().__init__()
        self.twin = conv()
        self.twin.weight = self.conv.weight

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.last(self.first(x) * self.twin(x))
        return y, F.linear(y, self.lin.weight.t())


@case
class TiedModules(Net):
    def __init__(self) -> None:
        super().__init__()
        self.same, self.parts = self.conv, nn.ModuleList([self.conv, self.lin])

    def forward(self, x: Tensor) -> Tensor:
        return self.parts[1]((F.relu(self.same(x)) + self.parts[0](-x)).flatten(1))


@case
class WeightByFunction(Net):
    """Of a layer that has been called, as the mask is multiplied in a call."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        h = h + F.conv2d(x, self.conv.weight, padding=1) + F.conv2d(x, self.conv.weight.flip(-1), None, 1, 1)
        return self.last(h) + self.lin.weight.norm()


@case
class WeightInTheLoss(Net):
    def loss(self, output: Any) -> Tensor:
        return super().loss(output) + 0.1 * self.lin.weight.norm() + 0.1 * self.conv.weight.abs().sum()

    def seen(self) -> Any:
        return self.lin.weight, self.conv.weight


@case
class FunctionsAsAttributes(Net):
    def __init__(self) -> None:
        super().__init__()
        self.act = functools.partial(F.leaky_relu, negative_slope=0.2)
        self.fn: Callable[[Tensor], Tensor] = lambda h: h * 2
        self.steps = [self.act, torch.sin, self.scaled, functools.partial(self.scaled, by=0.5)]

    def scaled(self, h: Tensor, by: float = 3.0) -> Tensor:
        return h * by

    def between(self, h: Tensor) -> Tensor:
        for step in self.steps:
            h = step(h)
        return self.fn(h)

    def change(self, turn: int) -> None:
        if turn == 3:
            self.fn = torch.cos


@case
class MissingAttribute(Net):
    def between(self, h: Tensor) -> Tensor:
        try:
            return self.extra(h)
        except AttributeError:
            return h * getattr(self, "other", 2.0)

    def change(self, turn: int) -> None:
        if turn == 3:
            self.extra = nn.Softmax(1)


@case
class ForwardOfAPartReplaced(Net):
    def __init__(self) -> None:
        super().__init__()
        before = self.conv.forward
        self.conv.forward = lambda x: before(x) * 2  # type: ignore[method-assign]
        self.act = nn.ReLU()
        self.act.forward = torch.sin  # type: ignore[method-assign]

    def between(self, h: Tensor) -> Tensor:
        return self.act(h)


@case
class OwnLayers(Net):
    """Subclasses of layers that do more, or something else."""

    class Scaled(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * 2

    class Standardized(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
            return F.conv2d(x, weight, self.bias, padding=1)

    def __init__(self) -> None:
        super().__init__()
        self.scaled, self.standardized = self.Scaled(3, 4, 3, padding=1), self.Standardized(3, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x) + self.scaled(x) + self.standardized(x))

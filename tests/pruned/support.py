"""Small networks with every kind of layer that has a kernel, pruned; and PyTorch's gradients beside ours."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.nn.utils import prune

import bppsa
from bppsa.frontend.pruned.regions.products import take_products_in
from bppsa.runtime.sparse_conv.gradient import numbers
from bppsa.runtime.sparse_conv.kept import KeptValues

TOLERANCE = 1e-11


class Block(nn.Module):
    """A residual block as ResNet's, with a change in place of its own sum."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.relu = nn.ReLU(inplace=True)
        self.skip: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.skip = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.norm1(self.first(x)))
        y = self.norm2(self.second(y))
        y += self.skip(x)
        return self.relu(y)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.blocks = nn.Sequential(Block(8, 8, 1), Block(8, 12, 2))
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.adaptive_avg_pool2d(self.blocks(self.pool(self.stem(x))), 1)
        return self.head(x.view(x.size(0), -1))


class Mobile(nn.Module):
    """Depthwise and pointwise convolutions, and an activation that has no kernel in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(6, 6, 3, 2, 1, groups=6)
        self.pointwise = nn.Conv2d(6, 8, 1)
        self.grouped = nn.Conv2d(8, 4, 3, dilation=2, padding=2, groups=2)
        self.head = nn.Linear(4 * 4 * 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.sinc(self.pointwise(F.relu(self.depthwise(x))))
        return self.head(torch.flatten(F.avg_pool2d(self.grouped(x), 3, 1, 1), 1))


def lenet() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 4, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(4, 6, 3), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(24, 10), nn.ReLU(), nn.Linear(10, 5)),
    )


def perceptron() -> nn.Module:
    return nn.Sequential(
        nn.Linear(20, 30, bias=False), nn.BatchNorm1d(30), nn.ReLU(), nn.Linear(30, 30), nn.ReLU(), nn.Linear(30, 4)
    )


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "lenet": (lenet, (1, 16, 16)),
    "residual": (Residual, (3, 12, 12)),
    "mobile": (Mobile, (6, 8, 8)),
    "perceptron": (perceptron, (20,)),
}


def pruned(model: nn.Module, amount: float) -> nn.Module:
    for layer in model.modules():
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            prune.l1_unstructured(layer, "weight", amount)
    return model


class Mask(nn.Module):
    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        self.register_buffer("mask", mask)

    def forward(self, weight: Tensor) -> Tensor:
        return weight * self.mask


def twins(name: str, amount: float = 0.7, seed: int = 0) -> tuple[nn.Module, nn.Module, Callable[[int], Tensor]]:
    """PyTorch's model, ours, and what makes a batch for them."""
    torch.manual_seed(seed)
    make, shape = NETWORKS[name]
    model = make().double()
    plain = copy.deepcopy(model)  # before pruning, after which PyTorch's modules cannot be copied
    return pruned(plain, amount), bppsa.compile(pruned(model, amount)), lambda n: torch.randn(n, *shape).double()


def captured(fn: Callable[[Tensor], Tensor], x: Tensor) -> tuple[list[fx.Node], dict[fx.Node, Any]]:
    """The nodes of fn's graph as a region finds them, and what those that it is given are, with x."""
    graphs: list[fx.Graph] = []
    known: dict[fx.Node, Any] = {}

    def backend(module: fx.GraphModule, _: object) -> Callable[..., Any]:
        graphs.append(module.graph)
        given = [node for node in module.graph.nodes if node.op == "placeholder"]

        def run(*args: Any) -> Any:
            known.update(zip(given, args, strict=True))
            return module.forward(*args)

        return run

    torch.compile(fn, backend=backend, fullgraph=True, dynamic=False, isolate_recompiles=True)(x)
    (graph,) = graphs
    take_products_in(graph)
    return list(graph.nodes), known


def error(expected: Tensor, got: Tensor) -> float:
    return float(((expected - got).norm() / expected.norm().clamp_min(1e-30)).detach())


def assert_same_step(plain: nn.Module, fast: nn.Module, x: Tensor, tolerance: float = TOLERANCE) -> None:
    """Output, gradients of the input and of all parameters, and buffers, after one forward and backward."""
    results = []
    for model in (plain, fast):
        model.zero_grad()
        given = x.clone().requires_grad_()
        y = model(given)
        torch.manual_seed(1)
        y.backward(torch.randn_like(y))
        gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        results.append({"y": y, "x": given.grad, **gradients, **dict(model.named_buffers())})
    expected, got = results
    assert expected.keys() == got.keys()
    for name, value in expected.items():
        assert error(value.double(), got[name].double()) < tolerance, name


def kernels(model: nn.Module) -> list[str]:
    return [decision.strategy for decision in model.report.decisions]


def holds_all(gradient: Tensor) -> bool:
    """And not the kept entries alone."""
    return not isinstance(numbers(gradient), KeptValues)

"""Two models that should be one and the same: everything that a call of each does, compared."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import bppsa
from tests.pruned.forwards.net import SHAPE, Net
from tests.pruned.support import error

TOLERANCE = 1e-9
KINDS = (bool, int, float, str, Tensor, list, tuple, dict, type(None))


def made(case: type[Net]) -> Net:
    torch.manual_seed(0)
    model = case()
    model.finish()
    return model


def both(case: type[Net], **options: Any) -> tuple[Net, Net]:
    """PyTorch's and ours. PyTorch cannot copy a pruned module, so each is made."""
    return made(case), bppsa.compile(made(case), **options)  # type: ignore[return-value]


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.02, momentum=0.9)


def images(turn: int, samples: int) -> Tensor:
    return torch.randn(samples, *SHAPE, generator=torch.Generator().manual_seed(turn)).double()


def seed(turn: int) -> None:
    torch.manual_seed(turn), random.seed(turn), np.random.seed(turn)


def call(model: Net, turn: int, samples: int, backward: bool = True) -> dict[str, Any]:
    """All that is seen of a call, by name."""
    model.change(turn)
    x = images(turn, samples).requires_grad_(model.leaf)
    args, kwargs = model.inputs(x)
    seed(turn)
    output = model(*args, **kwargs)
    drawn = torch.rand(3), random.random(), np.random.rand()
    seen = {"output": frozen(output), "drawn": drawn}
    loss = model.loss(output)
    model.zero_grad()
    if backward and loss.requires_grad:
        loss.backward()
    return seen | {
        "loss": loss,
        "x": x.detach(),
        "gradient of x": x.grad,
        "gradients": {name: frozen(p.grad) for name, p in model.named_parameters()},
        "owner sees": frozen(model.seen()),
    }


def state(model: nn.Module, like: nn.Module) -> dict[str, Any]:
    """Parameters, buffers and attributes: those that `like` has."""
    found: dict[str, Any] = {"parameters": dict(model.named_parameters()), "buffers": dict(model.named_buffers())}
    for path, module in like.named_modules():
        own = model.get_submodule(path)
        names = [n for n, value in vars(module).items() if n[0] != "_" and isinstance(value, KINDS)]
        pruned = {n.removesuffix("_mask") for n in module._buffers}  # PyTorch's products, of the last call
        found |= {f"{path}.{n}": getattr(own, n) for n in names if n not in pruned}
    return found


def frozen(value: Any) -> Any:
    """As it is now, whatever is changed in place later."""
    if isinstance(value, Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    if dataclasses.is_dataclass(value):
        return {"type": type(value).__name__, **frozen(vars(value))}
    if isinstance(value, Mapping):
        return {key: frozen(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return {"type": type(value).__name__, **{i: frozen(item) for i, item in enumerate(value)}}
    return value


def assert_alike(expected: Any, got: Any, where: str = "", tolerance: float = TOLERANCE) -> None:
    if isinstance(expected, Tensor):
        assert isinstance(got, Tensor), where
        assert (expected.shape, expected.dtype) == (got.shape, got.dtype), where
        assert expected.requires_grad == got.requires_grad, where
        assert error(expected.double(), got.double()) < tolerance, where
    elif isinstance(expected, Mapping):
        assert list(map(str, expected)) == list(map(str, got)), where
        for key, item in expected.items():
            assert_alike(item, got[key], f"{where}/{key}", tolerance)
    elif isinstance(expected, (list, tuple)):
        assert len(expected) == len(got), where
        for i, (a, b) in enumerate(zip(expected, got, strict=True)):
            assert_alike(a, b, f"{where}/{i}", tolerance)
    elif isinstance(expected, float):
        assert abs(expected - got) <= tolerance * max(1.0, abs(expected)), where
    elif isinstance(expected, KINDS):
        assert expected == got, where


class Pair:
    """Two models in training, each with an optimizer."""

    def __init__(self, plain: Net, fast: Net) -> None:
        self.models, self.turn = (plain, fast), 0
        self.optimizers = [optimizer_of(model) for model in self.models]

    def train(self, samples: int = 4, turns: int = 1) -> None:
        for _ in range(turns):
            self.compare(samples)
            for optimizer in self.optimizers:
                optimizer.step()
            self.compare_state()

    def compare(self, samples: int = 4) -> None:
        """One forward and backward."""
        self.turn += 1
        expected, got = (call(model, self.turn, samples) for model in self.models)
        assert_alike(expected, got, f"call {self.turn}")
        self.compare_state()

    def look(self, samples: int = 4) -> None:
        """One forward without gradients."""
        self.turn += 1
        with torch.no_grad():
            expected, got = (call(model, self.turn, samples, backward=False) for model in self.models)
        assert_alike(expected, got, f"call {self.turn}")
        self.compare_state()

    def compare_state(self) -> None:
        plain, fast = self.models
        assert_alike(state(plain, plain), state(fast, plain), f"after call {self.turn}")

    def set_training(self, mode: bool) -> None:
        for model in self.models:
            model.train(mode)

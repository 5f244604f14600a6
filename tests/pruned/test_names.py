"""Attributes, methods and copies that TorchDynamo's guards overlook are seen in the next call."""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bppsa
from tests.pruned.support import error, kernels, pruned


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.act = nn.Linear(8, 8), nn.ReLU()
        self.one, self.two = 1.0, 2.0

    def part(self, x: Tensor) -> Tensor:
        return torch.tanh(x)

    @property
    def shift(self) -> float:
        return 0.0

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.part(self.layer(x))) * self.act.__dict__.get("scale", 1.0) + self.shift


def other_part(self: Net, x: Tensor) -> Tensor:
    return torch.sin(x)


def other_forward(self: Any, x: Tensor) -> Tensor:
    return x * 3


call = nn.Module.__call__


def other_call(self: nn.Module, x: Tensor) -> Any:
    return call(self, x) * (2 if isinstance(self, nn.ReLU) else 1)


def renames(model: Net, patch: pytest.MonkeyPatch) -> None:
    """As many names as before, with the same one last."""
    last = list(vars(model.act))[-2:]
    values = [vars(model.act).pop(name) for name in last]
    model.act.scale = 3.0
    vars(model.act)[last[1]] = values[1]


CHANGES: dict[str, Callable[[Net, pytest.MonkeyPatch], object]] = {
    "an attribute in the place of another": renames,
    "a method": lambda model, patch: patch.setattr(Net, "part", other_part),
    "a method's code": lambda model, patch: patch.setattr(Net.part, "__code__", other_part.__code__),
    "a property": lambda model, patch: patch.setattr(Net, "shift", property(lambda self: 1.0)),
    "PyTorch's forward of a layer": lambda model, patch: patch.setattr(nn.Linear, "forward", other_forward),
    "PyTorch's forward of a function": lambda model, patch: patch.setattr(nn.ReLU, "forward", other_forward),
    "PyTorch's call": lambda model, patch: patch.setattr(nn.Module, "__call__", other_call),
}


def twins() -> tuple[Net, Net]:
    torch.manual_seed(0)
    plain = Net().double()
    fast = copy.deepcopy(plain)
    vars(fast.act).update(first=0, second=0), vars(plain.act).update(first=0, second=0)
    return pruned(plain, 0.5), bppsa.compile(pruned(fast, 0.5))


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_dynamo_does_not_guard(change: Callable[..., object], monkeypatch: pytest.MonkeyPatch) -> None:
    plain, fast = twins()
    x = torch.randn(4, 8).double()
    for _ in range(2):
        assert error(plain(x), fast(x)) < 1e-12
    assert kernels(fast) == ["sparse"]
    with monkeypatch.context() as patch:
        change(plain, patch)
        if change is renames:
            change(fast, patch)
        for _ in range(2):
            assert error(plain(x), fast(x)) < 1e-12
    for _ in range(2):
        assert error(plain(x), fast(x)) < 1e-12


def test_a_copy_is_a_module_of_its_own() -> None:
    """copy.copy shares parts and Parameters, and no attribute that is given to one of the two."""

    class Scales(Net):
        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) * self.__dict__.get("scale", 1.0)

    torch.manual_seed(0)
    plain = pruned(Scales().double(), 0.5)
    fast = bppsa.compile(plain)
    x = torch.randn(4, 8).double()
    expected = plain(x)
    assert error(expected, fast(x)) < 1e-12
    other = copy.copy(fast)
    assert error(expected, other(x)) < 1e-12
    other.scale = 3.0
    assert error(3 * expected, other(x)) < 1e-12
    assert error(expected, fast(x)) < 1e-12
    assert kernels(other) == kernels(fast) == ["sparse"]


class Meta(type):
    def of_class(cls, x: Tensor) -> Tensor:
        return x


class Base:
    def inherited(self, x: Tensor) -> Tensor:
        return x


class Helper(Base, metaclass=Meta):
    def __init__(self) -> None:
        self.scale = 1.0

    def go(self, x: Tensor) -> Tensor:
        return x

    @classmethod
    def made(cls, x: Tensor) -> Tensor:
        return x

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> float:
        return 1.0


class Elsewhere(nn.Module):
    """Of a module that is no part of the network."""

    def forward(self, x: Tensor) -> Tensor:
        return x


def of_three(self: Helper) -> None:
    self.scale = 3.0


class Plain:
    """Without methods."""


def in_a_function(x: Tensor) -> Tensor:
    return x * float("1")


helper, elsewhere, helped = Helper(), Elsewhere(), Plain()
partial_ = functools.partial(of_three)
# A forward's use of a helper; where something else is put, its name, and what.
USES: dict[str, tuple[Callable[[Tensor], Tensor], type, str, Any]] = {
    "a method": (lambda x: helper.go(x), Helper, "go", other_forward),
    "a method by its code": (lambda x: helper.go(x), Helper.go, "__code__", other_forward.__code__),
    "a method of its base": (lambda x: helper.inherited(x), Base, "inherited", other_forward),
    "a method before its base's": (lambda x: helper.inherited(x), Helper, "inherited", other_forward),
    "a method of an object's class": (lambda x: helper.made(x), Helper, "made", classmethod(other_forward)),
    "a method of a class": (lambda x: Helper.made(x), Helper, "made", classmethod(other_forward)),
    "a method of a class's class": (lambda x: Helper.of_class(x), Meta, "of_class", other_forward),
    "a length": (lambda x: x * len(helper), Helper, "__len__", lambda self: 3),
    "an item": (lambda x: x * helper[0], Helper, "__getitem__", lambda self, index: 3.0),
    "a method of a new object": (lambda x: Helper().go(x), Helper, "go", other_forward),
    "what a new object begins with": (lambda x: x * Helper().scale, Helper, "__init__", of_three),
    "a truth": (lambda x: x if helped else 3 * x, Plain, "__bool__", lambda self: False),
    "a length for a truth": (lambda x: x if helped else 3 * x, Plain, "__len__", lambda self: 0),
    "a name before a builtin": (lambda x: x * abs(1.0), sys.modules[__name__], "abs", lambda value: 3 * value),
    "a name before a builtin in a function": (in_a_function, sys.modules[__name__], "float", lambda value: 3.0),
    "an attribute of a partial": (lambda x: x * getattr(partial_, "scale", 1.0), partial_, "scale", 3.0),
    "an attribute of a function": (lambda x: x * getattr(of_three, "scale", 1.0), of_three, "scale", 3.0),
    "an attribute of an object": (lambda x: x * getattr(helped, "scale", 1.0), helped, "scale", 3.0),
    "an attribute of a class": (lambda x: x * getattr(Plain, "scale", 1.0), Plain, "scale", 3.0),
    "a module elsewhere": (lambda x: elsewhere(x), Elsewhere, "forward", other_forward),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_methods_of_other_objects_become_others(use: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    used, owner, name, other = use

    class Uses(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return used(self.layer(x))

    plain = pruned(Uses().double(), 0.5)
    fast, x = bppsa.compile(plain), torch.randn(4, 8).double()
    first = plain(x)
    for _ in range(2):
        assert error(first, fast(x)) < 1e-12
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, other, raising=False)
        for _ in range(2):
            assert error(3 * first, fast(x)) < 1e-12
    assert error(first, fast(x)) < 1e-12
    assert "sparse" in kernels(fast)

"""A forward that asks whether something has a name, which TorchDynamo does not guard, is Python's for that reason."""

from __future__ import annotations

import argparse
import types

import pytest
import torch
from torch import Tensor, nn

import bppsa
from tests.pruned.support import error, pruned

options, settings, elsewhere = argparse.Namespace(), types.ModuleType("settings"), nn.ReLU()


def scaled(x: Tensor) -> Tensor:
    return x


class Forward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)


class AsksObject(Forward):
    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * vars(options).get("scale", 1.0)


class AsksModule(Forward):
    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * (settings.scale if hasattr(settings, "scale") else 1.0)


class AsksModuleOrElse(Forward):
    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * getattr(settings, "scale", 1.0)


class AsksFunction(Forward):
    def forward(self, x: Tensor) -> Tensor:
        return scaled(self.layer(x)) * getattr(scaled, "scale", 1.0)


class AsksModuleElsewhere(Forward):
    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * elsewhere.__dict__.get("scale", 1.0)


# What is asked, and the reason.
ASKED: dict[type[Forward], tuple[object, str]] = {
    AsksObject: (options, "the names in an object's __dict__"),
    AsksModule: (settings, "the names in the module settings"),
    AsksModuleOrElse: (settings, "the names in the module settings"),
    AsksFunction: (scaled, "the names in the function scaled"),
    AsksModuleElsewhere: (elsewhere, "the names in an object's __dict__"),
}


@pytest.mark.parametrize("made", ASKED)
def test_a_name_that_is_given_later_is_seen(made: type[Forward], monkeypatch: pytest.MonkeyPatch) -> None:
    owner, reason = ASKED[made]
    plain = pruned(made().double(), 0.5)
    fast, x = bppsa.compile(plain), torch.randn(4, 8).double()
    first = plain(x)
    for _ in range(2):
        assert error(first, fast(x)) < 1e-12
    monkeypatch.setattr(owner, "scale", 3.0, raising=False)
    assert error(3 * first, fast(x)) < 1e-12
    monkeypatch.undo()
    assert error(first, fast(x)) < 1e-12
    of_root, of_layer = fast.report.decisions
    assert (of_root.path, of_root.strategy, of_layer.path, of_layer.strategy) == ("", "pytorch", "layer", "sparse")
    assert reason in of_root.reason
    assert "test_questions.py:" in of_root.reason

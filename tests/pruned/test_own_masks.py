"""Layers of the user's own whose forward multiplies a weight by a mask, in the spellings of pruning scripts."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bppsa
from tests.pruned.support import assert_same_step, kernels

Spelling = Callable[[Tensor, Tensor], Tensor]  # (weight, mask) -> what the layer reads


class MaskedConv(nn.Conv2d):
    """hold: makes a mask what the layer keeps as `self.mask`."""

    def __init__(self, spelling: Spelling, hold: Callable[[Tensor], Any], *sizes: int) -> None:
        super().__init__(*sizes)
        self.spelling = spelling
        mask = hold((torch.rand_like(self.weight) < 0.3).double())
        if isinstance(mask, nn.Parameter) or not isinstance(mask, Tensor):
            self.mask = mask
        else:
            self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        return self._conv_forward(x, self.spelling(self.weight, self.mask), self.bias)


class MaskedLinear(nn.Module):
    """Nothing of nn.Linear, and a mask that is no buffer."""

    def __init__(self, spelling: Spelling, hold: Callable[[Tensor], Any], inputs: int, outputs: int) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(outputs, inputs) / inputs)
        self.spelling, self.kept = spelling, hold((torch.rand(outputs, inputs) < 0.3).double())

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.spelling(self.kernel, self.kept))


def network(spelling: Spelling, hold: Callable[[Tensor], Any]) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        MaskedConv(spelling, hold, 1, 4, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        MaskedLinear(spelling, hold, 4 * 7 * 7, 10),
    ).double()


def numbers(mask: Tensor) -> Tensor:
    return mask


def truths(mask: Tensor) -> Tensor:
    return mask.bool()


def frozen(mask: Tensor) -> nn.Parameter:
    return nn.Parameter(mask, requires_grad=False)


def learned(mask: Tensor) -> nn.Parameter:
    return nn.Parameter(mask)


KERNELS: dict[str, tuple[Spelling, Callable[[Tensor], Any]]] = {
    "weight * mask": (lambda w, m: w * m, numbers),
    "mask.detach()": (lambda w, m: m.detach() * w, numbers),
    "mask.float()": (lambda w, m: w.mul(m.float()), truths),
    "type_as": (lambda w, m: torch.mul(m.type_as(w), w), truths),
    "frozen": (lambda w, m: w * m, frozen),
    "where": (lambda w, m: torch.where(m, w, torch.zeros_like(w)), truths),
    "masked_fill": (lambda w, m: w.masked_fill(~m, 0.0), truths),
    "logical_not": (lambda w, m: torch.masked_fill(w, torch.logical_not(m), 0), truths),
}
PYTORCH: dict[str, tuple[Spelling, Callable[[Tensor], Any]]] = {
    "learned": (lambda w, m: w * m, learned),
    "scores": (lambda w, m: w * m.bool().double(), lambda m: m * 0.3),
    "filled with ones": (lambda w, m: w.masked_fill(~m, 1.0), truths),
    "kept where it is false": (lambda w, m: w.masked_fill(m, 0.0), truths),
    "wider zeros": (lambda w, m: torch.where(m, w, torch.zeros_like(w, dtype=torch.float64) + 0), truths),
}


def check(spelling: Spelling, hold: Callable[[Tensor], Any]) -> nn.Module:
    plain = network(spelling, hold)
    fast = bppsa.compile(copy.deepcopy(plain))
    x = torch.randn(5, 1, 16, 16).double()
    assert_same_step(plain, fast, x)
    for model in (plain, fast):
        with torch.no_grad():
            model[0].mask[:2] = model[0].mask[:2].logical_not()
            model[0].weight *= 1.5
    assert_same_step(plain, fast, x)
    return fast


@pytest.mark.parametrize("name", KERNELS)
def test_runs_by_kept_weights(name: str) -> None:
    assert set(kernels(check(*KERNELS[name]))) == {"sparse"}


@pytest.mark.parametrize("name", PYTORCH)
def test_what_is_no_mask_is_pytorchs(name: str) -> None:
    assert "sparse" not in kernels(check(*PYTORCH[name]))


def test_a_mask_that_is_learned_from_now_on() -> None:
    plain = network(*KERNELS["frozen"])
    fast = bppsa.compile(copy.deepcopy(plain))
    x = torch.randn(5, 1, 16, 16).double()
    assert_same_step(plain, fast, x)
    for model in (plain, fast):
        model[0].mask.requires_grad_(True)
    assert_same_step(plain, fast, x)
    assert fast[0].mask.grad is not None
    another = torch.rand_like(plain[0].mask).round().detach()
    for model in (plain, fast):
        model[0].mask = nn.Parameter(another.clone(), requires_grad=False)
    assert_same_step(plain, fast, x)


def test_a_tensor_of_zeros_is_no_mask() -> None:
    """Such as a momentum that is kept beside a weight."""
    model = nn.Sequential(nn.Linear(4, 4))
    model[0].register_buffer("momentum", torch.zeros(4, 4))
    assert type(bppsa.compile(model)) is nn.Sequential


def test_tensors_that_are_no_masks() -> None:
    """A matrix of neighbours, one that tells which steps are past, codes of a quantized weight."""
    model = nn.Sequential(nn.Linear(4, 4))
    model[0].register_buffer("past", torch.ones(4, 4).tril())
    model[0].register_buffer("neighbours", torch.eye(4).to_sparse())
    model[0].register_buffer("codes", torch.quantize_per_tensor(torch.eye(4), 0.1, 0, torch.qint8))
    model[0].unused = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    model.append(nn.LazyLinear(4))
    assert type(bppsa.compile(model)) is nn.Sequential


class Stacked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        spelling, hold = KERNELS["weight * mask"]
        self.layers = nn.ModuleList(MaskedLinear(spelling, hold, 10, 10) for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(10) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer, norm in zip(self.layers[:-1], self.norms, strict=True):
            x = norm(layer(x)).relu()
        return self.layers[-1](x)


def test_a_loop_over_layers_is_none_over_time() -> None:
    plain = Stacked().double()
    fast = bppsa.compile(copy.deepcopy(plain))
    assert_same_step(plain, fast, torch.randn(5, 10).double())
    assert {decision.kind for decision in fast.report.decisions} == {"linear"}


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.register_buffer("mask", torch.eye(4))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros_like(x[:, 0])
        for t in range(x.shape[1]):
            h = torch.tanh(x[:, t] + h @ (self.weight * self.mask))
        return h


def test_a_step_over_time_that_masks_its_weight_is_a_loop() -> None:
    model = Recurrent()
    fast = bppsa.compile(copy.deepcopy(model))
    x = torch.randn(3, 6, 4)
    for _ in range(2):
        assert torch.allclose(fast(x), model(x), atol=1e-6)
    assert [decision.kind for decision in fast.report.decisions] == ["loop"]

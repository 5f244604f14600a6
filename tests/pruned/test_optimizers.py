"""Training with gradients that hold kept entries alone: optimizers, clipping, hooks and checkpoints are PyTorch's."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

import bppsa
from bppsa.plan import sparse
from bppsa.runtime.sparse_conv.gradient import KeptGradient
from tests.breadth import diagonal
from tests.pruned.support import NETWORKS, assert_same_step, error, holds_all, pruned, twins


@pytest.fixture(autouse=True)
def always_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse, "LEAST_WEIGHTS", 0)
    monkeypatch.setattr(sparse, "MOST_KEPT", 1.0)


def weights_of(model: nn.Module) -> list[nn.Parameter]:
    return [p for name, p in model.named_parameters() if name.endswith("weight_orig")]


@pytest.mark.parametrize("name", NETWORKS)
def test_a_training_step_is_pytorchs(name: str) -> None:
    plain, fast, batch = twins(name)
    for samples in (3, 8, 11):
        assert_same_step(plain, fast, batch(samples))
        assert all(isinstance(p.grad, KeptGradient) for p in weights_of(fast))


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
}
SGD_KEEPS = [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}, {"maximize": True}]
VARIANTS = [
    *(("sgd", flags) for flags in SGD_KEEPS),
    *(("sgd", {"momentum": 0.9, "dampening": 0.1, "weight_decay": 0.1}), ("sgd", {"foreach": True, "momentum": 0.9})),
    *(("sgd", {"fused": True, "momentum": 0.9}), ("sgd", {"weight_decay": 0.1})),
    *(("adam", {}), ("adam", {"fused": True}), ("adam", {"foreach": True, "amsgrad": True}), ("adamw", {})),
    *(("rmsprop", {"momentum": 0.5}), ("adagrad", {})),
]
CLIPS: dict[str, Callable[[Any], Any]] = {
    "none": lambda parameters: None,
    "norm": lambda parameters: clip_grad_norm_(parameters, 0.1),
    "norm inf, foreach": lambda parameters: clip_grad_norm_(parameters, 0.1, float("inf"), foreach=True),
    "value": lambda parameters: clip_grad_value_(parameters, 0.01),
}


@pytest.mark.parametrize(("optimizer", "clip"), diagonal(VARIANTS, CLIPS), ids=str)
def test_optimizers_follow_pytorch(optimizer: tuple[str, dict[str, Any]], clip: str) -> None:
    name, flags = optimizer
    plain, fast, batch = twins("lenet")
    before = [p.detach().clone() for p in plain.parameters()]
    optimizers = [OPTIMIZERS[name](m.parameters(), lr=0.05, **flags) for m in (plain, fast)]
    for turn in range(4):
        assert_same_step(plain, fast, batch(5))
        for model, steps in zip((plain, fast), optimizers, strict=True):
            CLIPS[clip](model.parameters())
            with torch.no_grad():
                steps.step()
            steps.zero_grad(set_to_none=turn % 2 == 0)
    for a, b, start in zip(plain.parameters(), fast.parameters(), before, strict=True):
        assert error(a - start, b - start) < 1e-9


@pytest.mark.parametrize("flags", SGD_KEEPS, ids=str)
def test_sgd_and_clipping_need_the_kept_entries_alone(flags: dict[str, Any]) -> None:
    _, fast, batch = twins("lenet")
    optimizer = torch.optim.SGD(fast.parameters(), 0.1, **flags)
    for _ in range(3):
        optimizer.zero_grad()
        fast(batch(4)).square().sum().backward()
        fast(batch(4)).square().sum().backward()  # and accumulation
        clip_grad_norm_(fast.parameters(), 0.1)
        optimizer.step()
        assert not any(holds_all(p.grad) for p in weights_of(fast))
    buffers = [optimizer.state[p].get("momentum_buffer") for p in weights_of(fast)]
    assert not any(holds_all(b) for b in buffers if b is not None)


def test_optimizers_states_go_on_from_a_checkpoint() -> None:
    plain, fast, batch = twins("lenet")
    optimizers = [torch.optim.SGD(m.parameters(), 0.05, momentum=0.9) for m in (plain, fast)]
    for _ in range(3):
        assert_same_step(plain, fast, batch(5))
        for optimizer in optimizers:
            optimizer.step()
        buffer = io.BytesIO()
        torch.save(optimizers[1].state_dict(), buffer)
        buffer.seek(0)
        optimizers[1] = torch.optim.SGD(fast.parameters(), 0.05, momentum=0.9)
        optimizers[1].load_state_dict(torch.load(buffer, weights_only=True))
    for a, b in zip(plain.parameters(), fast.parameters(), strict=True):
        assert error(a, b) < 1e-9


def add_weight(p: Tensor) -> None:
    assert p.grad is not None
    p.grad.add_(p.detach())


def test_hooks_and_gradients_that_are_asked_for() -> None:
    plain, fast, batch = twins("lenet")
    x, seen = batch(4), list[list[Tensor]]()
    for model in (plain, fast):
        weight = weights_of(model)[0]
        weight.register_hook(lambda g: g * 2 + 1)
        weight.register_post_accumulate_grad_hook(add_weight)
        asked = torch.autograd.grad(model(x).square().sum(), weights_of(model))
        model(x).square().sum().backward()
        seen.append([*asked, *(p.grad for p in weights_of(model))])
    for expected, got in zip(*seen, strict=True):
        assert error(expected, got.to_dense() if isinstance(got, KeptGradient) else got) < 1e-11


def test_weights_in_another_order_have_dense_ones() -> None:
    plain, fast, batch = twins("mobile")
    for model in (plain, fast):
        weight = model.grouped.weight_orig.detach().to(memory_format=torch.channels_last)
        model.grouped.weight_orig = nn.Parameter(weight)
    assert_same_step(plain, fast, batch(5))
    assert not isinstance(fast.grouped.weight_orig.grad, KeptGradient)
    assert isinstance(fast.pointwise.weight_orig.grad, KeptGradient)


def test_a_mask_that_becomes_another_one_between_backwards() -> None:
    plain, fast, batch = twins("lenet")
    for amount in (0.5, 0.8):
        for model in (plain, fast):
            with torch.no_grad():
                for layer in model.modules():
                    if isinstance(layer, (nn.Conv2d, nn.Linear)):
                        layer.weight_mask.copy_(torch.rand(layer.weight_mask.shape, generator=seeded(amount)) > amount)
        x = batch(4)
        for model in (plain, fast):
            model(x).square().sum().backward()  # adds to those of the mask before
    for a, b in zip(weights_of(plain), weights_of(fast), strict=True):
        assert error(a.grad, b.grad.to_dense()) < 1e-11


def seeded(amount: float) -> torch.Generator:
    return torch.Generator().manual_seed(int(amount * 100))


@pytest.mark.parametrize(("width", "amount", "alone"), [(64, 0.97, False), (256, 0.7, False), (256, 0.97, True)])
def test_small_or_dense_weights_have_dense_ones(
    width: int, amount: float, alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(sparse, "MARGIN", 0.0)
    fast = bppsa.compile(pruned(nn.Sequential(nn.Linear(width, width)), amount))
    fast(torch.randn(4, width)).sum().backward()
    assert isinstance(fast[0].weight_orig.grad, KeptGradient) is alone


CONVERSIONS: dict[str, Callable[[nn.Module], Any]] = {
    "float": lambda m: m.float(),
    "there and back": lambda m: m.float().double(),
    "channels last": lambda m: m.to(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("name", CONVERSIONS)
def test_a_model_is_converted_between_two_backwards(name: str) -> None:
    plain, fast, batch = twins("lenet")
    x, tolerance = batch(4), 1e-11 if name == "channels last" else 1e-4
    for model in (plain, fast):
        model(x).square().sum().backward()
        CONVERSIONS[name](model)
        model(x.to(next(model.parameters()).dtype)).square().sum().backward()
        torch.optim.SGD(model.parameters(), 0.1, momentum=0.9).step()
    for a, b in zip(plain.parameters(), fast.parameters(), strict=True):
        assert a.dtype is b.dtype
        assert error(a.grad.double(), b.grad.to_dense().double()) < tolerance
        assert error(a.double(), b.double()) < tolerance

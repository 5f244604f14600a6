"""What a pruned layer holds as its weight or bias, asked for after regions have run in its place."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import bppsa
from bppsa.plan import sparse
from tests.pruned.support import assert_same_step, error, twins


def layers(model: nn.Module) -> list[nn.Module]:
    return [layer for layer in model.modules() if isinstance(layer, (nn.Conv2d, nn.Linear))]


def train(model: nn.Module, x: torch.Tensor) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()
    model(x)


def test_pruning_once_more_ranks_by_the_trained_weights() -> None:
    plain, fast, batch = twins("lenet", amount=0.3)
    for turn in range(3):
        x = batch(4)
        for model in (plain, fast):
            train(model, x)
            for layer in layers(model):
                assert torch.equal(layer.weight, layer.weight_orig * layer.weight_mask)
                prune.l1_unstructured(layer, "weight", 0.3)
            if turn:
                targets = [(layer, "weight") for layer in layers(model)]
                prune.global_unstructured(targets, prune.L1Unstructured, amount=0.1)
        for a, b in zip(layers(plain), layers(fast), strict=True):
            assert torch.equal(a.weight_mask, b.weight_mask)
        assert_same_step(plain, fast, x)


@pytest.mark.parametrize("margin", [0.0, 1e9], ids=["regions", "PyTorch"])
def test_it_is_the_product_as_it_is_now(margin: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse, "MARGIN", margin)
    _, fast, batch = twins("lenet")
    prune.random_unstructured(layers(fast)[1], "bias", 0.5)
    fast = bppsa.compile(fast)
    for _ in range(2):
        train(fast, batch(4))
        for layer in layers(fast):
            assert torch.equal(layer.weight, layer.weight_orig * layer.weight_mask)
        assert torch.equal(layers(fast)[1].bias, layers(fast)[1].bias_orig * layers(fast)[1].bias_mask)
        (layers(fast)[0].weight * 2).sum().backward()  # a gradient comes through the mask
        assert not layers(fast)[0].weight_orig.grad[layers(fast)[0].weight_mask == 0].to_dense().any()


def test_a_layer_of_the_users_own_reads_it() -> None:
    class Reader(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            read.append(self.weight)
            return super().forward(x)

    read: list[torch.Tensor] = []
    model = nn.Sequential(Reader(20, 30), nn.Linear(30, 4)).double()
    prune.l1_unstructured(model[0], "weight", 0.5)
    prune.l1_unstructured(model[1], "weight", 0.5)
    fast = bppsa.compile(model)
    fast(torch.randn(5, 20).double()).sum().backward()
    with torch.no_grad():
        fast[0].weight_orig.mul_(2)
    assert torch.equal(fast[0].weight, 2 * read[0])
    fast[0].forward(torch.randn(5, 20).double())  # without its hooks
    assert torch.equal(read[1], 2 * read[0])


def test_pruning_ends_and_begins_again() -> None:
    plain, fast, batch = twins("lenet")
    x = batch(4)
    for model in (plain, fast):
        train(model, x)
        for layer in layers(model):
            prune.remove(layer, "weight")
            assert isinstance(layer.weight, nn.Parameter)
    assert list(plain.state_dict()) == list(fast.state_dict())
    assert error(layers(plain)[0].weight, layers(fast)[0].weight) < 1e-11
    assert_same_step(plain, fast, x)
    for model in (plain, fast):
        for layer in layers(model):
            prune.l1_unstructured(layer, "weight", 0.8)
    assert_same_step(plain, fast, x)
    del layers(fast)[0].weight
    assert not hasattr(layers(fast)[0], "weight")


def test_copies_have_products_of_their_own() -> None:
    _, fast, batch = twins("lenet")
    train(fast, batch(4))
    for other in (copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))):
        before = layers(fast)[0].weight.detach().clone()
        train(other, batch(4))
        assert torch.equal(layers(other)[0].weight, layers(other)[0].weight_orig * layers(other)[0].weight_mask)
        assert not torch.equal(layers(other)[0].weight, before)
        assert torch.equal(layers(fast)[0].weight, before)


def test_a_hook_that_calls_its_layer() -> None:
    """And a bias that is no Parameter, which stays."""

    def made() -> nn.Module:
        torch.manual_seed(0)
        layer = nn.Linear(6, 4, bias=False).double()
        prune.l1_unstructured(layer, "weight", 0.5)
        del layer.bias
        layer.__dict__["bias"] = torch.zeros(4, dtype=torch.float64)
        calls: list[None] = []

        def again(module: nn.Module, args: tuple[torch.Tensor]) -> None:
            module.weight = module.weight * 2
            module.bias = torch.ones(4, dtype=torch.float64)
            calls.append(None)
            if len(calls) % 2:
                module(*args)

        layer.register_forward_pre_hook(again)
        return nn.Sequential(layer, nn.ReLU())

    plain, fast = made(), bppsa.compile(made())
    for _ in range(3):
        x = torch.randn(5, 6).double()
        torch.testing.assert_close(fast(x), plain(x))
        torch.testing.assert_close(fast[0].bias, plain[0].bias)

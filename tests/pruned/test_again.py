"""Gradients that are differentiated again, and other ways to run a forward or a backward than a training step's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import bppsa
from tests.pruned.support import NETWORKS, assert_same_step, error, kernels, pruned, twins


class Everything(nn.Module):
    """A step of each kind, with smooth activations: second derivatives of all layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(2, 6, 3, 2, 1, groups=2, bias=False), nn.BatchNorm2d(6)
        self.second, self.drop = nn.Conv2d(6, 6, 3, 1, 2, 2), nn.Dropout2d(0.3)
        self.head, self.last = nn.Linear(24, 7), nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.silu(self.norm(self.first(x)))
        x = F.relu(x + self.drop(self.second(x)))
        x = F.max_pool2d(x, 2, 2)
        x = F.adaptive_avg_pool2d(x, (2, 2)) + F.avg_pool2d(x, 2, 2, 0)
        return self.last(torch.tanh(self.head(torch.flatten(x, 1))))


def everything() -> tuple[nn.Module, nn.Module]:
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(pruned(Everything().double(), 0.5))
    return models[0], bppsa.compile(models[1])


def penalty(model: nn.Module, x: Tensor) -> list[Tensor]:
    """The gradients of a gradient penalty: of the input's and the parameters' gradients."""
    torch.manual_seed(3)
    model.zero_grad()
    x = x.clone().requires_grad_()
    y = model(x)
    inner = torch.autograd.grad(y.square().sum(), [x, *model.parameters()], create_graph=True)
    sum(g.square().sum() for g in inner).backward()
    return [y, *inner, x.grad, *(p.grad for p in model.parameters())]


@pytest.mark.parametrize("training", [True, False])
def test_gradients_of_gradients_are_pytorchs(training: bool) -> None:
    plain, fast = everything()
    x = torch.randn(5, 2, 16, 16).double()
    for model in (plain, fast):
        model.train(training)
    for expected, got in zip(penalty(plain, x), penalty(fast, x), strict=True):
        assert error(expected.detach(), got.detach()) < 1e-10
    assert set(kernels(fast)) == {"sparse"}
    for a, b in zip(plain.buffers(), fast.buffers(), strict=True):
        assert error(a.double(), b.double()) < 1e-12


def test_a_mask_changed_before_the_second_gradient_is_that_of_the_forward() -> None:
    plain, fast, batch = twins("lenet")
    x = batch(3)
    results = []
    for model in (plain, fast):
        y = model(x)
        model[3].weight_mask.zero_() if model is fast else None
        results.append(torch.autograd.grad(y.square().sum(), list(model.parameters()), create_graph=True))
    for expected, got in zip(*results, strict=True):
        assert error(expected, got) < 1e-12


def test_weights_shared_with_what_comes_before() -> None:
    """The input of the second region is computed from the same weight."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(torch.sin(self.layer(torch.tanh(self.layer(x)))))

    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(pruned(Twice().double(), 0.4))
    plain, fast = models[0], bppsa.compile(models[1])
    x = torch.randn(4, 6).double()
    for expected, got in zip(penalty(plain, x), penalty(fast, x), strict=True):
        assert error(expected.detach(), got.detach()) < 1e-10
    assert kernels(fast) == ["sparse"] * 3


@pytest.mark.parametrize("vectorize", [True, False])
def test_a_backward_for_many_cotangents_at_once(vectorize: bool) -> None:
    plain, fast, batch = twins("lenet")
    x = batch(2)
    expected, got = (torch.autograd.functional.jacobian(m, x, vectorize=vectorize) for m in (plain, fast))
    assert error(expected, got) < 1e-11


def test_functional_transforms_are_pytorchs() -> None:
    plain, fast, batch = twins("lenet")
    x = batch(2)
    fast(x)
    parameters = {name: p.detach() for name, p in fast.named_parameters()}

    def loss(model: nn.Module, parameters: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(model, parameters, (x,)).square().sum()

    for expected, got in zip(
        *(torch.func.grad(lambda p, m=m: loss(m, p))(parameters).values() for m in (plain, fast)), strict=True
    ):
        assert error(expected, got) < 1e-12
    tangents = [torch.func.jvp(m, (x,), (torch.ones_like(x),))[1] for m in (plain, fast)]
    assert error(*tangents) < 1e-12
    assert error(*(torch.func.jacrev(m)(x) for m in (plain, fast))) < 1e-12
    with torch.autograd.forward_ad.dual_level():
        duals = [torch.autograd.forward_ad.make_dual(x, torch.ones_like(x)) for _ in range(2)]
        tangents = [
            torch.autograd.forward_ad.unpack_dual(m(d)).tangent for m, d in zip((plain, fast), duals, strict=True)
        ]
    assert error(*tangents) < 1e-12


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_layers(reentrant: bool) -> None:
    plain, fast, batch = twins("residual")
    x = batch(4)
    for model in (plain, fast):
        y = checkpoint(model, x.clone().requires_grad_(), use_reentrant=reentrant)
        y.square().sum().backward()
    for (name, a), b in zip(plain.named_parameters(), fast.parameters(), strict=True):
        assert error(a.grad, b.grad) < 1e-11, name


def test_a_graph_is_gone_through_twice_only_if_kept() -> None:
    _, fast, batch = twins("lenet")
    y = fast(batch(3)).sum()
    y.backward(retain_graph=True)
    first = [p.grad.clone() for p in fast.parameters()]
    y.backward()
    assert all(torch.equal(2 * a, b.grad) for a, b in zip(first, fast.parameters(), strict=True))
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()


@pytest.mark.parametrize("name", NETWORKS)
def test_inputs_of_every_layout_and_size(name: str) -> None:
    plain, fast, batch = twins(name)
    x = batch(4)
    layouts = [
        x.flip(0),
        x.repeat_interleave(2, 0)[::2],
        x.transpose(-1, -2) if x.dim() == 4 else x.t().contiguous().t(),
    ]
    layouts += [x.to(memory_format=torch.channels_last)] if x.dim() == 4 else []
    for given in layouts:
        assert_same_step(plain, fast, given)
        assert set(kernels(fast)) == {"sparse"}
    plain.eval(), fast.eval()
    assert_same_step(plain, fast, x[:1])
    assert set(kernels(fast)) == {"sparse"}
    if name == "residual":  # x.view(0, -1)
        with pytest.raises(RuntimeError, match="cannot reshape tensor of 0 elements"):
            fast(x[:0])
        return
    assert fast(x[:0]).shape == plain(x[:0]).shape
    assert set(kernels(fast)) == {"pytorch"}


def test_all_parameters_frozen() -> None:
    plain, fast, batch = twins("lenet")
    for model in (plain, fast):
        model.requires_grad_(False)
    x = batch(3)
    assert not fast(x).requires_grad
    gradients = []
    for model in (plain, fast):
        given = x.clone().requires_grad_()
        model(given).square().sum().backward()
        gradients.append(given.grad)
    assert error(*gradients) < 1e-12
    assert set(kernels(fast)) == {"sparse"}


def test_a_backward_under_autocast() -> None:
    plain, fast, batch = twins("lenet")
    x = batch(3)
    for model in (plain, fast):
        y = model(x)
        with torch.autocast("cpu", torch.bfloat16):
            y.sum().backward()
    for a, b in zip(plain.parameters(), fast.parameters(), strict=True):
        assert error(a.grad, b.grad) < 1e-12


@pytest.mark.parametrize("again", [False, True])
def test_statistics_that_change_before_the_backward_are_an_error(again: bool) -> None:
    """PyTorch's: in evaluation the gradients follow from them."""
    for model in everything():
        model.eval()
        x = torch.randn(5, 2, 16, 16).double().requires_grad_()
        y = model(x).square().sum()
        model.norm.running_var.mul_(3)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(y, x, create_graph=again)


def test_statistics_that_another_tensor_replaces_before_the_backward() -> None:
    found = []
    for model in everything():
        model.eval()
        x = torch.linspace(-1, 1, 5 * 2 * 256).view(5, 2, 16, 16).double().requires_grad_()
        y = model(x).square().sum()
        model.norm.running_var = 3 * model.norm.running_var
        (g,) = torch.autograd.grad(y, x, create_graph=True)
        found.append(torch.autograd.grad(g.square().sum(), x)[0])
    assert error(*found) < 1e-10


class Averaged(nn.Module):
    """A mean over all places of an image, as residual networks end."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.conv, self.head, self.how = nn.Conv2d(2, 6, 3, 2, 1, groups=2), nn.Linear(6, 3), how

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.conv(x))
        if self.how == "method":
            return self.head(x.mean((2, 3)))
        return self.head(torch.mean(x, dim=[-2, -1], keepdim=True).flatten(1))


@pytest.mark.parametrize("how", ["method", "function"])
def test_a_mean_over_all_places_is_a_pool(how: str) -> None:
    plain = pruned(Averaged(how).double(), 0.5)
    fast = bppsa.compile(plain)
    assert_same_step(plain, fast, torch.randn(4, 2, 8, 8, dtype=torch.float64))
    assert [d.strategy for d in bppsa.report(fast).decisions] == ["sparse", "sparse"]

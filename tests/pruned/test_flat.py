"""Functions whose derivative is zero everywhere: autograd gives zeros where they are read, and nothing where a
gradient does not pass at all. An optimizer with weight decay moves the one weight and not the other."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import bppsa
from tests.pruned.support import kernels, pruned


def sign_beside(h: Tensor) -> Tensor:
    with torch.no_grad():
        sign = torch.sign(h)
    return sign + h


FLAT: dict[str, Callable[[Tensor], Tensor]] = {
    "sign": torch.sign,
    "in place": lambda h: h.sign_(),
    "floor": torch.floor,
    "ceil": lambda h: h.ceil(),
    "trunc": torch.trunc,
    "round": torch.round,
    "to the power of zero": lambda h: h**0,
    "floor of a quotient": lambda h: torch.div(h, 0.3, rounding_mode="floor"),
    "beside itself": lambda h: h - h.round(),
    "of two": lambda h: torch.maximum(h.floor(), torch.sigmoid(h)),
    "of flat ones": lambda h: torch.lerp(h.sign(), h.floor(), 0.3),
    "no gradient": torch.zeros_like,
    "a comparison": lambda h: (h > 0).to(h.dtype),
    "a detach": lambda h: h.detach().sign(),
    "without gradients": sign_beside,
}


class Between(nn.Module):
    def __init__(self, fn: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.fn = nn.Linear(512, 512), nn.Linear(512, 512), fn

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.fn(self.first(x)))


def pair(fn: Callable[[Tensor], Tensor]) -> tuple[nn.Module, nn.Module]:
    made = []
    for _ in range(2):
        torch.manual_seed(0)
        made.append(pruned(Between(fn).double(), 0.97))
    return made[0], bppsa.compile(made[1])


@pytest.mark.parametrize("fn", FLAT.values(), ids=FLAT)
def test_a_flat_function_has_the_gradients_that_autograd_gives(fn: Callable[[Tensor], Tensor]) -> None:
    models = pair(fn)
    optimizers = [torch.optim.SGD(model.parameters(), 0.1, weight_decay=0.1) for model in models]
    for turn in range(3):
        found = []
        for model, optimizer in zip(models, optimizers, strict=True):
            x = torch.randn(64, 512, generator=torch.Generator().manual_seed(turn)).double().requires_grad_()
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            found.append([x.grad, *(p.grad for p in model.parameters()), *(p.detach() for p in model.parameters())])
        for expected, got in zip(*found, strict=True):
            assert (expected is None) == (got is None)
            assert expected is None or (expected - got.to_dense()).abs().max() < 1e-10


@pytest.mark.parametrize("fn", FLAT.values(), ids=FLAT)
def test_its_gradient_can_be_differentiated(fn: Callable[[Tensor], Tensor]) -> None:
    x, found = torch.randn(64, 512).double().requires_grad_(), []
    for model in pair(fn):
        found += torch.autograd.grad(model(x).sum(), x, allow_unused=True, create_graph=True)
    expected, got = found
    assert (expected is None) == (got is None)
    assert expected is None or (expected - got).abs().max() < 1e-10


def test_flat_functions_run_by_kernels() -> None:
    _, fast = pair(torch.sign)
    fast(torch.randn(64, 512).double())
    assert kernels(fast) == ["sparse", "sparse"]


def test_what_pytorch_has_no_derivative_of_is_pytorchs_own_error() -> None:
    for model in pair(lambda h: h // 0.5):
        x = torch.randn(64, 512).double()
        with torch.no_grad():
            model(x)
        y = model(x)
        with pytest.raises(RuntimeError, match="floor_divide is not implemented"):
            y.sum().backward()

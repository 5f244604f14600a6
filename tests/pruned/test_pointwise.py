"""Activations and dropout between the layers of a region."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bppsa
from bppsa.codegen.language import interpret
from bppsa.codegen.language.ir import Kernel
from bppsa.errors import Unsupported
from bppsa.frontend.pruned.regions.draft import Draft
from bppsa.frontend.pruned.regions.lay import lay
from bppsa.runtime.sparse_conv.pointwise import Pointwise
from bppsa.runtime.sparse_conv.programs.step import RegionStep
from tests.pruned.support import assert_same_step, captured, error, kernels, pruned

EDGES = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 3.0, -3.0, 6.0, 2.0, -2.0, 20.5, -40.0]

MODULES: list[nn.Module] = [
    nn.LeakyReLU(0.1),
    nn.ELU(1.3),
    nn.SELU(),
    nn.CELU(0.5),  # PyTorch rounds 1 / alpha to single precision in the backward
    nn.SiLU(),
    nn.GELU(),
    nn.GELU("tanh"),
    nn.Mish(),
    nn.Hardswish(),
    nn.Hardtanh(-0.5, 0.7),
    nn.ReLU6(),
    nn.Sigmoid(),
    nn.Tanh(),
    nn.Softplus(2, 5),
    nn.LogSigmoid(),
    nn.Softsign(),
    nn.Tanhshrink(),
    nn.Hardshrink(),
    nn.Softshrink(0.3),
    nn.Threshold(0.1, 0.2),
]
FUNCTIONS: list[Callable[[Tensor], Tensor]] = [
    F.silu,
    F.mish,
    torch.sigmoid,
    lambda x: F.leaky_relu(x, 0.2),
    lambda x: F.gelu(x, approximate="tanh"),
    lambda x: x * torch.sigmoid(x),
    lambda x: x.tanh(),
    lambda x: x.clamp(min=-0.5),
    lambda x: 0.5 * x + 1.0,
    lambda x: 1 - x,
    lambda x: torch.maximum(x, 0.1 * x),
    lambda x: torch.add(x, x.tanh(), alpha=0.5),
]


def steps_of(fn: Callable[[Tensor], Tensor], dtype: torch.dtype = torch.float32) -> list[RegionStep]:
    nodes, known = captured(fn, torch.zeros(3, 4, 5, 5, dtype=dtype))
    draft = Draft(known, {})
    for node in nodes:
        draft.node = node
        if node.op not in ("placeholder", "output"):
            draft.found[node] = lay(draft, node)
    return [node.step for node in draft.nodes]


def interpreted(kernel: Kernel, *operands: Tensor) -> list[Tensor]:
    results = [torch.empty(1, 1, len(operands[0]), dtype=torch.float64) for _ in range(len(kernel.arguments))]
    rows = [operand.view(1, 1, -1) for operand in operands]
    interpret.run(kernel, [*rows, *results[len(rows) :]], steps=1, rows=1)
    return [result.view(-1) for result in results[len(rows) :]]


def name_of(fn: Any) -> str:
    return str(fn) if isinstance(fn, nn.Module) else fn.__name__


@pytest.mark.parametrize("fn", [*MODULES, *FUNCTIONS[:5]], ids=name_of)
def test_an_activation_and_its_derivative_are_pytorchs(fn: Callable[[Tensor], Tensor]) -> None:
    (step,) = steps_of(fn)
    assert isinstance(step, Pointwise)
    torch.manual_seed(0)
    x = torch.cat([torch.tensor(EDGES), torch.randn(211) * 3]).double().requires_grad_()
    g = torch.randn(len(x)).double()
    y = fn(x)
    (expected,) = torch.autograd.grad(y, x, g)
    (got,) = interpreted(step.function.forward(len(x)), x.detach())
    torch.testing.assert_close(got, y.detach(), rtol=1e-12, atol=1e-14)
    (got,) = interpreted(step.function.backward(len(x)), g, x.detach())
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-14)


def test_hardsigmoid() -> None:
    """PyTorch's backward has 1/6 in single precision."""
    (step,) = steps_of(nn.Hardsigmoid())
    assert isinstance(step, Pointwise)
    x = torch.tensor(EDGES, dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(F.hardsigmoid(x).sum(), x)
    (got,) = interpreted(step.function.backward(len(x)), torch.ones_like(x), x.detach())
    torch.testing.assert_close(got, expected, rtol=1e-7, atol=0)


NOT_POINTWISE: list[Callable[[Tensor], Tensor]] = [
    lambda x: x.softmax(1),
    lambda x: x.transpose(2, 3),
    lambda x: x + torch.ones(5),
    lambda x: (x > 0).to(torch.float64),
    nn.PReLU(),
    nn.RReLU(),
    nn.GLU(1),
    nn.Softmax2d(),
    nn.InstanceNorm2d(4),
    lambda x: torch.igamma(torch.ones_like(x), x * x),
    torch.nan_to_num,
    lambda x: x.std(),
    lambda x: x.transpose(0, 1),
    lambda x: x.narrow(1, 0, 3),
    lambda x: x.to(torch.bfloat16),
    lambda x: x.double(),
    lambda x: x.to("meta"),
]


@pytest.mark.parametrize("fn", NOT_POINTWISE)
def test_what_is_not_pointwise_is_refused(fn: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(Unsupported, match="no kernel for"):
        steps_of(lambda x: fn(x.tanh()))


def test_a_conversion_is_one_by_the_dtype_of_the_region() -> None:
    assert len(steps_of(lambda x: x.float())) == 1
    with pytest.raises(Unsupported, match="changes the dtype"):
        steps_of(lambda x: x.float(), torch.float64)


def both(*layers: nn.Module) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    plain = nn.Sequential(*layers).double()
    fast = copy.deepcopy(plain)
    return pruned(plain, 0.6), bppsa.compile(pruned(fast, 0.6))


def one_region(model: nn.Module) -> bool:
    told = [d.reason for d in model.report.decisions]
    return set(kernels(model)) == {"sparse"} and sum("converts its input" in reason for reason in told) == 1


class Functional(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x = x * torch.sigmoid(x)
        x = x.add_(1.0)
        x -= 0.5
        x = F.leaky_relu_(x, 0.2)
        return torch.maximum(x, 0.1 * x) / 3


def test_a_region_goes_on_through_activations() -> None:
    plain, fast = both(
        *(nn.Conv2d(3, 6, 3, bias=False), nn.BatchNorm2d(6), nn.SiLU(inplace=True), nn.Conv2d(6, 4, 3, 2), nn.GELU()),
        *(Functional(), nn.Hardswish(inplace=True), nn.Flatten(), nn.Linear(36, 5), nn.Mish(), nn.Linear(5, 3)),
    )
    for samples in (3, 8, 11):
        assert_same_step(plain, fast, torch.randn(samples, 3, 9, 9).double())
        assert one_region(fast)
    x = torch.randn(20, 3, 9, 9)
    assert error(plain.float()(x), fast.float()(x)) < 1e-5


class Between(nn.Module):
    def __init__(self, fn: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.fn = nn.Linear(8, 8), nn.Linear(8, 8), fn
        self.register_buffer("scale", torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.fn(self.first(x * self.scale)))


LEFT: list[Callable[[Tensor], Tensor]] = [
    lambda x: x.to(torch.bfloat16).double(),
    lambda x: x.float().double(),
    lambda x: x.nan_to_num(),
    lambda x: x / (x.std() + 1),
    lambda x: x.t(),
]


@pytest.mark.parametrize("fn", LEFT)
def test_what_has_no_kernel_ends_a_region_and_not_the_forward(fn: Callable[[Tensor], Tensor]) -> None:
    plain, fast = both(Between(fn))
    assert_same_step(plain, fast, torch.randn(8, 8).double())
    assert set(kernels(fast)) == {"sparse"}
    assert not one_region(fast)


def test_a_region_is_of_one_dtype() -> None:
    """The arguments tell nothing of it: the buffer has become another one."""
    plain, fast = both(Between(lambda x: x.float() + x))
    x = torch.randn(8, 8)
    assert error(plain.float()(x), fast.float()(x)) < 1e-5
    assert one_region(fast)
    assert error(plain.double()(x), fast.double()(x)) < 1e-12
    assert not one_region(fast)


class Aliased(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(2, 3, 3), nn.Linear(12, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        flat = x.flatten(1)
        flat.mul_(2.0)
        return self.head(flat) + x.sum((2, 3))[:, :2]


@pytest.mark.parametrize("change", [nn.ReLU(inplace=True), nn.SiLU(inplace=True)])
def test_a_change_in_place_through_a_view_is_seen_by_all(change: nn.Module) -> None:
    torch.manual_seed(0)
    for make in (lambda: Aliased(), lambda: nn.Sequential(nn.Flatten(), change, nn.Linear(32, 3))):
        plain = make().double()
        fast = copy.deepcopy(plain)
        fast = bppsa.compile(pruned(fast, 0.5))
        pruned(plain, 0.5)
        x = torch.randn(3, 2, 4, 4).double()
        given = [x.clone(), x.clone()]
        assert error(plain(given[0]), fast(given[1])) < 1e-12
        assert torch.equal(*given)


@pytest.mark.parametrize("samples", [3, 16])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_dropout_draws_what_pytorch_draws(samples: int, layout: torch.memory_format) -> None:
    plain, fast = both(
        *(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Dropout2d(0.4), nn.Conv2d(6, 4, 3), nn.Dropout(0.3, inplace=True)),
        *(nn.ReLU(), nn.Flatten(), nn.Dropout(), nn.Linear(100, 3)),
    )
    x = torch.randn(samples, 3, 9, 9).double().to(memory_format=layout)
    for _ in range(2):
        for model in (plain, fast):
            torch.manual_seed(7)
            model.zero_grad()
            model.y = model(x)
            model.y.square().sum().backward()
        assert error(plain.y, fast.y) < 1e-11
        for a, b in zip(plain.parameters(), fast.parameters(), strict=True):
            assert error(a.grad, b.grad) < 1e-11
        assert one_region(fast)
    torch.manual_seed(8)
    assert error(plain.y, fast(x)) > 0.1
    assert_same_step(plain.eval(), fast.eval(), x)


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_dropout_of_nothing_and_of_all(p: float) -> None:
    plain, fast = both(nn.Linear(10, 10), nn.Dropout(p), nn.Linear(10, 3))
    assert_same_step(plain, fast, torch.randn(5, 10).double())

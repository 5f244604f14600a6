"""Numbers at the edges of a function, and gradients of what has none: values and gradients as PyTorch gives them."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import bppsa
from tests.breadth import alternate
from tests.cells.support import B, Cell, H, T, fuses, h, plain, random, squashed, x

EDGES = [-math.inf, -1e10, -30.0, -0.5, 0.0, 1e-300, 0.3, 1.0, 2.0, 1e10, math.inf, math.nan]

OF_ONE: dict[str, Callable[[Tensor], Tensor]] = {
    "acosh": torch.acosh,
    "entropy": torch.special.entr,
    "logcumsumexp": lambda h: h.logcumsumexp(-1),
    "norm": lambda h: h.norm(dim=-1, keepdim=True),
    "norm of order 1": lambda h: h.norm(1, dim=-1, keepdim=True),
    "norm of order 0.5": lambda h: h.norm(0.5, dim=-1, keepdim=True),
    "largest": lambda h: torch.linalg.vector_norm(h, math.inf, dim=-1, keepdim=True),
    "largest of two": lambda h: torch.linalg.vector_norm(torch.cat([h, h + 1], 1), math.inf, dim=-1, keepdim=True),
    "smallest of two": lambda h: torch.linalg.vector_norm(torch.cat([h, h + 1], 1), -math.inf, dim=-1, keepdim=True),
}


@pytest.mark.parametrize("name", alternate(OF_ONE))
def test_at_its_edges(name: str) -> None:
    start = torch.tensor(EDGES, dtype=torch.float64)[:, None].requires_grad_()
    xs = torch.zeros(1, len(EDGES), 1, dtype=torch.float64)
    cell = plain(lambda h, x: OF_ONE[name](h) + x)
    wanted, found = cell(start, xs[0])[0], bppsa.scan(cell, start, xs, strategy="sequential")[0]
    torch.testing.assert_close(found, wanted, equal_nan=True)
    torch.testing.assert_close(*(torch.autograd.grad(y.sum(), start)[0] for y in (found, wanted)), equal_nan=True)


# By columns of one carry. PyTorch computes many numbers at once by other code than the last few, which has other
# gradients of NaN for some of these ops: each column has so many rows that there is no rest.
BY_COLUMN: dict[str, Callable[[Tensor], Tensor]] = {
    "elu": lambda h: functional.elu(h, 1.5),
    "celu": lambda h: functional.celu(h, 0.7),
    "selu": functional.selu,
    "hardswish": functional.hardswish,
    "hardshrink": functional.hardshrink,
    "softshrink": functional.softshrink,
    "hardtanh": functional.hardtanh,
    "logit, bounded": lambda h: torch.logit(h, 1e-3),
    "logit": torch.logit,
    "lerp, near its start": lambda h: torch.lerp(h, torch.ones_like(h), 0.3),
    "lerp, near its end": lambda h: torch.lerp(h, torch.ones_like(h), 0.7),
    "lerp, by weights": lambda h: torch.lerp(h, torch.ones_like(h), h),
    "smooth_l1_loss": lambda h: functional.smooth_l1_loss(h, torch.ones_like(h), reduction="none", beta=0.5),
    "huber_loss": lambda h: functional.huber_loss(h, torch.ones_like(h), reduction="none", delta=0.5),
    "nan_to_num": lambda h: torch.reciprocal(torch.nan_to_num(h, 0.0, 1.0, -1.0)),
    "nansum": lambda h: torch.reciprocal(h.nansum(1, keepdim=True)),
    "clamp to NaN": lambda h: h.clamp(math.nan, 1.0),
    "var": lambda h: torch.cat([h, torch.ones_like(h)], 1).var(1, keepdim=True),
    "var of one": lambda h: h.var(1, keepdim=True),
    "std of one": lambda h: h.std(1, keepdim=True),
}


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
def test_many_at_their_edges() -> None:
    edges = torch.tensor([*EDGES, -0.0, -1.0, 3.0, -3.0] * 4, dtype=torch.float64)[:, None]
    start = edges.expand(-1, len(BY_COLUMN)).clone().requires_grad_()
    xs = torch.zeros(1, len(edges), 1, dtype=torch.float64)
    cell = plain(lambda h, x: torch.cat([f(h[:, i : i + 1]) for i, f in enumerate(BY_COLUMN.values())], 1) + x)
    found, _ = bppsa.scan(cell, start, xs, strategy="sequential")
    gradient = torch.autograd.grad(found.sum(), start)[0]
    for i, (name, f) in enumerate(BY_COLUMN.items()):
        alone = edges.clone().requires_grad_()
        wanted = f(alone)
        torch.testing.assert_close(found[:, i : i + 1], wanted, equal_nan=True, msg=lambda text, n=name: f"{n}: {text}")
        of_alone = torch.autograd.grad(wanted.sum(), alone)[0]
        torch.testing.assert_close(
            gradient[:, i : i + 1], of_alone, equal_nan=True, msg=lambda text, n=name: f"gradient of {n}: {text}"
        )


BIASED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "addmm": lambda bias, h: torch.addmm(bias, h, EYE, beta=0),
    "baddbmm": lambda bias, h: torch.baddbmm(bias[:, None], h[:, None], EYE.expand(B, H, H), beta=0)[:, 0],
    "addr": lambda bias, h: h + torch.addr(bias, h[:, 0], EYE[0], beta=0),
}
EYE = torch.eye(H, dtype=torch.float64)


@pytest.mark.parametrize("name", BIASED)
def test_a_bias_that_counts_for_nothing_may_be_nan(name: str) -> None:
    bias, state, xs = torch.full((B, H), math.nan, dtype=torch.float64), h(), x(H)
    cell = plain(lambda h, x: torch.tanh(BIASED[name](bias, h) + x))
    found, _ = bppsa.scan(cell, state, xs, strategy="sequential")
    wanted = state
    for each in xs:
        wanted, _ = cell(wanted, each)
    assert wanted.isfinite().all()
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)


# x acts by an op whose derivative is zero everywhere.
FLAT: dict[str, Cell] = {
    "sgn": plain(lambda h, x: torch.tanh(h + torch.sgn(x))),
    "copysign": plain(lambda h, x: torch.copysign(torch.tanh(h), x)),
    "floor": plain(lambda h, x: torch.tanh(h + torch.floor(x * h))),
    "a comparison": plain(lambda h, x: torch.tanh(h + (x > h).to(h.dtype))),
}


@pytest.mark.parametrize("name", alternate(FLAT))
def test_a_gradient_of_zeros_is_none_where_it_is_in_pytorch(name: str) -> None:
    state, one = h().requires_grad_(), x(H)[0].detach().requires_grad_()
    wanted = torch.autograd.grad(FLAT[name](state, one)[0].sum(), one, allow_unused=True)[0]
    xs = one.detach().expand(T, B, H).clone().requires_grad_()
    final, _ = bppsa.scan(FLAT[name], state, xs, strategy="sequential")
    found = torch.autograd.grad(final.sum(), xs, allow_unused=True)[0]
    assert (found is None) == (wanted is None)
    assert found is None or not found.any()


def test_a_constant_carry_takes_no_gradient() -> None:
    state, xs = h().requires_grad_(), random(T, B, H).requires_grad_()
    final, ys = bppsa.scan(lambda h, x: (torch.zeros_like(h), h + x), state, xs, strategy="sequential")
    assert (final.requires_grad, ys.requires_grad) == (False, True)


def test_a_slice_without_columns() -> None:
    fuses(squashed(lambda h, x: torch.cat([h[:, :0], h], 1) + x), h(), x(H))

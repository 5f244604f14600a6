"""A chosen set of the new ops with their kernels built: widths and dtypes that the printers' vectors do not divide."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import bppsa
from bppsa.codegen.cpu.build import available
from bppsa.frontend.cell import fused_cell, plans, scan_call
from bppsa.frontend.planning import sweeps
from tests.breadth import chosen
from tests.cells.support import T, random
from tests.scan.support import check, check_inference
from tests.scan.zoo import example

pytestmark = pytest.mark.skipif(available() is not None, reason="needs a C++ compiler")


@pytest.fixture(autouse=True)
def built(kernels: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of the folder's interpreted ones."""
    for module in (fused_cell, scan_call, plans):
        monkeypatch.setattr(module, "compile_recurrence", sweeps.compile_recurrence)
    monkeypatch.setattr(plans._plans.kept, "known", OrderedDict())


def points(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    z = torch.sin(3 * h) + torch.cos(x) * torch.atan2(h, x) + torch.fmod(h, 0.7) - 0.1 * torch.floor(4 * h).detach()
    h = torch.tanh(z + torch.nn.functional.logsigmoid(h) + (2 + h) ** 1.7)
    return h, h


def folds(state: Any, x: Tensor) -> tuple[Any, Tensor]:
    h, n, seen = state
    best, place = h.max(1, keepdim=True)
    h = torch.softmax(5 * h, 1) + torch.logsumexp(h + x, 1, keepdim=True) - best * x.sort(1).values
    h = torch.tanh(torch.where(seen, h.cumsum(1), h / (1 + h.norm(dim=1, keepdim=True))) + 0.1 * place.to(h) / (n + 1))
    return (h, n + 1, seen ^ (x > 1)), h.roll(1, 1)


def whole(rows: int, width: int) -> tuple[Tensor, Tensor]:
    return torch.zeros(rows, 1, dtype=torch.int64), torch.zeros(rows, width, dtype=torch.bool)


@pytest.mark.parametrize(("rows", "width"), chosen([(3, 6), (1, 33), (17, 3), (2, 1)], [(3, 6), (2, 1)]))
def test_equals_the_loop(rows: int, width: int) -> None:
    torch.manual_seed(0)
    given = example(points, random(rows, width), random(T, rows, width))
    assert check(given, tolerance=1e-9).strategy == "sequential"
    if width > 1:  # where a row is one number, other kernels have other texts
        given = example(folds, (random(rows, width), *whole(rows, width)), random(T, rows, width))
        assert check(given, tolerance=1e-9).strategy == "sequential"
        check_inference(given, tolerance=1e-9)


MATRICES = [(17, 8, torch.float32), (3, 3, torch.float64)]


@pytest.mark.parametrize(("rows", "n", "dtype"), chosen(MATRICES, MATRICES[:1]))
def test_linear_algebra_equals_the_loop(rows: int, n: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    eye = torch.eye(n, dtype=dtype)

    def cell(P: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        S = 0.2 * P @ P.mT + eye
        turned = torch.linalg.inv(0.2 * P + eye.roll(1, 0))
        factor = torch.linalg.cholesky(S)
        made = turned + torch.cholesky_solve(x, factor) + torch.linalg.solve_triangular(factor, P, upper=False)
        P = torch.tanh(made + torch.logdet(S)[:, None, None])
        return P, P

    given = example(cell, *(t.detach().to(dtype).requires_grad_() for t in (random(rows, n, n), random(T, rows, n, n))))
    tolerance = 1e-9 if dtype is torch.float64 else 1e-4
    assert check(given, tolerance=tolerance).strategy == "sequential"
    check_inference(given, tolerance=tolerance)


def test_not_a_number_is_the_largest() -> None:
    carry, xs = torch.randn(4, 19), torch.zeros(T, 4, 19)
    carry[1, 18], carry[2] = torch.nan, -torch.inf
    check_inference(example(lambda h, x: ((n := h - h.amax(1, keepdim=True) + x), n), carry, xs), tolerance=0)


def of_complex_numbers(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    new = 0.9 * torch.exp(1j * x.imag) * h + x / (2 + h.abs())
    h = torch.tanh(new.abs()) * torch.sgn(new) + torch.polar(x.real.sigmoid(), h.angle()) / 4
    return h, torch.view_as_real(h * new.conj()).sum(-1)


def test_complex_numbers() -> None:
    torch.manual_seed(0)
    given = example(of_complex_numbers, *(random(*shape, 3, 33, dtype=torch.complex64) for shape in ((), (T,))))
    assert check(given, tolerance=1e-4).strategy == "sequential"
    check_inference(given, tolerance=1e-4)


# Each reads a sum of a product a second time, in another place of a kernel, and compares it with itself.
COMPARED: dict[str, Callable[[Tensor], Tensor]] = {
    "largest": lambda a: 0.5 * a + 0.1 * a.amax(1, keepdim=True),
    "pairs that are equal": lambda a: 0.5 * a + 0.1 * ((a[:, :, None] - a[:, None]).abs() == 0).to(a.dtype).sum(2),
    "ranks": lambda a: 0.5 * a + 0.01 * (a[:, :, None] > a[:, None]).to(a.dtype).sum(2),
    "second largest": lambda a: 0.5 * a + 0.1 * torch.topk(a, 2, dim=1).values[:, 1:],
}


@pytest.mark.parametrize("name", COMPARED)
def test_a_value_is_equal_to_itself(name: str) -> None:
    torch.manual_seed(0)
    state, xs = (torch.rand(*size, 5, dtype=torch.float64, requires_grad=True) for size in ((4,), (12, 4)))

    def cell(h: Tensor, x: Tensor) -> tuple[Tensor, tuple[()]]:
        return COMPARED[name](0.95 * h + x), ()

    found, _ = bppsa.scan(cell, state, xs, strategy="sequential")
    wanted = state
    for each in xs:
        wanted, _ = cell(wanted, each)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)
    grads = [torch.autograd.grad(y.sum(), (state, xs)) for y in (found, wanted)]
    for ours, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)

"""The functions that printed kernels call, against float64 in units in the last place, through kernels of one op."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from bppsa.codegen.gpu.native import TritonKernel
from bppsa.codegen.language.expr import Access, Expr, Op
from bppsa.codegen.language.ir import Buffer, Group, Kernel, Kind, Store
from tests.codegen.kernels import at
from tests.triton import needed

needed.triton()

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # where Triton's interpreter runs them (tests/conftest.py)
EXACT = {
    Op.EXP: torch.exp,
    Op.LOG: torch.log,
    Op.SQRT: torch.sqrt,
    Op.TANH: torch.tanh,
    Op.SIGMOID: torch.sigmoid,
    Op.ERF: torch.erf,
    Op.SIN: torch.sin,
    Op.COS: torch.cos,
    Op.ATAN: torch.atan,
    Op.FLOOR: torch.floor,
}
REAL = {torch.float32: "float", torch.float64: "double"}
ULP = {torch.float32: 4, torch.float64: 4}
NAN, INF = math.nan, math.inf


def apply(op: Op, *args: Tensor) -> Tensor:
    """Elementwise, of vectors of one length."""
    names = "abc"[: len(args)]
    width = args[0].numel()
    kernel = Kernel(
        "apply",
        (*(Buffer(name, Kind.STREAM, width) for name in names), Buffer("y", Kind.STREAM, width)),
        (Group(width, (Store(Access("y"), Expr(op, *map(at, names))),)),),
    )
    given = [arg.view(1, 1, -1).to(DEVICE) for arg in args]
    given.append(torch.zeros_like(given[0]))
    TritonKernel(kernel, REAL[args[0].dtype])(given, steps=1, rows=1)
    return given[-1].cpu().flatten()


def points(dtype: torch.dtype) -> Tensor:
    magnitudes = torch.logspace(-6, math.log10(85), 400, dtype=torch.float64)
    near = torch.linspace(0.5, 0.75, 112, dtype=torch.float64)  # where tanh changes its formula
    return torch.cat([magnitudes, -magnitudes, near]).to(dtype)


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("op", EXACT)
def test_accurate_to_a_few_ulp(op: Op, dtype: torch.dtype) -> None:
    x = points(dtype)
    x = x[x > 0] if op in (Op.LOG, Op.SQRT) else x
    exact = EXACT[op](x.double())
    spacing = torch.nextafter(exact.to(dtype).abs(), torch.tensor(INF, dtype=dtype)) - exact.to(dtype).abs()
    error = (apply(op, x).double() - exact).abs() / spacing.double()
    assert error.max() <= ULP[dtype]


@pytest.mark.parametrize("dtype", REAL)
def test_special_values(dtype: torch.dtype) -> None:
    x = torch.tensor([NAN, INF, -INF, 0.0, -0.0, 1e30, -1e30], dtype=dtype)
    for op, expected in {
        Op.TANH: [NAN, 1, -1, 0.0, -0.0, 1, -1],
        Op.SIGMOID: [NAN, 1, 0, 0.5, 0.5, 1, 0],
        Op.ERF: [NAN, 1, -1, 0.0, -0.0, 1, -1],
        Op.EXP: [NAN, INF, 0, 1, 1, INF, 0],
        Op.SIN: [NAN, NAN, NAN, 0.0, -0.0],
        Op.FLOOR: [NAN, INF, -INF, 0.0, -0.0, 1e30, -1e30],
    }.items():
        got, wanted = apply(op, x)[: len(expected)], torch.tensor(expected, dtype=dtype)
        torch.testing.assert_close(got, wanted, rtol=0, atol=0, equal_nan=True)
        there = ~wanted.isnan()
        assert torch.equal(got.signbit()[there], wanted.signbit()[there])


@pytest.mark.parametrize("op", [Op.MAX, Op.MIN])
def test_nan_wins(op: Op) -> None:
    a = torch.tensor([NAN, 1.0, NAN, 2.0, -INF, 3.0])
    b = torch.tensor([1.0, NAN, NAN, 3.0, 5.0, -INF])
    reference = {Op.MAX: torch.maximum, Op.MIN: torch.minimum}[op](a, b)
    torch.testing.assert_close(apply(op, a, b), reference, rtol=0, atol=0, equal_nan=True)


def test_truth_values_are_numbers() -> None:
    x = torch.tensor([-1.0, 0.0, NAN, 2.0])
    one, two = torch.ones(4), torch.full((4,), 2.0)
    assert apply(Op.WHERE, x, one, two).tolist() == [1, 2, 1, 1]
    assert apply(Op.LT, x, one).tolist() == [1, 1, 0, 0]
    assert apply(Op.LE, x, two).tolist() == [1, 1, 0, 1]
    assert apply(Op.EQ, x, two).tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize("dtype", REAL)
def test_what_is_left_of_a_division_is_exact(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(300, generator=generator).mul_(torch.logspace(-3, 20, 300)).to(dtype)
    b = torch.randn(300, generator=generator).to(dtype)
    if dtype is torch.float64:  # the interpreter has no fused product and sum
        a, b = (a.clamp(-1e6, 1e6) * 8).round() / 8, (b * 8).round() / 8
    special = torch.tensor([NAN, INF, -INF, 0.0, -0.0, 1.0, -3.0], dtype=dtype)
    a, b = torch.cat([a, special.repeat(7)]), torch.cat([b, special.repeat_interleave(7)])
    torch.testing.assert_close(apply(Op.FMOD, a, b), torch.fmod(a, b), rtol=0, atol=0, equal_nan=True)

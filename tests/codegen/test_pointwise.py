"""Every pointwise op in the kernel language against ATen in float64: NaN, infinities, ties, edges, and random numbers.

A new op is a row in `codegen/lowering/pointwise.py` and a row here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor

from bppsa.codegen.language import interpret
from bppsa.codegen.language.expr import Access, Expr, load, topological
from bppsa.codegen.language.ir import Buffer, Group, Kernel, Kind, Store
from bppsa.codegen.language.verify import verify
from bppsa.codegen.lowering.pointwise import POINTWISE
from bppsa.sparsity.rules.matrix_ops import CHECKED
from bppsa.sparsity.rules.own_gradient import ATTACHED

aten = torch.ops.aten
INF, NAN = torch.inf, torch.nan
EDGES = [NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 3.0, -3.0, 6.0, 0.5, -0.5, 20.0, 20.5, 1e-9, -1e-9, 1e-300, 40.0, -40.0]
REAL, TRUTH = "real", "truth"


@dataclass(frozen=True)
class Sample:
    """`args`: REAL and TRUTH are operands, anything else is itself."""

    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    rtol: float = 1e-13
    atol: float = 1e-300

    def __str__(self) -> str:
        return f"{self.op} {self.args} {self.kwargs}"


def sample(op: Any, *args: Any, rtol: float = 1e-13, atol: float = 1e-300, **kwargs: Any) -> Sample:
    return Sample(op, args, kwargs, rtol, atol)


def comparisons() -> list[Sample]:
    names = ("lt", "le", "gt", "ge", "eq", "ne")
    scalars = [sample(getattr(aten, name).Scalar, REAL, number) for name in names for number in (0.0, 3)]
    return [*(sample(getattr(aten, name).Tensor, REAL, REAL) for name in names), *scalars]


SAMPLES = [
    *comparisons(),
    *(
        sample(op, REAL, REAL)
        for op in (aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.rsub.Tensor)
    ),
    *(sample(op, REAL, REAL, alpha=2.5) for op in (aten.add.Tensor, aten.sub.Tensor, aten.rsub.Tensor)),
    *(
        sample(op, REAL, 0.3)
        for op in (aten.add.Scalar, aten.sub.Scalar, aten.mul.Scalar, aten.div.Scalar, aten.rsub.Scalar)
    ),
    *(sample(op, REAL, 0) for op in (aten.add.Scalar, aten.mul.Scalar, aten.div.Scalar, aten.add.Tensor)),
    *(sample(op, REAL, 1) for op in (aten.mul.Scalar, aten.mul.Tensor, aten.div.Tensor)),
    *(sample(op, REAL, 2, 3) for op in (aten.add.Scalar, aten.sub.Scalar, aten.rsub.Scalar)),
    sample(aten.mul.Tensor, REAL, TRUTH),
    sample(aten.mul.Tensor, TRUTH, TRUTH),
    sample(aten.add.Tensor, REAL, TRUTH),
    sample(aten.neg.default, REAL),
    sample(aten.abs.default, REAL),
    sample(aten.sign.default, REAL),
    sample(aten.exp.default, REAL),
    sample(aten.log.default, REAL),
    sample(aten.log1p.default, REAL, rtol=1e-15, atol=1e-320),
    sample(aten.expm1.default, REAL, rtol=2e-15, atol=1e-320),
    sample(aten.sqrt.default, REAL),
    sample(aten.rsqrt.default, REAL),
    sample(aten.reciprocal.default, REAL),
    *(sample(aten.pow.Tensor_Scalar, REAL, e) for e in (0, 1, 2, 3, 4, 0.5, -1, -0.5, -2, 2.0)),
    *(sample(aten.pow.Tensor_Scalar, REAL, e, rtol=1e-12) for e in (1.5, 1.7, -3, 5, 0.3, -1.5)),
    sample(aten.pow.Tensor_Tensor, REAL, REAL, rtol=1e-12),
    *(sample(aten.pow.Scalar, e, REAL, rtol=1e-12) for e in (0.9, 2, -2.0)),
    *(
        sample(op.default, REAL, rtol=2e-14)
        for op in (aten.sin, aten.cos, aten.tan, aten.asin, aten.acos, aten.atan, aten.exp2, aten.log2, aten.log10)
    ),
    *(
        sample(op.default, REAL, rtol=2e-14)
        for op in (aten.sinh, aten.cosh, aten.asinh, aten.acosh, aten.atanh, aten.square)
    ),
    *(sample(op.default, REAL) for op in (aten.floor, aten.ceil, aten.trunc, aten.round, aten.frac)),
    *(sample(op.default, REAL) for op in (aten.isnan, aten.isinf, aten.deg2rad, aten.rad2deg)),
    *(
        sample(op.default, REAL, REAL, rtol=2e-14)
        for op in (aten.atan2, aten.hypot, aten.logaddexp, aten.fmax, aten.fmin, aten.heaviside, aten.floor_divide)
    ),
    *(sample(op.Tensor, REAL, REAL, rtol=2e-14) for op in (aten.fmod, aten.remainder, aten.copysign, aten.xlogy)),
    *(sample(op.Scalar, REAL, e) for op in (aten.fmod, aten.remainder) for e in (0.7, -1.3)),
    *(sample(op.Scalar, REAL, 0.7) for op in (aten.copysign, aten.floor_divide)),
    sample(aten.remainder.Scalar_Tensor, 0.7, REAL),
    sample(aten.xlogy.Scalar_Self, 0.7, REAL),
    sample(aten.xlogy.Scalar_Other, REAL, 0.7),
    sample(aten.special_xlog1py.default, REAL, REAL),
    *(sample(aten.div.Tensor_mode, REAL, REAL, rounding_mode=mode) for mode in (None, "floor", "trunc")),
    *(sample(aten.div.Scalar_mode, REAL, 0.7, rounding_mode=mode) for mode in (None, "floor", "trunc")),
    sample(aten.clamp.Tensor, REAL, REAL, REAL),
    sample(aten.clamp.Tensor, REAL, None, REAL),
    sample(aten.clamp_min.Tensor, REAL, REAL),
    sample(aten.clamp_max.Tensor, REAL, REAL),
    *(sample(aten.lerp.Scalar, REAL, REAL, weight) for weight in (0.3, 0.7)),
    sample(aten.lerp.Tensor, REAL, REAL, REAL),
    sample(ATTACHED, REAL, REAL, REAL),
    sample(CHECKED, REAL),
    sample(aten.logical_xor.default, TRUTH, REAL),
    sample(aten.bitwise_xor.Tensor, TRUTH, TRUTH),
    sample(aten.signbit.default, REAL),
    *(sample(op.default, REAL, rtol=2e-14) for op in (aten.special_entr, aten.logit)),
    sample(aten.logit.default, REAL, 0.1, rtol=2e-14),
    sample(aten.tanh.default, REAL),
    sample(aten.sigmoid.default, REAL),
    sample(aten.relu.default, REAL),
    sample(aten.leaky_relu.default, REAL),
    sample(aten.leaky_relu.default, REAL, 0.2),
    sample(aten.leaky_relu.default, REAL, -0.5),
    sample(aten.silu.default, REAL),
    sample(aten.softplus.default, REAL),
    sample(aten.softplus.default, REAL, 2, 3.0),
    sample(aten.softplus.default, REAL, 0.5),
    sample(aten.elu.default, REAL),
    sample(aten.elu.default, REAL, 1.5),
    sample(aten.elu.default, REAL, 1.6732632423543772, 1.0507009873554805),
    sample(aten.elu.default, REAL, 2.0, 1.0, 0.5),
    sample(aten.mish.default, REAL, rtol=1e-12),
    sample(aten.celu.default, REAL),
    sample(aten.celu.default, REAL, 0.7),
    sample(aten.erf.default, REAL),
    *(sample(op.default, REAL) for op in (aten.erfc, aten.erfinv, aten.lgamma, aten.digamma)),
    *(sample(op.default, REAL) for op in (aten.special_erfcx, aten.special_ndtri, aten.special_log_ndtr)),
    *(sample(op.default, REAL) for op in (aten.i0, aten.special_i0e, aten.special_i1, aten.special_i1e)),
    *(sample(aten.polygamma.default, n, REAL) for n in range(4)),
    *(sample(aten.special_zeta.self_scalar, s, REAL) for s in (2.0, 1.5)),
    *(sample(aten.special_xlog1py.self_scalar, e, REAL) for e in (0.7, 0.0)),
    sample(aten.special_xlog1py.other_scalar, REAL, 0.7),
    sample(aten.threshold.default, REAL, 0.5, -2.0),
    sample(aten.hardshrink.default, REAL),
    sample(aten.hardshrink.default, REAL, 1.0),
    sample(aten.softshrink.default, REAL),
    sample(aten.softshrink.default, REAL, 1.0),
    sample(aten.gelu.default, REAL, rtol=1e-12, atol=1e-15),
    sample(aten.gelu.default, REAL, approximate="tanh", rtol=1e-12, atol=1e-15),
    sample(aten.hardtanh.default, REAL),
    sample(aten.hardtanh.default, REAL, -0.5, 3.0),
    sample(aten.hardsigmoid.default, REAL, rtol=1e-7),  # PyTorch rounds 1/6 to float32
    sample(aten.hardswish.default, REAL, rtol=1e-7),
    sample(aten.clamp.default, REAL, -1.0, 3.0),
    sample(aten.clamp.default, REAL, None, 3),
    sample(aten.clamp.default, REAL, 0.5),
    sample(aten.clamp.default, REAL, 3.0, -1.0),
    sample(aten.clamp_min.default, REAL, 0.5),
    sample(aten.clamp_max.default, REAL, 0.5),
    sample(aten.maximum.default, REAL, REAL),
    sample(aten.minimum.default, REAL, REAL),
    sample(aten.maximum.default, TRUTH, TRUTH),
    sample(aten.where.self, TRUTH, REAL, REAL),
    sample(aten.where.ScalarSelf, TRUTH, 0.5, REAL),
    sample(aten.where.ScalarOther, TRUTH, REAL, 0.5),
    sample(aten.where.Scalar, TRUTH, 0.25, -1),
    sample(aten.masked_fill.Scalar, REAL, TRUTH, 0.5),
    sample(aten.masked_fill.Scalar, REAL, TRUTH, -INF),
    sample(aten.masked_fill.Tensor, REAL, TRUTH, torch.tensor(2.0, dtype=torch.float64)),
    sample(aten.logical_not.default, TRUTH),
    sample(aten.logical_not.default, REAL),
    sample(aten.bitwise_not.default, TRUTH),
    sample(aten.logical_and.default, TRUTH, TRUTH),
    sample(aten.logical_and.default, REAL, REAL),
    sample(aten.logical_or.default, TRUTH, TRUTH),
    sample(aten.logical_or.default, REAL, REAL),
    sample(aten.bitwise_and.Tensor, TRUTH, TRUTH),
    sample(aten.bitwise_or.Tensor, TRUTH, TRUTH),
]


def grid(kinds: list[str]) -> list[Tensor]:
    """Every combination of edges, and random numbers after them; [n] each."""
    random = torch.randn(200, generator=torch.Generator().manual_seed(0), dtype=torch.float64).mul_(3).tolist()
    axes = [EDGES + (random if len(kinds) == 1 else []) if kind == REAL else [False, True] for kind in kinds]
    columns = list(zip(*itertools.product(*axes), strict=True))
    return [
        torch.tensor(column, dtype=torch.float64 if kind == REAL else torch.bool)
        for column, kind in zip(columns, kinds, strict=True)
    ]


def interpreted(built: Expr, operands: list[Tensor]) -> Tensor:
    width = len(operands[0])
    names = [f"x{i}" for i in range(len(operands))]
    buffers = tuple(Buffer(name, Kind.STREAM, width) for name in (*names, "y"))
    kernel = Kernel("pointwise", buffers, (Group(width, (Store(Access("y"), built),)),))
    rows = [operand.double().view(1, 1, width) for operand in operands]
    result = torch.empty(1, 1, width, dtype=torch.float64)
    interpret.run(verify(kernel), [*rows, result], steps=1, rows=1)
    return result.view(width)


@pytest.mark.parametrize("case", SAMPLES, ids=str)
def test_an_op_is_atens(case: Sample) -> None:
    operands = grid([arg for arg in case.args if isinstance(arg, str)])
    tensors, loads = iter(operands), (load(Access(f"x{i}")) for i in range(len(operands)))
    given = [next(tensors) if isinstance(arg, str) else arg for arg in case.args]
    exprs = [
        next(loads) if isinstance(arg, str) else float(arg) if isinstance(arg, Tensor) else arg for arg in case.args
    ]
    built = POINTWISE[case.op](*exprs, **case.kwargs)
    assert built is not None
    expected = case.op(*given, **case.kwargs)
    got = interpreted(built, operands)
    torch.testing.assert_close(got, expected.double(), rtol=case.rtol, atol=case.atol, equal_nan=True)


# Of real x, after the other arguments.
EXACT: dict[Any, Callable[..., Any]] = {
    aten.erfc.default: mpmath.erfc,
    aten.special_erfcx.default: lambda x: mpmath.exp(x * x) * mpmath.erfc(x),
    aten.special_log_ndtr.default: lambda x: mpmath.log(mpmath.ncdf(x)) if x < 0 else mpmath.log1p(-mpmath.ncdf(-x)),
    aten.digamma.default: mpmath.digamma,
    aten.polygamma.default: mpmath.polygamma,
    aten.i0.default: lambda x: mpmath.besseli(0, x),
    aten.special_i0e.default: lambda x: mpmath.exp(-abs(x)) * mpmath.besseli(0, x),
    aten.special_i1.default: lambda x: mpmath.besseli(1, x),
    aten.special_i1e.default: lambda x: mpmath.exp(-abs(x)) * mpmath.besseli(1, x),
}
TRIGAMMA = 1e-8  # PyTorch's, whose series ours is, has errors of some 1e-9


@pytest.mark.parametrize("case", [case for case in SAMPLES if case.op in EXACT], ids=str)
def test_special_functions_beside_mpmath(case: Sample) -> None:
    """The interpreter's own few are PyTorch's, which therefore cannot judge what is made of them alone."""
    (x,), given = grid([REAL]), [arg for arg in case.args if arg is not REAL]
    x = x[x.isfinite() & ((x > 0) | (x != x.round()))]  # poles of the gamma function are left out
    with mpmath.workdps(60):
        exact = torch.tensor(
            [float(EXACT[case.op](*given, mpmath.mpf(number))) for number in x.tolist()], dtype=torch.float64
        )
    got = interpreted(POINTWISE[case.op](*given, load(Access("x0"))), [x])
    there = exact.isfinite() & (got.isfinite() | (x > 0))  # on the left the zeta function has no values here
    assert there.sum() > 100
    torch.testing.assert_close(got[there], exact[there], rtol=TRIGAMMA if given == [1] else 1e-13, atol=1e-300)


def test_every_op_has_a_sample() -> None:
    assert {case.op for case in SAMPLES} == set(POINTWISE)


def test_neutral_operands_cost_nothing() -> None:
    x = load(Access("x"))
    assert POINTWISE[aten.add.Tensor](x, 0.0) is x
    assert POINTWISE[aten.mul.Tensor](x, 1) is x
    assert POINTWISE[aten.sub.Tensor](x, x, alpha=1) is POINTWISE[aten.sub.Tensor](x, x)
    assert POINTWISE[aten.pow.Tensor_Scalar](x, 1) is x


def test_small_numbers_keep_their_digits() -> None:
    """log(1 + x) and exp(x) - 1, written naively, have none left at 1e-18."""
    small = torch.logspace(-20, -1, 400, dtype=torch.float64)
    for op in (aten.log1p.default, aten.expm1.default):
        got = interpreted(POINTWISE[op](load(Access("x0"))), [small])
        torch.testing.assert_close(got, op(small), rtol=2e-15, atol=0)


def test_an_op_is_a_few_operations() -> None:
    """A guard against an expression that grows with every use of its operand."""
    for case in SAMPLES:
        args = [
            load(Access("x")) if isinstance(arg, str) else 0.5 if isinstance(arg, Tensor) else arg for arg in case.args
        ]
        built = POINTWISE[case.op](*args, **case.kwargs)
        assert built is not None
        assert len(topological([built])) <= 60, case

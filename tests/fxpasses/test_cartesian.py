"""Rows of real arithmetic against PyTorch's own ops on complex numbers: values and gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from bppsa.common.chain import FILLS
from bppsa.fxpasses.cartesian.functions import FUNCTIONS, both
from bppsa.fxpasses.cartesian.numbers import Cartesian
from bppsa.fxpasses.cartesian.rows import STRUCTURE
from bppsa.fxpasses.cell.rewrites.real_parts import finished

aten = torch.ops.aten
C = torch.complex128


def z(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=C)


def r(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def mask(*shape: int) -> Tensor:
    return torch.rand(shape) < 0.5


Sample = Callable[[], tuple[Any, ...]]
ONE: Sample = lambda: (z(3, 4),)  # noqa: E731
SAMPLES: dict[Any, list[Sample]] = {
    **{
        op: [ONE]
        for op in (
            *(aten.t.default, aten.clone.default, aten.alias.default, aten.detach.default, aten.neg.default),
            *(aten._conj.default, aten._conj_physical.default, aten.conj_physical.default, aten.view_as_real.default),
            *(aten.exp.default, aten.reciprocal.default, aten.square.default, aten.sqrt.default, aten.rsqrt.default),
            *(aten.abs.default, aten.angle.default, aten.sgn.default, aten.log.default, aten.tanh.default),
            *(aten.sigmoid.default, aten.sin.default, aten.cos.default, aten.sinh.default, aten.cosh.default),
        )
    },
    aten.permute.default: [lambda: (z(3, 4, 2), [2, 0, 1])],
    aten.transpose.int: [lambda: (z(3, 4, 2), 0, 1)],
    aten.unsqueeze.default: [lambda: (z(3, 4), 1)],
    aten.squeeze.dim: [lambda: (z(3, 1), 1)],
    aten.squeeze.dims: [lambda: (z(3, 1), [1])],
    aten.slice.Tensor: [lambda: (z(3, 4), 1, 1, 4, 2)],
    aten.select.int: [lambda: (z(3, 4), 1, -1)],
    aten.expand.default: [lambda: (z(3, 1), [3, 4])],
    aten.view.default: [lambda: (z(3, 4), [2, 6])],
    aten._unsafe_view.default: [lambda: (z(3, 4), [2, 6])],
    aten.flip.default: [lambda: (z(3, 4), [1])],
    aten.repeat.default: [lambda: (z(3, 4), [1, 2])],
    aten.index_select.default: [lambda: (z(3, 4), 1, torch.tensor([2, 0]))],
    aten.index.Tensor: [lambda: (z(3, 4), [None, torch.tensor([2, 0])])],
    aten.gather.default: [lambda: (z(3, 4), 1, torch.tensor([[2], [0], [3]]))],
    aten.diagonal.default: [lambda: (z(3, 4),)],
    aten.unfold.default: [lambda: (z(3, 4), 1, 2, 1)],
    aten.cat.default: [lambda: ([z(3, 4), r(3, 2), z(3, 1)], 1), lambda: ([z(2), z(3)],)],
    aten.complex.default: [lambda: (r(3, 4), r(3, 4))],
    aten.view_as_complex.default: [lambda: (r(3, 4, 2),)],
    aten.polar.default: [lambda: (r(3, 4), r(3, 4)), lambda: (torch.zeros(3, dtype=torch.float64), r(3))],
    **{
        op: [lambda: (z(3, 4), z(4)), lambda: (z(3, 1), r(3, 4)), lambda: (r(3, 4), z(4)), lambda: (z(3), 2 - 1j)]
        for op in (aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor)
    },
    **{op: [lambda: (z(3), 2j), lambda: (r(3), 1 - 2j)] for op in (aten.add.Scalar, aten.sub.Scalar, aten.mul.Scalar)},
    aten.rsub.Tensor: [lambda: (z(3, 4), z(4)), lambda: (r(4), z(3, 4))],
    aten.rsub.Scalar: [lambda: (z(3), 2j), lambda: (z(3), 1, 2), lambda: (r(3), 1 - 2j)],
    aten.mm.default: [lambda: (z(3, 4), z(4, 2))],
    aten.bmm.default: [lambda: (z(2, 3, 4), z(2, 4, 5))],
    aten.sum.dim_IntList: [lambda: (z(3, 4), [1]), lambda: (z(3, 4), [0, 1], True)],
    aten.cumsum.default: [lambda: (z(3, 4), 1)],
    aten.lerp.Scalar: [lambda: (z(3), z(3), 0.3)],
    aten.lerp.Tensor: [lambda: (z(3), z(3), z(3))],
    aten.where.self: [lambda: (mask(3, 4), z(3, 4), z(4)), lambda: (mask(3), z(3), z(1))],
    aten.where.ScalarSelf: [lambda: (mask(3, 4), 1j, z(4))],
    aten.where.ScalarOther: [lambda: (mask(3, 4), z(4), 2.0)],
    aten.where.Scalar: [lambda: (mask(3, 4), 1j, 2.0)],
    aten.masked_fill.Scalar: [lambda: (z(3, 4), mask(3, 4), 1 - 1j), lambda: (z(3, 4), mask(4), 0)],
    aten.masked_fill.Tensor: [lambda: (z(3, 4), mask(3, 4), torch.tensor(2j, dtype=C))],
    aten.div.Tensor: [lambda: (z(3, 4), z(4)), lambda: (z(3), r(3)), lambda: (r(3), z(3)), lambda: (z(3), 2 - 1j)],
    aten.div.Scalar: [lambda: (z(3), 2j), lambda: (z(3), 3.0)],
    aten.pow.Tensor_Scalar: [lambda n=n: (z(3), n) for n in (1, 2, 3, 8, -1, -3, 0.5, 2.0)],
    aten._fft_r2c.default: [
        lambda: (r(2, 5), [1], 0, True),
        lambda: (r(4, 3), [0, 1], 1, True),
        lambda: (r(4), [0], 2, False),
    ],
    aten._fft_c2c.default: [lambda: (z(2, 5), [1], 0, True), lambda: (z(4, 3), [0, 1], 2, False)],
    aten._fft_c2r.default: [lambda: (z(2, 3), [1], 0, 4), lambda: (z(2, 3), [0, 1], 1, 5)],
    aten.linalg_vector_norm.default: [lambda: (z(3, 4), 2, [1], True), lambda: (z(3, 4), 3)],
    aten.var.correction: [lambda: (z(3, 4), [1])],
    aten.eq.Tensor: [lambda: (torch.tensor([1, 1j, 2]), torch.tensor([1, 1, 2j]))],
    aten.eq.Scalar: [lambda: (torch.tensor([1, 1j, 0j]), 1j), lambda: (torch.tensor([1, 1j, 0j]), 0)],
    aten.ne.Tensor: [lambda: (torch.tensor([1, 1j, 2]), torch.tensor([1, 1, 2j]))],
    aten.ne.Scalar: [lambda: (torch.tensor([1, 1j, 0j]), 1)],
    aten.isnan.default: [lambda: (torch.tensor([1j, complex(0, math.nan), complex(math.nan, 0)]),)],
    aten.zeros_like.default: [ONE],
    aten.ones_like.default: [ONE],
    aten.full_like.default: [lambda: (z(3), 2.0), lambda: (z(3), 2 - 1j)],
    aten.new_zeros.default: [lambda: (z(3), [2])],
    aten.new_ones.default: [lambda: (z(3), [2])],
    aten.new_full.default: [lambda: (z(3), [2], 1j)],
}
# With a dtype, by which they are complex.
TYPED: dict[Any, list[Sample]] = {
    aten._to_copy.default: [ONE, lambda: (r(3),)],
    aten.zeros.default: [lambda: ([3, 4],)],
    aten.ones.default: [lambda: ([3, 4],)],
    aten.full.default: [lambda: ([3, 4], 2j), lambda: ([3, 4], 2.0)],
    aten.scalar_tensor.default: [lambda: (1 - 1j,)],
}
ALL = [*((op, one, {}) for op, some in SAMPLES.items() for one in some)]
ALL += [(op, one, {"dtype": C}) for op, some in TYPED.items() for one in some]
ALL += [(aten.var.correction, ONE, {"correction": 0, "keepdim": True})]
ALL += [(aten._to_copy.default, ONE, {"dtype": torch.float64}), (aten.add.Tensor, lambda: (z(3), z(3)), {"alpha": 2j})]


def test_every_row_has_a_sample() -> None:
    assert set(FUNCTIONS) == set(SAMPLES) | set(TYPED)
    assert set(FILLS) < set(STRUCTURE) < set(FUNCTIONS)


@pytest.mark.parametrize(("op", "sample", "options"), ALL, ids=[str(op) for op, _, _ in ALL])
def test_a_row_is_the_op(op: Any, sample: Sample, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    compare(op, sample(), options)


@pytest.mark.parametrize("op", [aten.abs.default, aten.angle.default, aten.sgn.default, aten.sinh.default], ids=str)
def test_at_zero(op: Any) -> None:
    compare(op, (torch.tensor([0j, 1j, 0j, -1], dtype=C),), {})


RANGE = [complex(a, b) for a in (1.0, -1e180, 1e-180) for b in (1e180, -1e-180, 0.0)]


@pytest.mark.parametrize("op", [aten.reciprocal.default, aten.log.default, aten.abs.default, aten.sgn.default], ids=str)
def test_near_the_ends_of_the_range(op: Any) -> None:
    expected = op(torch.tensor(RANGE, dtype=C))
    got = value_of(FUNCTIONS[op], [torch.tensor(RANGE, dtype=C)], {}, expected)
    assert torch.equal(got.isfinite(), expected.isfinite())
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("exponent", [1.5, 9, 0, 1j])
def test_a_power_that_is_no_product_has_no_row(exponent: complex) -> None:
    assert FUNCTIONS[aten.pow.Tensor_Scalar](Cartesian(r(3), r(3)), exponent) is NotImplemented


def compare(op: Any, given: tuple[Any, ...], options: dict[str, Any]) -> None:
    expected = result_of(op, given, options)
    got = result_of(FUNCTIONS[op], given, options, expected[0])
    for ours, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


def value_of(f: Any, given: Any, options: dict[str, Any], like: Tensor | None = None) -> Tensor:
    """like: what the op gives, where f is its row."""
    if like is None:
        return f(*given, **options)
    made = finished(f(*tree_map(apart_from, given), **options), like.detach())
    return torch.complex(*both(made)) if isinstance(made, Cartesian) else made


def result_of(f: Any, given: Any, options: dict[str, Any], like: Tensor | None = None) -> list[Tensor]:
    """The value, and the gradients of every tensor that has one."""
    inputs = tree_map(lambda leaf: fresh(leaf) if isinstance(leaf, Tensor) else leaf, given)
    value = value_of(f, inputs, options, like)
    wanted = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor) and leaf.requires_grad]
    if not value.requires_grad:
        return [value]
    weights = torch.randn(value.shape, dtype=value.dtype, generator=torch.Generator().manual_seed(0))
    found = torch.autograd.grad(value, wanted, weights, allow_unused=True)
    return [value.detach(), *(torch.zeros_like(t) if g is None else g for t, g in zip(wanted, found, strict=True))]


def fresh(tensor: Tensor) -> Tensor:
    real = tensor.is_floating_point() or tensor.is_complex()
    return tensor.clone().requires_grad_(real)


def apart_from(value: Any) -> Any:
    if not (isinstance(value, Tensor) and value.is_complex()):
        return value
    return Cartesian(*torch.view_as_real(value).unbind(-1))

"""ATen's ops on complex values, in terms of real ones: one row an op.

A row gets the op's arguments, `Cartesian` in the place of complex tensors, and gives a `Cartesian`, or a real tensor
where the op does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from bppsa.common.chain import FILLS
from bppsa.fxpasses.cartesian.numbers import (
    Cartesian,
    CartesianPart,
    add,
    cartesian,
    conjugate,
    each,
    multiply,
    subtract,
)

aten = torch.ops.aten
CartesianRow = Callable[..., Any]


def of_real(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the parts; a real one is its own."""
    return dtype.to_real() if dtype.is_complex else dtype


# What costs nothing ---------------------------------------------------------------------------------------------------


def linear(op: Any) -> CartesianRow:
    """An op that does the same to both parts. Whatever else it is given is real."""
    return lambda z, *args, **options: each(lambda part: op(part, *args, **options), cartesian(z))


def cat(values: Sequence[Any], dim: int = 0) -> Cartesian:
    parts = [cartesian(value) for value in values]
    imaginary = None
    if any(z.im is not None for z in parts):
        imaginary = torch.cat([torch.zeros_like(z.re) if z.im is None else z.im for z in parts], dim)
    return Cartesian(torch.cat([z.re for z in parts], dim), imaginary)


def to_copy(z: Any, *, dtype: torch.dtype | None = None, **options: Any) -> Any:
    z = cartesian(z)
    if dtype is None:
        return each(torch.clone, z)
    parts = each(lambda part: part.to(of_real(dtype)), z)
    return parts if dtype.is_complex else parts.re


def view_as_real(z: Cartesian) -> Tensor:
    imaginary = torch.zeros_like(z.re) if z.im is None else z.im
    return torch.stack([z.re, imaginary], -1)


def fill(op: Any) -> CartesianRow:
    """The row of an op that fills with zeros, ones, or one number that may be complex."""

    def row(*args: Any, dtype: torch.dtype | None = None, **options: Any) -> Cartesian:
        real = dtype and of_real(dtype)
        parts = cartesian(next((arg for arg in args if isinstance(arg, complex)), 0.0))

        def filled(part: CartesianPart) -> Tensor:
            own = [(part or 0.0) if isinstance(arg, complex) else a_part(arg) for arg in args]
            return op(*own, dtype=real, **options)

        return Cartesian(filled(parts.re), filled(parts.im) if parts.im else None)

    return row


def a_part(value: Any) -> Any:
    """What has the size of a complex value."""
    return value if not isinstance(value, Cartesian) else value.im if value.re is None else value.re


# A view, a cast or what is put together of real values: taken apart without a kernel of PyTorch's.
STRUCTURE: dict[Any, CartesianRow] = {
    **{
        op: linear(op)
        for op in (
            *(aten.permute.default, aten.transpose.int, aten.t.default),
            *(aten.unsqueeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.slice.Tensor, aten.select.int),
            *(aten.expand.default, aten.clone.default, aten.alias.default, aten.detach.default, aten.neg.default),
            *(aten.flip.default, aten.repeat.default, aten.index_select.default, aten.index.Tensor),
            *(aten.gather.default, aten.diagonal.default, aten.unfold.default),
        )
    },
    **dict.fromkeys((aten.view.default, aten._unsafe_view.default), linear(torch.reshape)),
    aten.cat.default: cat,
    aten._to_copy.default: to_copy,
    aten.complex.default: Cartesian,
    aten.view_as_real.default: view_as_real,
    aten.view_as_complex.default: lambda x: Cartesian(x.select(-1, 0), x.select(-1, 1)),
    **dict.fromkeys((aten._conj.default, aten._conj_physical.default, aten.conj_physical.default), conjugate),
    **{op: fill(op) for op in FILLS},
}


# What kernels do in a few operations ----------------------------------------------------------------------------------


def added(combine: Callable[[Cartesian, Cartesian], Cartesian]) -> CartesianRow:
    def row(a: Any, b: Any, alpha: complex = 1) -> Cartesian:
        scaled = cartesian(b) if alpha == 1 else multiply(cartesian(b), cartesian(alpha))
        return combine(cartesian(a), scaled)

    return row


def product(op: Any) -> CartesianRow:
    return lambda a, b: multiply(cartesian(a), cartesian(b), op)


def exp(z: Cartesian) -> Cartesian:
    length = z.re.exp()
    return Cartesian(length) if z.im is None else Cartesian(length * torch.cos(z.im), length * torch.sin(z.im))


def polar(length: Tensor, angle: Tensor) -> Cartesian:
    """Spells `polar` with PyTorch's gradient of a length that is not positive: times its sign."""
    length = torch.where(length > 0, length, length.abs() + (2 * length).detach())
    return Cartesian(length * torch.cos(angle), length * torch.sin(angle))


def lerp(a: Any, b: Any, weight: Any) -> Cartesian:
    start = cartesian(a)
    return add(start, multiply(cartesian(weight), subtract(cartesian(b), start)))


def where(condition: Tensor, a: Any, b: Any) -> Cartesian:
    def chosen(one: Any, other: Any) -> Any:
        if one is None and other is None:
            return None
        return torch.where(condition, 0.0 if one is None else one, 0.0 if other is None else other)

    return Cartesian(*map(chosen, cartesian(a), cartesian(b)))


ARITHMETIC: dict[Any, CartesianRow] = {
    **STRUCTURE,
    **dict.fromkeys((aten.add.Tensor, aten.add.Scalar), added(add)),
    **dict.fromkeys((aten.sub.Tensor, aten.sub.Scalar), added(subtract)),
    **dict.fromkeys((aten.rsub.Tensor, aten.rsub.Scalar), lambda a, b, alpha=1: added(subtract)(b, a, alpha)),
    **dict.fromkeys((aten.mul.Tensor, aten.mul.Scalar), lambda a, b: multiply(cartesian(a), cartesian(b))),
    aten.mm.default: product(aten.mm.default),
    aten.bmm.default: product(aten.bmm.default),
    aten.sum.dim_IntList: lambda z, dims, keepdim=False, *, dtype=None: linear(aten.sum.dim_IntList)(z, dims, keepdim),
    aten.cumsum.default: lambda z, dim, *, dtype=None: linear(aten.cumsum.default)(z, dim),
    aten.exp.default: exp,
    aten.polar.default: polar,
    **dict.fromkeys((aten.lerp.Scalar, aten.lerp.Tensor), lerp),
    **dict.fromkeys((aten.where.self, aten.where.ScalarSelf, aten.where.ScalarOther, aten.where.Scalar), where),
    **dict.fromkeys((aten.masked_fill.Scalar, aten.masked_fill.Tensor), lambda z, mask, to: where(mask, to, z)),
}

"""Average pools and interpolations: constant, the same for every row and channel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, ops

from bppsa.sparsity.operators.implicit import Implicit
from bppsa.sparsity.operators.separable import separable
from bppsa.sparsity.rules.conv import each
from bppsa.sparsity.rules.rearrange import like
from bppsa.sparsity.rules.registry import rule

aten = ops.aten


def only(d: int, values: Sequence[Any], other: Any) -> list[Any]:
    """Along dimension d its own value, along all others one that does nothing."""
    return [value if i == d else other for i, value in enumerate(values)]


def average(op: Any, backward: Any) -> Callable[..., tuple[Implicit]]:
    """The rule of avg_pool2d and avg_pool3d."""

    def avg_pool(
        x: Tensor,
        kernel: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor: int | None = None,
        *,
        out: Tensor,
    ) -> tuple[Implicit]:
        k, p = (each(n, (0,) * (x.dim() - 2)) for n in (kernel, padding))
        s = each(stride, k) if stride else k
        sums = None if divisor is None else 1  # each dimension sums, and the divisor comes last

        def along(d: int, one: Tensor) -> Tensor:
            return op(one, only(d, k, 1), only(d, s, 1), only(d, p, 0), ceil_mode, count_include_pad, sums)

        def vjp(g: Tensor) -> Tensor:
            return backward(g, like(g, x), k, s, p, ceil_mode, count_include_pad, divisor)

        return (separable(x, out, along, vjp, 1 / (divisor or 1)),)

    return avg_pool


def adaptive(op: Any, backward: Any) -> Callable[..., tuple[Implicit]]:
    """The rule of _adaptive_avg_pool2d and _adaptive_avg_pool3d."""

    def adaptive_avg_pool(x: Tensor, size: Sequence[int], *, out: Tensor) -> tuple[Implicit]:
        def along(d: int, one: Tensor) -> Tensor:
            return op(one, only(d, size, 1))

        return (separable(x, out, along, lambda g: backward(g, like(g, x))),)

    return adaptive_avg_pool


def interpolation(op: Any, backward: Any) -> Callable[..., tuple[Implicit]]:
    """The rule of upsample_*d: options are `align_corners`, where the mode has it, and the scales of the dimensions."""

    def upsample(x: Tensor, size: Sequence[int], *options: Any, out: Tensor, **named: Any) -> tuple[Implicit]:
        scales = len(size)

        def along(d: int, one: Tensor) -> Tensor:
            if len(options) < scales:
                return op(one, only(d, size, 1), *options)
            flags, factors = options[:-scales], options[-scales:]
            return op(one, only(d, size, 1), *flags, *only(d, factors, None))

        def vjp(g: Tensor) -> Tensor:
            return backward(g, size, [g.shape[0], *x.shape[1:]], *options, **named)

        return (separable(x, out, along, vjp),)

    return upsample


for _d in (2, 3):
    rule(getattr(aten, f"avg_pool{_d}d").default)(
        average(getattr(aten, f"avg_pool{_d}d"), getattr(aten, f"avg_pool{_d}d_backward"))
    )
    rule(getattr(aten, f"_adaptive_avg_pool{_d}d").default)(
        adaptive(getattr(aten, f"_adaptive_avg_pool{_d}d"), getattr(aten, f"_adaptive_avg_pool{_d}d_backward"))
    )

for _mode in ("linear1d", "bilinear2d", "trilinear3d", "bicubic2d", "nearest1d", "nearest2d", "nearest3d"):
    _op, _backward = (getattr(aten, f"upsample_{_mode}{suffix}").default for suffix in ("", "_backward"))
    rule(_op)(interpolation(_op, _backward))

"""Convolutions of one to three dimensions and their transposes. J^T is the weight and the geometry, for all rows."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, ops

from bppsa.sparsity.operators.across import AcrossRows
from bppsa.sparsity.operators.convolution import Convolution
from bppsa.sparsity.patterns.windows import Windows
from bppsa.sparsity.rules.registry import rule

aten = ops.aten


@rule(aten.convolution.default)
def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    *,
    out: Tensor,
) -> tuple[Convolution | AcrossRows, ...]:
    kernel = tuple(weight.shape[2:])
    windows = Windows(kernel, *(each(n, kernel) for n in (stride, padding, dilation)))

    def of_weight(g: Tensor) -> Tensor:
        return backward(g, 1)

    def of_bias(g: Tensor) -> Tensor:
        return backward(g, 2)

    def backward(g: Tensor, which: int) -> Tensor:
        wanted = [i == which for i in range(3)]
        sizes = None if bias is None else list(bias.shape)
        return aten.convolution_backward(
            g, x, weight, sizes, stride, padding, dilation, transposed, output_padding, groups, wanted
        )[which]

    of_input = Convolution(x, out, weight, windows, transposed, groups)
    return (of_input, AcrossRows(of_weight), *(() if bias is None else (AcrossRows(of_bias),)))


def each(value: Sequence[int], kernel: tuple[int, ...]) -> tuple[int, ...]:
    """One number a dimension: ATen takes one for all."""
    return tuple(value) if len(value) == len(kernel) else tuple(value) * len(kernel)

"""Composite ATen ops in terms of simpler ones: what the recorder writes down instead. One row an op.

Only ops whose parts meet different passes belong here (a bias is pointwise, a product is not; a mean is a reduction).
A pointwise op, however composite, keeps its own rule and its own line in `codegen/lowering/pointwise.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table

from bppsa.errors import Unsupported
from bppsa.fxpasses.recording.pieces import PIECES, added, safe_softmax, standardised
from bppsa.sparsity.rules.own_gradient import ATTACHED

aten = torch.ops.aten


def layer_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    dims = list(range(x.dim() - len(shape), x.dim()))
    out, mean, rstd = standardised(x, dims, eps)
    out = out if weight is None else out * weight
    return out if bias is None else out + bias, mean, rstd


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Softmax(q k^T scale) v, zeros where all is masked, and the logarithm of its denominators, of [B, heads, L, D]."""
    if dropout:
        raise Unsupported("draws random numbers for its dropout", mend="call it with dropout_p=0")
    scores = q @ k.transpose(-2, -1) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if is_causal:
        open_to = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
        scores = torch.where(open_to, scores, -math.inf)
    scores = scores if attn_mask is None else scores + attn_mask
    return safe_softmax(scores, -1) @ v, torch.logsumexp(scores, -1)


def inverse(count: float) -> float:
    """One over a number of terms; with none, as PyTorch: 0 * inf is NaN, anything else infinite."""
    return 1 / count if count > 0 else math.inf


def mean(x: Tensor, dims: Sequence[int] | None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    dims = list(dims) if dims else list(range(x.dim()))
    count = math.prod(x.shape[d] for d in dims)
    return x.sum(dims, keepdim=keepdim, dtype=dtype) * inverse(count)


def var(
    x: Tensor, dims: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> Tensor:
    dims = list(dims) if dims else list(range(x.dim()))
    centred = x - x.mean(dims, keepdim=True)
    count = math.prod(x.shape[d] for d in dims) - (1 if correction is None else correction)
    squares = ATTACHED(
        (centred * centred).detach(), x, centred * 2
    )  # the mean takes no part: its share adds up to zero
    return squares.sum(dims, keepdim=keepdim) * inverse(count)


def split(x: Tensor, size: int, dim: int = 0) -> list[Tensor]:
    return [torch.narrow(x, dim, at, min(size, x.shape[dim] - at)) for at in range(0, x.shape[dim], size)]


def split_with_sizes(x: Tensor, sizes: Sequence[int], dim: int = 0) -> list[Tensor]:
    return [torch.narrow(x, dim, sum(sizes[:i]), size) for i, size in enumerate(sizes)]


SELU_ALPHA, SELU_SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946


def nan_to_num(x: Tensor, nan: float | None = None, high: float | None = None, low: float | None = None) -> Tensor:
    limits = torch.finfo(x.dtype)
    high, low = limits.max if high is None else high, limits.min if low is None else low
    finite = torch.where(x == math.inf, high, torch.where(x == -math.inf, low, x))
    value = torch.where(torch.isnan(x), nan or 0.0, finite).detach()
    return ATTACHED(value, x, (x.abs() < math.inf).to(x.dtype))  # PyTorch multiplies, also an infinite cotangent


def copy(x: Tensor, new: Tensor, non_blocking: bool = False) -> Tensor:
    """Contiguous: a view that x allows is then one that the copy allows."""
    return new.to(x.dtype).expand(x.shape).clone(memory_format=torch.contiguous_format)


def empty_like(x: Tensor, *, dtype: torch.dtype | None = None, **options: Any) -> Tensor:
    """What it holds is not told, and zeros are as good."""
    return torch.zeros_like(x, dtype=dtype)


def zeros(size: Sequence[int], *, dtype: torch.dtype | None = None, **options: Any) -> Tensor:
    return torch.zeros(size, dtype=dtype)


def log_sigmoid(x: Tensor) -> tuple[Tensor, Tensor]:
    """Its backward needs no numbers beside, as on a GPU."""
    return -torch.nn.functional.softplus(-x, threshold=math.inf), x.new_zeros(0)


DECOMPOSE: dict[Any, Callable[..., Any]] = {
    aten.addmm.default: added(torch.mm),
    aten.addmv.default: added(torch.mv),
    aten.addr.default: added(lambda a, b: a.unsqueeze(1) * b),
    aten.ldexp.Tensor: lambda x, exponent: x * torch.pow(2.0, exponent),
    aten.empty_like.default: empty_like,
    **dict.fromkeys((aten.empty.memory_format, aten._efficientzerotensor.default), zeros),
    **PIECES,
    aten.native_layer_norm.default: layer_norm,
    aten._scaled_dot_product_flash_attention_for_cpu.default: attention,
    aten.mean.dim: mean,
    aten.var.correction: var,
    aten.split.Tensor: split,
    aten.unsafe_split.Tensor: split,
    aten.split_with_sizes.default: split_with_sizes,
    aten.unsafe_split_with_sizes.default: split_with_sizes,
    aten.unbind.int: lambda x, dim=0: [x.select(dim, i) for i in range(x.shape[dim])],
    aten.log_sigmoid_forward.default: log_sigmoid,
    aten._prelu_kernel.default: lambda x, slope: torch.where(x > 0, x, slope * x),
    aten.selu.default: lambda x: aten.elu(x, SELU_ALPHA, SELU_SCALE),
    aten.relu6.default: lambda x: aten.hardtanh(x, 0, 6),
    aten.isposinf.default: lambda x: x == math.inf,
    aten.isneginf.default: lambda x: x == -math.inf,
    aten.sgn.default: torch.sign,  # of real numbers
    aten.addcdiv.default: lambda a, x, y, *, value=1: a + (x / y if value == 1 else x / y * value),
    aten.nan_to_num.default: nan_to_num,
    aten.addcmul.default: lambda a, x, y, *, value=1: a + (x * y if value == 1 else x * y * value),
    aten.copy.default: copy,
    aten.fill.Tensor: lambda x, number: number.to(x.dtype) - torch.zeros_like(x),  # with the rows of x
    aten.fill.Scalar: torch.full_like,
    aten.zero.default: torch.zeros_like,
}


def convolution_backward(
    g: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Tensor, None, None]:
    """The gradient of x; that of a weight is a sum over the batch."""
    if output_mask[1] or output_mask[2]:
        raise Unsupported("takes the gradient of a weight, which is a sum over the batch", mend="take that of a state")
    rest = [0] * len(stride)
    if not transposed:
        sizes = zip(g.shape[2:], stride, padding, dilation, weight.shape[2:], strict=True)
        reached = [(n - 1) * s - 2 * p + d * (k - 1) + 1 for n, s, p, d, k in sizes]
        rest = [n - m for n, m in zip(x.shape[2:], reached, strict=True)]
    options = stride, padding, dilation, not transposed, rest, groups
    return aten.convolution.default(g, weight, None, *options), None, None


# Backwards that PyTorch's own table of parts lacks. They are met where a function takes derivatives itself.
SHRINKS = (aten.softshrink_backward.default, aten.hardshrink_backward.default)
BACKWARDS: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys(SHRINKS, lambda g, x, limit: torch.where((x >= -limit) & (x <= limit), 0.0, g)),
    aten.convolution_backward.default: convolution_backward,
}
# Questions about sizes alone, which derivatives ask too: stand-ins have the same answers.
ASKS_SIZES = {aten.is_same_size.default, aten._has_same_storage_numel.default}


def parts_of_backward(op: Any) -> Callable[..., Any] | None:
    """What such an op as `tanh_backward` consists of; None of any other op."""
    if "_backward" not in op._opname:
        return None
    return BACKWARDS.get(op) or decomposition_table.get(op)


# Rows that hold for real numbers alone.
OF_REALS = frozenset((aten.var.correction, aten.sgn.default, aten.nan_to_num.default))


def is_seeded(op: Any) -> bool:
    """Whether an op draws random numbers. PyTorch says so of attention without dropout too."""
    return torch.Tag.nondeterministic_seeded in getattr(op, "tags", ()) and op not in DECOMPOSE

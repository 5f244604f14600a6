"""Functions of PyTorch's whose insides the dispatcher cannot show as ops of rows, in terms of functions it can. Their
parameters have PyTorch's names, by which a caller may give them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from bppsa.fxpasses.cell import modules
from bppsa.fxpasses.recording.one_hot import one_hot
from bppsa.fxpasses.recording.pieces import counted, standardised
from bppsa.sparsity.rules.derivatives import in_single


def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """A length below eps counts as eps, and keeps its gradient."""

    def normal(x: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(x, dim=dim, keepdim=True)
        return x / (length + (length.clamp_min(eps) - length).detach())

    return (normal(x1) * normal(x2)).sum(dim)


def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The sum of a_i w_oij b_j over i and j."""
    outputs, inputs, others = weight.shape
    by_a = (input1 @ weight.transpose(0, 1).reshape(inputs, outputs * others)).unflatten(-1, (outputs, others))
    y = (by_a * input2.unsqueeze(-2)).sum(-1)
    return y if bias is None else y + bias


def circular_pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Any:
    """Circular padding as slices; NotImplemented for the other modes."""
    if mode != "circular" or len(pad) // 2 not in (input.dim() - 2, input.dim() - 1):
        return NotImplemented
    for i, (before, behind) in enumerate(zip(pad[::2], pad[1::2], strict=True)):
        n = input.shape[-1 - i]
        if not (0 <= before <= n and 0 <= behind <= n):
            return NotImplemented
        parts = [(n - before, before), (0, n), (0, behind)]
        input = torch.cat([input.narrow(-1 - i, first, count) for first, count in parts if count], -1 - i)
    return input


def quantile(
    input: Tensor, q: float | Tensor, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Any:
    """The number between two of the sorted ones; NaN for a row with a NaN. NotImplemented for other forms than one
    number q."""
    if isinstance(q, Tensor) or dim is None or interpolation != "linear" or not 0 <= q <= 1 or not input.dim():
        return NotImplemented
    values, last = torch.sort(input, dim).values, input.shape[dim] - 1
    rank = q * last if input.dtype is torch.float64 else in_single(in_single(q) * last)
    below, above, most = (values.narrow(dim, at, 1) for at in (math.floor(rank), math.ceil(rank), last))
    found = torch.lerp(below, above, rank - math.floor(rank))
    found = torch.where(torch.isnan(most), most, found)
    return found if keepdim else found.squeeze(dim)


def fill_diagonal(input: Tensor, fill_value: float, wrap: bool = False) -> Any:
    """PyTorch writes through a view with strides of its own; here a mask is true where all indices are one. wrap: the
    diagonal of a tall matrix begins anew below a row that it leaves out. NotImplemented of what PyTorch refuses."""
    is_cube = input.dim() == 2 or (input.dim() > 2 and len(set(input.shape)) == 1)
    if not is_cube or isinstance(fill_value, Tensor):
        return NotImplemented
    row = counted(input, 0)
    row = row % (input.shape[1] + 1) if wrap and input.dim() == 2 else row
    hit = row == counted(input, 1)
    for dim in range(2, input.dim()):
        hit = torch.logical_and(hit, row == counted(input, dim))
    return input.copy_(torch.where(hit, fill_value, input))


def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    """Of each channel by itself; NotImplemented with running statistics, and for one place, which PyTorch refuses."""
    if not use_input_stats or running_mean is not None or input.dim() < 3 or input.shape[2:].numel() == 1:
        return NotImplemented
    out = standardised(input, list(range(2, input.dim())), eps)[0]
    own = (-1, *[1] * (input.dim() - 2))
    out = out if weight is None else out * weight.view(own)
    return out if bias is None else out + bias.view(own)


def embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Any:
    """Bags of one size, the rows of `input`; NotImplemented for others and empty ones, for gradients that are not
    plain, and for what PyTorch refuses."""
    others = (offsets, max_norm, padding_idx, per_sample_weights if mode != "sum" else None)
    has_others = any(each is not None for each in others) or scale_grad_by_freq or sparse
    if has_others or mode not in ("sum", "mean", "max") or input.dim() != 2 or not input.shape[1]:
        return NotImplemented
    found = functional.embedding(input, weight)
    if mode == "max":
        return found.max(1)[0]
    found = found if per_sample_weights is None else found * per_sample_weights.unsqueeze(-1)
    return found.sum(1) if mode == "sum" else found.mean(1)


def rrelu(
    input: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, inplace: bool = False
) -> Any:
    """Draws nothing in evaluation."""
    return NotImplemented if training else functional.leaky_relu(input, (lower + upper) / 2, inplace)


def one_step(cell: Callable[..., Any], states: int) -> Callable[..., Any]:
    """What stands for `torch.lstm` and its kin, called for one step; NotImplemented for all other calls."""

    def layers(
        given: Tensor,
        hx: Any,
        params: Any,
        biases: Any,
        count: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: Any = None,
    ) -> Any:
        carries = hx if states > 1 else (hx,)
        time, each = int(bool(batch_first)), 4 if biases else 2
        known = isinstance(batch_first, bool) and not bidirectional and isinstance(carries, (tuple, list))
        if not known or given.dim() != 3 or given.shape[time] != 1 or len(params) != each * count:
            return NotImplemented
        if dropout and train and count > 1:
            return NotImplemented
        x, nexts = given.squeeze(time), []
        for layer in range(count):
            own = params[each * layer : each * (layer + 1)]
            carry, x = cell(tuple(carry.select(0, layer) for carry in carries), x, *own)
            nexts.append(carry)
        return x.unsqueeze(time), *(layered([carry[i] for carry in nexts]) for i in range(states))

    return layers


def layered(states: Sequence[Tensor]) -> Tensor:
    return states[0].unsqueeze(0) if len(states) == 1 else torch.stack(list(states))


MODES = {"lstm": "LSTM", "gru": "GRU", "rnn_tanh": "RNN_TANH", "rnn_relu": "RNN_RELU"}
INSTEAD: dict[Any, Callable[..., Any]] = {
    torch.cosine_similarity: cosine_similarity,
    functional.pad: circular_pad,
    functional.bilinear: bilinear,
    functional.instance_norm: instance_norm,
    functional.rrelu: rrelu,
    functional.embedding_bag: embedding_bag,
    **dict.fromkeys((torch.quantile, Tensor.quantile), quantile),
    functional.one_hot: one_hot,
    Tensor.fill_diagonal_: fill_diagonal,
    **{getattr(torch, name): one_step(*modules.KINDS[mode][:2]) for name, mode in MODES.items()},
}

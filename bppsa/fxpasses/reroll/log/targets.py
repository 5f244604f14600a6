"""Which op is written down for one that a call has done: of sizes, of new values, of an element of each row; and which
ops for that of a whole layer, where it is called for one step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bppsa.common.chain import HANDED_ON
from bppsa.fxpasses.cell import modules
from bppsa.fxpasses.recording.row_elements import OF_ROWS, may_be_of_rows, numbers_rows
from bppsa.fxpasses.reroll.log.ops import LoggedValue, Nesting

aten = torch.ops.aten
LSTM = 2  # of the modes of oneDNN's op
CUDNN = ("RNN_RELU", "RNN_TANH", "LSTM", "GRU")  # by the mode of its op


# Whose result depends on the sizes of what they are given alone, as ops of these sizes: no carry begins there.
SIZED: dict[Any, Any] = {
    aten.empty_like.default: aten.empty.memory_format,
    aten.zeros_like.default: aten.zeros.default,
    aten.ones_like.default: aten.ones.default,
    aten.full_like.default: aten.full.default,
    aten.rand_like.default: aten.rand.default,
    aten.randn_like.default: aten.randn.default,
    aten.new_zeros.default: aten.zeros.default,
    aten.new_ones.default: aten.ones.default,
    aten.new_empty.default: aten.empty.memory_format,
    aten.new_full.default: aten.full.default,
}


POSTPONED = {aten.select.int, aten.slice.Tensor, aten.view.default, aten.t.default, aten.transpose.int}


FILLS_PLACE = {aten.zero_.default, aten.fill_.Scalar}


OVERWRITES = {aten.copy_.default, *FILLS_PLACE}


# What is written in place, and what returns the same from the same random numbers.
DRAWS = {
    aten.bernoulli_.float: aten.bernoulli.p,
    aten.uniform_.default: aten.uniform.default,
    aten.normal_.default: aten.normal_functional.default,
    aten.exponential_.default: aten.exponential.default,
}


def sized(func: Any, leaves: list[Any], out: Tensor) -> tuple[Any, list[Any], Any]:
    """The op of sizes in the place of one of `SIZED`, whose leaves begin with a tensor; of new_full come its sizes, and
    then, as in full_like, the number that it fills with."""
    target, sizes = SIZED[func], list(out.shape)
    fill = []
    if target is aten.full.default:
        at = 1 + (len(sizes) if func is aten.new_full.default else 0)
        fill = leaves[at : at + 1]
    spec = ((None,) * len(sizes), *(None for _ in fill)), (("dtype", None), ("device", None))
    return target, [*sizes, *fill, out.dtype, out.device], spec


def without_rows(func: Any, leaves: list[Any], spec: Nesting) -> tuple[Any, list[Any], Nesting]:
    """The op of ours in the place of an index by all rows and one list more; any other op as it is."""
    if func not in OF_ROWS or spec[0][1] != (None, None) or not is_of_rows(*leaves[:3]):
        return func, leaves, spec
    x, _, at, *more = leaves
    more = [*more, False][:2] if more else []
    return OF_ROWS[func], [x, at, *more], ((None,) * (2 + len(more)), ())


def is_of_rows(x: LoggedValue, rows: Any, at: Any) -> bool:
    if not (isinstance(rows, LoggedValue) and isinstance(at, LoggedValue) and may_be_of_rows(x, (rows, at))):
        return False
    op = rows.op
    while op is not None and op.target in HANDED_ON:
        op = op.leaves[0].op
    return op is not None and numbers_rows(op.target, op.leaves, x.shape[0])


def spelled(func: Any, args: Sequence[Any]) -> Callable[[], Sequence[Tensor]] | None:
    """What gives the op's outputs but those that its backward alone reads; None where the op is written down itself."""
    of = SPELLINGS.get(func)
    return None if of is None else of(*args)


def lstm(
    x: Tensor, w_x: Tensor, w_h: Tensor, b_x: Tensor, b_h: Tensor, h: Tensor, c: Tensor, *options: Any
) -> Callable[[], Sequence[Tensor]] | None:
    """One layer of oneDNN's nn.LSTM, which PyTorch takes for float32. x: [T, B, I]; h, c: [B, H] or [1, B, H]."""
    _, _, mode, _, _, has_biases, *_ = options
    if mode != LSTM or x.shape[0] != 1:
        return None
    biases = (b_x, b_h) if has_biases else (None, None)
    return partial(lstm_step, x, (w_x, w_h), biases, h, c)


def lstm_step(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None], h: Tensor, c: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    carry = h.reshape(-1, h.shape[-1]), c.reshape(-1, c.shape[-1])
    (y, now), _ = modules.lstm(carry, x[0], *weights, *biases)
    return y.unsqueeze(0), y.reshape(h.shape), now.reshape(c.shape)


def cudnn(
    x: Tensor,
    weights: Sequence[Tensor],
    stride: int,
    packed: Any,
    h: Tensor,
    c: Tensor | None,
    mode: int,
    *options: Any,
) -> Callable[[], Sequence[Tensor]] | None:
    """One layer of a module that cuDNN runs. x: [T, B, I], or [B, T, I] if batch_first; h, c: [1, B, H]."""
    _, projection, layers, batch_first, dropout, _, both, batch_sizes, _ = options
    if x.shape[1 if batch_first else 0] != 1 or layers != 1 or both or projection or dropout or batch_sizes:
        return None
    return partial(cudnn_step, x, 1 if batch_first else 0, weights, (h,) if c is None else (h, c), CUDNN[mode])


def cudnn_step(
    x: Tensor, dim: int, weights: Sequence[Tensor], states: Sequence[Tensor], kind: str
) -> tuple[Tensor, ...]:
    cell, *_ = modules.KINDS[kind]
    now, y = cell(tuple(state[0] for state in states), x.squeeze(dim), *weights)
    return y.unsqueeze(dim), *(state.unsqueeze(0) for state in now)


def gru_cell(
    x_gates: Tensor, h_gates: Tensor, h: Tensor, b_x: Tensor | None = None, b_h: Tensor | None = None
) -> Callable[[], Sequence[Tensor]]:
    """nn.GRUCell on a GPU, behind its products. gates: [B, 3 H]; h: [B, H]."""
    return lambda: [modules.gru_gates(h, with_bias(x_gates, b_x), with_bias(h_gates, b_h))]


def lstm_cell(
    x_gates: Tensor, h_gates: Tensor, c: Tensor, b_x: Tensor | None = None, b_h: Tensor | None = None
) -> Callable[[], Sequence[Tensor]]:
    """nn.LSTMCell on a GPU, behind its products. gates: [B, 4 H]; c: [B, H]."""
    return lambda: modules.lstm_gates(c, with_bias(x_gates, b_x) + with_bias(h_gates, b_h))


def with_bias(gates: Tensor, bias: Tensor | None) -> Tensor:
    return gates if bias is None else gates + bias


def rms_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None, eps: float | None
) -> Callable[[], Sequence[Tensor]]:
    """nn.RMSNorm on a GPU, over the last axes, which have this shape."""
    dims = list(range(-len(shape), 0))
    least = torch.finfo(x.dtype).eps if eps is None else eps

    def spelled() -> list[Tensor]:
        scaled = x * torch.rsqrt((x * x).mean(dims, keepdim=True) + least)
        return [scaled if weight is None else scaled * weight]

    return spelled


SPELLINGS: Mapping[Any, Callable[..., Callable[[], Sequence[Tensor]] | None]] = {
    aten.mkldnn_rnn_layer.default: lstm,
    aten._cudnn_rnn.default: cudnn,
    aten._thnn_fused_gru_cell.default: gru_cell,
    aten._thnn_fused_lstm_cell.default: lstm_cell,
    aten._fused_rms_norm.default: rms_norm,
}

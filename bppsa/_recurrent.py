"""One call of nn.RNN, nn.GRU or nn.LSTM, its tensors laid out with time first, by generated sweeps."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from bppsa._sweeps import module_sweep
from bppsa.runtime import autograd
from bppsa.runtime.autograd import Given
from bppsa.runtime.stack import Stack
from bppsa.runtime.sweep import Extent, Sweep

States = tuple[Tensor, ...]


def run(
    module: nn.RNNBase, x: Tensor, batch_sizes: Tensor | None, states: States | None, weights: Sequence[Tensor]
) -> tuple[Tensor, States] | Any:
    """x: [T, B, I], or the data of a packed sequence, [sum of batch_sizes, I]; states: [L * D, B, n] each, or None for
    zeros. Returns y and the final states in the same form; NotImplemented where PyTorch is to run the call."""
    rows = x.shape[1] if batch_sizes is None else int(batch_sizes[0])
    if rows == 0 or len(x) == 0:
        return NotImplemented
    dtype = working_dtype(x, weights)
    masks = dropout_masks(module, x)
    tensors: list[Tensor | None] = [x, *(states or [None] * count_states(module)), *weights, *masks]
    tensors = [t if t is None or t.dtype == dtype else t.to(dtype) for t in tensors]
    lengths = None
    if batch_sizes is not None:
        (tensors[0], *tensors[-len(masks) or len(tensors) :]), lengths = pad([tensors[0], *tensors[len(tensors) - len(masks) :]], batch_sizes)
    extent = Extent(tensors[0].shape[0], rows, active=batch_sizes, lengths=lengths)
    y, *finals = autograd.apply(stack(module, dtype, extent), tensors)
    if lengths is not None:
        y = torch._VF._pack_padded_sequence(y, lengths, False)[0]
    if y.dtype != x.dtype:
        y, finals = y.to(x.dtype), [f.to(x.dtype) for f in finals]
    return y, tuple(finals)


def working_dtype(x: Tensor, weights: Sequence[Tensor]) -> torch.dtype:
    """Half precision, and what autocast mixes, is computed in float32 and rounded once."""
    dtypes = {x.dtype, *(w.dtype for w in weights)}
    return torch.float64 if dtypes == {torch.float64} else torch.float32


def count_states(module: nn.RNNBase) -> int:
    return 2 if module.mode == "LSTM" else 1


def dropout_masks(module: nn.RNNBase, x: Tensor) -> list[Tensor]:
    """Drawn as PyTorch draws them between layers, so that a seeded run gives the same numbers."""
    if not (module.training and module.dropout > 0):
        return []
    width = (module.proj_size or module.hidden_size) * (1 + module.bidirectional)
    return [functional.dropout(x.new_ones((*x.shape[:-1], width)), module.dropout) for _ in range(module.num_layers - 1)]


def pad(packed: Sequence[Tensor], batch_sizes: Tensor) -> tuple[list[Tensor], Tensor]:
    """[sum of batch_sizes, n] each -> [T, B, n] each, and the length of every row, int64 [B]."""
    padded = [torch._VF._pad_packed_sequence(data, batch_sizes, False, 0.0, len(batch_sizes)) for data in packed]
    return [data for data, _ in padded], padded[0][1]


def stack(module: nn.RNNBase, dtype: torch.dtype, extent: Extent) -> Stack:
    key = (module.mode, module.input_size, module.hidden_size, module.num_layers, module.bias, module.bidirectional)
    sweeps = sweeps_of(*key, module.proj_size, dtype)
    count = len(module._flat_weights) // (module.num_layers * (1 + module.bidirectional))
    pytorch = partial(by_pytorch, module.mode, module.num_layers, module.bidirectional, module.bias, module.training, extent)
    return Stack(sweeps, count_states(module), count, extent, pytorch)


@lru_cache(maxsize=1024)
def sweeps_of(
    mode: str, inputs: int, hidden: int, layers: int, bias: bool, bidirectional: bool, projection: int, dtype: torch.dtype
) -> tuple[tuple[Sweep, ...], ...]:
    directions = 1 + bidirectional
    between = (projection or hidden) * directions
    widths = [inputs, *[between] * (layers - 1)]
    return tuple((module_sweep(mode, width, hidden, projection, bias, dtype),) * directions for width in widths)


def by_pytorch(
    mode: str, layers: int, bidirectional: bool, bias: bool, training: bool, extent: Extent, tensors: Given
) -> States:
    """The call by torch._VF, a layer at a time, for whoever differentiates twice. x: [T, B, I], padded if packed."""
    function, count, directions = getattr(torch._VF, mode.lower()), 2 if mode == "LSTM" else 1, 1 + bidirectional
    x, states, rest = tensors[0], tensors[1 : 1 + count], tensors[1 + count :]
    width = (len(rest) - len(rest) % (layers * directions)) // layers
    masks = rest[width * layers :]
    finals: list[Sequence[Tensor]] = []
    for layer in range(layers):
        weights = list(rest[layer * width : (layer + 1) * width])
        initial = [initial_state(s, layer, directions, x, size) for s, size in zip(states, state_widths(mode, weights), strict=True)]
        hx = initial if count > 1 else initial[0]
        if extent.lengths is None:
            y, *final = function(x, hx, weights, bias, 1, 0.0, training, bidirectional, False)
        else:
            data, batch_sizes = torch._VF._pack_padded_sequence(x, extent.lengths, False)
            data, *final = function(data, batch_sizes, hx, weights, bias, 1, 0.0, training, bidirectional)
            y = torch._VF._pad_packed_sequence(data, batch_sizes, False, 0.0, extent.steps)[0]
        x = y if layer == layers - 1 or not masks else y * masks[layer]
        finals.append(final)
    return (x, *(torch.cat(state) for state in zip(*finals, strict=True)))


def state_widths(mode: str, weights: Sequence[Tensor]) -> list[int]:
    """Of h, and of c for an LSTM: the columns of w_hh, and a quarter of its rows."""
    rows, columns = weights[1].shape
    return [columns, rows // 4] if mode == "LSTM" else [columns]


def initial_state(state: Tensor | None, layer: int, directions: int, x: Tensor, width: int) -> Tensor:
    if state is None:
        return x.new_zeros(directions, x.shape[1], width)
    return state[layer * directions : (layer + 1) * directions]

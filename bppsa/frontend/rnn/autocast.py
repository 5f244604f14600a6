"""What a recurrent module gives under autocast: PyTorch is asked, by a call of the same kind on two steps of size two.

The rules follow from which ops autocast knows and how types promote, and differ from cell to cell (torch 2.13, float32
weights and input, bfloat16 autocast: nn.RNN and nn.LSTM give bfloat16, nn.GRU float32; nn.LSTM under float16 raises
where oneDNN has no such kernel). We compute in float32, or in the dtype that all tensors share, and round the results
to PyTorch's dtypes: never less exact than PyTorch.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from bppsa.frontend.rnn.shapes import shapes

Dtypes = tuple[torch.dtype, ...]


class Question(NamedTuple):
    """All on which the answer depends."""

    mode: str
    flags: tuple[int, bool, bool, bool]  # layers, bias, bidirectional, projected
    batch_sizes: tuple[int, ...]  # of a small packed input of the same kind; empty: not packed
    input: torch.dtype
    states: Dtypes
    weights: Dtypes
    autocast: torch.dtype
    grad: bool
    mkldnn: bool


def result_dtypes(
    module: nn.RNNBase,
    x: Tensor,
    batch_sizes: Tensor | None,
    states: Sequence[Tensor] | None,
    weights: Sequence[Tensor],
) -> Dtypes | None:
    """The dtypes of the output and of each final state in the present autocast region; None where PyTorch raises."""
    flags = (module.num_layers, module.bias, module.bidirectional, module.proj_size > 0)
    given = tuple(s.dtype for s in states) if states else (x.dtype,) * (2 if module.mode == "LSTM" else 1)
    # PyTorch sends packed sequences of one length to other kernels than those of several lengths
    small = () if batch_sizes is None else (2, 2) if batch_sizes[0] == batch_sizes[-1] else (2, 1)
    now = (torch.get_autocast_dtype("cpu"), torch.is_grad_enabled(), torch._C._get_mkldnn_enabled())
    return _ask(Question(module.mode, flags, small, x.dtype, given, tuple(w.dtype for w in weights), *now))


@functools.lru_cache(maxsize=1024)
def _ask(q: Question) -> Dtypes | None:
    layers, bias, bidirectional, projected = q.flags
    sizes = shapes(q.mode, 2, 2, layers, bias, bidirectional, int(projected))
    weights = [torch.zeros(s, dtype=d, device="cpu") for s, d in zip(sizes.weights, q.weights, strict=True)]
    x = torch.zeros((sum(q.batch_sizes), 2) if q.batch_sizes else (2, 2, 2), dtype=q.input, device="cpu")
    hx = [torch.zeros(sizes.rows, 2, w, dtype=d, device="cpu") for w, d in zip(sizes.widths, q.states, strict=True)]
    batch_sizes = [torch.tensor(q.batch_sizes, device="cpu")] if q.batch_sizes else []
    cell = getattr(torch._VF, q.mode.lower())
    flags = (bias, layers, 0.0, False, bidirectional, *([] if q.batch_sizes else [False]))
    try:
        results = cell(x, *batch_sizes, hx if len(hx) > 1 else hx[0], weights, *flags)
    except RuntimeError:
        return None
    return tuple(result.dtype for result in results)

"""`recurrent.run` computed by PyTorch, with every call written down: a test sees whether the lean path was taken."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from bppsa.frontend.rnn import recurrent
from bppsa.frontend.rnn.shapes import shapes_of


class Taken(NamedTuple):
    """One call of `recurrent.run`."""

    module: nn.RNNBase
    x: Tensor
    batch_sizes: Tensor | None
    states: tuple[Tensor, ...] | None
    weights: list[Tensor]


def pytorch_run(
    module: nn.RNNBase, x: Tensor, batch_sizes: Tensor | None, states: tuple[Tensor, ...] | None, weights: list[Tensor]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    shapes = shapes_of(module)
    if states is None:
        batch = x.shape[1] if batch_sizes is None else int(batch_sizes[0])
        states = tuple(torch.zeros(shapes.rows, batch, width, dtype=x.dtype) for width in shapes.widths)
    flags = (module.bias, module.num_layers, module.dropout, module.training, module.bidirectional)
    hx = states if len(states) > 1 else states[0]
    cell = getattr(torch._VF, module.mode.lower())
    if batch_sizes is None:
        y, *final = cell(x, hx, weights, *flags, False)
    else:
        y, *final = cell(x, batch_sizes, hx, weights, *flags)
    return y, tuple(final)


@pytest.fixture(autouse=True)
def taken(monkeypatch: pytest.MonkeyPatch) -> list[Taken]:
    calls: list[Taken] = []

    def run(*args: Any) -> Any:
        calls.append(Taken(*args))
        return pytorch_run(*args)

    monkeypatch.setattr(recurrent, "run", run)
    return calls

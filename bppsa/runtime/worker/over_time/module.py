"""A call of nn.RNN, nn.GRU or nn.LSTM, taken apart into calls of its layers with time first, and put together again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bppsa.runtime.recurrent.scan.extent import Given
from bppsa.runtime.worker.draws import Drawing


class ModuleCall:
    """x: what the next layer reads, [T, B, I]; states: initial ones, [L, B, n] each, or None for zeros."""

    def __init__(self, module: nn.RNNBase, input: Tensor, hx: Any = None) -> None:
        self.module, self.batched = module, input.dim() == 3
        if not self.batched:
            self.x = input.unsqueeze(1)
        else:
            self.x = input.transpose(0, 1) if module.batch_first else input
        count = 2 if module.mode == "LSTM" else 1
        given = [None] * count if hx is None else list(hx) if count > 1 else [hx]
        self.states = [s if s is None or self.batched else s.unsqueeze(1) for s in given]
        self.finals: list[Sequence[Tensor]] = []  # of each layer so far

    def initial(self, layer: int) -> Given:
        return [None if state is None else state[layer] for state in self.states]

    def weights(self, layer: int) -> list[Tensor]:
        names: Any = self.module._all_weights[layer]
        return [getattr(self.module, name) for name in names]

    def advance(self, y: Tensor, finals: Sequence[Tensor], op: int) -> None:
        """Goes on from a layer's results, [T, B, n] and [B, n] each, to the next layer. op: whose masks are drawn."""
        self.finals.append(finals)
        self.x = y if self.ended else Drawing(nn.functional.dropout, op)(y, self.module.dropout, self.module.training)

    @property
    def ended(self) -> bool:
        return len(self.finals) == self.module.num_layers

    def result(self) -> tuple[Tensor, Any]:
        """What the module returns."""
        states = [torch.stack(layers) for layers in zip(*self.finals, strict=True)]
        if not self.batched:
            y, states = self.x.squeeze(1), [state.squeeze(1) for state in states]
        else:
            y = self.x.transpose(0, 1) if self.module.batch_first else self.x
        return y, tuple(states) if len(states) > 1 else states[0]

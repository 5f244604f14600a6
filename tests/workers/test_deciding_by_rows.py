"""A forward that decides by the number of rows: micro-batches may be alike to it, and the whole batch not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import bppsa
from bppsa.errors import PartitionError
from bppsa.schedule import lpp


class Deciding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        scale = 2.0 if len(x) >= 8 else 1.0
        for layer in self.layers:
            x = torch.tanh(layer(x)) * scale
        return x


@pytest.mark.parametrize(("rows", "fits"), [(6, True), (12, False)])
def test_a_whole_batch_decides_as_its_microbatches(rows: int, fits: bool) -> None:
    torch.manual_seed(0)
    model, x, target = Deciding().double(), torch.randn(rows, 6).double(), torch.randn(rows, 6).double()
    fast = bppsa.compile(
        model,
        schedule=lpp(G=2),
        stages=4,
        workers=4,
        microbatches=2,
        loss_fn=functional.mse_loss,
        example_inputs=x[:3],
    )
    if not fits:
        with pytest.raises(PartitionError, match="decide"):
            bppsa.trainer(fast).step(x, target)
        return
    loss = bppsa.trainer(fast).step(x, target)
    wanted = functional.mse_loss(model(x), target)
    assert float(loss) == pytest.approx(float(wanted), rel=1e-12)

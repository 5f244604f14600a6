"""Every strategy gives autograd's gradients, whatever the net, the batch and what is frozen."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import bppsa
from tests.chain.zoo import ZOO

STRATEGIES = ("sequential", "chunked(length=2)", "hybrid", "hybrid(up_levels=1)", "blelloch")


def gradients(model: nn.Module, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The output, and the gradients of x and of all parameters that want one, for a loss of every output."""
    torch.manual_seed(1)  # dropout
    y = model(x)
    weights = torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(2))
    wanted = [t for t in (x, *model.parameters()) if t.requires_grad]
    return y, list(torch.autograd.grad((y * weights).sum(), wanted))


def check(model: nn.Module, x: Tensor, strategy: str) -> nn.Module:
    fast = bppsa.compile(model, strategy=strategy)
    before = [buffer.clone() for buffer in model.buffers()]
    y, expected = gradients(model, x)
    after = [buffer.clone() for buffer in model.buffers()]
    for buffer, value in zip(model.buffers(), before, strict=True):
        buffer.copy_(value)
    found, got = gradients(fast, x)
    assert torch.equal(found, y)
    assert all(map(torch.equal, fast.buffers(), after))
    for ours, theirs in zip(got, expected, strict=True):
        assert (ours - theirs).norm() <= 1e-11 * theirs.norm()
    return fast


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("rows", [1, 3, 17])
@pytest.mark.parametrize("net", ZOO)
def test_gradients_are_autograds(net: str, rows: int, strategy: str) -> None:
    torch.manual_seed(0)
    model, shape = ZOO[net]()
    x = torch.randn(rows, *shape, dtype=torch.float64, requires_grad=True)
    (decision,) = check(model, x, strategy).report.decisions
    assert (decision.kind, decision.strategy, decision.reason) == ("chain", strategy, "as asked")
    assert decision.numbers["stages"] > 2

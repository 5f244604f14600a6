"""Every strategy gives autograd's gradients, whatever the net, the batch, the mode and what is pruned or frozen."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import prune

import bppsa
from bppsa.decisions import Decision
from tests.breadth import examples
from tests.chain.zoo import ZOO, Maker

STRATEGIES = ("hybrid(up_levels=0)", "chunked(length=2)", "hybrid", "hybrid(up_levels=1)", "blelloch")


def gradients(model: nn.Module, x: Tensor) -> tuple[Tensor, list[Tensor | None]]:
    """The output, and the gradients of x and of all parameters that want one, for a loss of every output."""
    torch.manual_seed(1)  # dropout
    y = model(x)
    weights = torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(2))
    wanted = [t for t in (x, *model.parameters()) if t.requires_grad]
    return y, list(torch.autograd.grad((y * weights).sum(), wanted, allow_unused=True))


def check(model: nn.Module, x: Tensor, strategy: str) -> Decision:
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
        assert (ours is None) == (theirs is None)
        assert theirs is None or (ours - theirs).norm() <= 1e-11 * theirs.norm()
    (decision,) = fast.report.decisions
    assert (decision.kind, decision.strategy) == ("chain", strategy)
    return decision


def made(make: Maker, rows: int, seed: int = 0) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(seed)
    model, shape = make()
    return model.double(), torch.randn(rows, *shape, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("net", ZOO)
def test_gradients_are_autograds(net: str, strategy: str) -> None:
    model, x = made(ZOO[net], 3)
    decision = check(model.eval(), x, strategy)
    assert decision.reason == "as asked"
    assert decision.numbers["segments"] == 1  # every stage has a rule


@examples(25)
@given(
    net=st.sampled_from(sorted(ZOO)),
    strategy=st.sampled_from(STRATEGIES),
    rows=st.sampled_from((1, 3, 17)),
    train=st.booleans(),
    amount=st.sampled_from((0.0, 0.5, 0.9)),
    frozen=st.sampled_from(("nothing", "input", "every other", "the first half", "all but the last")),
    seed=st.integers(0, 99),
)
def test_whatever_is_pruned_frozen_or_training(
    net: str, strategy: str, rows: int, train: bool, amount: float, frozen: str, seed: int
) -> None:
    if train and rows == 1 and "resnet" in net:
        rows = 3  # batch norm refuses to train on a single value
    model, x = made(ZOO[net], rows, seed)
    model.train(train)
    if amount:
        for module in model.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                prune.random_unstructured(module, "weight", amount=amount)
    parameters = list(model.parameters())
    cuts = {"nothing": 0, "input": 0, "the first half": len(parameters) // 2, "all but the last": len(parameters) - 1}
    for i, parameter in enumerate(parameters):
        parameter.requires_grad_(i % 2 == 0 if frozen == "every other" else i >= cuts[frozen])
    check(model, x.requires_grad_(frozen != "input" and frozen != "all but the last"), strategy)

"""Models of packages, with one line of bppsa: outputs, gradients, buffers are PyTorch's, and their loops are scans."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from benchmarks.clients import CLIENTS, Client
from tests.loops.beside import Pair

ROWS, WIDTH = 4, 16
TRIALS = 5  # calls, after which every loop has been looked at
pytestmark = [
    pytest.mark.clients,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]


@pytest.fixture(autouse=True)
def in_float64() -> Iterator[None]:
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # in which ncps makes its first states
    yield
    torch.set_default_dtype(before)


def model_of(client: Client) -> nn.Module:
    """None of its weights is zero."""
    if not client.is_installed:
        pytest.skip(f"{client.needs} is not installed; make clients installs it")
    model = client.make(ROWS, WIDTH)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter), alpha=0.02)
    return model


def inputs(client: Client, steps: int) -> tuple[Tensor, ...]:
    return client.inputs(ROWS, steps)


def update(pair: Pair) -> None:
    """The next step of both is from the very same weights."""
    torch.optim.SGD(pair.plain.parameters(), lr=1e-4).step()
    with torch.no_grad():
        for ours, theirs in zip(pair.fast.parameters(), pair.plain.parameters(), strict=True):
            ours.copy_(theirs)


@pytest.mark.parametrize("name", [name for name, client in CLIENTS.items() if client.is_double])
def test_trains_as_pytorch_does(name: str) -> None:
    client = CLIENTS[name]
    pair = Pair(model_of(client))
    for seed in range(TRIALS):
        pair.call(*inputs(client, 14), seed=seed)
        update(pair)
    for steps in (14, 14, 11, 11, 14):
        decisions = pair.call(*inputs(client, steps), seed=steps)
        update(pair)
        assert [decision.strategy for decision in decisions] == ["sequential"] * client.scans, decisions
    pair.both(lambda model: model.eval())
    for steps in (14, 9, 14):
        decisions = pair.call(*inputs(client, steps))
    assert [decision.strategy for decision in decisions] == ["sequential"] * client.scans, decisions
    with torch.no_grad():
        pair.call(*inputs(client, 14))
        pair.call(*inputs(client, 14))

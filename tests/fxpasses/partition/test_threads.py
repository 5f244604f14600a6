"""Models cut by several threads at once: one waits for another, and what tracing replaces concerns no other thread."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bppsa import partition
from tests.fxpasses.partition.support import compare

REPLACED = ((builtins, "isinstance"), (builtins, "len"), (nn.Module, "__setattr__"), (nn.Module, "__call__"))
DRAWING = ((torch, "randn"), (torch, "is_tensor"), (torch.backends.mha, "get_fastpath_enabled"))


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


class Deep(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(layers)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.dropout(torch.tanh(layer(x)), 0.0, self.training) + torch.rand(4) * 0
        return x


def cut(layers: int) -> None:
    model, x = Deep(layers), torch.randn(3, 4)
    assert type(x) is Tensor
    compare(model, partition(model, x, 3), x)


def run_plainly(layers: int) -> None:
    """Like another model's evaluation meanwhile, which nobody cuts."""
    model = Deep(layers)
    for _ in range(20):
        model.note = layers
        assert type(model(torch.randn(3, 4))) is Tensor


@pytest.mark.usefixtures("hasty_threads")
def test_threads_that_cut_a_model_each() -> None:
    before = [getattr(owner, name) for owner, name in (*REPLACED, *DRAWING)]
    fastpath = torch.backends.mha.get_fastpath_enabled()
    with ThreadPoolExecutor(6) as threads:
        found = [threads.submit(work, 4 + i) for i in range(6) for work in (cut, run_plainly)]
        for one in found:
            one.result()
    assert [getattr(owner, name) for owner, name in (*REPLACED, *DRAWING)] == before
    assert torch.backends.mha.get_fastpath_enabled() == fastpath

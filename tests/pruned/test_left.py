"""Calls that are left to PyTorch: what is noticed at once, what after some of them, and that all are PyTorch's."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

import bppsa
from bppsa.frontend.pruned.masking.left import CALLS
from bppsa.plan import sparse
from tests.pruned.support import error, kernels, pruned


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> tuple[nn.Module, nn.Module, Tensor]:
    """PyTorch's, ours that has been left to it in some calls, and a batch."""
    monkeypatch.setattr(sparse, "MARGIN", 1.2)
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(600, 600), nn.ReLU(), nn.Linear(600, 600))
    fast, x = bppsa.compile(pruned(copy.deepcopy(plain), 0.1)), torch.randn(16, 600)
    for _ in range(3):
        fast(x)
        assert kernels(fast) == ["pytorch", "pytorch"]
    return pruned(plain, 0.1), fast, x


def test_other_masks_are_noticed_after_some_calls(models: tuple[nn.Module, nn.Module, Tensor]) -> None:
    plain, fast, x = models
    for model in (plain, fast):
        for layer in (model[0], model[2]):
            prune.l1_unstructured(layer, "weight", 0.97)
    for _ in range(CALLS):
        assert error(plain(x), fast(x)) < 1e-5
    assert kernels(fast) == ["sparse", "sparse"]


def test_hooks_run_at_once(models: tuple[nn.Module, nn.Module, Tensor]) -> None:
    plain, fast, x = models
    for model in (plain, fast):
        model[1].register_forward_hook(lambda _, args, y: y + 1)
    assert error(plain(x), fast(x)) < 1e-6


def test_arguments_of_other_kinds(models: tuple[nn.Module, nn.Module, Tensor]) -> None:
    plain, fast, x = models
    assert error(plain(x), fast(input=x)) < 1e-6
    assert error(plain(x[0]), fast(x[0])) < 1e-6
    assert error(plain(x), torch.vmap(fast)(x)) < 1e-5
    with pytest.raises(TypeError, match="positional argument"):
        fast()
    with pytest.raises(TypeError, match="must be Tensor"):
        fast([x])


def test_an_outer_model_is_told_in_each_call(models: tuple[nn.Module, nn.Module, Tensor]) -> None:
    _, fast, x = models
    outer = bppsa.compile(nn.Sequential(fast, nn.Tanh()))
    for _ in range(CALLS + 2):
        outer(x)
        assert [d.path for d in outer.report.decisions if d.kind == "linear"] == ["0.0", "0.2"]

"""Iterative magnitude pruning with rewound weights, as lottery tickets are found: each round is PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from bppsa.plan import sparse
from tests.breadth import diagonal
from tests.pruned.forwards import Net
from tests.pruned.side_by_side import Pair, assert_alike, both
from tests.pruned.support import error, kernels

ROUNDS, STEPS = 4, 3


class Ticket(Net):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop = nn.BatchNorm2d(4), nn.Dropout(0.2)

    def between(self, h: Tensor) -> Tensor:
        return self.drop(self.norm(h))


def in_place(model: Net, start: dict[str, Tensor]) -> None:
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(start[name])


def by_data(model: Net, start: dict[str, Tensor]) -> None:
    for name, p in model.named_parameters():
        p.data = start[name].clone()


def by_loading(model: Net, start: dict[str, Tensor], assign: bool = False) -> None:
    """With the masks as they are now."""
    masks = {name: value for name, value in model.state_dict().items() if name.endswith("_mask")}
    model.load_state_dict({name: value.clone() for name, value in (start | masks).items()}, assign=assign)


def by_assigning(model: Net, start: dict[str, Tensor]) -> None:
    by_loading(model, start, assign=True)


def layers(model: Net) -> list[tuple[nn.Module, str]]:
    return [(model.conv, "weight"), (model.lin, "weight")]


def each(model: Net) -> None:
    for layer, name in layers(model):
        prune.l1_unstructured(layer, name, 0.3)


def globally(model: Net) -> None:
    prune.global_unstructured(layers(model), prune.L1Unstructured, amount=0.3)


def by_a_mask_of_its_own(model: Net) -> None:
    for layer, name in layers(model):
        weight = (layer.weight_orig * layer.weight_mask).detach()
        kept = weight.abs()[layer.weight_mask.bool()]
        prune.custom_from_mask(layer, name, weight.abs() > kept.quantile(0.3))


def made_permanent(model: Net) -> None:
    """And pruned anew by what is left."""
    for layer, name in layers(model):
        zeros = int((layer.weight_orig * layer.weight_mask == 0).sum())
        prune.remove(layer, name)
        prune.l1_unstructured(layer, name, zeros + layer.weight.numel() // 10)


@pytest.mark.parametrize("kept", [False, True], ids=["dense gradients", "kept gradients"])
@pytest.mark.parametrize(
    ("rewinds", "prunes"),
    diagonal([in_place, by_data, by_loading, by_assigning], [each, globally, by_a_mask_of_its_own]),
    ids=lambda f: f.__name__,
)
def test_rounds_of_pruning_and_rewinding(
    prunes: Callable[[Net], Any],
    rewinds: Callable[[Net, dict[str, Tensor]], None],
    kept: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if kept:
        monkeypatch.setattr(sparse, "LEAST_WEIGHTS", 0)
        monkeypatch.setattr(sparse, "MOST_KEPT", 1.0)
    pair = Pair(*both(Ticket))
    starts = [{name: value.clone() for name, value in model.state_dict().items()} for model in pair.models]
    for turn in range(ROUNDS):
        train(pair, turn)
        for model in pair.models:
            prunes(model)
        assert_alike(*(dict(model.named_buffers()) for model in pair.models))
        for model, start in zip(pair.models, starts, strict=True):
            rewinds(model, start)
        pair.optimizers = Pair(*pair.models).optimizers
        pair.compare(7)
    train(pair, ROUNDS)
    assert set(kernels(pair.models[1])) == {"sparse"}


def train(pair: Pair, turn: int) -> None:
    for step in range(STEPS):
        pair.turn = 10 * turn + step
        pair.train((4, 7)[step % 2])
    pair.look()  # PyTorch prunes once more by the products of its last call


def test_pruning_is_made_permanent_in_each_round() -> None:
    pair = Pair(*both(Ticket))
    for turn in range(ROUNDS):
        train(pair, turn)
        for model in pair.models:
            made_permanent(model)
        pair.optimizers = Pair(*pair.models).optimizers
    train(pair, ROUNDS)
    plain, fast = pair.models
    assert error(plain.lin.weight, fast.lin.weight) < 1e-9

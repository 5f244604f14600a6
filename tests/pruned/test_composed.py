"""Forwards composed of pieces at random: layers, side effects, modes, randomness, branches and values that are kept."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import torch
import torch.nn.functional as F
from hypothesis import given
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint

import bppsa
from tests.breadth import examples
from tests.pruned.forwards.net import Net
from tests.pruned.side_by_side import Pair

Piece = Callable[["Composed", Tensor, Tensor], Tensor]
SETTINGS = {"scale": 1.0}


class Composed(Net):
    """Its pieces: each is given the images and an activation, [B, 4, 6, 6], and gives the next one."""

    def __init__(self, pieces: list[str]) -> None:
        super().__init__()
        self.pieces, self.norm, self.drop = pieces, nn.BatchNorm2d(4), nn.Dropout(0.3)
        self.register_buffer("mean", torch.zeros(4, 1, 1))
        self.calls, self.scale, self.kept = 0, 1.0, list[Tensor]()

    def forward(self, x: Tensor) -> Any:
        h = self.conv(x)
        self.kept = []
        for name in self.pieces:
            h = PIECES[name](self, x, h)
        return self.last(h), self.kept


def without_gradients(m: Composed, x: Tensor, h: Tensor) -> Tensor:
    with torch.no_grad():
        return h + F.relu(m.conv(x))


def frozen_now_and_then(m: Composed, x: Tensor, h: Tensor) -> Tensor:
    with torch.set_grad_enabled(torch.is_grad_enabled() and m.calls % 2 == 0):
        y = m.conv(x * 0.5)
    return h + y


def counted(m: Composed, x: Tensor, h: Tensor) -> Tensor:
    m.calls += 1
    return h * 0.5 if m.calls % 3 else h


def statistics(m: Composed, x: Tensor, h: Tensor) -> Tensor:
    m.mean.mul_(0.9).add_(0.1 * h.detach().mean((0, 2, 3))[:, None, None])
    return h - m.mean


def assigned(m: Composed, x: Tensor, h: Tensor) -> Tensor:
    m.mean = m.mean * 0.5 + 1
    return h * m.mean.sum()


def kept(m: Composed, x: Tensor, h: Tensor) -> Tensor:
    m.kept.append(h)
    return h


def branch(m: Composed, x: Tensor, h: Tensor) -> Tensor:
    return h + m.conv(-x) if h.detach().sum() > 0 else h * 0.5


def hooked(m: Composed, x: Tensor, h: Tensor) -> Tensor:
    if h.requires_grad:
        h = h * 1
        h.register_hook(lambda g: g * 2)
    return h


def in_place(m: Composed, x: Tensor, h: Tensor) -> Tensor:
    h = h + 0
    h[:, 0] *= 2
    return h.add_(1)


def tried(m: Composed, x: Tensor, h: Tensor) -> Tensor:
    try:
        return h * m.missing
    except AttributeError:
        return h * 0.5
    finally:
        m.scale += 0.1


PIECES: dict[str, Piece] = {
    "layer": lambda m, x, h: h + F.relu(m.conv(x * 2)),
    "relu": lambda m, x, h: F.relu(h),
    "norm": lambda m, x, h: m.norm(h),
    "checkpoint": lambda m, x, h: h + checkpoint(m.first, x, use_reentrant=False),
    "detached": lambda m, x, h: h + m.conv(x).detach(),
    "dropout": lambda m, x, h: m.drop(h),
    "noise": lambda m, x, h: h + torch.randn(4, 6, 6, dtype=h.dtype),
    "order": lambda m, x, h: h[:, torch.randperm(4)],
    "python's": lambda m, x, h: h * (0.5 + random.random()),
    "dropped": lambda m, x, h: h if torch.rand(1).item() < 0.5 else h + m.conv(x),
    "global": lambda m, x, h: h * SETTINGS["scale"],
    "attribute": lambda m, x, h: h * m.scale,
    "training": lambda m, x, h: h if m.training else torch.sin(h),
    "weight": lambda m, x, h: h * m.lin.weight_orig.norm(),
} | {
    f.__name__: f
    for f in (without_gradients, frozen_now_and_then, counted, statistics, assigned, kept, branch, hooked, in_place)
}
PIECES["tried"] = tried


def load(m: Composed) -> None:
    m.load_state_dict({name: value * 0.9 for name, value in m.state_dict().items()} | masks(m))


def masks(m: Composed) -> dict[str, Tensor]:
    return {name: value for name, value in m.named_buffers() if name.endswith("_mask")}


def move_mask(m: Composed) -> None:
    m.conv.weight_mask.copy_(m.conv.weight_mask.roll(1))


CHANGES: dict[str, Callable[[Composed], Any]] = {
    "nothing": lambda m: None,
    "trains": lambda m: m.train(),
    "evaluates": lambda m: m.eval(),
    "norm evaluates": lambda m: m.norm.eval(),
    "attribute": lambda m: setattr(m, "scale", m.scale + 1),
    "global": lambda m: SETTINGS.update(scale=1.5),
    "counter": lambda m: setattr(m, "calls", 0),
    "buffer": lambda m: m.mean.add_(0.5),
    "load": load,
    "mask": move_mask,
    "prune": lambda m: prune.custom_from_mask(m.lin, "weight", m.lin.weight_mask.roll(3)),
    "freeze": lambda m: m.conv.requires_grad_(False),
    "free": lambda m: m.conv.requires_grad_(True),
    "hook": lambda m: m.norm.register_forward_hook(lambda module, args, y: y * 2),
    "hook of a layer": lambda m: m.conv.register_forward_hook(lambda module, args, y: y + 1),
    "pieces": lambda m: setattr(m, "pieces", m.pieces[::-1]),
}


def composed(pieces: list[str]) -> Composed:
    torch.manual_seed(0)
    model = Composed(list(pieces))
    model.finish()
    return model


@examples(12)
@given(
    st.lists(st.sampled_from(sorted(PIECES)), min_size=2, max_size=6, unique=True),
    st.lists(st.tuples(st.sampled_from(sorted(CHANGES)), st.sampled_from([4, 4, 7])), min_size=6, max_size=6),
)
def test_any_forward_and_any_changes_between_calls(pieces: list[str], turns: list[tuple[str, int]]) -> None:
    SETTINGS["scale"] = 1.0
    pair = Pair(composed(pieces), bppsa.compile(composed(pieces)))  # type: ignore[arg-type]
    for change, samples in turns:
        for model in pair.models:
            CHANGES[change](model)
        pair.train(samples)

"""Small models to be cut into stages, those that hypothesis draws first, and every schedule that trains."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from bppsa import schedule
from bppsa.schedule import Recipe

WIDTH = 4


@dataclass(frozen=True)
class Layers:
    """A drawn net. layers: of each its kind and an earlier value that it may read; outputs: values that are returned
    beside the last."""

    layers: tuple[tuple[str, int], ...]
    outputs: tuple[int, ...]
    seed: int


class Drawn(nn.Module):
    """Linear layers with weights that are shared, tied and frozen, and values that skip layers; with a Parameter that
    nothing reads."""

    def __init__(self, layers: Layers) -> None:
        super().__init__()
        self.plan = layers
        with torch.random.fork_rng():
            torch.manual_seed(layers.seed)
            self.first = nn.Linear(WIDTH, WIDTH)
            self.unused = nn.Linear(WIDTH, WIDTH)
            self.shift = nn.Parameter(torch.randn(WIDTH))
            self.register_buffer("factors", torch.rand(WIDTH))
            self.own = nn.ModuleDict({str(i): self.layer(kind) for i, (kind, _) in enumerate(layers.layers)})

    def layer(self, kind: str) -> nn.Module:
        layer = nn.LayerNorm(WIDTH) if kind == "norm" else nn.Linear(WIDTH, WIDTH)
        if kind == "tied":
            layer.weight = self.first.weight
        return layer.requires_grad_(kind != "frozen")

    def forward(self, x: Tensor, other: dict[str, Any], *, scale: float = 1.0, deep: bool = True) -> dict[str, Any]:
        """x, other["y"]: [B, WIDTH]; other["power"]: a number."""
        values = [self.first(x)]
        for i, (kind, earlier) in enumerate(self.plan.layers):
            given = values[-1], values[earlier % len(values)]
            values.append(KINDS[kind](self, str(i), *given, other, scale) if deep else given[0])
        side = [values[i % len(values)] for i in self.plan.outputs]
        return {"last": values[-1] * other["power"], "side": (side, scale), "most": values[-1].argmax(-1)}


Layer = Callable[[Drawn, str, Tensor, Tensor, Mapping[str, Any], float], Tensor]
KINDS: Mapping[str, Layer] = {
    "linear": lambda net, i, x, earlier, other, scale: net.own[i](x).tanh(),
    "tied": lambda net, i, x, earlier, other, scale: net.own[i](x).tanh(),
    "frozen": lambda net, i, x, earlier, other, scale: net.own[i](x).tanh(),
    "norm": lambda net, i, x, earlier, other, scale: net.own[i](x),
    "shared": lambda net, i, x, earlier, other, scale: net.first(x).sin(),
    "function": lambda net, i, x, earlier, other, scale: F.linear(x, net.first.weight * scale, net.shift),
    "skip": lambda net, i, x, earlier, other, scale: x + earlier * net.factors,
    "detached": lambda net, i, x, earlier, other, scale: x + earlier.detach() * scale,
    "input": lambda net, i, x, earlier, other, scale: x * torch.cos(other["y"]),
    "parts": lambda net, i, x, earlier, other, scale: torch.cat(x.chunk(2, -1)[::-1], -1) - net.shift * scale,
    "shape": lambda net, i, x, earlier, other, scale: x.view(x.shape[0], 2, -1).flip(1).flatten(1),
}


def nets(most: int = 7) -> st.SearchStrategy[Layers]:
    layer = st.tuples(st.sampled_from(sorted(KINDS)), st.integers(0, most))
    layers = st.lists(layer, min_size=4, max_size=most).map(tuple)
    outputs = st.lists(st.integers(0, most), max_size=2).map(tuple)
    return st.builds(Layers, layers, outputs, st.integers(0, 99))


@dataclass(frozen=True)
class Case:
    """A schedule with a number of stages and workers that it runs with."""

    schedule: Recipe
    stages: int
    microbatches: int
    workers: int | None = None

    @property
    def options(self) -> dict[str, Any]:
        """Those of `bppsa.compile`."""
        return dict(vars(self))


few, some = st.integers(1, 3), st.integers(1, 4)


def chains(make: Callable[[], Recipe]) -> st.SearchStrategy[Case]:
    """One stage, or two, a worker."""
    return st.builds(Case, st.just(make()), some, some)


def replicas(make: Callable[[], Recipe]) -> st.SearchStrategy[Case]:
    return st.builds(Case, st.just(make()), some, some, few | st.none())


def looped(make: Callable[[int, int], Recipe]) -> st.SearchStrategy[Case]:
    return st.builds(Case, st.builds(make, few, few), some, some)


SCHEDULES: Mapping[str, st.SearchStrategy[Case]] = {
    "naive": chains(schedule.naive),
    "gpipe": chains(schedule.gpipe),
    "one_f_one_b": chains(schedule.one_f_one_b),
    "zero_bubble": chains(schedule.zero_bubble),
    "v_schedule": chains(schedule.v_schedule),
    "ddp": replicas(schedule.ddp),
    "fsdp": replicas(schedule.fsdp),
    "lpp": looped(schedule.lpp),
    "fslpp": looped(schedule.fslpp),
    "depth_first": looped(schedule.depth_first),
    "breadth_first": looped(schedule.breadth_first),
    "interleaved": st.builds(lambda V, W, B: Case(schedule.interleaved(V), V * W, B, W), st.integers(1, 2), few, some),
    "wavelet_dp": st.builds(Case, st.builds(schedule.wavelet_dp, few), some, some),
    "wavelet_mp": st.builds(lambda n: Case(schedule.wavelet_mp(), n, n), some),
}
CASES: Mapping[str, Case] = {  # one of each, with stages that are not so many as workers where that can be
    "naive": Case(schedule.naive(), 3, 4),
    "gpipe": Case(schedule.gpipe(), 3, 4),
    "one_f_one_b": Case(schedule.one_f_one_b(), 3, 4),
    "zero_bubble": Case(schedule.zero_bubble(), 3, 4),
    "v_schedule": Case(schedule.v_schedule(), 4, 4),
    "ddp": Case(schedule.ddp(), 3, 4, 2),
    "fsdp": Case(schedule.fsdp(), 3, 4, 2),
    "lpp": Case(schedule.lpp(2, 2), 3, 4),
    "fslpp": Case(schedule.fslpp(2, 2), 3, 4),
    "depth_first": Case(schedule.depth_first(1, 2), 3, 4),
    "breadth_first": Case(schedule.breadth_first(1, 2), 3, 4),
    "interleaved": Case(schedule.interleaved(2), 4, 4, 2),
    "wavelet_dp": Case(schedule.wavelet_dp(), 3, 4),
    "wavelet_mp": Case(schedule.wavelet_mp(), 3, 3),
}

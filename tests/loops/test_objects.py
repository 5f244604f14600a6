"""Loops in functions that are given modules and objects, and in functions that a forward finds elsewhere."""

from __future__ import annotations

import contextlib
import io
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bppsa
from tests.loops import elsewhere
from tests.loops.beside import Pair, assert_alike, run
from tests.loops.cells import Cell, H, N, T, x


@dataclass
class Config:
    rate: float = 0.5


def rollout(policy: nn.Module, x: Tensor, config: Config) -> Tensor:
    h, out = torch.zeros(len(x), H, dtype=x.dtype), []
    for t in range(x.shape[1]):
        h = (1 - config.rate) * h + config.rate * policy(torch.cat([x[:, t], h], 1))
        out.append(h)
    return torch.stack(out, 1)


def policy(activation: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(N + H, H), activation).double()


def test_a_function_is_given_a_module_and_a_config() -> None:
    fast, config = bppsa.loop(rollout), Config()
    for own in (policy(nn.Tanh()), policy(nn.Sigmoid())):
        for rate in (0.5, 0.5, 0.5, 0.25, 0.25):
            config.rate = rate
            wanted = [x(), *own.parameters()]
            found, expected = (
                [y.detach(), *torch.autograd.grad(y.square().sum(), wanted)]
                for y in (way(own, wanted[0], config) for way in (fast, rollout))
            )
            for ours, theirs in zip(found, expected, strict=True):
                assert_alike(theirs, ours)
        assert [d.strategy for d in bppsa.report(fast).decisions] == ["sequential"]


class Configured(Cell):
    def forward(self, x: Tensor, config: Config) -> Tensor:
        h, out = self.start(x), []
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h) * config.rate
            out.append(h)
        return torch.stack(out, 1)


def test_a_model_is_given_a_config() -> None:
    pair, config = Pair(Configured()), Config()
    for rate in (0.5, 0.5, 0.5, 0.25, 0.25):
        config.rate = rate
        decided = pair.strategies(x(), config)
    assert decided == ["sequential"]


class Rate(float):
    factor = 1.0


class Rated(Cell):
    """What its number has changes after the loop is run alone."""

    def __init__(self) -> None:
        super().__init__()
        self.rate = Rate(0.5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.start(x)
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h) * self.rate.factor
        return h


def test_what_derives_from_a_number_has_attributes() -> None:
    pair = Pair(Rated())
    for factor in (1.0, 0.5, 0.25, 0.125, 0.0625, 0.75):
        Rate.factor = factor
        pair.strategies(x())


class Simulator:
    """No module."""

    def roll(self, policy: nn.Module, x: Tensor) -> Tensor:
        return rollout(policy, x, Config())


class Elsewhere(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.policy, self.simulator = how, policy(nn.Tanh()), Simulator()

    def forward(self, x: Tensor) -> Any:
        if self.how == "module":
            return elsewhere.decayed(x)
        return self.simulator.roll(self.policy, x)


@pytest.mark.parametrize("how", ["module", "object"])
def test_the_loop_is_in_another_module_or_an_object(how: str) -> None:
    pair = Pair(Elsewhere(how))
    for _ in range(3):
        decided = pair.strategies(x())
    assert decided == ["sequential"]


def test_a_mode_is_told_where_no_call_was_without_it() -> None:
    class Plain(Cell):
        def forward(self, x: Tensor) -> Tensor:
            return elsewhere.decayed(x)

    model = bppsa.compile(Plain().float())
    with torch.autocast("cpu", torch.bfloat16):
        model(torch.randn(2, T, N))
    assert "autocast" in str(bppsa.report(model))
    run(model, (torch.randn(2, T, N),), {}, 0)
    assert "autocast" not in str(bppsa.report(model))


logger = logging.getLogger(__name__)


class Shared:
    """Copies of a model have it together."""

    def __init__(self, file: Any) -> None:
        self.file = file

    def __deepcopy__(self, memo: dict[int, Any]) -> Shared:
        return self


class Logs(Cell):
    """What it would write to are files."""

    is_verbose = False

    def __init__(self, shared: Shared) -> None:
        super().__init__()
        self.shared = shared

    def forward(self, x: Tensor) -> Tensor:
        h = self.start(x)
        for t in range(x.shape[1]):
            if self.is_verbose:
                logger.info("step %d", t)
                print(t, file=self.shared.file)
            h = self.cell(x[:, t], h)
        return h


def test_a_file_that_is_written_is_no_iterator() -> None:
    handler = logging.StreamHandler(io.StringIO())
    logger.addHandler(handler)
    with open(os.devnull, "w") as file:
        pair = Pair(Logs(Shared(file)))
        assert pair.strategies(x()) == ["sequential"]
    logger.removeHandler(handler)


@contextlib.contextmanager
def doubled() -> Iterator[None]:
    yield


@doubled()
def never(h: Tensor) -> Tensor:
    return h


class Decorated(Cell):
    is_odd = False

    def forward(self, x: Tensor) -> Tensor:
        h = self.start(x)
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], never(h) if self.is_odd else h)
        return h


def test_a_generator_that_decorates_is_no_iterator() -> None:
    """It is made anew for each call of the function; the one that stands there is never begun."""
    assert Pair(Decorated()).strategies(x()) == ["sequential"]

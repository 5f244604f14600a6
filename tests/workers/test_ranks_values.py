"""What ranks hand to each other: weights that are fetched and given up again, and values of every kind."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import bppsa
from bppsa.runtime.worker.fetched import Fetched
from bppsa.schedule import Recipe, fsdp, fslpp, one_f_one_b
from tests.workers import support
from tests.workers.ranks import run_ranks

WIDTH = 300  # a weight of 720 kB: it goes over the process group
SCHEDULES: dict[str, Recipe] = {"fsdp": fsdp(), "fslpp": fslpp(G=2)}


class Odd(nn.Module):
    """[B, WIDTH] -> [B, WIDTH], by tensors of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH, dtype=torch.float64).t() / WIDTH**0.5)
        self.frozen = nn.Parameter(torch.randn(WIDTH, WIDTH, dtype=torch.float64) / WIDTH**0.5, requires_grad=False)
        self.coarse = nn.Parameter(torch.randn(WIDTH, 40).bfloat16())
        self.scale = nn.Parameter(torch.tensor(1.5, dtype=torch.float64))
        self.nothing = nn.Parameter(torch.zeros(0, 3, dtype=torch.float64))
        self.register_buffer("order", torch.randperm(WIDTH))
        self.register_buffer("kept", torch.rand(WIDTH) > 0.2)
        self.register_buffer("every", torch.ones(10, WIDTH, dtype=torch.float64)[::2])

    def forward(self, x: Tensor) -> Tensor:
        x = functional.linear(x, self.weight)[:, self.order] * self.kept + self.every.mean(0)
        x = x + functional.linear(x, self.frozen) * self.scale + self.nothing.sum()
        return torch.tanh(x + self.coarse.double().sum(1))


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(Odd() for _ in range(4)))


def batch() -> tuple[Tensor, Tensor]:
    return torch.randn(2, 7, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64).unbind()


def reference(net: nn.Module, x: Tensor, target: Tensor, parts: int) -> dict[str, Tensor | None]:
    """Gradients of one process from the same micro-batches, as bfloat16 ones depend on them."""
    net.zero_grad()
    for x_part, target_part in zip(x.tensor_split(parts), target.tensor_split(parts), strict=True):
        (functional.mse_loss(net(x_part), target_part) * len(x_part) / len(x)).backward()
    return support.gradients(net)


def agrees(compiled: nn.Module, expected: dict[str, Tensor | None]) -> None:
    for name, gradient in support.gradients(compiled).items():
        wanted = expected[name]
        assert (gradient is None) == (wanted is None), name
        if gradient is not None and wanted is not None:
            assert gradient.dtype == wanted.dtype
            rounding = 2**-8 if gradient.dtype == torch.bfloat16 else support.EXACT  # of the terms that are added
            most = float(wanted.abs().max()) if wanted.numel() else 0.0
            torch.testing.assert_close(gradient, wanted, rtol=2 * rounding, atol=rounding * most)


def fetching(rank: int, schedule: str, size: int) -> int:
    """Steps before and after weights are frozen, and an evaluation. Returns how much fetched memory is left."""
    net, (x, target) = model(), batch()
    own = copy.deepcopy(net)
    compiled = bppsa.compile(
        own,
        schedule=SCHEDULES[schedule],
        stages=list(own),
        microbatches=size,
        loss_fn=functional.mse_loss,
        example_inputs=x,
    )
    for step in range(3):
        frozen = [parameter for at in (net, compiled) for name, parameter in at.named_parameters() if name[0] == "2"]
        for parameter in frozen:
            parameter.requires_grad_(step != 1 and parameter.dim() > 0)
        loss = compiled.step(x, target)
        expected = reference(net, x, target, size)
        torch.testing.assert_close(loss, functional.mse_loss(net(x), target).detach())
        agrees(compiled, expected)
        compiled.zero_grad()
    with torch.inference_mode():
        torch.testing.assert_close(compiled(x), net(x))
    every = bppsa.trainer(compiled).training.engine.member.fetched.values()
    assert every
    return sum(storage.nbytes() for fetched in every for storage in fetched.storages)


@pytest.mark.parametrize(("schedule", "size"), [("fsdp", 2), ("fsdp", 3), ("fslpp", 4)])
def test_weights_are_fetched_and_given_up(schedule: str, size: int) -> None:
    assert run_ranks(fetching, size, schedule, size) == [0] * size


def most_held(rank: int, size: int) -> int:
    """How many stages' fetched weights a rank holds at most."""
    held: set[int] = set()
    most = 0
    room, free = Fetched.room, Fetched.free

    def counted_room(self: Fetched) -> Any:
        nonlocal most
        held.add(id(self))
        most = max(most, len(held))
        return room(self)

    def counted_free(self: Fetched) -> None:
        held.discard(id(self))
        free(self)

    Fetched.room, Fetched.free = counted_room, counted_free  # type: ignore[method-assign]
    fetching(rank, "fsdp", size)
    return most


def test_one_stage_is_held_at_a_time() -> None:
    assert run_ranks(most_held, 2, 2) == [1, 1]


class Nested(nn.Module):
    """Hands on a structure of everything."""

    def forward(self, x: Tensor) -> dict[str, Any]:
        return {
            "real": (x * 2, [x.t(), None, 3]),
            "mask": x > 0,
            "order": x.argsort(1),
            "scalar": x.sum(),
            "empty": x[:, :0],
            "half": x.bfloat16(),
            "text": "as it is",
        }


class Flat(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, dtype=torch.float64))

    def forward(self, given: dict[str, Any]) -> Tensor:
        doubled, (transposed, none, three) = given["real"]
        assert none is None
        assert given["text"] == "as it is"
        x = doubled * given["mask"] + transposed.t() * three + given["half"].double() + given["empty"].sum()
        return x.gather(1, given["order"]) * self.weight + given["scalar"] / len(x)


def nested(rank: int) -> None:
    torch.manual_seed(0)
    first = nn.Sequential(nn.Linear(WIDTH, WIDTH).double(), Nested())
    net, (x, target) = nn.Sequential(first, Flat()), batch()
    own = copy.deepcopy(net)
    compiled = bppsa.compile(
        own,
        schedule=one_f_one_b(),
        stages=list(own),
        microbatches=3,
        loss_fn=functional.mse_loss,
        example_inputs=x,
    )
    loss = compiled.step(x, target)
    expected = reference(net, x, target, 3)
    assert loss.dim() == 0
    agrees(compiled, expected)


def test_values_of_every_kind_between_stages() -> None:
    run_ranks(nested, 2)


class Slices(nn.Module):
    """Each layer reads a slice of a buffer and one of a Parameter, as of a mask or a table of positions."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.randn(9, WIDTH, dtype=torch.float64))
        self.positions = nn.Parameter(torch.randn(9, WIDTH, dtype=torch.float64))
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, dtype=torch.float64) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        table, positions = self.table[:4], self.positions[:4]
        for layer in self.layers:
            x = torch.tanh(layer(x)) + table.sum(0) * positions.sum(0)
        return x


def slicing(rank: int, schedule: str) -> None:
    torch.manual_seed(0)
    net, (x, target) = Slices(), batch()
    compiled = bppsa.compile(
        copy.deepcopy(net),
        schedule=SCHEDULES[schedule],
        stages=4,
        microbatches=3,
        loss_fn=functional.mse_loss,
        example_inputs=x,
    )
    for _ in range(2):
        compiled.zero_grad()
        compiled.step(x, target)
        agrees(compiled, reference(net, x, target, 3))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_slice_of_a_fetched_weight_outlives_it(schedule: str) -> None:
    assert run_ranks(slicing, 2, schedule) == [None, None]

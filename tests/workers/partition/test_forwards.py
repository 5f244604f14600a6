"""Forwards that read what they are made of in unusual ways, and while which nothing of Python's is patched."""

from __future__ import annotations

import builtins
import random
from collections.abc import Callable
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bppsa
from tests.workers import support
from tests.workers.partition.support import WIDTH, Model, batch, check, check_or_refused, place

# torch.fx and torch.export put their own in the place of these while they trace.
PYTORCHS = {"__call__", "__getattr__", "max", "min", "sum"}
OF_TORCH = ("rand", "randn", "rand_like", "is_tensor", "zeros", "arange")


def names() -> dict[str, Any]:
    """What stands where somebody might put something else. What PyTorch replaces once and for all, as when a part of it
    is imported, has been replaced in all calls of this but the first."""
    found = {
        f"builtins.{name}": value for name, value in vars(builtins).items() if name not in ("_", "__build_class__")
    }
    found |= {f"nn.Module.{name}": value for name, value in vars(nn.Module).items() if callable(value)}
    found |= {f"torch.{name}": getattr(torch, name) for name in OF_TORCH}
    found |= {f"random.{name}": getattr(random, name) for name in ("random", "randint", "shuffle")}
    found |= {f"numpy.random.{name}": getattr(np.random, name) for name in ("rand", "randn", "random")}
    return {name: value for name, value in found.items() if name.rpartition(".")[2] not in PYTORCHS}


BEFORE: dict[str, Any] = {}


def patched() -> list[str]:
    """Names that do not stand for what they stood for before."""
    now = names()
    return [name for name in {**BEFORE, **now} if BEFORE.get(name) is not now.get(name)]


def looks_at_python(self: Model, x: Tensor) -> Tensor:
    found = patched()
    if found:
        raise ValueError(f"patched: {found}")
    return x


def test_nothing_of_pythons_is_patched() -> None:
    check(Model())  # imports all that is imported
    BEFORE.update(names())
    check(Model(looks_at_python))
    assert not patched()


def of_real_classes(self: Model, x: Tensor) -> Tensor:
    """What is asked of tensors is answered for tensors, in a forward that knows torch.fx."""
    if isinstance(x, torch.fx.Proxy) or not isinstance(x, Tensor) or isinstance(len(x), str):
        raise TypeError(type(x).__name__)
    return x


def of_all_parameters(self: Model, x: Tensor) -> Tensor:
    return x * sum(p.square().sum() for p in self.parameters())


def of_named_children(self: Model, x: Tensor) -> Tensor:
    for name, child in self.named_children():
        x = x + child(x) * len(name)
    return x


def formatted(self: Model, x: Tensor) -> Tensor:
    assert f"{tuple(x.shape)[1:]} {x.dtype}" == "(4,) torch.float64"
    return x


def constants(self: Model, x: Tensor) -> Tensor:
    steps = torch.arange(x.shape[1], dtype=x.dtype) / x.shape[-1]
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=x.dtype)
    return x * steps + weights + torch.zeros(x.shape[0], 1, dtype=x.dtype) + x.new_ones(len(x), 1)


def by_rows(self: Model, x: Tensor) -> Tensor:
    return x / x.shape[0] + x.numel() + x.mean(0) * len(x)


def einsum(self: Model, x: Tensor) -> Tensor:
    return torch.einsum("bi,oi->bo", x, self.second.weight) + torch.einsum("bi,bi->b", x, x)[:, None]


def functional(self: Model, x: Tensor) -> Tensor:
    weights = {name: p * 2 for name, p in self.second.named_parameters()}
    return torch.func.functional_call(self.second, weights, (x,))


def written_in_place(self: Model, x: Tensor) -> Tensor:
    y = x.clone()
    y[:, 1] = y[:, 0] * 2
    y[:, 2:].mul_(3)
    return y.relu_() + x


def written_through_a_layout(self: Model, x: Tensor) -> Tensor:
    """What contiguous returns is x itself where that has one row, and then relu_ changes x."""
    return x.t().contiguous().t().relu_() + x


def masked(self: Model, x: Tensor) -> Tensor:
    return x.masked_fill(x > 0.5, 0.0).where(x < 0, x * 2)


def likely(self: Model, x: Tensor) -> Tensor:
    """A distribution looks into its parameters, unless it is told not to."""
    found = torch.distributions.Normal(x, 1 + x.square())
    return x + found.log_prob(x.tanh()) + torch.distributions.kl_divergence(found, torch.distributions.Normal(0, 1))


def stacked(self: Model, x: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    first, *_, last = torch.cat([b, a], -1).unbind(1)
    return torch.stack([first, last, a[:, 0], b[:, -1]], 1)


KNOWN: tuple[Callable[[Model, Tensor], Tensor], ...] = (
    *(of_real_classes, of_named_children, formatted, constants, by_rows, einsum),
    *(written_in_place, masked, likely, stacked),
)


@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize("forward", KNOWN, ids=lambda forward: forward.__name__)
def test_forwards_as_people_write_them(forward: Callable[[Model, Tensor], Tensor], stages: int) -> None:
    check(Model(forward), batch(6), batch(9), batch(2), stages=stages)


def of_equal_rows(self: Model, x: Tensor) -> Tensor:
    if len(x) != x.shape[0]:
        raise ValueError("rows")
    return x / len(x)


def test_a_library_may_ask_for_the_length() -> None:
    """As CLIPSeg does, which compares the rows of its arguments."""
    forward = FunctionType(of_equal_rows.__code__, {"__name__": "numpy.of_a_library"})
    check(Model(forward), batch(6), batch(9))


def halved_by_rows(self: Model, x: Tensor) -> Tensor:
    rows = x.view(-1, WIDTH)
    rows /= 2
    return rows.view(x.shape)


def halved_by_heads(self: Model, x: Tensor) -> Tensor:
    """As attention of DeBERTa does."""
    heads = x.view(len(x), -1, 2, WIDTH // 2).permute(0, 2, 1, 3)
    heads /= 2
    return heads.permute(0, 2, 1, 3).flatten(2)


@pytest.mark.parametrize("forward", [halved_by_rows, halved_by_heads])
def test_what_a_layer_gives_is_changed_through_a_view(forward: Callable[[Model, Tensor], Tensor]) -> None:
    """Of three dimensions it is a view itself, and autograd goes from the one to what both are views of."""
    check(Model(forward), batch(6, 3, WIDTH))


@pytest.mark.parametrize(
    ("forward", "text"), [(of_all_parameters, "self.parameters()"), (functional, "functional_call")]
)
def test_forwards_that_read_all_weights(forward: Callable[[Model, Tensor], Tensor], text: str) -> None:
    check_or_refused(Model(forward), place(forward, text))


class Found(NamedTuple):
    mean: Tensor
    parts: dict[str, Any]


class Several(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Found:
        y = torch.tanh(self.first(x))
        return Found(self.second(y), {"y": y, "pair": (y * 2, [x]), "none": None, "name": "several"})


def test_outputs_are_of_the_models_classes() -> None:
    model, (x,) = Several(), batch().args
    compiled = check(model)
    with torch.no_grad():
        found, expected = compiled.eval()(x), model.eval()(x)
    assert type(found) is Found
    support.close(found, expected)
    assert found.parts["name"] == "several"
    assert found.parts["none"] is None


def test_a_cut_has_the_shares_it_was_asked_for() -> None:
    cut = bppsa.partition(nn.Sequential(*(Model() for _ in range(4))), *batch().args, 4)
    assert len(cut) == 4
    assert all(list(stage.module.parameters()) for stage in cut.stages)

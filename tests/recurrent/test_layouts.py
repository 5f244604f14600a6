"""Whatever the strides of inputs, states, weights and cotangents, and however long or short the sequence."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

import bppsa
from tests.recurrent.support import (
    KINDS,
    MANY,
    B,
    H,
    I,
    T,
    compiled,
    leaves,
    random,
    results,
    same,
    states,
    sweeps,
    weighted,
)

# Each gives a view of the leaf that has its own shape, values as in the leaf or repeated.
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "features outermost": lambda x: x.movedim(2, 0).contiguous().movedim(0, 2),
    "every other": lambda x: torch.stack([x, -x], 3)[..., 0],
    "every other row": lambda x: torch.stack([x, -x], 2).flatten(1, 2)[:, ::2],
    "one row repeated": lambda x: x[:, :1].expand_as(x),
    "one feature repeated": lambda x: x[..., :1].expand_as(x),
    "one step repeated": lambda x: x[:1].expand_as(x),
    "one number": lambda x: x[:1, :1, :1].expand_as(x),
    "amid other data": lambda x: nn.functional.pad(x, (1, 2, 1, 1, 1, 1))[1:-1, 1:-1, 1:-2],
}


def check(run: Callable[[Any], Any], model: nn.RNNBase, *given: Tensor) -> None:
    """`run(module)` gives PyTorch's outputs and gradients, by the sweeps. given: what `run` reads besides weights."""
    wanted = [*given, *model.parameters()]
    with sweeps() as ran:
        got = results(run, [compiled(model)], wanted)
    assert ran
    same(got, results(run, [model], wanted))


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [B, MANY])
def test_inputs_and_states(kind: str, layout: Callable[[Tensor], Tensor], rows: int) -> None:
    torch.manual_seed(0)
    model = KINDS[kind](I, H, 2, bidirectional=True).double()
    x, hx = random(T, rows, I), states(model, rows)

    def run(module: Any) -> Any:
        views = tuple(map(layout, leaves(hx)))
        return module(layout(x), views if isinstance(hx, tuple) else views[0])

    check(run, model, x, *leaves(hx))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, B, MANY])
def test_weights(kind: str, rows: int) -> None:
    torch.manual_seed(0)
    model = KINDS[kind](I, H).double()
    for i, (name, weight) in enumerate([*model.named_parameters()]):
        wide = torch.randn(*weight.shape, 2, dtype=torch.float64)
        view = wide[..., 0] if i % 2 or weight.dim() == 1 else wide[..., 0].t().contiguous().t()
        setattr(model, name, nn.Parameter(view))
    assert not any(weight.is_contiguous() for weight in model.parameters())
    x = random(T, rows, I)
    check(lambda module: module(x), model, x)


# A loss of y [T, B, n], whose cotangent has unusual strides or is not there at all.
LOSSES: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda y: y.sum(),
    "last step": lambda y: y[-1].square().sum(),
    "mean over time": lambda y: y.mean(0).square().sum(),
    "sum of features": lambda y: y.sum(-1).square().sum(),
    "one element": lambda y: y[1, 1, 1],
    "transposed": lambda y: (y.permute(2, 1, 0) * weights_like(y.permute(2, 1, 0))).sum(),
    "reversed": lambda y: (y.flip(0) * weights_like(y)).sum(),
    "one step nobody reads": lambda y: torch.cat([y[:2], y[3:]]).square().sum(),
}


def weights_like(y: Tensor) -> Tensor:
    return torch.linspace(-1, 2, y.numel(), dtype=y.dtype).view(y.shape)


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch_first", [False, True])
def test_cotangents(kind: str, loss: Callable[[Tensor], Tensor], batch_first: bool) -> None:
    torch.manual_seed(0)
    model = KINDS[kind](I, H, batch_first=batch_first).double()
    x = random(MANY, MANY, I)
    check(lambda module: loss(module(x)[0]), model, x)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_cotangents_of_any_strides(kind: str, seed: int) -> None:
    torch.manual_seed(seed)
    model, x = KINDS[kind](I, H).double(), random(T, B, I)
    layout = [*LAYOUTS.values()][seed]
    found = []
    for module in (compiled(model), model):
        outputs = leaves(module(x))
        torch.manual_seed(seed)
        found.append(
            torch.autograd.grad(outputs, [x, *model.parameters()], [layout(torch.randn_like(o)) for o in outputs])
        )
    same(*found)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(1, 1, I), (1, B, I), (T, 1, I), (1, I), (2, I)])
def test_short_and_narrow(kind: str, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    model = KINDS[kind](I, H, 2, bidirectional=True).double()
    x = random(*shape)
    check(lambda module: module(x), model, x)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("steps", "rows", "width"), [(3, 131, H), (20, 131, 35), (60, 1, 130)])
def test_sizes_at_which_threads_share_rows_or_columns(kind: str, steps: int, rows: int, width: int) -> None:
    torch.manual_seed(0)
    model, x = KINDS[kind](I, width).double(), random(steps, rows, I)
    check(lambda module: module(x), model, x)


STEPS = 70_000  # cuDNN stops at 65,535


def test_very_long() -> None:
    torch.manual_seed(0)
    model, x = nn.RNN(1, 3).double(), random(STEPS, 1, 1)
    check(lambda module: module(x), model, x)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_very_long_against_two_halves(kind: str) -> None:
    """PyTorch takes long for its gradients; those of two calls, one going on where the other ended, are known to be
    right."""
    torch.manual_seed(0)
    model, x = KINDS[kind](1, 3).double(), random(STEPS, 1, 1)
    ours, wanted = compiled(model), [x, *model.parameters()]
    y, final = ours(x)
    first, state = ours(x[: STEPS // 2])
    second, last = ours(x[STEPS // 2 :], state)
    halves = [torch.cat([first, second]), *leaves(last)]
    got = [y, *leaves(final)]
    same(got, halves)
    same(*(torch.autograd.grad(weighted(outputs), wanted) for outputs in (got, halves)))
    with torch.no_grad():
        same(got, leaves(model(x)))


class Growing(nn.Module):
    """A parametrization that does something else each time."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("times", torch.zeros(()))

    def forward(self, weight: Tensor) -> Tensor:
        self.times += 1
        return weight * self.times


def test_a_weight_is_computed_as_often_without_a_batch() -> None:
    model = nn.GRU(4, 3)
    parametrize.register_parametrization(model, "weight_hh_l0", Growing(), unsafe=True)
    twin, ours = copy.deepcopy(model), bppsa.compile(copy.deepcopy(model))
    for _ in range(3):
        x = torch.randn(1, 4)  # of so few steps that PyTorch runs them
        assert all(torch.equal(a, b) for a, b in zip(ours(x), twin(x), strict=True))
        assert all(torch.equal(a, b) for a, b in zip(ours.buffers(), twin.buffers(), strict=True))

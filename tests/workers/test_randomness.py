"""What jobs draw depends on the seed, the step, the op and the micro-batch, and on nothing else."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bppsa import compile
from bppsa.schedule import ddp, one_f_one_b, wavelet_dp
from tests.breadth import alternate
from tests.workers import support, zoo

pytestmark = pytest.mark.usefixtures("in_float64")


class Noisy(nn.Module):
    """Draws in all the ways there are: by modules, one of them twice, by functions, methods and attention."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))
        self.drop, self.alpha = nn.Dropout(0.5), nn.AlphaDropout(0.3)
        self.gru = nn.GRU(4, 4, num_layers=2, dropout=0.4, batch_first=True)
        self.attention = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.3, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """x: [B, T, 4]."""
        a, b, c, d = self.layers
        x = self.drop(a(x))
        x = F.dropout(b(self.drop(x)), 0.5, self.training) + torch.randn_like(x)
        x = self.alpha(self.gru(x)[0])
        x = c(x) * torch.empty_like(x).bernoulli_(0.5)
        return d(self.attention(x)) * torch.rand(4)


def compiled_for(case: zoo.Case, model: nn.Module, **options: Any) -> Any:
    return compile(
        copy.deepcopy(model),
        **case.options,
        loss_fn=nn.MSELoss(),
        **options,
    )


def steps(compiled: Any, count: int = 2) -> list[Any]:
    """Losses and gradients of steps on one batch."""
    torch.manual_seed(1)
    x, found = torch.randn(7, 3, 4), []
    for _ in range(count):
        compiled.zero_grad()
        found.append((compiled.step(x, x), support.gradients(compiled)))
    return found


def equal_bits(a: list[Any], b: list[Any]) -> bool:
    return all(
        torch.equal(loss, other) and all(torch.equal(grads[name], others[name]) for name in grads)
        for (loss, grads), (other, others) in zip(a, b, strict=True)
    )


ALONE = {B: zoo.Case(ddp(), 1, B, 1) for B in (3, 4)}  # the same micro-batches on one worker, in one stage


@pytest.mark.parametrize("name", alternate(zoo.CASES, 4))
def test_draws_are_those_of_the_micro_batches_on_one_worker(name: str) -> None:
    case, model = zoo.CASES[name], Noisy()
    support.close(
        steps(compiled_for(case, model, seed=3)), steps(compiled_for(ALONE[case.microbatches], model, seed=3))
    )


@pytest.mark.parametrize("name", alternate(["one_f_one_b", "fslpp", "zero_bubble", "wavelet_dp"], 4))
def test_a_run_repeats_bit_by_bit(name: str) -> None:
    model = Noisy()
    runs = [steps(compiled_for(zoo.CASES[name], model, seed=seed)) for seed in (3, 3, 4)]
    assert equal_bits(runs[0], runs[1])
    assert not equal_bits(runs[0], runs[2])
    assert runs[0][0][0] != runs[0][1][0]  # steps differ


def test_the_seed_is_torchs_where_none_is_given() -> None:
    model, runs = Noisy(), []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        runs.append(steps(compiled_for(zoo.CASES["gpipe"], model, example_inputs=torch.randn(7, 3, 4))))
    assert equal_bits(runs[0], runs[1])
    assert not equal_bits(runs[0], runs[2])


def test_the_callers_generator_is_left_alone() -> None:
    compiled = compiled_for(zoo.CASES["lpp"], Noisy(), example_inputs=torch.randn(7, 3, 4))
    torch.manual_seed(2)
    before = torch.get_rng_state()
    x = torch.zeros(7, 3, 4)
    compiled.step(x, x)
    assert torch.equal(before, torch.get_rng_state())


class Masks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.scale = nn.Dropout(0.25), nn.Dropout(0.25), nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.first(x * self.scale), self.second(x * self.scale)


def test_every_op_and_micro_batch_draws_its_own() -> None:
    compiled = compile(Masks(), schedule=one_f_one_b(), stages=2, microbatches=4, loss_fn=lambda y, t: y[0].mean())
    _, (first, second) = compiled.step(torch.ones(4, 1000), torch.zeros(4), return_outputs=True)
    masks = [*first.ne(0), *second.ne(0)]
    assert all(not torch.equal(a, b) for i, a in enumerate(masks) for b in masks[:i])
    assert all(0.65 < mask.double().mean() < 0.85 for mask in masks)
    assert first.max() == pytest.approx(1 / 0.75)


def test_evaluation_draws_nothing() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 4), nn.Dropout(0.5))
    compiled = compile(copy.deepcopy(model), schedule=wavelet_dp(), stages=2, microbatches=4, loss_fn=nn.MSELoss())
    x = torch.randn(5, 4)
    with torch.no_grad():
        support.close(compiled.eval()(x), model.eval()(x))
        assert not torch.equal(compiled.train()(x), model(x))

"""Gradients of recurrent models cut over time are PyTorch's: any module, number of chunks, micro-batches and middle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from bppsa.schedule.zoo.time_chunks import MIDDLES
from tests.breadth import diagonal, examples
from tests.workers.over_time import zoo
from tests.workers.over_time.support import EXACT, difference, over_time, plain, step_difference, wanted, with_gradients

middles = st.sampled_from(sorted(MIDDLES))


@dataclass(frozen=True)
class Case:
    kind: str
    flags: dict[str, Any]
    has_state: bool  # whether an initial state is given
    K: int
    middle: str
    microbatches: int
    steps: int
    rows: int

    def input(self) -> Tensor:
        shape = (self.rows, self.steps) if self.flags["batch_first"] else (self.steps, self.rows)
        return torch.randn(*shape, zoo.INPUTS, requires_grad=True)

    def arguments(self, model: zoo.Network) -> list[Any]:
        return [self.input(), *([model.state(self.rows)] if self.has_state else [])]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    K = draw(st.integers(1, 5))
    flags = {
        "num_layers": draw(st.integers(1, 2)),
        "batch_first": draw(st.booleans()),
        "bias": draw(st.booleans()),
        "around": draw(st.booleans()),
    }
    return Case(
        draw(st.sampled_from(sorted(zoo.KINDS))),
        flags,
        draw(st.booleans()),
        K,
        draw(middles),
        draw(st.integers(1, 3)),
        steps=draw(st.integers(max(K, 2), 3 * K + 2)),
        rows=draw(st.integers(1, 4)),
    )


@given(cases())
@examples(40)
def test_a_step_with_a_loss_of_all_steps(case: Case) -> None:
    model = zoo.Steps(case.kind, **case.flags)
    args = case.arguments(model)
    compiled = over_time(model, case.K, case.middle, case.microbatches, loss_fn=zoo.of_values)
    target = torch.randn_like(model(*args))
    assert step_difference(model, compiled, args, target, zoo.of_values) < EXACT


@pytest.mark.slow
@given(cases(), st.sampled_from([zoo.LastStep, zoo.FinalState]))
@examples(30)
def test_a_step_with_a_loss_of_the_last_step(case: Case, of: type[zoo.Network]) -> None:
    model = of(case.kind, **case.flags)
    args = case.arguments(model)
    compiled = over_time(model, case.K, case.middle, case.microbatches, loss_fn=zoo.of_values)
    target = torch.randn_like(model(*args))
    assert step_difference(model, compiled, args, target, zoo.of_values) < EXACT


def of_every_output(output: Any) -> Tensor:
    """y of every step and each final state, all of which a loss may read when the model is called as a module."""
    y, state = output
    states = state if isinstance(state, tuple) else (state,)
    return y.sin().sum() + sum((i + 2) * s.square().mean() for i, s in enumerate(states))


@pytest.mark.slow
@given(cases())
@examples(40)
def test_a_call_as_a_module_whose_loss_reads_every_output(case: Case) -> None:
    model = zoo.Network(case.kind, **case.flags)
    args = case.arguments(model)
    compiled = over_time(model, case.K, case.middle, case.microbatches)
    expected = plain(model, args, of_every_output)
    assert difference(plain(compiled, args, of_every_output), expected) < EXACT


@pytest.mark.parametrize("steps", [2, 5])
def test_an_initial_state_with_more_numbers_than_the_input(steps: int) -> None:
    """Two layers and two steps: its first axis might be time."""
    case = Case("lstm-proj", {"num_layers": 2, "batch_first": True}, True, 2, "chain", 1, steps, rows=3)
    model = zoo.Steps(case.kind, **case.flags)
    args = case.arguments(model)
    compiled = over_time(model, case.K, case.middle, case.microbatches, loss_fn=zoo.of_values)
    assert step_difference(model, compiled, args, torch.randn_like(model(*args)), zoo.of_values) < EXACT


@pytest.mark.parametrize(("middle", "K"), diagonal(sorted(MIDDLES), [2, 3, 5]))
def test_gradients_that_autograd_gives_without_memory_of_their_own(K: int, middle: str) -> None:
    """Of a sum each element's is the same number in memory, and a transposed one's rows are not dense."""
    x = torch.randn(11, 3, zoo.INPUTS, requires_grad=True)
    for loss in (lambda y: y.sum(), lambda y: (y.transpose(0, 2) * torch.ones(zoo.HIDDEN, 3, 11)).sum()):
        model = zoo.Steps("gru", around=False)
        expected = plain(model, [x], loss)
        assert difference(plain(over_time(model, K, middle), [x], loss), expected) < EXACT


@given(K=st.integers(1, 5), middle=middles, microbatches=st.integers(1, 3), extra=st.integers(0, 7))
@examples(20)
def test_layers_of_two_kinds_skips_and_tied_weights(K: int, middle: str, microbatches: int, extra: int) -> None:
    model = zoo.Words()
    x, target = zoo.words(4, max(K, 2) + extra)
    compiled = over_time(model, K, middle, microbatches, loss_fn=zoo.of_words)
    assert step_difference(model, compiled, [x], target, zoo.of_words) < EXACT


def test_a_module_alone_and_without_a_batch() -> None:
    model = nn.LSTM(zoo.INPUTS, zoo.HIDDEN, 2)
    x = torch.randn(9, zoo.INPUTS, requires_grad=True)
    state = tuple(torch.randn(2, zoo.HIDDEN, requires_grad=True) for _ in range(2))
    expected = plain(model, [x, state], of_every_output)
    assert difference(plain(over_time(model, 4), [x, state], of_every_output), expected) < EXACT


def test_a_module_that_is_called_twice() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.recurrent = nn.GRU(zoo.HIDDEN, zoo.HIDDEN, 2)

        def forward(self, x: Tensor) -> Tensor:
            y, _ = self.recurrent(x)
            return self.recurrent(y + x)[0]

    model, x, target = Twice(), torch.randn(7, 3, zoo.HIDDEN), torch.randn(7, 3, zoo.HIDDEN)
    compiled = over_time(model, 3, "doubling", 2, loss_fn=zoo.of_values)
    assert step_difference(model, compiled, [x], target, zoo.of_values) < EXACT


def test_an_initial_state_that_is_learned() -> None:
    class Learned(zoo.Steps):
        def __init__(self) -> None:
            super().__init__("gru", batch_first=True)
            self.initial = nn.Parameter(torch.randn(1, 1, zoo.HIDDEN))

        def forward(self, x: Tensor, state: Any = None) -> Tensor:
            return super().forward(x, self.initial.expand(-1, x.shape[0], -1).contiguous())

    model, x, target = Learned(), torch.randn(3, 8, zoo.INPUTS), torch.randn(3, 8, zoo.CLASSES)
    compiled = over_time(model, 3, microbatches=2, loss_fn=zoo.of_values)
    assert step_difference(model, compiled, [x], target, zoo.of_values) < EXACT


def test_frozen_weights_have_no_gradient() -> None:
    model = zoo.Words()
    for parameter in (model.embedding.weight, model.first.weight_hh_l0, model.second.bias_ih_l0):
        parameter.requires_grad_(False)
    x, target = zoo.words(4, 9)
    compiled = over_time(model, 3, microbatches=2, loss_fn=zoo.of_words)
    assert step_difference(model, compiled, [x], target, zoo.of_words) < EXACT
    assert model.first.weight_hh_l0.grad is None


def test_fewer_workers_than_chunks() -> None:
    model = zoo.Words()
    x, target = zoo.words(3, 13)
    compiled = over_time(model, 5, "blelloch", 2, workers=2, loss_fn=zoo.of_words)
    assert step_difference(model, compiled, [x], target, zoo.of_words) < EXACT
    assert {compiled.measured.worker[job] for job in compiled.measured.jobs} == {0, 1}


@pytest.mark.parametrize("middle", sorted(MIDDLES))
def test_the_same_step_gives_the_same_bits(middle: str) -> None:
    model, (x, target) = zoo.Words(), zoo.words(4, 17)
    compiled = over_time(model, 4, middle, 2, loss_fn=zoo.of_words)
    first, again = (with_gradients(lambda: compiled.step(x, target), wanted(model, [x])) for _ in range(2))
    assert difference(first, again) == 0.0

"""nn.RNN, nn.GRU and nn.LSTM with a parallel forward: values and gradients are PyTorch's, what fails is counted."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

import bppsa
from bppsa import strategies
from bppsa.frontend.rnn import recurrent
from bppsa.plan.cost import Rates
from bppsa.plan.machines import SHIPPED
from bppsa.runtime.recurrent.newton import REST
from tests.breadth import examples
from tests.recurrent.support import KINDS, B, H, I, decision, leaves, random, results, same, states

STEPS = 24


@examples(30)
@given(
    kind=st.sampled_from(sorted(KINDS)),
    layers=st.integers(1, 2),
    bidirectional=st.booleans(),
    batch_first=st.booleans(),
    steps=st.integers(1, STEPS),
    streaming=st.booleans(),
    strategy=st.sampled_from(["auto", "chunked(length=5)", "blelloch"]),
    jacobian=st.sampled_from(["full", "diagonal"]),
)
def test_values_and_gradients(
    kind: str,
    layers: int,
    bidirectional: bool,
    batch_first: bool,
    steps: int,
    streaming: bool,
    strategy: str,
    jacobian: str,
) -> None:
    torch.manual_seed(0)
    model = KINDS[kind](I, H, layers, bidirectional=bidirectional, batch_first=batch_first).double()
    x = random(B, steps, I) if batch_first else random(steps, B, I)
    given = [x, states(model, B)] if streaming else [x]
    wanted = [*leaves(given), *model.parameters()]
    forward = strategies.newton(3, jacobian=jacobian)
    fast = bppsa.compile(model, strategy=strategy, forward=forward)
    same(results(fast, given, wanted), results(model, given, wanted))
    if steps <= 3:
        assert "single chunk" in decision(fast).reason
    else:
        assert decision(fast).numbers["fallbacks"] == 0


@pytest.mark.parametrize("kind", KINDS)
def test_packed(kind: str) -> None:
    torch.manual_seed(0)
    model = KINDS[kind](I, H, 2, bidirectional=True).double()
    x = random(STEPS, 4, I)

    def call(model: Any) -> Any:
        return lambda x: model(pack_padded_sequence(x, torch.tensor([3, STEPS, 1, 10]), enforce_sorted=False))

    fast, wanted = bppsa.compile(model, forward=strategies.newton(4)), [x, *model.parameters()]
    same(results(call(fast), [x], wanted), results(call(model), [x], wanted))
    assert decision(fast).numbers["fallbacks"] == 0


def test_without_gradients_and_in_evaluation() -> None:
    model, x = nn.LSTM(I, H, 2, dropout=0.5).double().eval(), random(STEPS, B, I)
    fast = bppsa.compile(model, forward="newton")
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            same(leaves(fast(x)), leaves(model(x)))
    assert decision(fast).numbers["iterations"] >= 1


def test_dropout_draws_as_pytorch_does() -> None:
    model, x = nn.GRU(I, H, 2, dropout=0.5).double(), random(STEPS, B, I)
    wanted = [x, *model.parameters()]
    same(results(bppsa.compile(model, forward="newton"), [x], wanted), results(model, [x], wanted))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_finite_is_as_in_the_sequential_forward(value: float) -> None:
    model, x = nn.GRU(I, H), random(STEPS, B, I, dtype=torch.float32, grad=False)
    x[10, 1, 2] = value
    fast = bppsa.compile(model, forward=strategies.newton(4))
    expected = bppsa.compile(model, strategy="sequential")(x)[0]
    torch.testing.assert_close(fast(x)[0], expected, equal_nan=True)
    assert expected.isnan().any() == (value is torch.nan)  # infinity saturates a gate
    assert decision(fast).numbers["fallbacks"] == (value is torch.nan)


def exploding() -> nn.RNN:
    torch.manual_seed(0)
    model = nn.RNN(I, H, nonlinearity="relu")
    nn.init.orthogonal_(model.weight_hh_l0, 1.5)
    return model


def test_a_fallback_is_counted_and_told() -> None:
    model, x = exploding(), random(2000, B, I, dtype=torch.float32)  # too long for a program
    fast = bppsa.compile(model, forward=strategies.newton(4))
    expected = bppsa.compile(model, strategy="sequential")(x)[0]
    assert torch.equal(fast(x)[0].nan_to_num(), expected.nan_to_num())
    assert decision(fast).numbers["fallbacks"] == 1
    assert "1 of 1 passes ran step by step" in decision(fast).reason


def test_auto_stays_sequential_on_a_cpu() -> None:
    fast, x = bppsa.compile(nn.GRU(I, H), strategy="sequential", forward="auto"), random(STEPS, B, I).float()
    fast(x)
    assert (decision(fast).forward, decision(fast).reason) == ("sequential", "as asked")
    assert "fallbacks" not in decision(fast).numbers
    assert "newton" in str(bppsa.explain(nn.GRU(I, H), x, forward="newton"))


@pytest.fixture
def newton_pays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A record of a device on which a step of a sweep is all that takes time."""
    rates = dict.fromkeys(SHIPPED["cuda"].rates, Rates(0, 0, 0, 0)) | {"forward": Rates(0, 1, 0, 0)}
    monkeypatch.setattr(recurrent, "machine_of", lambda _: replace(SHIPPED["cuda"], rates=rates, slots=None))
    recurrent.decide.cache_clear()
    yield
    recurrent.decide.cache_clear()


@pytest.mark.usefixtures("newton_pays")
def test_auto_rests_after_a_failure_and_tries_again() -> None:
    fast = bppsa.compile(exploding(), strategy="sequential", forward="auto")
    hard, easy = (random(steps, B, I, dtype=torch.float32) for steps in (600, 40))
    fast(hard)
    assert decision(fast).numbers["fallbacks"] == 1
    for left in reversed(range(REST)):
        fast(easy)
        assert f"did not converge, and is tried again after {left} more calls" in decision(fast).reason
        assert "fallbacks" not in decision(fast).numbers
    fast(easy)
    assert decision(fast).numbers["fallbacks"] == 0
    fast(hard)
    fast(easy)
    assert f"after {REST - 1} more calls" in decision(fast).reason, "what converged meanwhile is no failure in a row"


def test_the_default_says_nothing_of_forwards() -> None:
    fast = bppsa.compile(nn.GRU(I, H), strategy="sequential")
    fast(random(STEPS, B, I).float())
    assert "forward sequential" not in decision(fast).reason


def test_warm_start_and_copies() -> None:
    model, x = nn.RNN(I, H).double(), random(STEPS, B, I)
    fast = bppsa.compile(model, forward=strategies.newton(3, warm_start=True))
    fast(x)
    cold = decision(fast).numbers["iterations"]
    fast(x)
    assert decision(fast).numbers["iterations"] == 0 < cold
    for other in (copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))):
        same(leaves(other(x)), leaves(model(x)))
        assert decision(other).numbers["iterations"] == cold
    assert set(fast.state_dict()) == set(model.state_dict())


def test_threads() -> None:
    model, xs = nn.GRU(I, H).double(), [random(STEPS, B, I, grad=False) for _ in range(4)]
    fast = bppsa.compile(model, forward=strategies.newton(3, warm_start=True))
    found: dict[int, Any] = {}

    def work(i: int) -> None:
        for _ in range(5):
            found[i] = leaves(fast(xs[i]))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, x in enumerate(xs):
        same(found[i], leaves(model(x)))


def test_an_output_changed_in_place() -> None:
    """The forward runs again for the backward, by Newton's iteration too."""
    model, x = nn.GRU(I, H).double(), random(STEPS, B, I)

    def doubled(model: Any) -> Any:
        return lambda x: model(x)[0].mul_(2.0)

    wanted = [x, *model.parameters()]
    fast = bppsa.compile(model, forward=strategies.newton(3))
    same(results(doubled(fast), [x], wanted), results(doubled(model), [x], wanted))

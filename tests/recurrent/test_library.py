"""nn.RNN, nn.GRU and nn.LSTM whose forward is PyTorch's own: gradients go on from its states."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

import bppsa
from bppsa import cells
from bppsa.frontend.rnn import by_pytorch
from tests.breadth import examples
from tests.recurrent.support import KINDS, B, H, I, decision, leaves, random, results, same, states

STEPS = 24


@examples(30)
@given(
    kind=st.sampled_from(sorted(KINDS)),
    layers=st.integers(1, 2),
    bidirectional=st.booleans(),
    batch_first=st.booleans(),
    bias=st.booleans(),
    steps=st.integers(1, STEPS),
    streaming=st.booleans(),
    strategy=st.sampled_from(["sequential", "chunked(length=5)", "blelloch"]),
)
def test_values_and_gradients(
    kind: str,
    layers: int,
    bidirectional: bool,
    batch_first: bool,
    bias: bool,
    steps: int,
    streaming: bool,
    strategy: str,
) -> None:
    torch.manual_seed(0)
    model = KINDS[kind](I, H, layers, bidirectional=bidirectional, batch_first=batch_first, bias=bias).double()
    x = random(B, steps, I) if batch_first else random(steps, B, I)
    given = [x, states(model, B)] if streaming else [x]
    wanted = [*leaves(given), *model.parameters()]
    fast = bppsa.compile(model, strategy=strategy, forward="pytorch")
    same(results(fast, given, wanted), results(model, given, wanted))
    assert decision(fast).forward == "pytorch"


def test_of_a_projected_lstm() -> None:
    torch.manual_seed(0)
    model, x = nn.LSTM(I, H, 2, proj_size=2, bidirectional=True).double(), random(STEPS, B, I)
    wanted = [x, *model.parameters()]
    same(results(bppsa.compile(model, strategy="chunked", forward="pytorch"), [x], wanted), results(model, [x], wanted))


@pytest.mark.parametrize("kind", KINDS)
def test_packed(kind: str) -> None:
    torch.manual_seed(0)
    model = KINDS[kind](I, H, 2, bidirectional=True).double()
    x = random(STEPS, 4, I)

    def call(model: Any) -> Any:
        return lambda x: model(pack_padded_sequence(x, torch.tensor([3, STEPS, 1, 10]), enforce_sorted=False))

    fast, wanted = bppsa.compile(model, strategy="chunked", forward="pytorch"), [x, *model.parameters()]
    same(results(call(fast), [x], wanted), results(call(model), [x], wanted))


def test_dropout_draws_as_pytorch_does() -> None:
    model, x = nn.GRU(I, H, 2, dropout=0.5).double(), random(STEPS, B, I)
    wanted = [x, *model.parameters()]
    fast = bppsa.compile(model, strategy="chunked", forward="pytorch")
    same(results(fast, [x], wanted), results(model, [x], wanted))


def test_without_gradients_nothing_of_ours_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = nn.LSTM(I, H).double(), random(STEPS, B, I)
    fast = bppsa.compile(model, strategy="chunked", forward="pytorch")
    monkeypatch.setattr("bppsa.runtime.recurrent.sweep.Sweep.run", lambda *_, **__: pytest.fail("a sweep ran"))
    with torch.no_grad():
        same(leaves(fast(x)), leaves(model(x)))


def test_an_output_changed_in_place_is_computed_again() -> None:
    model, x = nn.GRU(I, H).double(), random(STEPS, B, I)
    fast = bppsa.compile(model, strategy="chunked", forward="pytorch")
    y = fast(x)[0]
    total = y.sum()
    y.detach().mul_(2)
    same(torch.autograd.grad(total, [x]), torch.autograd.grad(model(x)[0].sum(), [x]))


def test_a_cell_has_no_such_forward() -> None:
    cell = cells.MinGRU(I, H)
    x = torch.randn(STEPS, B, I)
    report = bppsa.explain(lambda x: bppsa.scan(cell, cell.initial(B), x, strategy="sequential", forward="pytorch"), x)
    assert "PyTorch has no kernel for a cell" in report.decisions[0].reason
    assert report.decisions[0].forward == "sequential"


def test_weights_laid_out_for_cudnn_are_the_same_ones() -> None:
    weights = [p.detach() for p in nn.LSTM(I, H, bidirectional=True).parameters()]
    copies = by_pytorch.in_one(weights)
    assert all(torch.equal(copy, weight) for copy, weight in zip(copies, weights, strict=True))
    matrices, biases = copies[0:2] + copies[4:6], copies[2:4] + copies[6:8]
    at = [copy.storage_offset() for copy in matrices + biases]
    sizes = [copy.numel() for copy in matrices + biases]
    assert at == [sum(sizes[:i]) for i in range(len(sizes))]

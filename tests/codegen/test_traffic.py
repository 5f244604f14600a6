"""Bytes and flops of a row and step, against what the formulas of a tanh RNN and a GRU say."""

from __future__ import annotations

import pytest

from bppsa.codegen.assembling import program
from bppsa.codegen.language.traffic import traffic
from bppsa.frontend.planning.sweeps import module_recurrence
from bppsa.fxpasses.network import jacobian


@pytest.mark.parametrize("hidden", [1, 4, 20])
@pytest.mark.parametrize(("real", "word"), [("float", 4), ("double", 8)])
def test_of_a_tanh_rnn(hidden: int, real: str, word: int) -> None:
    recurrence = module_recurrence("RNN_TANH", 3, hidden, 0, True)
    built = program.build(recurrence, jacobian.transpose(recurrence))
    moved, flops, folded = traffic(built.forward, real)
    assert moved == 2 * hidden * word, "x @ W_ih is read, h is written"
    assert not folded
    assert flops == 2 * hidden**2 + 4 * hidden, "h @ W_hh; its sum with x @ W_ih and two biases, and tanh"


def test_a_backward_that_saves_nothing_reads_states_and_cotangents() -> None:
    recurrence = module_recurrence("RNN_TANH", 3, 4, 0, True)
    built = program.build(recurrence, jacobian.transpose(recurrence))
    assert traffic(built.backward, "float")[0] == 3 * 4 * 4, "h, g of y; and cotangents written"

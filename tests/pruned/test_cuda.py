"""Pruned layers on a GPU, where they have no kernels."""

from __future__ import annotations

import pytest
import torch

import bppsa
from tests.pruned.support import error, twins

pytestmark = pytest.mark.gpu


def test_a_model_that_moves_is_left_to_pytorch_there_and_taken_up_again() -> None:
    _, fast, batch = twins("lenet")
    x = batch(3)
    expected = fast(x)
    there = fast.cuda()(x.cuda())
    assert error(expected, there.cpu()) < 1e-12
    assert "cuda" in fast.report.decisions[0].reason
    assert error(expected, fast.cpu()(x)) == 0
    assert {decision.strategy for decision in fast.report.decisions} & {"sparse", "blocked"}


def test_gradients_are_those_of_the_mask() -> None:
    model, _, batch = twins("lenet")
    fast, x = bppsa.compile(model.cuda()), batch(3).cuda()
    found, expected = (torch.autograd.grad(m(x).square().sum(), list(m.parameters())) for m in (fast, model))
    assert max(error(b, a) for a, b in zip(found, expected, strict=True)) < 1e-12

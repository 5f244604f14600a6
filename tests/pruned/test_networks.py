"""Whole networks: outputs, all gradients and running statistics are those of masked PyTorch."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

import bppsa
from tests.pruned.support import (
    NETWORKS,
    always_blocked,  # noqa: F401
    assert_same_step,
    error,
    kernels,
    twins,
)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_training_step_is_pytorchs(name: str) -> None:
    plain, fast, batch = twins(name)
    for samples in (3, 8, 11):  # less than a block, a whole one, and more
        assert_same_step(plain, fast, batch(samples))
        assert set(kernels(fast)) == {"sparse"}


@pytest.mark.parametrize("name", ["residual", "perceptron"])
def test_eval_uses_the_running_statistics(name: str) -> None:
    plain, fast, batch = twins(name)
    assert_same_step(plain, fast, batch(9))
    plain.eval(), fast.eval()
    assert_same_step(plain, fast, batch(5))
    with torch.no_grad():
        x = batch(1)
        assert error(plain(x), fast(x)) < 1e-12


def test_training_with_an_optimizer_follows_pytorch() -> None:
    plain, fast, batch = twins("residual")
    optimizers = [torch.optim.SGD(m.parameters(), 0.05, momentum=0.9, weight_decay=1e-3) for m in (plain, fast)]
    for _ in range(4):
        assert_same_step(plain, fast, batch(6))
        for optimizer in optimizers:
            optimizer.step()
    for a, b in zip(plain.parameters(), fast.parameters(), strict=True):
        assert error(a, b) < 1e-9


def test_two_forwards_before_a_backward_keep_their_values() -> None:
    """The second forward reads other values, changed behind autograd's back, into the same entries."""
    plain, fast, batch = twins("lenet")
    xs = batch(4), batch(4)
    for model in (plain, fast):
        first = model(xs[0])
        with torch.no_grad():
            second = model(xs[1])
        (first.sum() * 2).backward()
        assert second.isfinite().all()
    for a, b in zip(plain.parameters(), fast.parameters(), strict=True):
        assert error(a.grad, b.grad) < 1e-12


def test_frozen_layers_get_no_gradient() -> None:
    plain, fast, batch = twins("lenet")
    for model in (plain, fast):
        for p in list(model.parameters())[:3]:
            p.requires_grad_(False)
        model(batch(2) * 0 + 1).sum().backward()
    for a, b in zip(plain.parameters(), fast.parameters(), strict=True):
        assert (a.grad is None) == (b.grad is None)
        assert a.grad is None or error(a.grad, b.grad) < 1e-12


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_spreads_along_kept_weights(value: float) -> None:
    """Masked PyTorch multiplies it with the zeros of the mask too, and spreads it further."""
    plain, fast, batch = twins("lenet")
    x = batch(3)
    x[1] = value
    expected, got = plain(x), fast(x)
    assert torch.equal(expected.isfinite(), got.isfinite())
    assert not got[1].isfinite().any()
    expected.sum().backward(), got.sum().backward()
    for (name, p), q in zip(plain.named_parameters(), fast.parameters(), strict=True):
        assert not (p.grad.isfinite() & ~q.grad.isfinite()).any(), name
    assert not fast[9].weight_orig.grad[fast[9].weight_mask.bool()].isfinite().all()


def test_results_are_the_same_in_every_run() -> None:
    _, fast, batch = twins("residual")
    x = batch(10)
    runs = []
    for _ in range(3):
        fast.zero_grad()
        fast(x).sum().backward()
        runs.append([p.grad.clone() for p in fast.parameters()])
    assert all(torch.equal(a, b) for run in runs[1:] for a, b in zip(runs[0], run, strict=True))


def test_float32_is_computed_in_float32() -> None:
    plain, fast, batch = twins("perceptron")
    x = batch(20)
    assert error(plain(x).detach(), fast.float()(x.float()).detach().double()) < 1e-5
    assert set(kernels(fast)) == {"sparse"}


def test_copies_and_pickles_run_alone() -> None:
    torch.manual_seed(0)
    model = NETWORKS["lenet"][0]().double()
    with torch.no_grad():
        model[7].weight[:, ::2] = 0
    fast, x = bppsa.compile(model, sparse="auto"), torch.randn(3, 1, 16, 16).double()
    expected = fast(x)
    for twin in (copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))):
        assert torch.equal(twin(x), expected)
        assert set(kernels(twin)) == {"blocked", "sparse"}
        with torch.no_grad():
            twin[9].weight.zero_()
        assert not torch.equal(twin(x), expected)
    assert torch.equal(fast(x), expected)
    assert torch.equal(model(x).isfinite(), expected.isfinite())

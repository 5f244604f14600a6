"""The engine of sparse operators: kernels for plain tensors on a CPU, ATen ops for all others."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bppsa.codegen.cpu import sparse
from bppsa.codegen.cpu.build import available
from bppsa.decisions import warn_once
from bppsa.errors import BuildError
from bppsa.runtime import sparse as runtime
from bppsa.runtime.sparse import Kernels, on_cpu
from bppsa.sparsity import Dense, Diagonal, Sparse, compose, select
from bppsa.sparsity.patterns.engine import ATEN, engine, install
from tests.sparsity.patterns import random_pattern, values_of
from tests.sparsity.samples import Random

built = pytest.mark.skipif(available() is not None, reason="needs a C++ compiler")


@pytest.fixture
def installed():
    before = engine()
    install(Kernels())
    yield
    install(before)


@built
@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("batch", [(), (3,), (20,)])
def test_the_algebra_runs_on_kernels(batch):
    r = Random(0)
    a, b = random_pattern(r, 20, 30, 0.2), random_pattern(r, 30, 25, 0.2)
    left, right = Sparse(values_of(r, a, *batch), a), Sparse(values_of(r, b), b)
    rows = left.held if batch else 4
    relu, scale = select(r(rows, 30) > 0, r(rows, 30), r(rows, 30)), Diagonal(r(1, 25))
    chain = compose(compose(left, relu), compose(right, scale))
    assert chain.structure == "sparse"
    close(chain.dense(), left.dense() @ relu.dense() @ right.dense() @ scale.dense())
    g = r(rows, 25)
    close(chain.mv(g), (chain.dense() @ g[:, :, None])[:, :, 0])
    for w in (Dense(r(25, 7)), Dense(r(7, 25).t())):  # a layer's weight is a transposed one
        close(compose(right, w).dense(), right.dense() @ w.w)


def close(got, expected):
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


@built
def test_who_watches_gets_aten():
    plain = torch.ones(4)
    assert on_cpu(plain) is not None
    assert on_cpu(plain, torch.ones(4, dtype=torch.float64)) is None
    assert on_cpu(plain.to(torch.bfloat16)) is None
    assert on_cpu(plain.to("meta")) is None
    assert on_cpu(plain.clone().requires_grad_()) is None
    with torch.no_grad():
        assert on_cpu(plain.clone().requires_grad_()) is not None
    with TorchDispatchMode():
        assert on_cpu(plain) is None
    seen = []
    torch.func.vmap(lambda t: seen.append(on_cpu(t)) or t)(torch.ones(2, 4))
    assert seen == [None]


@built
@pytest.mark.usefixtures("installed")
def test_gradients_pass_operators():
    r = Random(0)
    a, b = random_pattern(r, 5, 6, 0.5), random_pattern(r, 6, 4, 0.5)
    values = values_of(r, a).requires_grad_()

    def run(values):
        return compose(Sparse(values, a), Sparse(values_of(Random(1), b), b)).mv(Random(2)(3, 4))

    assert torch.autograd.gradcheck(run, (values,), fast_mode=True)


def test_without_a_compiler_it_is_aten_after_one_warning(monkeypatch):
    def refuse(*_):
        raise BuildError("no C++ compiler")

    monkeypatch.setattr(sparse.build, "library", refuse)
    warn_once.cache_clear()
    runtime.native_sparse.cache_clear()
    runtime.native_symbolic.cache_clear()
    r = Random(0)
    a, b = random_pattern(r, 5, 6, 0.5), random_pattern(r, 6, 4, 0.5)
    left, right = values_of(r, a), values_of(r, b)
    with pytest.warns(RuntimeWarning, match="no C"):
        plan = Kernels().symbolic(a, b)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(Kernels().multiply(plan, left, right), ATEN.multiply(plan, left, right))

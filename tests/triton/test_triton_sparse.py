"""Sparse products and matrices times vectors by Triton's kernel: against ATen ops, in every layout."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from bppsa.sparsity import Pattern
from bppsa.sparsity.patterns import product
from bppsa.sparsity.patterns.engine import ATEN
from tests.breadth import examples
from tests.sparsity.patterns import random_pattern
from tests.sparsity.samples import Random
from tests.triton import needed

needed.triton()

from bppsa.codegen.gpu.native_sparse import TritonSparse, pairs_of  # noqa: E402  it imports triton

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # where Triton's interpreter runs them
sizes = st.integers(0, 20)
fills = st.sampled_from([0.1, 0.5, 1.0])


@examples(40)
@given(st.tuples(sizes, sizes, sizes), fills, st.sampled_from([None, 1, 3, 11]), st.integers(0, 99), st.data())
def test_agrees_with_aten(shape, fill, size, seed, data):
    n, k, m = shape
    r = Random(seed)
    plan = product.symbolic(random_pattern(r, n, k, fill), random_pattern(r, k, m, fill))
    of_a, of_b = data.draw(st.sampled_from([(size, size), (size, None), (None, size)]))

    def values(batch, count):
        if batch is None:
            return r(count)
        return r(count, batch).t() if data.draw(st.booleans()) else r(batch, count)  # in lanes, or one after the other

    a, b, g = values(of_a, plan.a.nnz), values(of_b, plan.b.nnz), values(of_a or 5, k)
    kernels = TritonSparse()
    got = kernels.multiply(plan, a.to(DEVICE), b.to(DEVICE)), kernels.mv(plan.a, a.to(DEVICE), g.to(DEVICE))
    for ours, expected in zip(got, (ATEN.multiply(plan, a, b), ATEN.mv(plan.a, a, g)), strict=True):
        torch.testing.assert_close(ours.cpu(), expected, rtol=1e-12, atol=1e-12)


def test_in_float32():
    r = Random(0)
    plan = product.symbolic(random_pattern(r, 40, 30, 0.3), random_pattern(r, 30, 50, 0.3))
    a, b = r(plan.a.nnz), r(20, plan.b.nnz)
    got = TritonSparse().multiply(plan, a.float().to(DEVICE), b.float().to(DEVICE))
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.cpu().double(), ATEN.multiply(plan, a, b), rtol=1e-5, atol=1e-5)


def test_structural_zeros_meet_nothing():
    a, b = Pattern.from_mask(torch.eye(2, dtype=torch.bool)), Pattern.dense(2, 2)
    left, right = torch.tensor([torch.nan, 2.0]), torch.tensor([1.0, torch.inf, 3.0, 4.0])
    got = TritonSparse().multiply(product.symbolic(a, b), left.to(DEVICE), right.to(DEVICE)).tolist()
    assert got[2:] == [6.0, 8.0]
    assert got[0] != got[0]


def test_pairs_are_those_of_the_plan():
    plan = product.symbolic(Pattern.dense(2, 3), Pattern.dense(3, 2))
    pairs = pairs_of(plan)
    assert pairs.offsets.tolist() == [0, 3, 6, 9, 12]
    assert pairs.left.tolist() == [0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5]
    assert pairs.right.tolist() == [0, 2, 4, 1, 3, 5, 0, 2, 4, 1, 3, 5]

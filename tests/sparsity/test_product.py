"""Product plans and sum plans of static patterns, and their numeric phases by ATen ops: against dense matrices."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bppsa.sparsity import Pattern
from bppsa.sparsity.patterns import product, union
from bppsa.sparsity.patterns.engine import ATEN
from bppsa.sparsity.plans import Plans, product_plan
from tests.breadth import examples
from tests.sparsity.patterns import convolution, dense, random_pattern, values_of
from tests.sparsity.samples import B as ROWS
from tests.sparsity.samples import Random

sizes = st.integers(0, 7)
fills = st.sampled_from([0.0, 0.2, 0.5, 1.0])
BATCHES = [((), ()), ((ROWS,), ()), ((), (ROWS,)), ((ROWS,), (ROWS,))]


@st.composite
def pairs(draw):
    n, k, m = draw(sizes), draw(sizes), draw(sizes)
    r = Random(draw(st.integers(0, 999)))
    return random_pattern(r, n, k, draw(fills)), random_pattern(r, k, m, draw(fills)), r


@examples(200)
@given(pairs(), st.sampled_from([1, 3, 1 << 20]))
def test_the_pattern_of_a_product_is_exact(pair, block):
    a, b, _ = pair
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(product, "BLOCK", block)
        plan = product.symbolic(a, b)
    met = a.mask().long() @ b.mask().long()
    assert torch.equal(plan.c.mask(), met > 0)
    assert torch.equal(plan.c.indices, Pattern.from_mask(met > 0).indices)  # columns ascend
    assert torch.equal(plan.starts.diff(), met.sum(1))
    assert plan.products == met.sum()
    assert torch.equal(product.counts(a, b), plan.starts)


@examples(200)
@given(pairs(), st.sampled_from(BATCHES), st.booleans(), st.sampled_from([1, 1 << 20]))
def test_values_of_a_product(pair, batches, slots, block):
    a, b, r = pair
    left, right = values_of(r, a, *batches[0]), values_of(r, b, *batches[1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(product, "BLOCK", block)
        patch.setattr(product, "MOST_SLOT_BYTES", 1 << 20 if slots else -1)
        plan = product.symbolic(a, b)
        values = product.multiply(plan, left, right)
    assert (plan.slots is not None) == slots
    assert values.shape == ((ROWS,) if batches != ((), ()) else ()) + (plan.c.nnz,)
    torch.testing.assert_close(dense(plan.c, values), dense(a, left) @ dense(b, right), rtol=1e-12, atol=1e-12)


def test_a_chain_of_convolutions():
    """Against the convolutions themselves: two layers with padding and stride."""
    r = Random(0)
    first, second = convolution(r, 2, 3, 8, 3, padding=1), convolution(r, 3, 4, 8, 3, padding=1, stride=2)
    plan = product.symbolic(first.pattern, second.pattern)
    x = r(1, 2, 8, 8).requires_grad_()
    out = second(first(x))
    g = r(1, *out.shape[1:])
    (expected,) = torch.autograd.grad(out, x, g)
    values = product.multiply(plan, first.values, second.values)
    torch.testing.assert_close(ATEN.mv(plan.c, values, g.flatten(1)), expected.flatten(1), rtol=1e-12, atol=1e-12)


@given(pairs())
def test_gradients_pass_the_product(pair):
    a, b, r = pair
    plan = product.symbolic(a, b)
    left, right = values_of(r, a).requires_grad_(), values_of(r, b, 2).requires_grad_()
    if plan.products:
        assert torch.autograd.gradcheck(lambda *v: product.multiply(plan, *v), (left, right), fast_mode=True)


def test_zeros_outside_the_patterns_meet_nothing():
    """A dense product would spread NaN over its row and column."""
    a, b = Pattern.from_mask(torch.eye(2, dtype=torch.bool)), Pattern.dense(2, 2)
    plan = product.symbolic(a, b)
    values = product.multiply(plan, torch.tensor([torch.nan, 2.0]), torch.tensor([1.0, torch.inf, 3.0, 4.0]))
    assert values[:2].isnan().all()
    assert values[2:].tolist() == [6.0, 8.0]
    values = product.multiply(plan, torch.tensor([0.0, 2.0]), torch.tensor([1.0, torch.inf, 3.0, 4.0]))
    assert values[1].isnan()  # within the patterns 0 * Inf is what it is


def test_plans_are_made_once_for_each_content():
    r = Random(0)
    a, b = random_pattern(r, 5, 6, 0.5), random_pattern(r, 6, 4, 0.5)
    plan = product_plan(a, b)
    assert product_plan(Pattern(a.indptr.clone(), a.indices.clone(), a.shape), b) is plan
    assert product_plan(random_pattern(r, 5, 6, 0.5), b) is not plan
    assert Pattern.dense(2, 3).digest != Pattern.dense(3, 2).digest
    assert Pattern.one_per_row(torch.tensor([0]), 1).digest != Pattern.one_per_row(torch.tensor([0]), 2).digest


def test_plans_beyond_the_budget_are_forgotten(monkeypatch):
    made = []
    plans = Plans(lambda a, b: made.append(1) or product.symbolic(a, b))
    a, b = Pattern.dense(4, 4), Pattern.dense(4, 5)
    monkeypatch.setattr("bppsa.sparsity.plans.CACHE_BYTES", product.symbolic(a, b).bytes)
    first = plans(a, b)
    assert plans(a, b) is first
    plans(b, Pattern.dense(5, 5))
    assert plans(a, b) is not first
    assert len(made) == 3


def test_plans_that_were_used_last_are_kept(monkeypatch):
    plans = Plans(product.symbolic)
    pairs = [(Pattern.dense(4, 4), Pattern.dense(4, m)) for m in (5, 6, 7)]
    first, second = plans(*pairs[0]), plans(*pairs[1])
    monkeypatch.setattr("bppsa.sparsity.plans.CACHE_BYTES", first.bytes + product.symbolic(*pairs[2]).bytes)
    assert plans(*pairs[0]) is first
    plans(*pairs[2])
    assert plans(*pairs[0]) is first
    assert plans(*pairs[1]) is not second


@pytest.mark.parametrize("make", [product.symbolic, product.counts, union.symbolic])
def test_sizes_that_do_not_match_are_refused(make):
    with pytest.raises(ValueError, match=r"\(2, 3\)"):
        make(Pattern.dense(2, 3), Pattern.dense(2, 4))


@examples(100)
@given(st.data())
def test_sums_of_patterns(data):
    n, m, r = data.draw(sizes), data.draw(sizes), Random(data.draw(st.integers(0, 999)))
    a, b = (random_pattern(r, n, m, data.draw(fills)) for _ in range(2))
    batches = data.draw(st.sampled_from(BATCHES))
    left, right = values_of(r, a, *batches[0]), values_of(r, b, *batches[1])
    plan = union.symbolic(a, b)
    assert torch.equal(plan.c.mask(), a.mask() | b.mask())
    total = union.total(plan, left, right)
    torch.testing.assert_close(dense(plan.c, total), dense(a, left) + dense(b, right), rtol=0, atol=0)

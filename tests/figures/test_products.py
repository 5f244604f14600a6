"""Costs of scans over sparse chains: against the plans carried out on masks, and LeNet-5 counted by hand."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Size

from bppsa.plan.levels import ScanPlan, hybrid, linear
from bppsa.sparsity import Pattern
from bppsa.sparsity.patterns import product
from bppsa.sparsity.patterns.windows import Windows, conv_plan
from figures.sparse.products import ProductStep, chain_cost, total
from tests.sparsity.patterns import random_pattern
from tests.sparsity.samples import Random


@given(st.lists(st.integers(1, 6), min_size=2, max_size=11), st.integers(0, 5), st.integers(0, 99))
def test_counts_what_the_plan_does(sizes, up_levels, seed):
    r = Random(seed)
    chain = [random_pattern(r, n, m, 0.4) for n, m in pairwise(sizes)]
    plan = hybrid(len(chain), up_levels)
    cost = chain_cost(plan, chain)
    masks = [None, *(p.mask().long() for p in reversed(chain))]  # None: a vector

    def applied(place):
        return 0 if masks[place] is None else 2 * int(masks[place].sum())

    assert cost.linear == 2 * sum(p.nnz for p in chain)
    for d, (pairs, level) in enumerate(zip(plan.up, cost.up[1:], strict=True)):
        work = []
        for left, right in pairs:
            first, then = masks[right], masks[left]
            work.append(applied(right) if then is None else 2 * int((first @ then).sum()))
            masks[right] = None if then is None else ((first @ then) > 0).long()
        assert (level.flops, level.critical) == (sum(work), max(work))
        ends = [masks[place] for place in hybrid(len(chain), d + 1).middle if masks[place] is not None]
        assert (level.segments, level.nnz) == (len(ends), sum(int(mask.sum()) for mask in ends))
        assert level.density == max((mask.double().mean().item() for mask in ends), default=0)
    middle = sum(map(applied, plan.middle[1:-1]))
    down = [[applied(left) for left, _ in pairs] for pairs in plan.down]
    assert total(cost.middle) == middle
    assert [total(steps) for steps in cost.down] == [sum(flops) for flops in down]
    ups = cost.up[1:]
    assert cost.flops == sum(level.flops for level in ups) + middle + sum(map(sum, down))
    assert cost.critical == sum(level.critical for level in ups) + middle + sum(map(max, down))


def test_back_propagation_is_the_linear_plan():
    chain = [Pattern.dense(3, 4), Pattern.identity(4), Pattern.dense(4, 2)]
    cost = chain_cost(linear(3), chain)
    assert cost.linear == 2 * (12 + 4 + 8)
    assert cost.flops == 2 * (4 + 8)  # the cotangent of the input is nobody's operand
    assert cost.flops == cost.critical
    assert cost.steps == (ProductStep((4, 2, 1), 16), ProductStep((4, 4, 1), 8))
    assert (cost.up[0].segments, cost.up[0].nnz, cost.up[0].density) == (3, 24, 1.0)
    assert cost.up[0].bytes(4, samples=16) == 24 * 4 * 16


def test_a_plan_for_another_chain_is_refused():
    with pytest.raises(ValueError, match="3 elements and a chain of 2"):
        chain_cost(linear(3), [Pattern.identity(2)] * 2)


def grid(channels: tuple[int, int], size: tuple[int, int], kernel: int, stride: int, groups: int) -> Pattern:
    (i, o), (before, after) = channels, size
    windows = Windows((kernel, kernel), (stride, stride), (0, 0), (1, 1))
    return conv_plan(windows, False, groups, Size((i, before, before)), Size((o, after, after))).pattern


def tree(n: int) -> ScanPlan:
    """Neighbours from the output on, level by level, and the cotangent left out."""
    up, places = [], list(range(1, n + 1))
    while len(places) > 1:
        pairs = tuple(zip(places[::2], places[1::2], strict=False))
        up.append(pairs)
        places = [right for _, right in pairs] + places[len(pairs) * 2 :]
    return ScanPlan(n, tuple(up), (), ())


def test_lenet_fills_in():
    """Dense, on 32 x 32 x 3: a level of the up-sweep costs more than the whole linear sweep."""
    convs = grid((3, 6), (32, 28), 5, 1, 1), grid((6, 16), (14, 10), 5, 1, 1)
    pools = grid((6, 6), (28, 14), 2, 2, 6), grid((16, 16), (10, 5), 2, 2, 16)
    relus = [Pattern.identity(pool.shape[0]) for pool in pools]
    linears = [Pattern.dense(n, m) for n, m in ((400, 120), (120, 84), (84, 10))]
    every = [convs[0], relus[0], pools[0], convs[1], relus[1], pools[1], linears[0], Pattern.identity(120)]
    every += [linears[1], Pattern.identity(84), linears[2]]
    sweep = chain_cost(linear(len(every)), every).linear
    assert sweep == 2 * (352_800 + 240_000 + 58_920 + 2 * (4_704 + 1_600) + 120 + 84)  # 1.33 MFLOP

    fused = [product.symbolic(conv, pool).c for conv, pool in zip(convs, pools, strict=True)]
    assert [p.nnz for p in fused] == [1176 * 3 * 6 * 6, 400 * 6 * 6 * 6]
    cost = chain_cost(tree(5), [*fused, *linears])
    levels = cost.up[1:]
    assert [level.segments for level in levels] == [3, 2, 1]
    assert [level.nnz for level in levels] == [127_008 + 1176 * 120 + 120 * 10, 127_008 + 1176 * 10, 3072 * 10]
    assert [level.density for level in levels] == [1.0, 1.0, 1.0]
    assert [level.flops for level in levels] == [
        2 * (86_400 * 120 + 120 * 84 * 10),
        2 * 1176 * 120 * 10,
        2 * 127_008 * 10,
    ]
    assert levels[0].critical == 2 * 86_400 * 120
    assert levels[0].flops > 15 * sweep
    assert torch.tensor([level.flops for level in levels[1:]]).gt(1.9 * sweep).all()

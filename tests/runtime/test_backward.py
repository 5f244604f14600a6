"""The backward by every strategy against autograd: cells of all kinds, lengths, directions, packed batches, and numbers
at the ends of their range."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bppsa import cells, strategies
from bppsa.frontend.planning.sweeps import compile_recurrence, module_recurrence
from bppsa.plan.strategy import Strategy
from bppsa.runtime.recurrent.backward import Asked, backward
from bppsa.runtime.recurrent.scan.extent import Extent
from bppsa.runtime.recurrent.sweep import Gradients, Needs, Sweep
from tests.breadth import diagonal, examples
from tests.codegen.programs import Operands, build, by_autograd, interpreted, operands, packed
from tests.fxpasses.graphs import split_cell
from tests.scan.support import close, same
from tests.scan.zoo import CASES, Example, example, make

SCANS = (
    strategies.chunked(1),
    strategies.chunked(2),
    strategies.chunked(3),
    strategies.blelloch(),
    strategies.hybrid(0),
    strategies.hybrid(1),
    strategies.hybrid(2),
)


def run(sweep: Sweep, given: Operands, extent: Extent, strategy: Strategy) -> Gradients:
    passed = sweep.forward(given.sources, given.carries, given.params, extent, save=True)
    needs = Needs([True] * len(given.sources), [True] * len(given.params))
    cotangents = given.g_outputs, given.g_finals
    asked = Asked(passed, given.sources, given.params, *cotangents, extent, needs)
    return backward(sweep, strategy, asked)


def with_sequential(sweep: Sweep, extent: Extent, strategy: Strategy) -> None:
    given = operands(sweep.recurrence, extent)
    found, expected = (run(sweep, given, extent, s) for s in (strategy, strategies.sequential()))
    same([*found.carries, *found.sources, *found.params], [*expected.carries, *expected.sources, *expected.params])


@pytest.mark.parametrize(("case", "strategy", "reverse"), diagonal(CASES, SCANS, [False, True]))
def test_every_cell_by_every_scan(case: Callable[[], Example], strategy: Strategy, reverse: bool) -> None:
    sweep, extent = interpreted(build(make(case))), Extent(5, 3, reverse)
    recurrence = sweep.recurrence
    given = operands(recurrence, extent)
    found = run(sweep, given, extent, strategy)
    expected = by_autograd(recurrence, given, extent)[len(recurrence.outputs) + len(recurrence.carries) :]
    got = (*found.carries, *found.sources, *found.params)
    for ours, theirs in zip(got, expected, strict=True):
        close(torch.zeros_like(theirs) if ours is None else ours, theirs, 1e-10)


@given(
    mode=st.sampled_from(["RNN_TANH", "RNN_RELU", "GRU", "LSTM"]),
    steps=st.integers(1, 20),
    rows=st.integers(1, 3),
    hidden=st.integers(1, 5),
    reverse=st.booleans(),
    strategy=st.one_of(
        st.builds(strategies.chunked, st.integers(1, 25)),
        st.builds(strategies.hybrid, st.integers(0, 7)),
        st.sampled_from([strategies.blelloch(), strategies.chunked(), strategies.hybrid()]),
    ),
)
def test_modules_of_any_size(mode: str, steps: int, rows: int, hidden: int, reverse: bool, strategy: Strategy) -> None:
    sweep = compile_recurrence(module_recurrence(mode, 2, hidden, 0, True), torch.float64, False)
    with_sequential(sweep, Extent(steps, rows, reverse), strategy)


@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    reverse=st.booleans(),
    strategy=st.sampled_from(SCANS),
)
def test_packed_rows_end_where_they_end(lengths: list[int], reverse: bool, strategy: Strategy) -> None:
    sweep = compile_recurrence(module_recurrence("LSTM", 2, 3, 0, True), torch.float64, False)
    with_sequential(sweep, packed(sorted(lengths, reverse=True), reverse=reverse), strategy)


def at_last_step(matrix: Tensor, steps: int, strategy: Strategy) -> Tensor:
    """h <- h @ matrix + x, so that J^T is the matrix whatever h is. The loss reads one place of the last h in each row
    of the batch; gives the gradients of the first x, [N, N], in float32."""
    width = len(matrix)
    extent = Extent(steps, width)
    zeros = torch.zeros(steps, width, width)
    given = Operands([zeros], [zeros[0]], [matrix], [zeros], [torch.eye(width)])
    gradient = run(by_matrix(width), given, extent, strategy).sources[0]
    assert gradient is not None
    return gradient[0]


@functools.cache
def by_matrix(width: int) -> Sweep:
    weight, zeros = torch.zeros(width, width, requires_grad=True), torch.zeros(2, width)
    made = example(lambda h, x: (h @ weight + x,) * 2, zeros, zeros.unsqueeze(0))
    return compile_recurrence(split_cell(made), torch.float32, False)


STRONG_AND_WEAK = torch.tensor([2.0, 0.5])


# Short ones, which divide in every way, those at which a side leaves float32's range, and a few long ones.
LENGTHS = [*range(1, 36), *range(125, 132), *range(148, 153), 255, 256, 257, 300]


@pytest.mark.parametrize(
    "lengths", [LENGTHS, pytest.param(range(1, 301), marks=pytest.mark.slow)], ids=["some lengths", "every length"]
)
@pytest.mark.parametrize("strategy", [strategies.chunked(), strategies.blelloch(), strategies.hybrid()], ids=str)
def test_both_sides_of_a_product_that_leaves_the_range(strategy: Strategy, lengths: Sequence[int]) -> None:
    """diag(2, 1/2): what back-propagation in float32 represents, the scan does too."""
    smallest = torch.finfo(torch.float32).tiny
    for steps in lengths:
        found = at_last_step(torch.diag(STRONG_AND_WEAK), steps, strategy).diagonal()
        expected = STRONG_AND_WEAK.double() ** (steps - 1)
        normal = (expected >= smallest) & (expected <= torch.finfo(torch.float32).max)
        assert ((found.double() / expected - 1).abs() <= 1e-5)[normal].all(), steps


@pytest.mark.parametrize("strategy", [strategies.chunked(), strategies.chunked(1500), strategies.blelloch()], ids=str)
def test_the_weak_side_stays_finite(strategy: Strategy) -> None:
    """Where back-propagation's vector is, while the product of the Jacobians overflows."""
    assert at_last_step(torch.diag(STRONG_AND_WEAK), 3000, strategy)[1].isfinite().all()


@examples(15)
@given(
    seed=st.integers(0, 100),
    gain=st.floats(0.25, 4.0),
    steps=st.integers(2, 80),
    strategy=st.sampled_from([strategies.chunked(8), strategies.blelloch(), strategies.hybrid(2)]),
)
def test_exploding_and_vanishing(seed: int, gain: float, steps: int, strategy: Strategy) -> None:
    """An orthogonal matrix times a gain: all entries are of the size gain ** steps."""
    noise = torch.randn(3, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    matrix = gain * torch.linalg.qr(noise).Q
    found = at_last_step(matrix.float(), steps, strategy).double()
    expected = torch.linalg.matrix_power(matrix.float().double().T, steps - 1)
    size = expected.norm()
    if torch.finfo(torch.float32).tiny * 1e3 < size < torch.finfo(torch.float32).max:
        assert (found - expected).norm() <= 1e-5 * size


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("strategy", SCANS, ids=str)
def test_a_reset_lets_nothing_through(strategy: Strategy, value: float) -> None:
    """Whatever comes after it, no scan carries it to the steps before."""
    torch.manual_seed(0)
    cell = cells.ResetGRU(2, 3).double()
    steps, rows, at = 7, 2, 3
    reset = torch.zeros(steps, rows, dtype=torch.bool)
    reset[at] = True
    made = example(cell, cell.initial(rows), (torch.randn(steps, rows, 2).double(), reset), modules=(cell,))
    sweep = interpreted(build(made))
    given = operands(sweep.recurrence, Extent(steps, rows))
    truths = next(i for i, source in enumerate(given.sources) if source.shape[-1] == 1)
    given.sources[truths].copy_(reset.double().unsqueeze(-1))
    given.g_outputs[0][at + 1] = value
    found, expected = (run(sweep, given, Extent(steps, rows), s) for s in (strategy, strategies.sequential()))
    xs = next(i for i, source in enumerate(given.sources) if source.shape[-1] == 2)
    before = slice(None, at)
    close(found.sources[xs][before], expected.sources[xs][before], 1e-10)
    close(found.carries[0], expected.carries[0], 1e-10)
    assert found.sources[xs][before].isfinite().all()
    assert not found.sources[xs][at].isfinite().all()

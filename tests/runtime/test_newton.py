"""The forward by Newton's iteration against one sweep over all steps: cells of all kinds, lengths, directions, packed
batches; what does not converge; how exact float32 gets."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from bppsa import scan, strategies
from bppsa.frontend.call_log import collecting
from bppsa.frontend.planning.sweeps import compile_recurrence, module_recurrence
from bppsa.plan.forward import Forward
from bppsa.runtime.recurrent.newton import NewtonHistory, Solver
from bppsa.runtime.recurrent.scan.extent import Extent
from bppsa.runtime.recurrent.sweep import Passed, Sweep
from tests.breadth import diagonal
from tests.codegen.programs import Operands, build, interpreted, operands, packed
from tests.scan.support import close
from tests.scan.zoo import CASES, Example, make

MODES = ("RNN_TANH", "RNN_RELU", "GRU", "LSTM")


def both(
    sweep: Sweep, given: Operands, extent: Extent, forward: Forward, memory: NewtonHistory | None = None
) -> tuple[Passed, Passed, Solver]:
    solver = Solver(forward, NewtonHistory() if memory is None else memory)
    call = given.sources, given.carries, given.params, extent
    return solver.of(sweep, None)(*call, save=True), sweep.forward(*call, save=True), solver


def agree(found: Passed, expected: Passed, tolerance: float = 1e-10) -> None:
    assert list(found.private) == list(expected.private)
    for name in ("outputs", "finals", "states"):
        for ours, theirs in zip(getattr(found, name), getattr(expected, name), strict=True):
            close(ours, theirs, tolerance)
    for name, theirs in expected.private.items():
        close(found.private[name], theirs, tolerance)


@pytest.mark.parametrize(("case", "length", "reverse"), diagonal(CASES, [1, 2, 3], [False, True]))
def test_every_cell(case: Callable[[], Example], length: int, reverse: bool) -> None:
    """Three to seven chunks are exact after as many iterations, whatever the cell is."""
    sweep, extent = interpreted(build(make(case))), Extent(7, 3, reverse)
    given = operands(sweep.recurrence, extent)
    found, expected, solver = both(sweep, given, extent, strategies.newton(length))
    agree(found, expected)
    assert [outcome.failure for outcome in solver.outcomes] == [""]
    assert solver.outcomes[0].iterations <= -(-7 // length)


@given(
    mode=st.sampled_from(MODES),
    steps=st.integers(1, 40),
    rows=st.integers(1, 3),
    hidden=st.integers(1, 5),
    reverse=st.booleans(),
    length=st.none() | st.integers(1, 45),
)
def test_modules_of_any_size(mode: str, steps: int, rows: int, hidden: int, reverse: bool, length: int | None) -> None:
    sweep = compile_recurrence(module_recurrence(mode, 2, hidden, 0, True), torch.float64, False)
    extent = Extent(steps, rows, reverse)
    agree(*both(sweep, operands(sweep.recurrence, extent), extent, strategies.newton(length))[:2])


@given(lengths=st.lists(st.integers(1, 12), min_size=1, max_size=4), reverse=st.booleans(), length=st.integers(1, 13))
def test_packed_rows_end_where_they_end(lengths: list[int], reverse: bool, length: int) -> None:
    sweep = compile_recurrence(module_recurrence("LSTM", 2, 3, 0, True), torch.float64, False)
    extent = packed(sorted(lengths, reverse=True), reverse=reverse)
    found, expected, solver = both(sweep, operands(sweep.recurrence, extent), extent, strategies.newton(length))
    agree(found, expected)
    assert not any(outcome.failure for outcome in solver.outcomes)


def module_of(mode: str, hidden: int, radius: float | None, steps: int, rows: int = 2) -> tuple[Operands, Extent]:
    """PyTorch's initial weights; an RNN's recurrent one orthogonal, times `radius`."""
    torch.manual_seed(0)
    name = mode.removesuffix("_TANH").removesuffix("_RELU")
    module = getattr(nn, name)(4, hidden)
    if radius is not None:
        nn.init.orthogonal_(module.weight_hh_l0, radius)
    params = [p.detach().double() for p in module.parameters()]
    states = [torch.zeros(rows, hidden, dtype=torch.float64)] * (2 if mode == "LSTM" else 1)
    return Operands([torch.randn(steps, rows, 4).double()], states, params, [], []), Extent(steps, rows)


def in_float32(given: Operands) -> Operands:
    groups = given.sources, given.carries, given.params
    return Operands(*([t.float() for t in group] for group in groups), [], [])


def error(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("steps", [200, 3000])
@pytest.mark.parametrize(
    ("mode", "radius"),
    [("RNN_TANH", None), ("RNN_TANH", 1.0), ("RNN_TANH", 1.2), ("RNN_RELU", 0.95), ("GRU", None), ("LSTM", None)],
)
def test_float32_is_as_exact_as_one_sweep(mode: str, radius: float | None, steps: int) -> None:
    given, extent = module_of(mode, 16, radius, steps)
    recurrence = module_recurrence(mode, 4, 16, 0, True)
    exact, sweep = (compile_recurrence(recurrence, dtype, True) for dtype in (torch.float64, torch.float32))
    expected = exact.forward(given.sources, given.carries, given.params, extent, save=True).outputs[0]
    found, sequential, solver = both(sweep, in_float32(given), extent, strategies.newton())
    assert not any(outcome.failure for outcome in solver.outcomes)
    assert error(found.outputs[0], expected) <= 2 * error(sequential.outputs[0], expected)


@pytest.mark.parametrize(("mode", "radius"), [("RNN_RELU", 1.5), ("RNN_TANH", 2.5)])
def test_what_does_not_converge_runs_step_by_step(mode: str, radius: float) -> None:
    given, extent = module_of(mode, 16, radius, 600)
    sweep = compile_recurrence(module_recurrence(mode, 4, 16, 0, True), torch.float32, True)
    found, sequential, solver = both(sweep, in_float32(given), extent, strategies.newton(8, iterations=3))
    assert [bool(outcome.failure) for outcome in solver.outcomes] == [True]
    assert torch.equal(found.outputs[0].nan_to_num(), sequential.outputs[0].nan_to_num())


@pytest.mark.parametrize("length", [1, 3])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_every_cell_by_diagonals(case: Callable[[], Example], length: int) -> None:
    """The fixed point is the same, whatever the Jacobian: a chunk more is exact with every iteration."""
    sweep, extent = interpreted(build(make(case))), Extent(7, 3)
    forward = strategies.newton(length, jacobian="diagonal")
    found, expected, solver = both(sweep, operands(sweep.recurrence, extent), extent, forward)
    agree(found, expected)
    assert not any(outcome.failure for outcome in solver.outcomes)


@pytest.mark.parametrize(("mode", "width"), [("RNN_TANH", 1), ("GRU", 1), ("LSTM", 2)])
def test_what_a_diagonal_jacobian_is(mode: str, width: int) -> None:
    """Exact where the recurrent weight is made of diagonal squares; one column a unit's number, whatever H is."""
    given, extent = module_of(mode, 8, None, 30)
    squares = given.params[1].unflatten(0, (-1, 8))
    squares.copy_(squares * torch.eye(8))
    sweep = compile_recurrence(module_recurrence(mode, 4, 8, 0, True), torch.float64, True)
    assert sweep.reduction(diagonal=True).structure.width == width
    taken = [both(sweep, given, extent, strategies.newton(5, jacobian=j))[2].outcomes[0] for j in ("full", "diagonal")]
    assert taken[0].iterations == taken[1].iterations
    assert not taken[1].failure


def test_a_warm_start_needs_fewer_iterations() -> None:
    given, extent = module_of("RNN_TANH", 16, 1.2, 400)
    sweep = compile_recurrence(module_recurrence("RNN_TANH", 4, 16, 0, True), torch.float64, True)
    memory, forward = NewtonHistory(), strategies.newton(8, warm_start=True)
    first = both(sweep, given, extent, forward, memory)[2].outcomes[0]
    given.params[1].mul_(1 + 1e-6)  # as a step of training does
    found, expected, solver = both(sweep, given, extent, forward, memory)
    assert 0 < solver.outcomes[0].iterations < first.iterations
    agree(found, expected)
    other = Extent(300, 2)
    given.sources[0] = given.sources[0][:300]
    agree(*both(sweep, given, other, forward, memory)[:2])


def test_what_failed_is_tried_again_after_ever_longer_rests() -> None:
    memory = NewtonHistory()
    assert not memory.rests()
    waits = []
    for _ in range(10):
        memory.note(failed=True)
        waits.append(0)
        while memory.rests():
            waits[-1] += 1
    assert waits == [8, 16, 32, 64, 128, 256, 512, 1024, 1024, 1024]
    memory.note(failed=False)
    assert not memory.rests()
    memory.note(failed=True)
    assert memory.resting == waits[0]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_affine_steps_of_numbers_take_one_iteration(dtype: torch.dtype, reverse: bool) -> None:
    """From any carry: what is left of a large one counts where it has decayed, too."""
    recurrence = module_recurrence("LSTM", 2, 5, 0, True, 1)
    extent, narrow = Extent(200, 3, reverse), dtype is torch.float32
    exact, sweep = (compile_recurrence(recurrence, d, False) for d in (torch.float64, dtype))
    given = operands(recurrence, extent)
    given.carries[0].mul_(1e6)
    expected = exact.forward(given.sources, given.carries, given.params, extent, save=True)
    found, sequential, solver = both(sweep, in_float32(given) if narrow else given, extent, strategies.newton(8))
    assert [(outcome.iterations, outcome.failure) for outcome in solver.outcomes] == [(1, "")]
    for ours, theirs, right in zip(found.states, sequential.states, expected.states, strict=True):
        assert error(ours[-20:], right[-20:]) <= 2 * error(theirs[-20:], right[-20:]) + torch.finfo(dtype).eps


@pytest.mark.parametrize(("factor", "x", "dtype"), [(1.5, -0.5, torch.float32), (3.0, -2.0, torch.float64)])
def test_affine_steps_that_grow_run_one_after_the_other(factor: float, x: float, dtype: torch.dtype) -> None:
    """h = factor * h + x stays at 1, where the powers of the factor are no numbers."""
    start, xs = torch.ones(1, 2, dtype=dtype), torch.full((20_000, 1, 2), x, dtype=dtype)

    def cell(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        h = factor * h + x
        return h, h

    with collecting() as decisions:
        h, y = scan(cell, start, xs, forward="newton")
    assert torch.equal(y, torch.ones_like(y))
    assert torch.equal(h, start)
    assert decisions[0].numbers["fallbacks"] == 1

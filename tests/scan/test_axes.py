"""States with heads and matrices: fused, and equal a plain loop, values and all gradients; kernels interpreted."""

from __future__ import annotations

import pytest
import torch
from torch.utils import _pytree as pytree

import bppsa
from bppsa import strategies
from bppsa.codegen.assembling.program import build
from bppsa.codegen.cpu.print_cpp import source
from bppsa.frontend.cell.plans import find, without_kernel
from bppsa.fxpasses.network import jacobian
from bppsa.plan.strategy import Strategy
from bppsa.runtime.recurrent.reference import loop
from tests.breadth import diagonal
from tests.fxpasses.graphs import split_cell
from tests.scan.folds import FOLDS
from tests.scan.matrices import MATRICES, SIZES, Make, Sizes, delta, gated_linear_attention, heads_by_einsum, retnet
from tests.scan.spellings import STEPS, spelled
from tests.scan.support import check, check_inference, results, same
from tests.scan.zoo import lstm
from tests.scan.zoo import make as make_example


@pytest.mark.parametrize(("make", "sizes"), diagonal([*MATRICES, *FOLDS], SIZES))
def test_cells_with_axes_are_fused_and_equal_a_loop(make: Make, sizes: Sizes) -> None:
    torch.manual_seed(0)
    given = make(sizes)
    decision = check(given)
    assert decision.strategy == "sequential", decision.reason
    check_inference(given, reverse=True)


@pytest.mark.parametrize(
    ("name", "sizes"), diagonal(STEPS, [*SIZES[:3], Sizes(2, 1, 3, 1), Sizes(2, 3, 2, 1)]), ids=str
)
def test_spellings_are_fused_and_equal_a_loop(name: str, sizes: Sizes) -> None:
    torch.manual_seed(0)
    given = spelled(name)(sizes)
    decision = check(given)
    assert decision.strategy == "sequential", decision.reason
    check_inference(given)


@pytest.mark.parametrize("make", [*MATRICES, *FOLDS])
def test_second_derivatives_are_pytorchs(make: Make) -> None:
    torch.manual_seed(0)
    cell, carry, xs, parameters = make(Sizes(2, 2, 3, 2))
    inputs = [t for t in pytree.tree_leaves((carry, xs, parameters)) if t.requires_grad]

    def second(scan: object) -> list[torch.Tensor]:
        loss = sum((y * y).sum() for y in pytree.tree_leaves(scan(cell, carry, xs)))  # type: ignore[operator]
        first = torch.autograd.grad(loss, inputs, create_graph=True)
        return list(torch.autograd.grad(sum((g * g).sum() for g in first), inputs))

    same(second(bppsa.scan), second(loop), 1e-9)


@pytest.mark.parametrize("make", [gated_linear_attention, delta, heads_by_einsum])
@pytest.mark.parametrize("strategy", [strategies.chunked(2), strategies.blelloch()], ids=str)
def test_scans_over_jacobians_of_matrices(make: Make, strategy: Strategy) -> None:
    given = make(Sizes(2, 2, 3, 2))
    expected = results(loop, given)
    got = results(lambda *args, **how: bppsa.scan(*args, strategy=strategy, **how), given)
    same(got[0], expected[0])
    same(got[1], expected[1])


def test_a_matrix_is_read_within_the_loop() -> None:
    """A tail would read the matrices of all steps."""
    cell, carry, xs, _ = retnet(Sizes(2, 3, 4, 5))
    leaves, spec = pytree.tree_flatten(xs)
    plan = find(cell, [carry], pytree.tree_structure(carry), leaves, spec)
    assert plan[0].recurrence.tail is None  # type: ignore[index]
    assert plan[0].recurrence.outputs == (15,)  # type: ignore[index]


def test_a_gpu_has_kernels_of_several_axes_up_to_a_size() -> None:
    for width, holds in ((16, True), (256, False)):
        cell, carry, xs, _ = retnet(Sizes(1, 1, width, width))
        leaves, spec = pytree.tree_flatten(xs)
        found = find(cell, [carry], pytree.tree_structure(carry), leaves, spec)
        assert isinstance(found, tuple)
        plan, on_cpu = found[0], leaves[0]
        assert without_kernel(plan, on_cpu) is None
        reason = without_kernel(plan, FakeOnGpu())  # type: ignore[arg-type]
        assert (reason is None) == holds
        assert reason is None or "65536 numbers" in reason.what


class FakeOnGpu:
    device = torch.device("cuda")


def test_values_of_one_axis_are_printed_as_ever() -> None:
    """Nothing of several axes is in their kernels, nor in their texts."""
    recurrence = split_cell(make_example(lstm))
    program = build(recurrence, jacobian.transpose(recurrence))
    for kernel in (program.forward, program.inference, program.backward):
        assert not any(group.shape for group in kernel.groups)
        assert "gather<V>(" not in source(kernel, "float")

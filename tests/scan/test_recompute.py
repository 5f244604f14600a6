"""A forward that keeps every k-th state, and a backward that computes the others again: as a plain loop has it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import bppsa
from bppsa.codegen.cpu.build import available
from bppsa.frontend.call_log import collecting
from bppsa.frontend.cell import fused_cell, plans, scan_call
from bppsa.frontend.planning import predict
from bppsa.frontend.planning.sweeps import compile_recurrence
from bppsa.plan.strategy import Strategy
from bppsa.plan.work import PYTORCH, Counts, Size, phases
from bppsa.runtime.recurrent.recompute import Recomputing
from bppsa.runtime.recurrent.reference import loop
from tests.breadth import diagonal
from tests.scan.folds import mlstm
from tests.scan.matrices import Make, Sizes, delta, gated_delta_by_einsum, gated_linear_attention, mamba, rwkv7
from tests.scan.support import check, leaves, results, same, weighted
from tests.scan.zoo import B, Example, H, T, example, h, hoisted, joined, lstm, make, random, resets, tail, x

SMALL = Sizes(2, 2, 3, 4)


@pytest.fixture(autouse=True)
def between(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Sets the steps between two kept states, of T = 5."""

    def set_steps(length: int) -> None:
        predict.choose_scan.cache_clear()
        monkeypatch.setattr(predict, "steps_between", lambda *_: length)

    set_steps(2)
    yield set_steps
    predict.choose_scan.cache_clear()


def counted(exposed: bool) -> Callable[[], Example]:
    """A matrix, a counter and a truth value are carried; the matrix is an output or is not."""

    def made() -> Example:
        def cell(carry: Any, x: Tensor) -> tuple[Any, Any]:
            S, n, up = carry
            S = (
                torch.where(up[:, None, None], 0.5 * S, S)
                + torch.tanh(x.unsqueeze(-1) * x.unsqueeze(-2)) / (n + 2)[:, None, None]
            )
            carry = S, n + up, S.sum((1, 2)) > 0
            return carry, S if exposed else S.amax(-1)

        carry = random(B, 3, 3), torch.arange(B), torch.tensor([True, False, True])
        return example(cell, carry, random(T, B, 3))

    return made


def noisy() -> Example:
    """Draws are x's: made for all steps before."""
    w = random(H, H)

    def cell(h: Tensor, x: Any) -> tuple[Tensor, Tensor]:
        kept, noise = x
        h = torch.where(kept > 0, torch.tanh(h @ w + noise), h)
        return h, h * h

    return example(cell, h(), ((torch.rand(T, B, 1) > 0.3).double(), torch.randn(T, B, H).double()), w)


VECTORS = (lstm, joined, resets, tail, hoisted, noisy, counted(True), counted(False))
MATRICES: tuple[Make, ...] = (gated_linear_attention, delta, gated_delta_by_einsum, mamba, rwkv7, mlstm)


@pytest.mark.parametrize(("case", "length"), diagonal(VECTORS, [1, 2, 3, 5, 9]))
def test_equals_a_loop(case: Callable[[], Example], length: int, between: Callable[[int], None]) -> None:
    between(length)
    for reverse in (False, True):
        assert check(make(case), reverse=reverse).numbers["states kept"] == f"every {length}th"


@pytest.mark.parametrize(("case", "length"), diagonal(MATRICES, [1, 2, 3]))
def test_matrices_equal_a_loop(case: Make, length: int, between: Callable[[int], None]) -> None:
    between(length)
    torch.manual_seed(0)
    for reverse in (False, True):
        check(case(SMALL), reverse=reverse)


@pytest.mark.skipif(available() is not None, reason="needs a C++ compiler")
@pytest.mark.parametrize("threads", [1, 2])
def test_built_kernels_equal_a_loop(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells that test_native.py builds too."""
    for module in (fused_cell, scan_call, plans):
        monkeypatch.setattr(module, "compile_recurrence", compile_recurrence)
    monkeypatch.setattr(plans._plans.kept, "known", OrderedDict())
    monkeypatch.setattr("bppsa.codegen.cpu.native.LEAST_NS", 1)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for reverse in (False, True):
            for given in (gated_delta_by_einsum(Sizes(3, 2, 17, 8)), mamba(Sizes(1, 4, 3, 33)), make(lstm)):
                assert check(given, reverse=reverse).numbers["states kept"] == "every 2th"
    finally:
        torch.set_num_threads(before)


def test_the_states_of_most_steps_are_not_kept() -> None:
    """Bytes of what autograd saves, beside those of the loop and of what is given."""
    given = gated_linear_attention(SMALL)

    def kept(scan: Callable[..., Any]) -> int:
        storages: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            outputs = leaves(scan(*given[:3]))
        assert outputs
        return sum(storages.values())

    state, inputs = (sum(t.untyped_storage().nbytes() for t in leaves(tree)) for tree in given[1:3])
    assert kept(bppsa.scan) <= -(-T // 2) * state + state + 2 * inputs
    assert kept(loop) > T * state


def test_a_backward_may_be_run_twice() -> None:
    given = gated_linear_attention(SMALL)
    loss = weighted(leaves(bppsa.scan(*given[:3])))
    inputs = leaves(given.carry, given.xs)
    same(torch.autograd.grad(loss, inputs, retain_graph=True), torch.autograd.grad(loss, inputs), 0.0)


@pytest.mark.parametrize("exposed", [True, False])
def test_outputs_may_be_changed(exposed: bool) -> None:
    given = make(counted(exposed))
    (S, *_), ys = bppsa.scan(*given[:3])
    loss = weighted([S, ys])
    with torch.no_grad():
        ys.zero_()
        S.fill_(7.0)
    (last, *_), expected = loop(*given[:3])
    inputs = leaves(given.carry[0], given.xs)
    same(torch.autograd.grad(loss, inputs), torch.autograd.grad(weighted([last, expected]), inputs))


def test_inputs_may_not_be_changed() -> None:
    given = gated_linear_attention(SMALL)
    loss = weighted(leaves(bppsa.scan(*given[:3])))
    with torch.no_grad():
        leaves(given.xs)[1].add_(1)
    with pytest.raises(RuntimeError, match="inplace"):
        loss.backward()


def test_second_derivatives_are_pytorchs() -> None:
    cell, carry, xs, _ = delta(SMALL)
    inputs = leaves(carry, xs)

    def second(scan: Any) -> list[Tensor]:
        loss = sum((y * y).sum() for y in leaves(scan(cell, carry, xs)))
        first = torch.autograd.grad(loss, inputs, create_graph=True)
        return list(torch.autograd.grad(sum((g * g).sum() for g in first), inputs))

    same(second(bppsa.scan), second(loop), 1e-9)


def test_transforms_are_pytorchs() -> None:
    cell, carry, xs, _ = gated_linear_attention(SMALL)

    def loss(scan: Any) -> Callable[..., Tensor]:
        return lambda carry, xs: weighted(leaves(scan(cell, carry, xs)))

    found, expected = (torch.func.grad(loss(scan), argnums=(0, 1))(carry, xs) for scan in (bppsa.scan, loop))
    same(*map(pytree.tree_leaves, (found, expected)))


def test_only_some_gradients_are_asked_for() -> None:
    cell, carry, (q, k, v, a), _ = gated_linear_attention(SMALL)
    carry, k = carry.detach(), k.detach()
    found = [
        torch.autograd.grad(weighted(leaves(scan(cell, carry, (q, k, v, a))[0])), [v, a]) for scan in (bppsa.scan, loop)
    ]
    same(*found)


@pytest.mark.parametrize(("strategy", "again"), [("chunked(length=2)", False), ("sequential", True)])
def test_other_strategies_keep_all(strategy: str, again: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """And say so."""
    ran = []
    backward = Recomputing.backward
    monkeypatch.setattr(Recomputing, "backward", lambda *args: ran.append(args) or backward(*args))
    given = gated_linear_attention(SMALL)
    expected = results(loop, given)
    with collecting() as taken:
        got = results(lambda *args, **how: bppsa.scan(*args, strategy=strategy, **how), given)
    same(got[0], expected[0])
    same(got[1], expected[1])
    assert bool(ran) == again
    assert ("states kept" in taken[-1].numbers) == again


def test_a_compiled_loop_tells_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []
    forward = Recomputing.forward
    monkeypatch.setattr(Recomputing, "forward", lambda *args: ran.append(args) or forward(*args))

    class Loop(torch.nn.Module):
        def forward(self, xs: Tensor) -> Tensor:
            h = xs[0]
            for given in xs:
                h = torch.tanh(h * given)
            return h

    model = bppsa.compile(Loop(), strategy="sequential")
    xs = torch.randn(12, B, H, requires_grad=True)
    for _ in range(2):
        model(xs).sum().backward()
    assert ran
    assert model.report.decisions[-1].numbers["states kept"] == "every 2th"


def test_batches_of_the_width_of_a_vector() -> None:
    """Rows that multiply their weights themselves, of which a thread takes all at once."""
    w = random(H, H)
    given = example(lambda h, x: (torch.tanh(h @ w + x),) * 2, random(9, H), random(T, 9, H), w)
    check(given)
    check(example(given.cell, random(9, H), x(H)[:, :1].expand(T, 9, H), w))


def test_predictions_know_that_states_stay_in_a_cache(between: Callable[[int], None]) -> None:
    """What one sweep moves; PyTorch's loop moves as much as ever, and so do scans."""
    given = gated_linear_attention(Sizes(2, 2, 16, 16))
    xs, spec = pytree.tree_flatten(given.xs)
    found = plans.find(given.cell, [given.carry], pytree.tree_structure(given.carry), xs, spec)
    assert isinstance(found, tuple)
    recurrence, size = found[0].recurrence, Size(200, 8)
    kept, again = (
        predict.counts_of(recurrence, torch.float64, False, "cpu", "loop", recomputed=recomputed)
        for recomputed in (False, True)
    )

    def moved(strategy: Strategy | str, counts: Counts) -> float:
        return sum(work.bytes for _, work in phases(strategy, counts, size, training=True))

    assert 3 * moved(Strategy("sequential"), again) < moved(Strategy("sequential"), kept)
    for other in (PYTORCH, Strategy("chunked")):
        assert moved(other, again) == moved(other, kept)

"""bppsa.scan against a plain loop: cells of the zoo, containers, directions, sizes, gradients asked for."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bppsa
from bppsa.frontend.call_log import collecting
from bppsa.frontend.cell import plans
from bppsa.runtime.recurrent.reference import loop
from tests.scan.support import check, check_inference, close, leaves, results, same
from tests.scan.zoo import CASES, B, Example, H, I, T, example, gru, h, make, random, resets, vanilla, x

Pair = namedtuple("Pair", "a b")


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_equals_a_loop(case: Callable[[], Example], reverse: bool) -> None:
    assert check(make(case), reverse=reverse).strategy == "sequential"
    check_inference(make(case), reverse=reverse)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("steps", "rows"), [(1, 3), (5, 1), (1, 1)])
def test_one_step_and_one_row(case: Callable[[], Example], steps: int, rows: int) -> None:
    cell, carry, xs, parameters = make(case)
    carry = torch.utils._pytree.tree_map(lambda c: c[:rows], carry)
    xs = torch.utils._pytree.tree_map(lambda x: x[:steps, :rows], xs)
    assert check(Example(cell, carry, xs, parameters)).strategy == "sequential"


CONTAINERS: dict[str, Callable[[Tensor, Tensor, Tensor], Example]] = {
    "namedtuple": lambda a, b, x: example(lambda s, x: (Pair(s.b + x, s.a * x), Pair(s.b, (s.a,))), Pair(a, b), x),
    "nested": lambda a, b, x: example(
        lambda s, x: ([torch.tanh(s[0] + x["p"][0]), {"k": s[1]["k"] * s[0]}], {"o": [s[0], s[1]["k"][:, 1:3]]}),
        [a, {"k": b}],
        {"p": (x,)},
    ),
    "no output": lambda a, b, x: example(lambda s, x: (torch.tanh(s + x), ()), a, x),
    "one tensor, many places": lambda a, b, x: example(
        lambda s, x: (lambda n: ((n, n, s[0]), (n, n, s[1])))(torch.tanh(s[0] + s[1] * x)), (a, a, b), x
    ),
    "xs twice": lambda a, b, x: example(lambda s, x: (s * x[0] + x[1], x[0]), a, (x, x)),
    "carry is x": lambda a, b, x: example(lambda s, x: (x, s), a, x),
    "carry stays": lambda a, b, x: example(lambda s, x: (s, s + x), a, x),
    "carry ends": lambda a, b, x: example(lambda s, x: ((torch.zeros_like(s[0]), s[0] + x), s), (a, b), x),
    "no columns": lambda a, b, x: example(
        lambda s, x: (0.9 * s + x, s * s), a[:, 0], x[..., 0:1].expand(T, B, H)[..., 1]
    ),
    "one column": lambda a, b, x: example(lambda s, x: (torch.tanh(s * x[:, :1]), s), a[:, :1], x),
    "x of rows": lambda a, b, x: example(lambda s, x: (torch.tanh(s * x.unsqueeze(1)), s), a, x[..., 0]),
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_containers_and_aliases(name: str) -> None:
    torch.manual_seed(0)
    given = CONTAINERS[name](h(), h(), x(H))
    check(given)
    check_inference(given)


def test_a_carry_that_another_reads_after_the_step() -> None:
    """Without gradients it has no history: what a later part of the step needs of it is not what the last step left."""
    u = random(H, H)

    def cell(s: tuple[Tensor, Tensor], x: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
        new = torch.tanh(s[0] @ u + x)
        other = new * new.sum(1, keepdim=True)
        return (new, other), other

    given = example(cell, (h(), h()), x(H), u)
    check(given)
    check_inference(given)


@pytest.mark.parametrize("case", CASES)
def test_inputs_stay_as_they_were(case: Callable[[], Example]) -> None:
    given = make(case)
    tensors = [*leaves(given.carry, given.xs), *given.parameters]
    before = [(tensor.detach().clone(), tensor._version) for tensor in tensors]
    results(bppsa.scan, given)
    with torch.no_grad():
        bppsa.scan(*given[:3])
    assert all(
        torch.equal(t, value) and t._version == version for t, (value, version) in zip(tensors, before, strict=True)
    )


def test_strides_do_not_matter() -> None:
    u = random(H, H)
    strange = example(
        lambda h, x: (torch.tanh(h @ u.t() + x),) * 2, random(H, B).t(), random(B, H, T).permute(2, 0, 1), u
    )
    assert check(strange).strategy == "sequential"
    repeated = example(lambda h, x: (torch.tanh(h @ u + x),) * 2, h(), random(1, 1, H).expand(T, B, H), u)
    assert check(repeated).strategy == "sequential"


def test_a_tensor_may_be_carry_and_parameter_and_x() -> None:
    u = random(B, H)
    check(example(lambda h, x: (torch.tanh(h * x + u[0]), h), u, torch.stack([u] * T), u))


@pytest.mark.parametrize("wanted", [0, 1, 2])
def test_only_the_gradients_asked_for(wanted: int) -> None:
    """Of carry, xs and parameters one needs gradients."""
    cell, carry, xs, parameters = make(vanilla)
    for i, tensor in enumerate((carry, xs, *parameters)):
        tensor.requires_grad_(min(i, 2) == wanted)
    check(Example(cell, carry, xs, parameters))


def test_without_gradients_nothing_is_kept() -> None:
    cell, carry, xs, _ = make(gru)
    expected = leaves(loop(cell, carry, xs))
    with torch.no_grad():
        got = leaves(bppsa.scan(cell, carry, xs))
    assert not any(t.requires_grad for t in got)
    same(got, [t.detach() for t in expected])
    with torch.inference_mode():
        same(leaves(bppsa.scan(cell, carry, xs)), [t.detach() for t in expected])


def test_views_of_parameters_in_inference_mode() -> None:
    """As a first call, before training, and with what has a gradient otherwise recorded."""
    weights, bilinear = torch.randn(2, H, H, dtype=torch.float64, requires_grad=True), nn.Bilinear(H, H, H).double()

    def cell(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(h @ weights[0] + x @ weights[1].t() + bilinear(h, x))
        return h, h

    carry, xs = torch.randn(2, H, dtype=torch.float64), torch.randn(T, 2, H, dtype=torch.float64)
    expected = loop(cell, carry, xs)
    for mode in (torch.inference_mode, torch.no_grad, torch.enable_grad):
        with mode():
            (decision,) = bppsa.explain(lambda: same(leaves(bppsa.scan(cell, carry, xs)), leaves(expected))).decisions
        assert decision.strategy == "sequential"


def test_tensors_made_in_inference_mode() -> None:
    with torch.inference_mode():
        weight, carry, xs = random(H, H, grad=False), random(B, H, grad=False), random(T, B, H, grad=False)

    def cell(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.tanh(h @ weight + x), h

    same(leaves(bppsa.scan(cell, carry, xs)), leaves(loop(cell, carry, xs)))


@pytest.mark.parametrize("case", CASES)
def test_gradients_of_gradients(case: Callable[[], Example]) -> None:
    given = make(case)

    def second(scan: Any) -> list[Tensor | None]:
        wanted = [t for t in (*leaves(given.carry, given.xs), *given.parameters) if t.requires_grad]
        outputs = leaves(scan(given.cell, given.carry, given.xs))
        first = torch.autograd.grad(sum(o.pow(2).sum() for o in outputs), wanted, create_graph=True, allow_unused=True)
        loss = sum(g.pow(2).sum() for g in first if g is not None)
        return list(torch.autograd.grad(loss, wanted, allow_unused=True))

    same(second(bppsa.scan), second(loop), 1e-9)


def test_gradcheck() -> None:
    def run(h: Tensor, x: Tensor, u: Tensor) -> Any:
        carry, ys = bppsa.scan(lambda h, x: (torch.tanh(h @ u + x), (h, torch.sigmoid(h) * x)), h, x)
        return carry, *ys

    inputs = random(2, 3), random(3, 2, 3), random(3, 3)
    assert torch.autograd.gradcheck(run, inputs)
    assert torch.autograd.gradgradcheck(run, inputs)


def test_outputs_may_be_changed_in_place() -> None:
    """PyTorch raises here, as it saves the very tensor; ours must be right or raise, and is right."""
    u, carry, xs = random(H, H), h(), x(H)

    def run(scan: Any, own: Callable[[Tensor], Tensor]) -> list[Tensor]:
        last, ys = scan(lambda h, x: (torch.tanh(h @ u + x),) * 2, carry, xs)
        last, ys = own(last), own(ys)
        before = ys * 2
        ys.mul_(3)
        last.add_(1)
        return list(torch.autograd.grad(ys.sum() + before.pow(2).sum() + last.pow(2).sum(), [carry, xs, u]))

    same(run(bppsa.scan, lambda t: t), run(loop, torch.clone))


@pytest.mark.parametrize("which", [0, 1, 2])
def test_inputs_changed_before_backward_are_noticed(which: int) -> None:
    cell, carry, xs, parameters = make(vanilla)
    loss = bppsa.scan(cell, carry, xs)[1].sum()
    with torch.no_grad():
        (xs, parameters[0], parameters[1])[which].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_backward_twice() -> None:
    cell, carry, xs, parameters = make(gru)
    ys = bppsa.scan(cell, carry, xs)[1]
    first = torch.autograd.grad(ys.sum(), parameters, retain_graph=True)
    same(torch.autograd.grad(ys.sum(), parameters), first, 0)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(ys.sum(), parameters)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("cells", ["ResetGRU", "ResetLSTM"])
def test_resets_hold_back_what_is_not_finite(cells: str, value: float) -> None:
    """Values after the reset, and gradients of what comes after it and of other rows."""
    torch.manual_seed(0)
    cell = getattr(bppsa.cells, cells)(I, H).double()
    reset = torch.zeros(T, B, dtype=torch.bool)
    reset[2] = True
    poisoned = random(T, B, I, grad=False)
    poisoned[1, 0, 0] = value
    poisoned.requires_grad_()
    check(Example(cell, cell.initial(B), (poisoned, reset), list(cell.parameters())))
    last, ys = bppsa.scan(cell, cell.initial(B), (poisoned, reset))
    assert ys[2:].isfinite().all()
    assert all(leaf.isfinite().all() for leaf in leaves(last))
    assert ys[1, 1:].isfinite().all()
    (gradient,) = torch.autograd.grad(ys[3].sum(), poisoned)
    assert gradient[2:].isfinite().all()
    assert not gradient[:2, 1:].any(), "no gradient crosses a reset"


@pytest.mark.parametrize("cells", ["ResetGRU", "ResetLSTM"])
def test_resets_hold_back_gradients_that_are_not_finite(cells: str) -> None:
    """From a NaN after the reset, back to steps before it."""
    torch.manual_seed(0)
    cell = getattr(bppsa.cells, cells)(I, H).double()
    reset = torch.zeros(T, B, dtype=torch.bool)
    reset[2] = True
    poisoned = random(T, B, I, grad=False)
    poisoned[3, 0, 0] = torch.nan
    poisoned.requires_grad_()
    check(Example(cell, cell.initial(B), (poisoned, reset), list(cell.parameters())))
    _, ys = bppsa.scan(cell, cell.initial(B), (poisoned, reset))
    (gradient,) = torch.autograd.grad(ys.sum(), poisoned)
    assert gradient[2, 0].isnan().any()
    assert gradient[:2].isfinite().all()
    assert gradient[:2].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lower_precision(dtype: torch.dtype) -> None:
    """At most twice the loop's own error against float64."""
    torch.manual_seed(0)
    _, carry, xs, _ = make(gru)
    module = nn.GRUCell(I, H).double()
    exact = results(loop, example(lambda h, x: (module(x, h),) * 2, carry, xs, modules=(module,)))
    low = module.to(dtype)
    given = example(
        lambda h, x: (low(x, h),) * 2,
        carry.detach().to(dtype).requires_grad_(),
        xs.detach().to(dtype).requires_grad_(),
        modules=(low,),
    )
    with collecting() as taken:
        ours = results(bppsa.scan, given)
    theirs = results(loop, given)
    assert taken[0].strategy == ("sequential" if dtype is torch.float32 else "pytorch")
    for got, other, true in zip(*map(leaves, (ours, theirs, exact)), strict=True):
        assert got.dtype == dtype
        ulp = torch.finfo(dtype).eps * true.norm()
        assert (got.double() - true).norm() <= max(2 * (other.double() - true).norm(), 4 * ulp)


def test_many_steps() -> None:
    module = nn.RNNCell(2, 3).double()
    long = example(lambda h, x: (module(x, h),) * 2, random(2, 3), random(300, 2, 2), modules=(module,))
    assert check(long).numbers["T"] == 300


def test_one_recording_serves_all_lengths() -> None:
    cell, carry, xs, parameters = make(resets)
    for steps in (1, 2, T):
        check(Example(cell, carry, tuple(leaf[:steps] for leaf in xs), parameters))
    assert len(plans._plans) == 1


def test_threads_share_a_cell() -> None:
    from concurrent.futures import ThreadPoolExecutor

    given = make(gru)
    expected = leaves(loop(*given[:3]))
    with ThreadPoolExecutor(8) as pool:
        for got in pool.map(lambda _: leaves(bppsa.scan(*given[:3])), range(32)):
            for ours, theirs in zip(got, expected, strict=True):
                close(ours.detach(), theirs.detach(), 1e-10)

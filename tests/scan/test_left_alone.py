"""Cells that are not fused run by the loop, with its numbers, and the decision names the op; transforms go PyTorch's
way."""

from __future__ import annotations

import itertools
import random as random_numbers
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional

import bppsa
from bppsa.frontend.call_log import collecting
from bppsa.frontend.cell import plans
from bppsa.runtime.recurrent.reference import loop
from tests.scan.support import check, close, leaves, same
from tests.scan.zoo import B, H, I, T, example, gru, h, make, random, vanilla, x

Cell = Callable[[Any, Any], tuple[Any, Any]]


def hooked(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    h = torch.tanh(h + x)
    if torch.is_grad_enabled():
        h.register_hook(lambda g: g.clamp(-0.1, 0.1))
    return h, h


def by_its_gradient(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """The first carry may have none, the others do."""
    return torch.tanh((h * 2 if h.requires_grad else h) + x), h


def with_a_backward(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """It adds to the gradients that others have left in their tensors."""
    with torch.enable_grad():
        at = h.detach().requires_grad_()
        (at * x.detach()).tanh().sum().backward()
    assert at.grad is not None
    return torch.tanh(h + at.grad + x), h


def branching(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    return (h + x if x.sum() > 0 else h - x), h


def by_numpy(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    return h + torch.from_numpy(x.detach().numpy()), h


def by_data(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.tanh(h.data + x), h


def plain(f: Callable[[Tensor, Tensor], Tensor]) -> Cell:
    def cell(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(f(h, x))
        return h, h

    return cell


def by_pythons_numbers(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.tanh(h + x * random_numbers.random()), h


def by_numpys_numbers(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.tanh(h + x * numpy.random.rand()), h


class Draws(nn.Module):
    """Of a generator and an iterator of its own."""

    def __init__(self, name: str) -> None:
        super().__init__()
        generator = numpy.random.default_rng(0)
        self.draw = {
            "generator": generator.normal,
            "state": lambda: generator.normal(),
            "count": itertools.count().__next__,
            "next": lambda: next(self.numbers),
            "python": random_numbers.Random(0).gauss,
        }[name]
        self.numbers = iter(range(1000))

    def forward(self, h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.tanh(h + x * float(self.draw())), h


class Keeps(nn.Module):
    """What a cell leaves in its module, the next step finds."""

    def __init__(self) -> None:
        super().__init__()
        self.before = torch.zeros(B, H, dtype=torch.float64)
        self.log: list[Tensor] = []
        self.table: dict[str, Tensor] = {}

    def forward(self, h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(h + x + self.before)
        self.before = h.detach() / 2
        self.log.append(self.before)
        self.table["last"] = self.before
        return h, h


EYE = torch.eye(H, dtype=torch.float64)
SINGLE = torch.ones(H)
# what the decision must name, and a cell
LEFT: list[tuple[str, Cell]] = [
    ("register_hook", hooked),
    ("requires_grad", by_its_gradient),
    ("backward: changes what autograd does", with_a_backward),
    ("_local_scalar_dense.default: reads the value", branching),
    ("numpy: hands a tensor's values to Python", by_numpy),
    ("changes what autograd does", by_data),
    ("aten.mm.default: meets [3, 6] and [6, 3] across the batch", plain(lambda h, x: h @ h.t() @ h + x)),
    (
        "sum.default: works along the batch dimension; name the dimensions of one row",
        plain(lambda h, x: h - h.sum() + x),
    ),
    ("sum.dim_IntList: works along the batch", plain(lambda h, x: h - h.mean(0) + x)),
    ("aten.median.default: works along the batch", plain(lambda h, x: h * torch.median(h) + x)),
    ("aten.flip.default: works along the batch", plain(lambda h, x: h.flip(0) + x)),
    ("aten.igamma.default: has no kernel", plain(lambda h, x: torch.igamma(torch.ones_like(h), h * h) + x)),
    ("torch.float32 in a cell of torch.float64", plain(lambda h, x: (h.float() * SINGLE).double() + x)),
    ("aten.add.Tensor: adds truth values", plain(lambda h, x: h + x * ((x > 0) + (h > 0)))),
    ("layout torch.sparse_coo", plain(lambda h, x: torch.sparse.mm(EYE.to_sparse(), h.t()).t() + x)),
    ("depends on neither carry nor x", lambda h, x: (EYE[:B] * 2, h + x)),
]


@pytest.mark.parametrize(("reason", "cell"), LEFT, ids=[reason for reason, _ in LEFT])
def test_what_cannot_be_fused_runs_by_the_loop(reason: str, cell: Cell) -> None:
    torch.manual_seed(0)
    decision = check(example(cell, h(), x(H)), tolerance=1e-12)
    assert decision.strategy == "pytorch"
    assert reason in decision.reason


@pytest.mark.parametrize("f", [torch.rand_like, lambda t: torch.rand(H, dtype=t.dtype), functional.dropout])
def test_random_numbers_are_drawn_as_by_the_loop(f: Callable[[Tensor], Tensor]) -> None:
    cell, carry, xs = plain(lambda h, x: h * f(x) + x), h(), x(H)
    torch.manual_seed(1)
    with collecting() as taken:
        got = leaves(bppsa.scan(cell, carry, xs))
    torch.manual_seed(1)
    same(got, leaves(loop(cell, carry, xs)), 0)
    assert "write the loop in Python and bppsa.compile it" in taken[-1].reason
    assert "eval()" not in taken[-1].reason


CARRIES: dict[str, tuple[str, Any, Any, Cell]] = {
    "no batch": ("without a batch dimension", random(), x(H), lambda s, x: (s + x.sum(), s)),
    "batches": ("batch sizes [1, 3]", random(B, H), random(T, 1, H), lambda s, x: (s + x, s)),
    "no rows": ("batch sizes [0]", random(0, H), random(T, 0, H), lambda s, x: (s + x, s)),
    "meta": ("device", torch.empty(B, H, device="meta"), torch.empty(T, B, H, device="meta"), lambda s, x: (s + x, s)),
}


@pytest.mark.parametrize("name", CARRIES)
def test_unusual_tensors(name: str) -> None:
    reason, carry, xs, cell = CARRIES[name]
    with collecting() as taken:
        got = leaves(bppsa.scan(cell, carry, xs))
    assert reason in taken[0].reason
    for ours, theirs in zip(got, leaves(loop(cell, carry, xs)), strict=True):
        assert (ours.shape, ours.dtype, ours.device) == (theirs.shape, theirs.dtype, theirs.device)
        assert ours.is_meta or torch.equal(ours, theirs)


TRANSFORMS: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor], Tensor]] = {
    "grad": lambda f, x: torch.func.grad(lambda x: f(x).sum())(x),
    "vjp": lambda f, x: torch.func.vjp(f, x)[1](torch.ones_like(f(x)))[0],
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (x.cos(),))[1],
    "jacrev": lambda f, x: torch.func.jacrev(f)(x),
    "jacfwd": lambda f, x: torch.func.jacfwd(f)(x),
    "vmap": lambda f, x: torch.vmap(f)(torch.stack([x, 2 * x])),
    "hessian": lambda f, x: torch.func.hessian(lambda x: f(x).sum())(x),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms(name: str) -> None:
    cell, carry, xs, _ = make(vanilla)
    transform, few = TRANSFORMS[name], xs.detach()[:2]
    run = [transform(lambda x, scan=scan: scan(cell, carry, x)[1], few) for scan in (bppsa.scan, loop)]
    assert run[0].any()
    torch.testing.assert_close(*run, rtol=0, atol=0)


def test_forward_mode() -> None:
    cell, carry, xs, _ = make(gru)

    def tangent(scan: Any) -> Tensor:
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(scan(cell, carry, forward_ad.make_dual(xs.detach(), xs.cos()))[1]).tangent

    assert torch.equal(tangent(bppsa.scan), tangent(loop))


def test_autocast() -> None:
    module = nn.RNNCell(I, H)
    given = random(B, H, dtype=torch.float32), random(T, B, I, dtype=torch.float32)

    def cell(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        h = module(x, h).float()
        return h, h

    with torch.autocast("cpu", dtype=torch.bfloat16):
        with collecting() as taken:
            got = bppsa.scan(cell, *given)[1]
        close(got, loop(cell, *given)[1], 0)
    assert "autocast" in taken[0].reason


def test_a_scan_within_a_cell() -> None:
    def cell(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        h, inner = bppsa.scan(lambda a, b: (torch.tanh(a + b), a), h, torch.stack([x, 2 * x]))
        return h, inner[1]

    torch.manual_seed(0)
    assert check(example(cell, h(), x(H))).strategy == "sequential"


OF_SEVERAL: dict[str, Callable[[Tensor], Tensor]] = {
    "mode": lambda h: h * h.mode(-1, keepdim=True).values,
    "frexp": lambda h: h / (1 + torch.frexp(h).mantissa),
}


@pytest.mark.parametrize("name", OF_SEVERAL)
def test_ops_that_give_several_tensors(name: str) -> None:
    """The cell runs op by op, and a strategy that was asked for is missed aloud."""
    weight, op = random(H, H), OF_SEVERAL[name]
    given = example(lambda h, x: (op(torch.tanh(h @ weight + x)),) * 2, h(), x(H), weight)
    assert check(given).strategy == "pytorch"
    with pytest.warns(RuntimeWarning, match="without the strategy blelloch"):
        bppsa.scan(given.cell, given.carry, given.xs, strategy="blelloch")


def test_a_fault_of_a_pass_is_told_and_the_loop_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: object) -> None:
        raise KeyError("a mistake")

    monkeypatch.setattr(plans, "split_by_heads", fails)
    with pytest.warns(RuntimeWarning, match="fails to plan it: KeyError"):
        decision = check(make(vanilla), tolerance=0)
    assert "please report" in decision.reason


@pytest.mark.parametrize("cell", [by_pythons_numbers, by_numpys_numbers])
def test_numbers_of_python_and_numpy_are_drawn_in_each_step(cell: Cell) -> None:
    carry, xs = h(), x(H)

    def ran(scan: Any) -> list[Tensor]:
        random_numbers.seed(0)
        numpy.random.seed(0)
        return leaves(scan(cell, carry, xs))

    same(ran(bppsa.scan), ran(loop), 0)


@pytest.mark.parametrize("name", ["generator", "state", "count", "next", "python"])
def test_what_goes_on_from_step_to_step_goes_on(name: str) -> None:
    carry, xs = h(), x(H)
    with collecting() as taken:
        got = leaves(bppsa.scan(Draws(name), carry, xs))
    same(got, leaves(loop(Draws(name), carry, xs)), 0)
    assert "goes on from step to step" in taken[-1].reason


def test_numbers_of_the_system_are_drawn_in_each_step() -> None:
    draw = random_numbers.SystemRandom().random
    with collecting() as taken:
        bppsa.scan(lambda h, x: (torch.tanh(h + x * draw()), h), h(), x(H))
    assert "goes on from step to step" in taken[-1].reason


def test_a_generator_that_a_cell_only_holds_is_no_obstacle() -> None:
    generator, scale = numpy.random.default_rng(0), [0.5]

    def cell(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.tanh(h + x * (scale[0] if scale else generator.normal())), h

    assert check(example(cell, h(), x(H))).strategy == "sequential"


def test_what_a_cell_keeps_is_there_after_each_step() -> None:
    ours, plain, carry = Keeps(), Keeps(), h()
    for _ in range(2):
        xs = x(H)
        with collecting() as taken:
            got = leaves(bppsa.scan(ours, carry, xs))
        same(got, leaves(loop(plain, carry, xs)), 0)
        assert "keeps a tensor in an attribute, a list or a dict" in taken[-1].reason
        same([*ours.log, ours.before, ours.table["last"]], [*plain.log, plain.before, plain.table["last"]], 0)


class KeepsAndReads(Keeps):
    def forward(self, h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        h, y = super().forward(h * random_numbers.random(), x)
        return (h if bool(x.sum() > 0) else -h), y


def test_a_recording_that_is_refused_leaves_nothing() -> None:
    ours, plain, carry, xs = KeepsAndReads(), KeepsAndReads(), h(), x(H)
    random_numbers.seed(0)
    got = leaves(bppsa.scan(ours, carry, xs))
    random_numbers.seed(0)
    same(got, leaves(loop(plain, carry, xs)), 0)
    same(ours.log, plain.log, 0)

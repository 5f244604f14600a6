"""Cells that change tensors in place, through views of each other: as the loop has it, values and all gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils import _pytree as pytree

import bppsa
from bppsa.decisions import Decision
from bppsa.frontend.call_log import collecting
from bppsa.runtime.recurrent.reference import loop
from tests.breadth import examples
from tests.scan.support import check, leaves, results, same
from tests.scan.zoo import Example, h, random, x

WIDTH = 6
SCALE = random(WIDTH)


def cell_of(fn: Callable[[Tensor, Tensor], tuple[Tensor, ...]]) -> Callable[[Tensor, Tensor], Any]:
    """Carries on what the function made of carry and x."""

    def cell(carry: Tensor, x: Tensor) -> tuple[Tensor, Any]:
        made = fn(carry, x)
        return torch.tanh(made[0] + 0.5 * carry), tuple(value + 0.0 for value in made)

    return cell


def through_a_view(h: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    g = x * h
    g.sigmoid_()
    g[:, :2].mul_(3)
    return g, g


def read_through_a_view(h: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    g = x * h
    g.sigmoid_()
    left = g[:, :3]
    g.mul_(2)
    return g, left


def assigned(h: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    g = x * h
    g[:, 0] = h[:, 1]
    return (g,)


def of_chunks(h: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    g = x * h
    a, b = g.unsafe_chunk(2, 1)
    a.tanh_()
    b += a
    return torch.cat([a, b], 1), a


def of_chunks_and_all(h: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    g = x * h
    a, _, _ = g.unsafe_split(2, 1)
    a.mul_(2)
    return (g,)


def of_a_view_twice(h: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    g = x * h
    g.relu_()
    g[:, 1:5][:, 1:3].mul_(3)
    return (g[:, :],)


def overlapping(h: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    g = x * h
    a, b = g[:, :4], g[:, 2:]
    a.mul_(2)
    return torch.cat([a, b[:, 2:]], 1), b


def transposed(h: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    g = x * h
    g.tanh_()
    g.t().mul_(2)
    return (g,)


def turned(h: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    g = (x * h)[:, :1]
    g.squeeze_(1)
    return (h * g.unsqueeze(1) if g.dim() == 1 else 2 * h,)


def of_what_was_detached(h: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    g = x * x
    d = g.detach()
    d.mul_(3)
    return g + h, d + h


def detached_before(h: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    g = torch.tanh(x)
    d = g.detach()
    with torch.no_grad():
        g[:, :2] = 0.0
    return h + x, d + h


def of_a_reshaped(h: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    g = (x * h).t()
    r = g.reshape(-1)
    r.mul_(2)
    return g.t(), r.view(WIDTH, -1).t()


def contiguous(h: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    g = x * h
    c = g.contiguous()
    c.mul_(2)
    return g, c


def of_another_dtype(h: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    g = (x * h).float()
    g.add_(x)
    return (g.double(),)


def without_gradient(h: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    with torch.no_grad():
        g = torch.sigmoid(h)
        v = g[:, :3]
        v.mul_(2)
    return (g * x,)


def of_x_alone(h: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    g = torch.exp(-x)
    g[:, :3] += 1
    return g * h, g[:, 3:] * 1.0


def of_the_carry(h: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    v = h[:, :2]
    return (h + 0 * v.clone().mul_(2).sum(1, keepdim=True),)


def put(h: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    g = x * h
    g.index_put_((torch.arange(3),), h[:3])
    return (g,)


def filled(h: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    g = torch.empty_like(h)
    g[:, :3] = x[:, 3:]
    g[:, 3:].copy_(h[:, 3:])
    return (g * h,)


def views_before_and_after(h: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    """Two views at one place, of which a backward reads both values."""
    g = x * h
    before = g[:, :3].sigmoid() * g[:, :3]
    g.tanh_()
    after = g[:, :3] * g[:, 3:]
    return torch.cat([before, after], 1), before * after


def columns_twice(h: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    g = h.clone()
    g[:, 0] = torch.tanh(g[:, 1] * x[:, 0])
    g[:, 1:3] += g[:, :1]
    g[:, -1] = 0.5
    return g * x, g[:, 1:]


def slices_of_slices(h: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    """A view that is held is new numbers too; one that only meets what was changed is left to the loop."""
    g = x * h
    inner = g[:, 1:5]
    inner[:, 1:3] = x[:, :1]
    return g * inner[:, :1], inner * 2


def ring(h: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    """Of three axes, as convolutions keep what they have seen."""
    past = torch.roll(h.view(-1, 2, 3), -1, -1)
    past[:, :, -1] = x[:, :2]
    return past.flatten(1), (past * x.view(-1, 2, 3)).sum(-1)


def viewed_after(h: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    """Which a copy has to allow that is not in memory as the slice is."""
    g = torch.exp(-x).view(-1, 2, 3)
    part = g[:, :, 0:1]
    part[:] = x.t()[:1].t().unsqueeze(2)
    flat = g.view(-1, WIDTH)
    square = (x * x).view(-1, 2, 3)
    square[:] = x[:, :3].unsqueeze(1)
    return flat * h, square.view(-1, WIDTH) + h, part.squeeze(2) + h[:, :2]


def whole_and_held(h: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    g = x * h
    held = g[:, :2]
    g[:, 1:3].mul_(2)
    return g, held * 1.0


def of_constants(h: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    mixing, numbers, steps = torch.eye(WIDTH), torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), torch.arange(6.0)
    mixing[0, 2] = 0.1
    numbers[1] *= 0.5
    steps[-1] = -1
    weights = (mixing * numbers + steps / 9).to(h.dtype)
    return h @ weights.t() + x, x * weights[0]


def of_a_constant_that_is_detached(h: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    """Two names of one memory, of which either may be written."""
    zeros, ones = torch.zeros(WIDTH, dtype=h.dtype), torch.ones_like(h)
    zeros.detach()[0] = 1
    same = ones.detach()
    ones[:, 1] = 3
    return h + zeros * x, same * x


CELLS = [
    *(of_constants, of_a_constant_that_is_detached),
    *(through_a_view, read_through_a_view, assigned, of_chunks, of_chunks_and_all, of_a_view_twice, overlapping),
    *(transposed, turned, of_what_was_detached, detached_before, of_a_reshaped, contiguous, of_another_dtype),
    *(without_gradient, of_x_alone, of_the_carry, put, filled, views_before_and_after),
    *(columns_twice, slices_of_slices, ring, viewed_after, whole_and_held),
]


def compare(example: Example, *, absent: bool = False) -> Decision:
    """With the loop: values with gradients and without, and where PyTorch's backward can do it, gradients. absent: of
    what is written over whole PyTorch has a gradient of zeros, and we may have none."""
    with collecting() as taken:
        got = leaves(bppsa.scan(*example[:3]))
    same(got, leaves(loop(*example[:3])), 1e-12)
    if runs(lambda: results(loop, example)):
        check(example, tolerance=1e-12, absent=absent)
    compare_inference(example)
    return taken[-1]


def compare_inference(example: Example) -> None:
    """Also what becomes of carry and xs, which a cell may change here."""
    found = []
    for scan in (bppsa.scan, loop):
        given = pytree.tree_map(torch.clone, example[1:3])
        with torch.no_grad():
            found.append(leaves(scan(example.cell, *given), given))
    same(*found, 1e-12)


def runs(call: Callable[[], Any]) -> bool:
    """Whether PyTorch takes it: with gradients it refuses some changes of views, in the forward or in the backward."""
    try:
        call()
    except RuntimeError:
        return False
    return True


@pytest.mark.parametrize("layout", [lambda t: t, lambda t: t.transpose(-1, -2).contiguous().transpose(-1, -2)])
@pytest.mark.parametrize("fn", CELLS, ids=lambda fn: fn.__name__)
def test_changes_through_views(fn: Any, layout: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    carry, xs = layout(h().detach()).requires_grad_(), layout(x(WIDTH).detach()).requires_grad_()
    decision = compare(Example(cell_of(fn), carry, xs, []))
    assert fn is not of_constants or decision.strategy == "sequential"


def test_fused_are_those_whose_values_are_known() -> None:
    """And what is stale is left to the loop with its reason."""
    said = {}
    for fn in CELLS:
        torch.manual_seed(0)
        said[fn.__name__] = compare(Example(cell_of(fn), h(), x(WIDTH), []))
    slices = {"through_a_view", "assigned", "of_a_view_twice", "of_x_alone", "columns_twice", "ring"}
    assert slices | {"transposed", "of_chunks", "of_the_carry", "views_before_and_after", "slices_of_slices"} <= {
        name for name, decision in said.items() if decision.strategy == "sequential"
    }
    stale = {"read_through_a_view", "of_chunks_and_all", "overlapping", "whole_and_held"}
    assert all("is read again through another view" in said[name].reason for name in stale)
    assert "g.mul_(2)" in said["read_through_a_view"].reason  # the line that writes, not the one that reads
    assert "what was detached" in said["of_what_was_detached"].reason
    assert "reshape may have copied" in said["of_a_reshaped"].reason


# ---- cells put together at random

Step = tuple[str, int, int, int]
VIEWS: list[Callable[[Tensor], Tensor]] = [
    lambda t: t[:, : (t.shape[1] + 1) // 2],
    lambda t: t[:, t.shape[1] // 2 :],
    lambda t: t.chunk(2, 1)[0],
    lambda t: t.split(1, 1)[-1],
    lambda t: t.narrow(1, 0, 1),
    lambda t: t[:, 0].unsqueeze(1),
    lambda t: t.unbind(1)[-1].unsqueeze(1),
    lambda t: t.view(t.shape),
    lambda t: t.t().t(),
    lambda t: t.unsqueeze(2).permute(0, 2, 1).squeeze(1),
    lambda t: t.unflatten(1, (-1, 1)).transpose(1, 2).diagonal(0, 1, 2),
    lambda t: t.reshape(t.shape[0], -1),
    lambda t: t.contiguous(),
    lambda t: t.detach(),
]
WRITES: list[Callable[[Tensor, Tensor], Any]] = [
    lambda t, other: t.mul_(2),
    lambda t, other: t.sigmoid_(),
    lambda t, other: t.add_(fitted(other, t)),
    lambda t, other: t.copy_(fitted(other, t)),
    lambda t, other: t.mul_(SCALE[: t.shape[1]]),
    lambda t, other: t.__setitem__((slice(None), 0), other[:, -1]),
    lambda t, other: t.__setitem__((slice(None), slice(0, 1)), 0.5),
    lambda t, other: t.clamp_(min=-0.5),
    lambda t, other: t[:, :1].add_(other[:, :1] * 1.0),
    lambda t, other: t.t().tanh_(),
    lambda t, other: torch.add(t, 1, out=t),
    lambda t, other: t.index_put_((torch.arange(1),), other[:1, :1].expand(1, t.shape[1])),
]
NEW: list[Callable[[Tensor, Tensor], Tensor]] = [
    lambda t, other: t * fitted(other, t),
    lambda t, other: torch.tanh(t),
    lambda t, other: torch.cat([t, other], 1)[:, :WIDTH],
    lambda t, other: torch.zeros_like(t),
    lambda t, other: t.clone(),
]


def fitted(value: Tensor, like: Tensor) -> Tensor:
    return value if value.shape == like.shape else value[:, :1]


steps = st.lists(st.tuples(st.sampled_from("vvwwn"), *[st.integers(0, 13)] * 3), min_size=2, max_size=8)


def random_cell(program: Sequence[Step], returned: Sequence[int]) -> Callable[[Tensor, Tensor], Any]:
    def fn(h: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        values = [h, x, x * h, torch.exp(-x)]
        for kind, which, left, right in program:
            a, b = values[-1 - left % len(values)], values[-1 - right % len(values)]
            if kind == "v":
                values.append(VIEWS[which % len(VIEWS)](a))
            elif kind == "w":
                WRITES[which % len(WRITES)](a, b)
            else:
                values.append(NEW[which % len(NEW)](a, b))
        made = [values[-1 - at % len(values)] for at in returned]
        return (made[0].sum(1, keepdim=True) + 0 * h, *made)

    return cell_of(fn)


@given(program=steps, returned=st.lists(st.integers(0, 7), min_size=1, max_size=3), seed=st.integers(0, 2))
@examples(200)
def test_random_changes_in_place(program: Sequence[Step], returned: Sequence[int], seed: int) -> None:
    torch.manual_seed(seed)
    example = Example(random_cell(program, returned), h(), x(WIDTH), [SCALE])
    if runs(lambda: loop(*example[:3])):
        compare(example, absent=True)
    with torch.no_grad():
        assume(runs(lambda: loop(example.cell, *pytree.tree_map(torch.clone, example[1:3]))))
    compare_inference(example)


@pytest.mark.parametrize("outputs", [lambda n, x: x, lambda n, x: (x, x), lambda n, x: (x[:, :2], n, n, x.exp())])
def test_outputs_may_be_changed(outputs: Callable[[Tensor, Tensor], Any]) -> None:
    """The loop stacks them, so they share memory neither with what was given nor with each other."""

    def cell(carry: Tensor, x: Tensor) -> Any:
        new = torch.tanh(carry + x)
        return new, outputs(new, x)

    xs, start = random(5, 3, WIDTH), random(3, WIDTH)
    kept = xs.clone()
    carry, ys = bppsa.scan(cell, start, xs)
    _, expected = loop(cell, start, xs)
    with torch.no_grad():
        for y, other in zip(leaves(ys), leaves(expected), strict=True):
            torch.testing.assert_close(y, other)
            y.add_(1)
    assert torch.equal(xs, kept)
    torch.testing.assert_close(carry, loop(cell, start, xs)[0])

"""Cells with ops of several results, values of other ranks, and tensors that stand beside rows: fused or left to the
loop, they give the loop's numbers, and no op is run by rules that do not know it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.scan.support import check
from tests.scan.zoo import H, I, T, example, random


class Weights(NamedTuple):
    w: Tensor  # [I, H]
    v: Tensor  # [H, H]
    joined: Tensor  # [H + I, H]
    deep: Tensor  # [2, 3, H]
    beside: Tensor  # [B, 2]


Part = Callable[[Tensor, Tensor, Weights], Tensor]  # (h, x, weights) -> [B, H], or what broadcasts


def pairs(h: Tensor) -> Tensor:
    """[pairs, B, 2]."""
    return h.view(len(h), -1, 2).transpose(0, 1)


ON_X: dict[str, Part] = {
    "max": lambda h, x, p: x.max(1, keepdim=True)[0],
    "max, both": lambda h, x, p: sum(x.max(1, keepdim=True)),
    "topk": lambda h, x, p: x.topk(2, 1)[0].sum(1, keepdim=True),
    "sort": lambda h, x, p: x.sort(1)[0] @ p.w,
    "cummax": lambda h, x, p: x.cummax(1)[0] @ p.w,
    "median": lambda h, x, p: x.median(1, keepdim=True)[0],
    "aminmax": lambda h, x, p: torch.aminmax(x, dim=1, keepdim=True)[1],
    "std_mean": lambda h, x, p: torch.std_mean(x, 1, keepdim=True)[0],
    "frexp": lambda h, x, p: torch.frexp(x.detach())[0][:, :1],
    "logsigmoid": lambda h, x, p: functional.logsigmoid(x) @ p.w,
    "group norm": lambda h, x, p: functional.group_norm(x, 2) @ p.w,
    "attention": lambda h, x, p: functional.scaled_dot_product_attention(*[x[:, None]] * 3)[:, 0] @ p.w,
    "synapses": lambda h, x, p: (x.unsqueeze(-1) * p.w).sum(1),
    "synapses, transposed": lambda h, x, p: (x.unsqueeze(1) * p.w.t()).sum(-1),
    "synapses, maxima": lambda h, x, p: (x.unsqueeze(2) * p.w).amax(1),
    "synapses, and on": lambda h, x, p: torch.tanh((x.unsqueeze(2) * p.w).sum(1)) * x[:, :1],
    "synapses, all": lambda h, x, p: (x.unsqueeze(2) * p.w).sum((1, 2))[:, None],
    "rank 4": lambda h, x, p: ((x @ p.w)[:, None, None] * p.deep).sum((1, 2)),
}
ON_CARRY: dict[str, Part] = {
    "synapses": lambda h, x, p: (h.unsqueeze(-1) * p.v).sum(1) + x @ p.w,
    "synapses, transposed": lambda h, x, p: (h.unsqueeze(1) * p.v.t()).sum(-1) + x @ p.w,
    "synapses, maxima": lambda h, x, p: (h.unsqueeze(2) * p.v).amax(1) + x @ p.w,
    "outer product": lambda h, x, p: (h.unsqueeze(2) * h.unsqueeze(1)).sum(2) + x @ p.w,
    "rank 4": lambda h, x, p: (h[:, None, None] * p.deep).sum((1, 2)) + x @ p.w,
    "einsum": lambda h, x, p: torch.einsum("bi,ij->bj", h, p.v) + x @ p.w,
    "bmm": lambda h, x, p: torch.bmm(h.unsqueeze(1), h.unsqueeze(2)).squeeze(1) + x @ p.w,
    "a parameter beside rows": lambda h, x, p: torch.cat([h[:, :4], p.beside[: len(h)]], 1) + x @ p.w,
    "a parameter beside x": lambda h, x, p: h + torch.cat([x, p.beside[: len(h)]], 1),
    "numbers beside rows": lambda h, x, p: torch.cat([h[:, :5], h.new_zeros(len(h), 1)], 1) + x @ p.w,
    "one number of a row, repeated": lambda h, x, p: h[:, 1:2].expand(-1, p.v.shape[0]) @ p.v + x @ p.w,
    "a row's sum, repeated": lambda h, x, p: h.sum(1, keepdim=True).expand(-1, p.v.shape[0]) @ p.v + x @ p.w,
    "the sum of a product": lambda h, x, p: (h @ p.v).sum(1, keepdim=True) + x @ p.w,
    "a stack in front": lambda h, x, p: torch.stack([h, h.roll(1, 1), x @ p.w]).logsumexp(0),
    "pairs in front": lambda h, x, p: torch.cat([pairs(h), pairs(x @ p.w)], 2).amax(2).t().repeat_interleave(2, 1),
    "rows below rows": lambda h, x, p: (torch.cat([h, h], 0) @ p.v)[: len(h)] + x @ p.w,
    "rows below x": lambda h, x, p: (torch.cat([h, x @ p.w]) @ p.v)[len(h) :],
    "dtypes side by side": lambda h, x, p: torch.cat([h, x.float()], 1) @ p.joined,
    "truth values beside rows": lambda h, x, p: torch.cat([h, x > 0], 1) @ p.joined,
    "nothing beside rows": lambda h, x, p: torch.cat([h, x, torch.zeros(0, dtype=h.dtype)], 1) @ p.joined,
}
CELLS = {f"{name} of x": (lambda h, x, p, part=part: h + part(h, x, p)) for name, part in ON_X.items()} | ON_CARRY


@pytest.mark.filterwarnings("error:.*please report this:RuntimeWarning")
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("place", ["carry", "output"])
@pytest.mark.parametrize("name", CELLS)
def test_odd_cells(name: str, place: str, rows: int) -> None:
    torch.manual_seed(0)
    part, p = CELLS[name], Weights(*(random(*s) for s in ((I, H), (H, H), (H + I, H), (2, 3, H), (rows, 2))))

    def cell(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        if place == "output":
            return torch.tanh(h + x @ p.w), part(h, x, p)
        h = torch.tanh(part(h, x, p))
        return h, h

    check(example(cell, random(rows, H), random(T, rows, I), *p))


@pytest.mark.parametrize("name", [name for name in ON_X if name.startswith(("synapses", "rank"))])
def test_a_detour_of_x_through_other_ranks_is_before_the_loop(name: str) -> None:
    p = Weights(*(random(*s) for s in ((I, H), (H, H), (H + I, H), (2, 3, H), (3, 2))))

    def cell(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(h @ p.v + ON_X[name](h, x, p))
        return h, h

    assert check(example(cell, random(3, H), random(T, 3, I), *p)).strategy == "sequential"


@pytest.mark.parametrize(("name", "op"), [("rows below rows", "batch")])
def test_the_reason_names_the_op(name: str, op: str) -> None:
    p = Weights(*(random(*s) for s in ((I, H), (H, H), (H + I, H), (2, 3, H), (3, 2))))

    def cell(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(ON_CARRY[name](h, x, p))
        return h, h

    assert op in check(example(cell, random(3, H), random(T, 3, I), *p)).reason


@pytest.mark.parametrize("name", ["a stack in front", "pairs in front"])
def test_what_stands_in_front_of_the_rows_is_joined_in_a_kernel(name: str) -> None:
    p = Weights(*(random(*s) for s in ((I, H), (H, H), (H + I, H), (2, 3, H), (3, 2))))

    def cell(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(ON_CARRY[name](h, x, p))
        return h, h

    assert check(example(cell, random(3, H), random(T, 3, I), *p)).strategy == "sequential"


OF_OTHER_DTYPES: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = {
    "a row": lambda h, x, row, number: torch.tanh(h * row + x),
    "a number": lambda h, x, row, number: h + number * torch.tanh(h + x),
    "a number beside x": lambda h, x, row, number: torch.tanh(h + x * number),
    "a limit": lambda h, x, row, number: torch.where(h > number, h * number, x),
    "a function of a number": lambda h, x, row, number: h * number.exp() + x,
}


@pytest.mark.parametrize("name", OF_OTHER_DTYPES)
def test_what_a_cell_closes_over_may_have_another_dtype(name: str) -> None:
    row, number = torch.randn(H, requires_grad=True), torch.tensor(0.3, requires_grad=True)

    def cell(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        h = OF_OTHER_DTYPES[name](h, x, row, number)
        return h, h * number

    taken = check(example(cell, random(3, H), random(T, 3, H), number), tolerance=1e-6)  # a sum of float32 numbers
    assert taken.strategy == "sequential"


@pytest.mark.parametrize("name", ["a number", "a number beside x", "a limit", "a function of a number"])
def test_a_number_of_more_bits_says_nothing(name: str) -> None:
    number = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)

    def cell(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        h = OF_OTHER_DTYPES[name](h, x, h, number)
        return h, h * number

    carry, xs = (value.detach().float().requires_grad_() for value in (random(3, H), random(T, 3, H)))
    assert check(example(cell, carry, xs, number), tolerance=1e-5).strategy == "sequential"

"""Random cells with ops that have to be spelled, and with a batch as large as rows are long, against a plain loop."""

from __future__ import annotations

from collections.abc import Callable

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.breadth import examples
from tests.scan.grammar import UNARY, Cell, Program, programs
from tests.scan.support import check, check_inference
from tests.scan.zoo import Example, random

SPELLED: list[Callable[[Tensor], Tensor]] = [
    lambda a: torch.softmax(a, 1),
    lambda a: a.log_softmax(-1) * 0.1,
    lambda a: a - a.amax(1, keepdim=True),
    lambda a: torch.logsumexp(a, 1, keepdim=True),
    lambda a: a.cumsum(1),
    lambda a: torch.cumprod(1 + 0.1 * a, 1),
    lambda a: a.prod(1, keepdim=True),
    lambda a: a.max(1).values.unsqueeze(1) * a,
    lambda a: a.min(1, keepdim=True)[0],
    lambda a: a * (1 + a.argmax(1, keepdim=True)),
    lambda a: a.min(1)[1].to(a.dtype)[:, None] * 0.5,
    lambda a: a.sort(dim=1, stable=True).values,
    lambda a: a.topk(min(2, a.shape[1])).values,
    lambda a: a[:, torch.arange(a.shape[1]).flip(0)],
    lambda a: a.gather(1, a.argmin(1, keepdim=True)),
    lambda a: a.flip(1),
    lambda a: a.roll(1, 1),
    lambda a: a[:, ::2].repeat(1, 2),
    lambda a: torch.stack(a.unbind(1)[::-1], 1),
    lambda a: a / (1 + a.norm(dim=1, keepdim=True)),
    lambda a: a / (0.1 + a.std(1, correction=0, keepdim=True)) if a.shape[1] > 1 else a,
    lambda a: (a.unsqueeze(2) * a.unsqueeze(1)).amax(2),
    lambda a: (a.unsqueeze(2) * a.unsqueeze(1)).softmax(1).sum(2),
    lambda a: torch.einsum("bi,bj->b", a, a.sigmoid()).unsqueeze(1),
    lambda a: (a.t() * 0.5).sigmoid().t(),
]
ALL = [*UNARY, *SPELLED, *SPELLED]


class Spelled(Cell):
    def unary(self, name: str, which: int, left: Tensor, right: Tensor) -> Tensor:
        return ALL[which % len(ALL)](left)


@examples(60)
@given(program=programs, steps=st.integers(1, 3), rows=st.integers(1, 5), reverse=st.booleans(), seed=st.integers(0, 3))
def test_a_random_cell_equals_its_loop(program: Program, steps: int, rows: int, reverse: bool, seed: int) -> None:
    torch.manual_seed(seed)
    cell = Spelled(program)
    carry = [random(rows, width) for width in program.carries]
    xs = [random(steps, rows, width) for width in program.xs]
    cell(carry, [x[0] for x in xs])  # makes the parameters
    example = Example(cell, carry, xs, list(cell.parameters.values()))
    decision = check(example, reverse=reverse, tolerance=1e-9)
    check_inference(example, reverse=reverse)
    assert decision.strategy == "sequential" or "interleaving" in decision.reason, decision.reason

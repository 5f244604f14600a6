"""Cells of thousands of ops: no recursion overflows, and planning takes as long as there are ops."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bppsa.codegen.language.expr import Access, Expr, Op, load
from tests.codegen.programs import build
from tests.scan.support import check
from tests.scan.zoo import Example, example, random

STEPS, ROWS = 2, 2


def chain(length: int) -> Example:
    """Each op waits for the one before: three for each `length`, deeper than Python's recursion goes."""
    scale = random(3)

    def cell(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        for _ in range(length):
            h = torch.sin(h * scale + x)
        return h, h

    return example(cell, random(ROWS, 3), random(STEPS, ROWS, 3), scale)


def cholesky(n: int) -> Example:
    """Cholesky's factor written out, as a Python user of a small Kalman filter writes it."""

    def cell(P: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        A = P @ P.mT + torch.diag_embed(x * x + 3)
        L: dict[tuple[int, int], Tensor] = {}
        for i in range(n):
            for j in range(i + 1):
                s = A[:, i, j] - sum(L[i, k] * L[j, k] for k in range(j))
                L[i, j] = s.sqrt() if i == j else s / L[j, j]
        zero = torch.zeros_like(A[:, 0, 0])
        factor = torch.stack([torch.stack([L.get((i, j), zero) for j in range(n)], 1) for i in range(n)], 1)
        return torch.tanh(factor), factor.sum(2)

    return example(cell, random(ROWS, n, n), random(STEPS, ROWS, n))


def running_sum(n: int) -> Example:
    def cell(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        sums = [h[:, 0]]
        for i in range(1, n):
            sums.append(0.9 * sums[-1] + h[:, i] * x[:, i])
        h = torch.tanh(torch.stack(sums, 1))
        return h, h

    return example(cell, random(ROWS, n), random(STEPS, ROWS, n))


def test_a_chain_of_a_thousand_ops() -> None:
    torch.manual_seed(0)
    assert check(chain(350)).strategy == "sequential"


@pytest.mark.slow
def test_formulas_that_are_written_out() -> None:
    torch.manual_seed(0)
    for given in (cholesky(8), running_sum(64)):
        assert check(given).strategy == "sequential"


def test_a_deep_expression_is_printed_in_short() -> None:
    deep = load(Access("x"))
    for _ in range(5000):
        deep = Expr(Op.ADD, Expr(Op.SIN, deep), deep)
    assert len(repr(deep)) < 10_000


def rolls(length: int) -> Example:
    """Columns wait for other columns, each time anew."""

    def cell(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        a = h + x
        for _ in range(length):
            a = a.roll(1, -1) * 0.5 + torch.sigmoid(a) * 0.3
        return a, a * 2

    return example(cell, random(ROWS, 4), random(STEPS, ROWS, 4))


def test_kernels_grow_as_their_cells_do() -> None:
    """No group does again what those before it have done."""

    def ops(length: int) -> int:
        return sum(len(group.nodes()) for group in build(rolls(length)).backward.groups)

    assert ops(40) < 2.2 * ops(20)


def test_what_a_long_chain_stores_is_what_the_loop_computes() -> None:
    torch.manual_seed(0)
    assert check(rolls(12)).strategy == "sequential"

"""Random cells against a plain loop, values and all gradients, in float64."""

from __future__ import annotations

from unittest import mock

import torch
from hypothesis import given
from hypothesis import strategies as st

from bppsa.frontend.cell import fused_cell
from tests.breadth import examples
from tests.scan.grammar import Cell, Program, programs
from tests.scan.support import check, check_inference
from tests.scan.zoo import Example, random


@examples(200)
@given(
    program=programs,
    steps=st.integers(1, 4),
    rows=st.integers(1, 3),
    reverse=st.booleans(),
    inline=st.booleans(),
    seed=st.integers(0, 3),
)
def test_a_random_cell_equals_its_loop(
    program: Program, steps: int, rows: int, reverse: bool, inline: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    cell = Cell(program)
    carry = [random(rows, width) for width in program.carries]
    xs = [random(steps, rows, width) for width in program.xs]
    cell(carry, [x[0] for x in xs])  # makes the parameters
    example = Example(cell, carry, xs, list(cell.parameters.values()))
    with mock.patch.object(fused_cell, "multiply_inline", return_value=inline):
        decision = check(example, reverse=reverse, tolerance=1e-9)
        check_inference(example, reverse=reverse)
    assert decision.strategy == "sequential" or "interleaving" in decision.reason, decision.reason

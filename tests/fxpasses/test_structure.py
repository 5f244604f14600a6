"""The structure of a step's J^T against the Jacobian itself at random points."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from bppsa.frontend.planning.sweeps import module_recurrence
from bppsa.fxpasses.cell.structure import connected, pattern, structure_of
from tests.fxpasses.graphs import evaluate, random_like, split_cell
from tests.scan.zoo import CASES, Example, make


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_the_pattern_covers_what_is_not_zero(case: Callable[[], Example]) -> None:
    recurrence = split_cell(make(case))
    inputs = [node for node in recurrence.body.nodes if node.op == "placeholder"]
    given = {node: random_like(node, seed) for seed, node in enumerate(inputs)}
    carries = sorted((n for n in inputs if n.meta["role"].kind == "carry"), key=lambda n: n.meta["role"].index)

    def step(*state: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = evaluate(recurrence.body, {**given, **dict(zip(carries, state, strict=True))})
        return tuple(values[node].reshape(len(state[0]), -1)[0] for node in recurrence.next_carries)

    rows = torch.func.jacrev(step, argnums=tuple(range(len(carries))))(*(given[node] for node in carries))
    blocks = [
        torch.cat([part[:, 0].reshape(part.shape[0], -1).t() for part in column], 1)
        for column in zip(*rows, strict=True)
    ]
    mask = pattern(recurrence)
    assert not (torch.cat(blocks).ne(0) & ~mask).any()


@pytest.mark.parametrize(
    ("mode", "structure"),
    [
        ("RNN_TANH", "dense 5x5, 25 non-zeros"),
        ("GRU", "dense 5x5, 25 non-zeros"),
        ("LSTM", "dense 10x10, 60 non-zeros"),
    ],
)
def test_modules(mode: str, structure: str) -> None:
    """An LSTM's 2x2 blocks: those of c are diagonal."""
    assert str(structure_of(module_recurrence(mode, 3, 5, 0, True))) == structure


def test_blocks_are_what_depends_on_each_other() -> None:
    mask = torch.zeros(6, 6, dtype=torch.bool)
    for row, column in ((0, 3), (3, 0), (1, 1), (2, 5)):
        mask[row, column] = True
    assert connected(mask) == [[0, 3], [1], [2, 5], [4]]
    assert connected(torch.eye(3, dtype=torch.bool)) == [[0], [1], [2]]


def test_wide_diagonals_are_found_without_products() -> None:
    """A recurrence over 4096 numbers, each by itself."""
    weight = torch.rand(4096)

    def cell(h: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = torch.tanh(weight * h + x)
        return h, h

    zeros = torch.zeros(2, 4096)
    assert structure_of(split_cell(Example(cell, zeros, zeros.unsqueeze(0), []))).kind == "diagonal"

"""Every cell of docs/guides/literature.md: fused, with the numbers of a loop over it; dynamic programs also by their
definitions."""

from __future__ import annotations

import importlib.util
import itertools
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils import _pytree as pytree

import bppsa
from tests.cells.support import B, H, I, T, fuses

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SIZES = {"T": T, "B": B, "I": I, "H": H, "heads": 2, "D": H // 2}


def reader() -> ModuleType:
    spec = importlib.util.spec_from_file_location("blocks", BENCHMARKS / "rows" / "blocks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


blocks = reader()


@pytest.fixture(autouse=True)
def in_float64() -> Any:
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def test_the_page_has_many() -> None:
    names = blocks.names()
    assert len(set(names)) == len(names) >= 20
    assert len(names) == blocks.PAGE.read_text().count("\n### ")


@pytest.mark.parametrize("name", blocks.names())
def test_is_fused_and_equals_its_loop_in_every_call(name: str) -> None:
    shown = blocks.read(name, **SIZES)
    for _ in range(2):
        fuses(shown.cell, shown.carry, shown.xs, *held(shown))
        with torch.no_grad():
            for given in shown.inputs:
                given *= 0.9


def held(shown: Any) -> list[Tensor]:
    """Inputs that the cell closes over."""
    given = {id(leaf) for leaf in pytree.tree_leaves((shown.carry, shown.xs))}
    return [t for t in shown.inputs if id(t) not in given]


def test_connectionist_temporal_classification_is_pytorchs() -> None:
    sizes = SIZES | {"T": 13}
    shown = blocks.read("Connectionist temporal classification", **sizes)
    alpha, _ = bppsa.scan(shown.cell, shown.carry, shown.xs)
    targets = shown.cell.__globals__["labels"][:, 1::2]
    lengths = [torch.full((B,), n) for n in (sizes["T"], targets.shape[1])]
    expected = functional.ctc_loss(shown.xs, targets, *lengths, reduction="none")
    torch.testing.assert_close(-alpha[:, -2:].logsumexp(1), expected)


def every_path(transition: Tensor, emission: Tensor) -> dict[tuple[int, ...], Tensor]:
    """The score of each path of states through emissions [T, H], from any state before the first."""
    found = {}
    for path in itertools.product(range(H), repeat=len(emission) + 1):
        steps = sum(transition[a, b] for a, b in itertools.pairwise(path))
        found[path] = steps + sum(emission[t, state] for t, state in enumerate(path[1:]))
    return found


def test_the_partition_function_of_a_chain_is_a_sum_over_all_paths() -> None:
    shown = blocks.read("A conditional random field", **(SIZES | {"T": 3}))
    alpha, _ = bppsa.scan(shown.cell, shown.carry, shown.xs)
    emission, inside = shown.xs
    for row, length in enumerate(inside.sum(0)):
        scores = every_path(shown.cell.__globals__["transition"], emission[:length, row])
        torch.testing.assert_close(alpha[row].logsumexp(0), torch.stack([*scores.values()]).logsumexp(0))


def test_the_best_path_is_the_best_of_all() -> None:
    shown = blocks.read("The best path", **(SIZES | {"T": 3}))
    score, before = bppsa.scan(shown.cell, shown.carry, shown.xs)
    path = [score.argmax(1)]
    for step in before.flip(0):
        path.append(step.gather(1, path[-1].unsqueeze(1)).squeeze(1))
    for row in range(B):
        scores = every_path(shown.cell.__globals__["transition"], shown.xs[:, row])
        best = max(scores, key=scores.__getitem__)
        assert best == tuple(int(states[row]) for states in reversed(path))
        torch.testing.assert_close(score[row].max(), scores[best])


def test_the_logarithm_of_a_min_gru() -> None:
    shown = blocks.read("minGRU in log space", **SIZES)
    _, ys = bppsa.scan(shown.cell, shown.carry, shown.xs)
    layers = shown.cell.__globals__
    h, z, new = shown.carry.exp(), layers["gate"](shown.xs).sigmoid(), layers["candidate"](shown.xs)
    new = torch.where(new >= 0, new + 0.5, new.sigmoid())
    for t in range(T):
        h = (1 - z[t]) * h + z[t] * new[t]
        torch.testing.assert_close(ys[t], h)

"""An element of each row, for all steps at once: torch.vmap runs our ops by a rule, and warns of none."""

from __future__ import annotations

import warnings

import pytest
import torch

from bppsa.fxpasses.recording.row_elements import ELEMENTS, PUT

STEPS, ROWS, PLACES = 5, 3, 4


@pytest.fixture(autouse=True)
def no_warnings() -> None:
    warnings.simplefilter("error")


@pytest.mark.parametrize("shape", [(), (2,)])
def test_elements(shape: tuple[int, ...]) -> None:
    x = torch.randn(STEPS, ROWS, PLACES, *shape, dtype=torch.float64, requires_grad=True)
    at = torch.randint(PLACES, (STEPS, ROWS))
    found, expected = torch.vmap(ELEMENTS)(x, at), torch.stack([ELEMENTS(*each) for each in zip(x, at, strict=True)])
    assert torch.equal(found, expected)
    assert torch.equal(*(torch.autograd.grad(y.sin().sum(), x)[0] for y in (found, expected)))
    assert torch.equal(torch.vmap(ELEMENTS, (None, 0))(x[0], at), torch.stack([ELEMENTS(x[0], each) for each in at]))


@pytest.mark.parametrize("accumulate", [False, True])
def test_put(accumulate: bool) -> None:
    x, values = torch.randn(STEPS, ROWS, PLACES), torch.randn(STEPS, ROWS)
    at = torch.randint(PLACES, (STEPS, ROWS))
    found = torch.vmap(lambda *given: PUT(*given, accumulate))(x, at, values)
    assert torch.equal(found, torch.stack([PUT(*each, accumulate) for each in zip(x, at, values, strict=True)]))

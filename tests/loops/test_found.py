"""Loops as people write them become scans, and compute what PyTorch computes."""

from __future__ import annotations

import pytest

from tests.loops import complex_models, decoders, filters, models, more_models, without_features, written_models
from tests.loops.beside import Pair
from tests.loops.cells import FOUND

TABLES = (
    models,
    more_models,
    decoders,
    filters,
    complex_models,
    without_features,
    written_models,
)  # whose rows are in FOUND


@pytest.mark.parametrize("name", FOUND)
def test_loop_becomes_a_scan(name: str) -> None:
    model, inputs = FOUND[name]()
    strategies = Pair(model).strategies(*inputs)
    assert strategies, "no loop was found"
    assert "sequential" in strategies

"""All of these tests compute in float64, from the same random numbers."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def always_in_float64(in_float64: None) -> None: ...

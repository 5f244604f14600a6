from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.workers import support


@pytest.fixture(autouse=True)
def in_float64() -> Iterator[None]:
    torch.manual_seed(0)
    with support.float64():
        yield

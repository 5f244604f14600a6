from __future__ import annotations

import pytest

from bppsa.plan import sparse


@pytest.fixture(autouse=True)
def always_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    """These networks are too small to gain."""
    monkeypatch.setattr(sparse, "MARGIN", 0.0)

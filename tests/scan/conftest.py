"""Within this folder kernels are interpreted, so that no test waits for a compiler; test_native.py has them built."""

from __future__ import annotations

from collections import OrderedDict

import pytest

from bppsa import _scan
from tests.scan.support import interpreted


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_scan, "compile_recurrence", interpreted)
    monkeypatch.setattr(_scan, "_plans", OrderedDict())

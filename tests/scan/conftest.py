"""Within this folder kernels are interpreted, so that no test waits for a compiler; test_native.py has them built.
And a call of a few steps is fused like a long one; tests/plan has the choice."""

from __future__ import annotations

from collections import OrderedDict

import pytest

from bppsa.frontend.cell import fused_cell, plans, scan_call, scanning
from tests.scan.support import fused, interpreted


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (fused_cell, scan_call, plans):
        monkeypatch.setattr(module, "compile_recurrence", interpreted)
    monkeypatch.setattr(scanning, "choose_scan", fused)
    monkeypatch.setattr(plans._plans.kept, "known", OrderedDict())

"""Which products our own kernel takes, and that those left to PyTorch come out the same."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bppsa.codegen import isa
from bppsa.codegen.cpu.build import available
from bppsa.codegen.cpu.products import NativeProducts, OuterProduct, Projection
from bppsa.codegen.lowering.lower import ColumnRun
from bppsa.runtime.recurrent.multiply import WIDEST, Faster, by_torch, suits


@given(
    rows=st.integers(1, 200),
    depth=st.integers(1, 40),
    widths=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    transposed=st.booleans(),
)
def test_by_torch(rows: int, depth: int, widths: list[int], transposed: bool) -> None:
    width = sum(widths)
    left, right = torch.randn(rows, depth, dtype=torch.float64), torch.randn(rows, width, dtype=torch.float64)
    weight = torch.randn(width, depth, dtype=torch.float64)
    runs, start = [], 0
    for w in widths:
        runs.append(ColumnRun(start, width - start - w, w))
        start += w
    out = torch.empty(width, depth, dtype=torch.float64).t() if transposed else torch.empty(depth, width).double()
    projected = torch.empty_like(left)
    by_torch([OuterProduct(out, left, right, tuple(runs))], [Projection(projected, right, weight, tuple(runs))])
    columns = torch.cat([right[:, run.column : run.column + run.width] for run in runs], 1)
    torch.testing.assert_close(out, left.t() @ columns)
    torch.testing.assert_close(projected, columns @ weight)


def test_wide_empty_and_short_products_are_left_to_torch() -> None:
    assert suits(1000, 20, 60)
    assert suits(1000, 1, 1)
    widest = WIDEST[isa.chosen().wide]
    assert suits(1000, widest, 3 * widest)
    assert not suits(1000, widest + 1, 3 * widest)
    assert not suits(10, 64, 64)
    assert not suits(1000, 0, 60)


@pytest.mark.skipif(available() is not None, reason="needs a C++ compiler")
def test_each_product_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A narrow and a wide one in one call."""
    taken = []
    original = NativeProducts.__call__

    def spy(self: NativeProducts, outers: list[OuterProduct], projections: list[Projection]) -> None:
        taken.append((len(outers), len(projections)))
        original(self, outers, projections)

    monkeypatch.setattr(NativeProducts, "__call__", spy)
    right, narrow, wide = torch.randn(400, 300), torch.randn(400, 5), torch.randn(400, 300)
    runs, weight = (ColumnRun(0, 0, 300),), torch.randn(300, 300)
    of_narrow, of_wide, projected = torch.empty(5, 300), torch.empty(300, 300), torch.empty(400, 300)
    outers = [OuterProduct(of_narrow, narrow, right, runs), OuterProduct(of_wide, wide, right, runs)]
    Faster("float")(outers, [Projection(projected, right, weight, runs)])
    assert taken == [(1, 0)]
    for got, expected in ((of_narrow, narrow.t() @ right), (of_wide, wide.t() @ right), (projected, right @ weight)):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)

"""The kernels over CSR patterns, in every layout and way to go about a product: against ATen ops in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from bppsa.codegen.cpu import sparse
from bppsa.codegen.cpu.build import available
from bppsa.codegen.cpu.sparse import LANES, NativeSparse, NativeSymbolic, as_lanes, in_lanes
from bppsa.sparsity import Pattern
from bppsa.sparsity.patterns import product
from bppsa.sparsity.patterns.engine import ATEN
from bppsa.sparsity.patterns.product import ProductPlan
from tests.breadth import examples
from tests.sparsity.patterns import convolution, random_pattern
from tests.sparsity.samples import Random

pytestmark = pytest.mark.skipif(available() is not None, reason="needs a C++ compiler")
REAL = {torch.float32: "float", torch.float64: "double"}
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-13}
dtypes = st.sampled_from(sorted(REAL, key=str))
sizes = st.integers(0, 90)
fills = st.sampled_from([0.0, 0.03, 0.3, 1.0])
batches = st.sampled_from([None, 1, 2, 5, 16, 21])
threads = st.integers(1, 3)


def garbage(count: int, dtype: torch.dtype) -> Tensor:
    """With nothing in it that could pass for zeros."""
    return torch.full((count,), torch.nan, dtype=dtype)


def kernels(dtype: torch.dtype) -> NativeSparse:
    return NativeSparse(REAL[dtype], garbage)


def batched(r: Random, size: int | None, count: int, dtype: torch.dtype, lanes: bool) -> Tensor:
    values = r(count) if size is None else r(size, count)
    return as_lanes(values.to(dtype), LANES[REAL[dtype]]) if lanes and size is not None else values.to(dtype)


def close(got: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    assert got.dtype == dtype
    torch.testing.assert_close(
        got.double(), expected, rtol=TOLERANCE[dtype], atol=30 * TOLERANCE[dtype], equal_nan=True
    )


@st.composite
def operands(draw):
    """Patterns [N, K] and [K, M], dtype, and values of each: shared by a batch or not, in lanes or not."""
    n, k, m, dtype = draw(sizes), draw(sizes), draw(sizes), draw(dtypes)
    r = Random(draw(st.integers(0, 999)))
    a, b = random_pattern(r, n, k, draw(fills)), random_pattern(r, k, m, draw(fills))
    size = draw(batches)
    of_a, of_b = draw(st.sampled_from([(size, size), (size, None), (None, size)]))
    lanes = draw(st.booleans()), draw(st.booleans())
    return a, b, batched(r, of_a, a.nnz, dtype, lanes[0]), batched(r, of_b, b.nnz, dtype, lanes[1])


@example(pair=(Pattern.dense(3, 5), Pattern.dense(5, 130)), few=True, threads=2)
@given(
    st.tuples(sizes, sizes, sizes, fills, fills, st.integers(0, 99)).map(lambda s: pair_of(*s)), st.booleans(), threads
)
def test_the_symbolic_phase_is_that_of_aten(pair, few, threads):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(product, "MOST_SLOT_BYTES", 1 << 20 if few else -1)
        got, expected = NativeSymbolic()(*pair, threads=threads), product.symbolic(*pair)
    for name in ("indptr", "indices"):
        assert torch.equal(getattr(got.c, name), getattr(expected.c, name))
    assert torch.equal(got.starts, expected.starts)
    assert (got.slots is None) == (expected.slots is None) == (not few)
    assert not few or torch.equal(got.slots, expected.slots)


def pair_of(n: int, k: int, m: int, of_a: float, of_b: float, seed: int) -> tuple[Pattern, Pattern]:
    r = Random(seed)
    return random_pattern(r, n, k, of_a), random_pattern(r, k, m, of_b)


@examples(120)
@given(operands(), st.sampled_from(["slots", "columns", "panels"]), threads)
def test_products(given, way, threads):
    a, b, left, right = given
    plan = product.symbolic(a, b)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sparse, "LEAST_FILL", dict.fromkeys(LANES, -1.0 if way == "panels" else 2.0))
        got = kernels(left.dtype).multiply(
            without_slots(plan) if way == "columns" else plan, left, right, threads=threads
        )
    close(got, ATEN.multiply(plan, left.double(), right.double()), left.dtype)


@examples(60)
@given(operands(), st.booleans(), st.booleans(), threads)
def test_products_in_many_tiles(given, slots, by_tiles, threads):
    a, b, left, right = given
    plan = product.symbolic(a, b)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sparse, "tile", lambda plan: 7)
        patch.setattr(sparse, "by_tiles", lambda plan: by_tiles)
        got = kernels(left.dtype).multiply(plan if slots else without_slots(plan), left, right, threads=threads)
    close(got, ATEN.multiply(plan, left.double(), right.double()), left.dtype)


def without_slots(plan: ProductPlan) -> ProductPlan:
    return ProductPlan(plan.a, plan.b, plan.c, plan.starts, None)


@examples(80)
@given(operands(), threads)
def test_matrices_times_vectors(given, threads):
    a, _, values, _ = given
    r, dtype = Random(1), values.dtype
    g = batched(r, len(values) if values.dim() == 2 else 9, a.shape[1], dtype, len(values) % 2 == 0)
    close(kernels(dtype).mv(a, values, g, threads=threads), ATEN.mv(a, values.double(), g.double()), dtype)


@examples(60)
@given(operands(), threads)
def test_sparse_times_dense(given, threads):
    a, b, values, _ = given
    w = Random(1)(b.shape[0], b.shape[1] + 3).to(values.dtype)[:, : b.shape[1]]
    shared = values if values.dim() == 1 else values[0].contiguous()
    close(kernels(w.dtype).mm(a, shared, w, threads=threads), ATEN.mm(a, shared.double(), w.double()), w.dtype)


@examples(80)
@given(operands(), st.booleans(), st.booleans(), st.booleans(), threads)
def test_rows_and_columns_are_scaled(given, rows, select, shared, threads):
    a, _, values, _ = given
    size = len(values) if values.dim() == 2 else 9
    d = batched(Random(1), None if shared else size, a.shape[0] if rows else a.shape[1], values.dtype, False).relu()
    how = {"rows": rows, "select": select}
    got = kernels(values.dtype).scale(a, values, d, **how, threads=threads)
    close(got, ATEN.scale(a, values.double(), d.double(), **how), values.dtype)


@given(sizes, st.integers(1, 40), st.sampled_from([None, 0.03, 0.3, 1.0]), dtypes, st.integers(0, 99), threads)
def test_windows_choose_places(places, windows, fill, dtype, seed, threads):
    """Rows of more columns than a vector has, and grids of places in one window each (fill None)."""
    r = Random(seed)
    places = max(places, windows)
    grid = (
        Pattern.one_per_row(torch.arange(places) % windows, windows)
        if fill is None
        else with_rows(r, places, windows, fill)
    )
    taken = torch.stack([pick(grid, (seed + i) % 7) for i in range(6)]).view(2, 3, windows)
    expected = ATEN.chosen(grid, taken, dtype)
    assert expected.sum() == taken.numel()
    assert torch.equal(kernels(dtype).chosen(grid, taken, dtype, threads=threads), expected)


def with_rows(r: Random, places: int, windows: int, fill: float) -> Pattern:
    """Random, with a place at least in each window."""
    mask = random_pattern(r, places, windows, fill).mask()
    mask[torch.arange(windows), torch.arange(windows)] = True
    return Pattern.from_mask(mask)


def pick(grid: Pattern, which: int) -> Tensor:
    """A place of each window."""
    held = [column.nonzero()[:, 0] for column in grid.mask().t()]
    return torch.stack([places[which % len(places)] for places in held])


@pytest.mark.parametrize("dtype", sorted(REAL, key=str), ids=str)
def test_a_chain_of_convolutions(dtype):
    """As large as to have several panels and blocks of lanes, and on as many threads as there are."""
    r = Random(0)
    first, second = convolution(r, 3, 8, 8, 3, padding=1), convolution(r, 8, 4, 8, 3, padding=1)
    plan = NativeSymbolic()(first.pattern, second.pattern)
    left, right = first.values.to(dtype), second.values.to(dtype)
    expected = ATEN.multiply(plan, left.double(), right.double())
    close(kernels(dtype).multiply(plan, left, right), expected, dtype)
    many = right * torch.arange(1, 21)[:, None]
    close(kernels(dtype).multiply(plan, left, many), expected * torch.arange(1, 21)[:, None], dtype)


@pytest.mark.parametrize("way", ["slots", "columns", "panels"])
@pytest.mark.parametrize("size", [None, 3, 20])
def test_structural_zeros_meet_nothing(way, size, monkeypatch):
    monkeypatch.setattr(sparse, "LEAST_FILL", dict.fromkeys(LANES, -1.0 if way == "panels" else 2.0))
    r = Random(0)
    a, b = random_pattern(r, 30, 40, 0.2), random_pattern(r, 40, 70, 0.2)
    plan = product.symbolic(a, b)
    for of_a, of_b in ((torch.inf, 1.0), (1.0, torch.nan), (torch.nan, torch.inf)):
        left, right = batched(r, size, a.nnz, torch.float64, False), batched(r, size, b.nnz, torch.float64, False)
        left[..., 5], right[..., 7] = of_a, of_b
        got = kernels(torch.float64).multiply(without_slots(plan) if way == "columns" else plan, left, right)
        close(got, ATEN.multiply(plan, left, right), torch.float64)
        assert got.isfinite().sum() > got.numel() / 2


def test_selection_drops_what_is_not_finite():
    pattern = Pattern.dense(2, 2)
    values, d = torch.tensor([torch.nan, torch.inf, 3.0, 4.0]), torch.tensor([0.0, 2.0])
    scale = kernels(torch.float32).scale
    assert scale(pattern, values, d, rows=True, select=True).tolist() == [0.0, 0.0, 6.0, 8.0]
    assert scale(pattern, values, d, rows=True)[:2].isnan().all()
    lanes = scale(pattern, values.expand(16, 4), d.expand(16, 2), rows=True, select=True)
    assert lanes.tolist() == [[0.0, 0.0, 6.0, 8.0]] * 16


@pytest.mark.parametrize("size", [None, 20])
def test_every_call_gives_the_same_on_any_number_of_threads(size):
    r = Random(0)
    plan = product.symbolic(random_pattern(r, 300, 200, 0.1), random_pattern(r, 200, 150, 0.1))
    left, right = (batched(r, size, p.nnz, torch.float32, False) for p in (plan.a, plan.b))
    first = kernels(torch.float32).multiply(plan, left, right, threads=1)
    for threads in (1, 2, 3, 4):
        assert torch.equal(kernels(torch.float32).multiply(plan, left, right, threads=threads), first)


def test_lanes_are_told_by_strides():
    values = Random(0)(5, 7)
    laid = as_lanes(values, 8)
    assert torch.equal(laid, values)
    assert laid.stride() == (1, 8)
    assert as_lanes(laid, 8) is laid
    assert not in_lanes(values, 8)
    assert not in_lanes(Random(0)(7, 5).t(), 8)  # rows are not padded
    assert not in_lanes(Random(0)(7 * 8 - 3).as_strided((5, 7), (1, 8)), 8)  # the last one is not

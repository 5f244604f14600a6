"""The kernel for products over many rows: against float64 matmuls, at any sizes, strides and numbers of threads."""

from __future__ import annotations

import ctypes
import mmap
from dataclasses import dataclass
from itertools import accumulate

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from bppsa.codegen.cpu.build import available
from bppsa.codegen.cpu.products import NativeProducts, OuterProduct, Projection
from bppsa.codegen.lowering.lower import ColumnRun

pytestmark = pytest.mark.skipif(available() is not None, reason="needs a C++ compiler")
REAL = {torch.float32: "float", torch.float64: "double"}
DTYPES = sorted(REAL, key=str)
GAP = 3  # columns between runs


def workspace(count: int, dtype: torch.dtype) -> Tensor:
    """With nothing in it that could pass for zeros."""
    return torch.full((count,), 0x7F, dtype=dtype)


def runs_of(widths: list[int], order: int) -> tuple[ColumnRun, ...]:
    """Runs that cover a weight, which stand elsewhere and in another order in a row of cotangents."""
    starts = list(accumulate(widths, initial=0))
    at, columns = GAP, {}
    for i in sorted(range(len(widths)), key=lambda i: (i * 7 + order) % len(widths)):
        columns[i] = at
        at += widths[i] + GAP
    return tuple(ColumnRun(starts[i], columns[i], width) for i, width in enumerate(widths))


def strided(rows: int, columns: int, extra: int, dtype: torch.dtype) -> Tensor:
    """Rows that are `extra` further apart than wide, with NaN between."""
    whole = torch.full((rows, columns + extra), torch.nan, dtype=dtype)
    whole[:, extra // 2 : extra // 2 + columns] = torch.randn(rows, columns, dtype=dtype)
    return whole[:, extra // 2 : extra // 2 + columns]


@dataclass
class Case:
    """x and h beside cotangents as after a sweep: two gradients, that of W_h stored transposed, and one of x."""

    x: Tensor  # [R, I]
    h: Tensor  # [R, K]
    cotangents: Tensor  # [R, more than N]
    weight: Tensor  # [N, I]
    runs: tuple[ColumnRun, ...]

    @staticmethod
    def of(rows: int, inputs: int, depth: int, widths: list[int], extra: int, dtype: torch.dtype) -> Case:
        torch.manual_seed(rows + inputs)
        runs, width = runs_of(widths, extra), sum(widths)
        cotangents = strided(rows, width + GAP * (len(widths) + 1), extra, dtype)
        weight = torch.randn(inputs, width, dtype=dtype).t() if extra % 2 else torch.randn(width, inputs, dtype=dtype)
        x, h = strided(rows, inputs, extra, dtype), strided(rows, depth, 2 * extra, dtype)
        return Case(x, h, cotangents, weight, runs)

    def got(self, threads: int, out: tuple[Tensor, ...] | None = None) -> tuple[Tensor, ...]:
        of_x, of_h, g_x = out or self.outputs()
        outers = [
            OuterProduct(of_h.t(), self.h, self.cotangents, self.runs),
            OuterProduct(of_x, self.x, self.cotangents, self.runs),
        ]
        projections = [Projection(g_x, self.cotangents, self.weight, self.runs)]
        NativeProducts(REAL[self.x.dtype], workspace)(outers, projections, threads=threads)
        return of_x, of_h, g_x

    def outputs(self) -> tuple[Tensor, ...]:
        n, i = self.weight.shape
        shapes = (i, n), (n, self.h.shape[1]), self.x.shape
        return tuple(torch.full(shape, torch.nan, dtype=self.x.dtype) for shape in shapes)

    def exact(self) -> tuple[Tensor, ...]:
        columns = torch.cat([torch.arange(run.column, run.column + run.width) for run in self.runs])
        x, h, g, w = (t.double() for t in (self.x, self.h, self.cotangents[:, columns], self.weight))
        return x.t() @ g, g.t() @ h, g @ w


def close(got: tuple[Tensor, ...], exact: tuple[Tensor, ...]) -> None:
    for g, e in zip(got, exact, strict=True):
        scale = torch.finfo(g.dtype).eps * max(1.0, e.abs().max().item())
        assert (g.double() - e).abs().max().item() <= 40 * scale


@example(rows=1, inputs=1, depth=1, widths=[1], extra=0, threads=1, dtype=torch.float32)
@example(rows=3000, inputs=20, depth=20, widths=[40, 20], extra=0, threads=2, dtype=torch.float32)
@example(rows=9, inputs=130, depth=65, widths=[150, 1], extra=1, threads=3, dtype=torch.float64)
@given(
    rows=st.integers(1, 300),
    inputs=st.integers(1, 70),
    depth=st.integers(1, 70),
    widths=st.lists(st.integers(1, 90), min_size=1, max_size=4),
    extra=st.integers(0, 5),
    threads=st.integers(1, 4),
    dtype=st.sampled_from(DTYPES),
)
def test_products_are_those_of_float64(
    rows: int, inputs: int, depth: int, widths: list[int], extra: int, threads: int, dtype: torch.dtype
) -> None:
    case = Case.of(rows, inputs, depth, widths, extra, dtype)
    close(case.got(threads), case.exact())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("sizes", [(5000, 20, 20, [40, 20]), (200, 64, 64, [128, 64])], ids=["rows", "columns"])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_every_call_gives_the_same(sizes: tuple[int, int, int, list[int]], threads: int, dtype: torch.dtype) -> None:
    case = Case.of(*sizes, 0, dtype)
    first = case.got(threads)
    for _ in range(5):
        assert all(map(torch.equal, case.got(threads), first))


@pytest.mark.parametrize("sizes", [(20, 60), (64, 192), (1, 30), (30, 1), (3, 3)])
def test_long_sums_round_no_more_than_those_of_torch(sizes: tuple[int, int]) -> None:
    depth, width = sizes
    case = Case.of(40_000, 1, depth, [width], 0, torch.float32)
    exact, theirs = case.exact()[1], case.cotangents[:, GAP : GAP + width].t() @ case.h
    norms = [torch.linalg.vector_norm(t.double() - exact).item() for t in (case.got(1)[1], theirs)]
    assert norms[0] <= 1.1 * norms[1]


def test_what_is_not_finite_stays_in_its_row_and_column() -> None:
    case = Case.of(100, 5, 7, [9], 0, torch.float32)
    case.x[3, 2], case.cotangents[50, GAP + 4] = torch.nan, torch.inf
    of_x, of_h, g_x = case.got(2)
    assert not of_x[2].isfinite().any()
    assert of_x[3:, :4].isfinite().all()
    assert of_x[:2, 5:].isfinite().all()
    assert not of_h[4].isfinite().any()
    assert of_h[5:].isfinite().all()
    assert not g_x[50].isfinite().any()
    assert g_x[:50].isfinite().all()
    assert g_x[51:].isfinite().all()


def test_outputs_may_have_any_strides_and_neighbours_stay() -> None:
    for extra in (1, 2, 7):
        case = Case.of(70, 21, 13, [19, 3], extra, torch.float32)
        wholes = [torch.full((len(out) + 2, out.shape[1] + extra), 7.0) for out in case.outputs()]
        views = tuple(whole[1:-1, : out.shape[1]] for whole, out in zip(wholes, case.outputs(), strict=True))
        close(case.got(2, views), case.exact())
        for whole, view in zip(wholes, views, strict=True):
            view.fill_(7.0)
            assert (whole == 7.0).all()


@pytest.mark.skipif(not hasattr(mmap, "MAP_PRIVATE"), reason="needs mprotect")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [1, 5, 7, 16, 20, 33])
def test_nothing_beyond_the_end_of_a_tensor_is_touched(width: int, dtype: torch.dtype) -> None:
    """Each ends where a page begins that cannot be read: a touch would end the process."""
    case = Case.of(67, width, width, [width, width], 0, dtype)
    guards = Guards()
    case.x, case.h, case.weight = map(guards.at_the_end, (case.x, case.h, case.weight))
    last = max(case.runs, key=lambda run: run.column)
    case.cotangents = guards.at_the_end(case.cotangents[:, : last.column + last.width])
    close(case.got(2, tuple(map(guards.at_the_end, case.outputs()))), case.exact())


class Guards:
    """Copies of tensors before pages that cannot be touched."""

    def __init__(self) -> None:
        self.protect = ctypes.CDLL(None).mprotect
        self.protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

    def at_the_end(self, tensor: Tensor) -> Tensor:
        size = tensor.numel() * tensor.element_size()
        room = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        memory = mmap.mmap(-1, room + mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        copy = torch.frombuffer(memory, dtype=tensor.dtype, count=tensor.numel(), offset=room - size)
        assert self.protect(copy.data_ptr() + size, mmap.PAGESIZE, 0) == 0
        return copy.view(tensor.shape).copy_(tensor)

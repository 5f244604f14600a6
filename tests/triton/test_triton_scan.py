"""The first two phases of the chunked scan against a loop over the steps in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bppsa.codegen.native_scan import boundaries, reduce

pytest.importorskip(
    "triton",
    minversion="3.6" if torch.cuda.is_available() else "3.7",
    reason="needs triton 3.6 or newer, without a GPU 3.7, whose interpreter runs with new numpys",
)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # where Triton's interpreter runs them (tests/conftest.py)
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


def by_loop(
    jacobians: Tensor, offsets: Tensor, g: Tensor, chunk: int, ascending: bool, lengths: list[int] | None = None
) -> tuple[Tensor, Tensor]:
    """What stands before each chunk's first step, and what the last leaves."""
    T, B, n = offsets.shape
    now, found = g.double(), [torch.empty(0)] * -(-T // chunk)
    for t in range(T) if ascending else reversed(range(T)):
        if t in range(0, T, chunk) if ascending else t + 1 in (*range(chunk, T, chunk), T):
            found[t // chunk] = now
        J, b = jacobians[t].double(), offsets[t].double()
        new = J * now if J.dim() == 2 else (J @ now.view(B, J.shape[1], -1, 1)).view(B, n)
        live = torch.ones(B, 1) if lengths is None else torch.tensor(lengths)[:, None] > t
        now = torch.where(live.bool(), new + b, now)
    return torch.stack(found), now


def check(
    jacobians: Tensor, offsets: Tensor, g: Tensor, chunk: int, ascending: bool, lengths: list[int] | None
) -> None:
    expected = by_loop(jacobians, offsets, g, chunk, ascending, lengths)
    per_row = None if lengths is None else torch.tensor(lengths, device=DEVICE)
    pairs = reduce(jacobians.to(DEVICE), offsets.to(DEVICE), chunk, ascending=ascending, lengths=per_row)
    last = g.clone().to(DEVICE)
    found = boundaries(pairs, last, ascending=ascending)
    tolerance = TOLERANCE[g.dtype]
    for ours, theirs in zip((found, last), expected, strict=True):
        scale = float(theirs.abs().max())
        assert not ((ours.cpu().double() - theirs).abs() > tolerance * scale).any()
        assert ours.isfinite().all()


def drawn(*shape: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("D", "m"), [(1, 1), (1, 5), (3, 2), (1, 20), (2, 33)])
@pytest.mark.parametrize(("T", "chunk", "ascending"), [(1, 1, False), (7, 3, False), (7, 3, True), (20, 20, False)])
def test_blocks(D: int, m: int, T: int, chunk: int, ascending: bool, dtype: torch.dtype) -> None:
    B, n = 2, D * m
    jacobians = drawn(T, B, D, m, m, dtype=dtype) / m**0.5
    check(jacobians, drawn(T, B, n, dtype=dtype), drawn(B, n, dtype=dtype), chunk, ascending, None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [1, 5, 130])
@pytest.mark.parametrize(("T", "chunk", "ascending"), [(1, 1, False), (7, 3, False), (7, 3, True), (20, 20, False)])
def test_diagonals(n: int, T: int, chunk: int, ascending: bool, dtype: torch.dtype) -> None:
    given = [drawn(*shape, dtype=dtype) for shape in ((T, 3, n), (T, 3, n), (3, n))]
    check(given[0], given[1], given[2], chunk, ascending, None)


@pytest.mark.parametrize("ascending", [False, True])
@pytest.mark.parametrize("shape", [(), (1, 4, 4)])
def test_packed_rows(shape: tuple[int, ...], ascending: bool) -> None:
    jacobians = drawn(7, 3, *(shape or (4,)), dtype=torch.float64)
    check(jacobians, drawn(7, 3, 4, dtype=torch.float64), drawn(3, 4, dtype=torch.float64), 3, ascending, [7, 5, 1])


@pytest.mark.parametrize("dense", [False, True])
def test_products_may_leave_the_range_of_floats(dense: bool) -> None:
    """J = diag(2, 1/2): after 300 steps the product overflows on one side and underflows on the other, but not its
    product with a cotangent that is 0 or large there."""
    T = 300
    diagonal = torch.tensor([2.0, 0.5]).expand(T, 1, 2).contiguous()
    jacobians = torch.diag_embed(diagonal).unsqueeze(2).contiguous() if dense else diagonal
    for g in ([0.0, 1e30], [1e-45, 1e38], [1e-30, 0.0]):
        given = torch.tensor([g])
        offsets = torch.zeros(T, 1, 2)
        pairs = reduce(jacobians.to(DEVICE), offsets.to(DEVICE), T, ascending=False)
        last = given.clone().to(DEVICE)
        boundaries(pairs, last, ascending=False)
        exact = given.double() * torch.tensor([2.0**T, 2.0**-T], dtype=torch.float64)
        torch.testing.assert_close(last.cpu(), exact.float(), rtol=1e-5, atol=1e-44)


@pytest.mark.parametrize("dense", [False, True])
def test_zero_rows_stay_zero(dense: bool) -> None:
    """A unit that is off for one step passes nothing, whatever its weights are after that."""
    T = 20
    diagonal = torch.full((T, 1, 3), 2.0)
    diagonal[7, 0, 1] = 0.0
    jacobians = torch.diag_embed(diagonal).unsqueeze(2).contiguous() if dense else diagonal
    pairs = reduce(jacobians.to(DEVICE), torch.zeros(T, 1, 3, device=DEVICE), T, ascending=False)
    last = torch.ones(1, 3, device=DEVICE)
    boundaries(pairs, last, ascending=False)
    assert last.tolist() == [[2.0**T, 0.0, 2.0**T]]


@pytest.mark.parametrize("dense", [False, True])
def test_nan_stays(dense: bool) -> None:
    diagonal = torch.ones(5, 1, 2)
    diagonal[2, 0, 0] = torch.nan
    jacobians = torch.diag_embed(diagonal).unsqueeze(2).contiguous() if dense else diagonal
    pairs = reduce(jacobians.to(DEVICE), torch.zeros(5, 1, 2, device=DEVICE), 5, ascending=False)
    last = torch.ones(1, 2, device=DEVICE)
    boundaries(pairs, last, ascending=False)
    assert last[0, 0].isnan()

"""Cells with complex states, parameters and inputs, against a plain loop in complex128: values and all gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import bppsa
from bppsa.frontend.call_log import collecting
from bppsa.runtime.recurrent.reference import loop
from tests.cells.support import B, Cell, H, I, T, Table, fuses, random
from tests.scan.support import as_real, close, leaves, results, same
from tests.scan.zoo import Example, example

C, N = torch.complex128, 4


def z(*shape: int) -> Tensor:
    return random(*shape, dtype=C)


NU, THETA, DECAY, LOG_DT = random(H), random(H), random(I), random(I)
IN, OUT, SKIP = z(H, I), z(2, H), random(2, I)
A, B_STATE, C_STATE = z(I, N), z(I, N), z(I, N)
W, REAL_W, BIAS, LENGTH = z(H, H), random(H, H), z(H), random(H)
STEPS = torch.arange(H) / H
PARAMETERS = [NU, THETA, DECAY, LOG_DT, IN, OUT, SKIP, A, B_STATE, C_STATE, W, REAL_W, BIAS, LENGTH]
with torch.no_grad():
    for weight in (W, REAL_W):
        weight *= 0.2


def bounded(h: Tensor) -> Tensor:
    return h / (1 + h.abs())


def twice(h: Tensor) -> tuple[Tensor, Tensor]:
    return h, h


# Cells of the literature; x: [B, I], real -----------------------------------------------------------------------------


def lru(h: Tensor, x: Tensor) -> Any:
    keep = torch.exp(torch.complex(-NU.exp(), THETA))
    h = keep * h + torch.sqrt(1 - keep.abs() ** 2) * (x.to(C) @ IN.T)
    return h, (h @ OUT.T).real + x @ SKIP.T


def lru_polar(h: Tensor, x: Tensor) -> Any:
    keep = torch.polar(torch.sigmoid(NU), THETA)
    h = h * keep + torch.einsum("hi,bi->bh", IN, x + 0j)
    return h, torch.einsum("bh,mh->bm", h, OUT).real + functional.linear(x, SKIP)


def lru_of_pairs(h: Tensor, x: Tensor) -> Any:
    """The state as [B, H, 2], as a checkpoint would hold it."""
    state = torch.view_as_complex(h) * torch.exp(-NU.exp() + 1j * THETA) + functional.linear(x + 0j, IN)
    return torch.view_as_real(state), state.imag


def s4d(h: Tensor, x: Tensor) -> Any:
    dt = LOG_DT.exp()[:, None]
    h = torch.exp(dt * torch.complex(-A.real.exp(), A.imag)) * h + B_STATE * dt * x[:, :, None]
    return h, 2 * (C_STATE * h).sum(-1).real + DECAY * x


def s4d_zero_order_hold(h: Tensor, x: Tensor) -> Any:
    a = torch.view_as_complex(torch.stack([-A.real.exp(), A.imag], -1))
    keep = torch.exp(a * LOG_DT.exp().unsqueeze(-1))
    h = keep * h + (keep - 1) / a * B_STATE * x.unsqueeze(-1)
    return h, 2 * torch.einsum("bin,in->bi", h, C_STATE).real


def selective(h: Tensor, x: Tensor) -> Any:
    """The step depends on x, so what is exponentiated does too."""
    dt = functional.softplus(x + LOG_DT).unsqueeze(-1)
    h = torch.exp(dt * torch.complex(-A.real.exp(), A.imag)) * h + dt * x.unsqueeze(-1) * B_STATE
    return h, torch.view_as_real(C_STATE * h)[..., 0].sum(-1)


def complex_attention(h: Tensor, x: Tensor) -> Any:
    """A matrix of complex numbers as a memory, keys on the unit circle."""
    key = torch.polar(torch.ones_like(x), x)
    h = 0.9 * torch.exp(1j * THETA[:I]) * h + torch.einsum("bi,bj->bij", key, x.to(C))
    return h, torch.einsum("bi,bij->bj", key.conj(), h).real


LITERATURE: list[tuple[str, Cell, tuple[int, ...], torch.dtype]] = [
    ("LRU", lru, (H,), C),
    ("LRU, polar", lru_polar, (H,), C),
    ("LRU, pairs of reals", lru_of_pairs, (H, 2), torch.float64),
    ("S4D", s4d, (I, N), C),
    ("S4D, zero-order hold", s4d_zero_order_hold, (I, N), C),
    ("selective", selective, (I, N), C),
    ("complex attention", complex_attention, (I, I), C),
]


@pytest.mark.parametrize(
    ("cell", "shape", "dtype"), [row[1:] for row in LITERATURE], ids=[row[0] for row in LITERATURE]
)
def test_a_cell_of_the_literature(cell: Cell, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    fuses(cell, random(B, *shape, dtype=dtype), random(T, B, I), *PARAMETERS)


# What a cell does with complex numbers; x: [B, H], complex ------------------------------------------------------------


def unitary(h: Tensor, x: Tensor) -> Any:
    new = h @ W.conj().T + x
    h = functional.relu(new.abs() + LENGTH) * torch.sgn(new)
    return h, h.imag


def unitary_polar(h: Tensor, x: Tensor) -> Any:
    new = functional.linear(h, W.mH, BIAS) + x
    return twice(torch.polar(torch.tanh(new.abs()), new.angle()))


def in_place(h: Tensor, x: Tensor) -> Any:
    new = (0.3 * h).add_(x).mul_(1j)
    new -= h.mean(1, keepdim=True) / 4
    return bounded(new), new


def frozen(h: Tensor, x: Tensor) -> Any:
    with torch.no_grad():
        gate = torch.sigmoid(h.real) + 0j
    return twice(bounded(gate * h + x + h.detach()))


SPELLINGS: Table = [
    ("unitary", unitary),
    ("unitary, polar", unitary_polar),
    ("in place", in_place),
    ("no gradient", frozen),
    ("a real weight", lambda h, x: twice(bounded(h @ REAL_W.to(C) + x))),
    ("one minus", lambda h, x: twice(bounded(1 - 1j * h + 2 * x - 0.5))),
    ("conjugates", lambda h, x: (0.3 * h.conj() * BIAS + x.conj(), h.conj())),
    ("imaginary of a conjugate", lambda h, x: (torch.complex(h.conj().imag, (x * h).real).tanh(), h.mH.imag.T)),
    ("the carry itself", lambda h, x: (0.3 * h * BIAS + x, (h, x, h.real))),
    ("quotients", lambda h, x: ((h + x) / (3 + h * h.conj() + 1j * x) + 1 / (2j + h), 2 / (h + 3))),
    ("views of pairs", lambda h, x: (torch.view_as_complex(torch.tanh(torch.view_as_real(h + x))), h)),
    ("a broadcast part", lambda h, x: twice(bounded(torch.complex(h.real + x.imag, THETA.expand(B, H)) * 0.3))),
    ("a row and a column", lambda h, x: twice(bounded(h[:, :1] + x.real + 1j * THETA))),
    ("where", lambda h, x: twice(bounded(torch.where(h.real > x.imag, h, 2j * x)))),
    ("masked", lambda h, x: twice(bounded((h + x).masked_fill(h.imag > 0.5, 0.3j)))),
    ("moved columns", lambda h, x: (bounded(torch.cat([h[:, 2:], x[:, :2].real], 1) + h.flip(1)), h.roll(1, 1))),
    ("stacked", lambda h, x: (bounded(torch.stack(h.chunk(2, 1), 2).sum(2).repeat(1, 2) + x), torch.stack([h, x], 1))),
    ("heads", lambda h, x: twice(bounded((h.view(B, 2, 3).permute(0, 2, 1).reshape(B, H) + x) @ W))),
    ("products of heads", lambda h, x: twice(bounded(torch.einsum("bhi,bhj->bij", *heads(h, x)).reshape(B, 9)[:, :H]))),
    ("new tensors", lambda h, x: twice(bounded(torch.zeros_like(h) + h + torch.full_like(h, 2j) + x.new_ones(B, H)))),
    ("functions", lambda h, x: (torch.tanh(h + x) + (h / 4).sin() * (h / 4).cosh(), (h.exp(), h.cos(), h.sinh()))),
    ("roots and powers", lambda h, x: (bounded(torch.sqrt(h + x) + h.square() + h**3 + (2 + h) ** -1), h**2)),
    ("logarithm", lambda h, x: (torch.log(h + x + 0.1) + torch.sigmoid(x), torch.rsqrt(h))),
    ("constants of single precision", lambda h, x: (h * torch.tensor(0.3 + 0.2j) * torch.exp(2j * STEPS) + x, h)),
    ("layer norm", lambda h, x: twice((h - h.mean(1, keepdim=True)) / (1 + h.var(1, keepdim=True)).sqrt() + x)),
    ("householder", lambda h, x: twice(0.5 * (h - (h @ BIAS.conj()).unsqueeze(1) * BIAS) + x)),
    ("all that is carried", lambda h, x: (x, torch.linalg.matrix_exp(W) @ (h + x).unsqueeze(2))),
    ("nothing that is carried", lambda h, x: (torch.zeros(B, H, dtype=C), h * x)),
    ("transform of the last", lambda h, x: (bounded(torch.fft.fft(h, norm="ortho") + x), torch.fft.ifft(h).real)),
    ("transform of planes", lambda h, x: twice(bounded(torch.fft.ifft2(h.view(B, 2, 3)).reshape(B, H) + x))),
    (
        "a signal and back",
        lambda h, x: twice(torch.fft.irfft(torch.fft.rfft(h.real, dim=1)[:, :3] * x[:, :3], 6) + 0j),
    ),
    ("an odd signal", lambda h, x: twice(bounded(torch.fft.irfft(h[:, :2], 3).repeat(1, 2) + x))),
    ("a norm", lambda h, x: twice(h / (1 + h.norm(dim=1, keepdim=True)) + x)),
    ("of x alone", lambda h, x: (bounded(h + torch.fft.fft(x, dim=1) + x.prod(1, keepdim=True)), torch.asin(x))),
    ("for outputs alone", lambda h, x: (bounded(h + x), (torch.fft.ifft(h), torch.asin(h / 9), h.prod(1)))),
]


def heads(*tensors: Tensor) -> list[Tensor]:
    return [tensor.view(B, 2, 3) for tensor in tensors]


@pytest.mark.parametrize("cell", [cell for _, cell in SPELLINGS], ids=[name for name, _ in SPELLINGS])
def test_a_spelling(cell: Cell) -> None:
    torch.manual_seed(0)
    fuses(cell, z(B, H), z(T, B, H), *PARAMETERS)


def test_real_and_complex_carries_side_by_side() -> None:
    torch.manual_seed(0)

    def cell(state: Any, x: Tensor) -> Any:
        h, phase, count = state
        h = bounded(h * torch.exp(1j * phase) + x * (count % 2))
        return (h, torch.tanh(phase + h.abs()), count + 1), h * phase

    fuses(cell, (z(B, H), random(B, H), torch.zeros(B, 1, dtype=torch.int64)), z(T, B, H))


def test_a_real_carry_of_a_cell_with_complex_parameters() -> None:
    torch.manual_seed(0)
    fuses(
        lambda h, x: ((n := torch.tanh(h @ W.abs() + (x @ W + BIAS).imag)), n * BIAS),
        random(B, H),
        z(T, B, H),
        W,
        BIAS,
    )


def test_inputs_without_rows_and_a_memory_with_them() -> None:
    torch.manual_seed(0)
    memory = z(B, 5, H)

    def cell(h: Tensor, x: Any) -> Any:
        scores = torch.einsum("bh,bkh->bk", h, memory.conj()).abs().softmax(-1)
        return twice(0.3 * h * torch.exp(1j * x[1]) + torch.einsum("bk,bkh->bh", scores + 0j, memory) * x[0])

    fuses(cell, z(B, H), (z(T), random(T)), memory)


def test_resets_select_and_never_multiply() -> None:
    """What is infinite does not cross a reset."""
    torch.manual_seed(0)
    resets = torch.rand(T, B) < 0.4

    def cell(h: Tensor, x: Any) -> Any:
        h = torch.where(x[1][:, None], torch.zeros_like(h), h) * BIAS + x[0]
        return h, h

    xs = z(T, B, H).detach()
    xs[1, 0, 0] = complex(torch.inf, 0)
    resets[2, 0] = True
    (h, ys), (expected_h, expected) = (
        scan(cell, torch.zeros(B, H, dtype=C), (xs, resets)) for scan in (bppsa.scan, loop)
    )
    close(as_real(ys[2:]), as_real(expected[2:]), 1e-12)
    assert as_real(h).isfinite().all()
    assert as_real(expected_h).isfinite().all()


def test_marked_views_as_operands() -> None:
    """A conjugate of PyTorch's is a view, and so is its imaginary part, of numbers that have another sign."""
    torch.manual_seed(0)
    h, xs = z(B, H), z(T, B, H)
    given = example(lambda h, x: ((n := bounded(h * BIAS + x[0] * x[1])), n), h, (xs, xs), BIAS)

    def marked(scan: Any) -> Any:
        return lambda cell, carry, xs, **how: scan(cell, carry.conj(), (xs[0].conj(), xs[1].mH.imag.mT), **how)

    with collecting() as taken:
        got = results(marked(bppsa.scan), given)
    assert taken[-1].strategy == "sequential", taken[-1].reason
    for ours, theirs in zip(got, results(marked(loop), given), strict=True):
        same(ours, theirs, 1e-12)


@pytest.mark.parametrize("strategy", ["chunked", "blelloch"])
@pytest.mark.parametrize(
    ("cell", "shape"), [(lru, (H,)), (s4d, (I, N)), (unitary, (H,))], ids=["LRU", "S4D", "unitary"]
)
def test_the_backward_as_a_scan(cell: Cell, shape: tuple[int, ...], strategy: str) -> None:
    torch.manual_seed(0)
    xs = z(9, B, H) if cell is unitary else random(9, B, I)
    given: Example = example(cell, z(B, *shape), xs, *PARAMETERS)
    with collecting() as taken:
        got = results(lambda *args, **how: bppsa.scan(*args, strategy=strategy, **how), given)
    assert taken[-1].strategy.startswith(strategy), taken[-1].reason
    for ours, theirs in zip(got, results(loop, given), strict=True):
        same(ours, theirs, 1e-9)


def test_in_single_precision() -> None:
    torch.manual_seed(0)
    keep = random(H, dtype=torch.complex64)

    def cell(h: Tensor, x: Tensor) -> Any:
        return twice(bounded(torch.exp(1j * keep.real) * h + x))

    fuses(cell, random(B, H, dtype=torch.complex64), random(T, B, H, dtype=torch.complex64), keep, tolerance=1e-5)


# What stays PyTorch's -------------------------------------------------------------------------------------------------


def unknown(h: Tensor, x: Tensor) -> Any:
    h = bounded(h + x)
    h = bounded(torch.asin(h))
    return h, h.prod(1)


def test_what_has_no_row_is_told_with_its_line() -> None:
    torch.manual_seed(0)
    given = example(unknown, z(B, H), z(T, B, H))
    with collecting() as taken:
        got = results(bppsa.scan, given)
    assert taken[-1].strategy == "pytorch"
    assert "h = bounded(torch.asin(h)): aten.asin.default: has no spelling in real numbers" in taken[-1].reason
    assert "view_as_real" not in taken[-1].reason
    same(got[0], results(loop, given)[0], 0)


def test_a_change_of_what_a_conjugate_shows_is_refused() -> None:
    torch.manual_seed(0)

    def cell(h: Tensor, x: Tensor) -> Any:
        new = h + x
        turned = new.conj()
        new.mul_(0.3)
        return new, turned

    given = example(cell, z(B, H), z(T, B, H))
    with collecting() as taken:
        got = results(bppsa.scan, given)
    assert "may share memory with its conjugate" in taken[-1].reason
    for ours, theirs in zip(leaves(got), leaves(results(loop, given)), strict=True):
        close(ours, theirs, 0)

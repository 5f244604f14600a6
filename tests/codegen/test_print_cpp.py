"""The C++ printer against the interpreter in float64: results, hazards, memory outside, accuracy of the functions."""

from __future__ import annotations

import ctypes
import math
import mmap
import multiprocessing
import re
import shutil
import subprocess
import threading
from collections.abc import Callable
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor

from bppsa.codegen.arrange.hazards import staged
from bppsa.codegen.cpu import build, print_cpp
from bppsa.codegen.cpu.native import NativeKernel
from bppsa.codegen.language import interpret
from bppsa.codegen.language.expr import SPECIAL, STRUCTURAL, Access, Expr, Op, load
from bppsa.codegen.language.ir import Buffer, Group, Kernel, Kind, Reduce, Store
from tests.codegen.kernels import (
    at,
    gated_backward,
    gated_forward,
    normalised,
    operands,
    swapped,
    two_stage,
)

pytestmark = pytest.mark.skipif(build.available() is not None, reason="needs a C++ compiler")

DTYPES = {"float": torch.float32, "double": torch.float64}
TOLERANCE = {"float": 2e-5, "double": 1e-12}
CASES: list[tuple[Callable[[int], Kernel], int, str]] = [
    *((gated_forward, H, "float") for H in (1, 3, 20, 33, 64)),
    *((gated_forward, H, "double") for H in (1, 20)),
    *((gated_backward, H, "float") for H in (1, 20, 33, 64)),
    *((gated_backward, H, "double") for H in (3, 33)),
    *((normalised, H, "float") for H in (1, 8, 33)),
    *((normalised, H, "double") for H in (20,)),
    *((two_stage, H, "float") for H in (1, 20, 64)),
    *((two_stage, H, "double") for H in (33,)),
    (swapped, 20, "float"),
]
SIZES = [(1, 1), (7, 1), (2, 2), (7, 5), (2, 16), (3, 37), (2, 0), (0, 3)]


def clone(tensors: list[Tensor], dtype: torch.dtype | None = None) -> list[Tensor]:
    """Copies with the same strides."""
    copies = []
    for tensor in tensors:
        base = torch.empty_strided(tensor.shape, tensor.stride(), dtype=dtype or tensor.dtype)
        copies.append(base.copy_(tensor))
    return copies


def check(kernel: Kernel, real: str, T: int, B: int, **flags: object) -> None:
    given = operands(kernel, T, B, DTYPES[real])
    expected = clone(given, torch.float64)
    interpret.run(kernel, expected, steps=T, rows=B, **{k: v for k, v in flags.items() if k != "threads"})
    NativeKernel(kernel, real)(given, steps=T, rows=B, **flags)
    for b, ours, theirs in zip(kernel.arguments, given, expected, strict=True):
        scale = max(1.0, float(theirs.abs().max())) if theirs.numel() else 1.0
        assert not ((ours.double() - theirs).abs() > TOLERANCE[real] * scale).any(), b
        assert torch.equal(ours.isnan(), theirs.isnan()), b


@pytest.mark.parametrize(("make", "H", "real"), CASES)
def test_agrees_with_the_interpreter(make: Callable[[int], Kernel], H: int, real: str) -> None:
    kernel = make(H)
    for T, B in SIZES:
        for reverse in (False, True):
            check(kernel, real, T, B, reverse=reverse, threads=1 + (B > 2))


@pytest.mark.parametrize("make", [gated_forward, gated_backward, normalised, two_stage, swapped])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_packed_rows_join_and_leave(make: Callable[[int], Kernel], threads: int) -> None:
    lengths = torch.tensor([7, 7, 5, 4, 4, 1, 1])
    active = torch.tensor([int((lengths > t).sum()) for t in range(7)])
    for reverse in (False, True):
        check(make(20), "float", 7, len(lengths), active=active, reverse=reverse, threads=threads)


@pytest.mark.parametrize("make", [gated_forward, gated_backward, two_stage, swapped])
@pytest.mark.parametrize("H", [20, 64, 100])
def test_threads_that_share_the_columns(make: Callable[[int], Kernel], H: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # some threads get no column at all
    monkeypatch.setattr(NativeKernel, "splits_columns", lambda native, rows, threads: threads > 1)
    for B, threads in ((1, 2), (1, 3), (2, 2), (3, 4)):
        for T in (1, 2, 50):
            check(make(H), "float", T, B, threads=threads, reverse=T == 2)


def test_row_sums_keep_the_columns_together() -> None:
    assert not NativeKernel(normalised(33), "float").splits_columns(1, 2)


def test_more_threads_than_rows() -> None:
    check(gated_backward(20), "float", 3, 2, threads=5)


def test_kernels_that_differ_only_in_numbers_share_one_text() -> None:
    for make in (gated_forward, gated_backward, normalised):
        for real in DTYPES:
            assert print_cpp.source(make(61), real) == print_cpp.source(make(63), real)
            assert print_cpp.dims(make(61)) != print_cpp.dims(make(63))
        assert len({print_cpp.source(make(H), "float") for H in range(1, 300)}) <= 24


def test_expanded_operands_are_read_with_stride_zero() -> None:
    kernel = gated_backward(20)
    given = operands(kernel, 5, 3, torch.float32)
    given[2] = given[2][:1, :1].expand(5, 3, -1)
    expected = [t.double().clone() for t in given]
    interpret.run(kernel, expected, steps=5, rows=3)
    NativeKernel(kernel, "float")(given, steps=5, rows=3)
    for ours, theirs in zip(given, expected, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("real", DTYPES)
@pytest.mark.parametrize("make", [gated_forward, gated_backward, normalised, two_stage])
def test_touches_nothing_outside_its_rows(make: Callable[[int], Kernel], real: str) -> None:
    """NaN around every row must neither be read nor overwritten."""
    kernel, dtype, T, B = make(33), DTYPES[real], 3, 5
    framed, given = [], []
    for tensor in operands(kernel, T, B, dtype):
        frame = torch.full([n + 4 for n in tensor.shape], torch.nan, dtype=dtype)
        inside = frame[tuple(slice(2, -2) for _ in tensor.shape)]
        framed.append(frame)
        given.append(inside.copy_(tensor))
    NativeKernel(kernel, real)(given, steps=T, rows=B, threads=2)
    for frame, inside in zip(framed, given, strict=True):
        assert not inside.isnan().any()
        assert frame.isnan().sum() == frame.numel() - inside.numel()


def at_page_end(tensor: Tensor) -> Tensor:
    """A copy whose last element is the last of its page; the next page may not be touched."""
    size = tensor.numel() * tensor.element_size()
    pages = -(-max(size, 1) // mmap.PAGESIZE)
    area = mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE)
    guard = ctypes.addressof(ctypes.c_char.from_buffer(area)) + pages * mmap.PAGESIZE
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(guard), mmap.PAGESIZE, 0) == 0
    flat = torch.frombuffer(area, dtype=tensor.dtype, count=tensor.numel(), offset=pages * mmap.PAGESIZE - size)
    return flat.view(tensor.shape).copy_(tensor)


@pytest.mark.parametrize("make", [gated_forward, gated_backward, normalised])
def test_reads_no_page_it_was_not_given(make: Callable[[int], Kernel]) -> None:
    kernel = make(33)
    given = [at_page_end(t.contiguous()) for t in operands(kernel, 3, 5, torch.float32)]
    NativeKernel(kernel, "float")(given, steps=3, rows=5)
    assert not any(t.isnan().any() for t in given)


def test_column_sums_of_many_rows_keep_their_digits() -> None:
    H, T, B = 20, 1000, 16
    buffers = (Buffer("x", Kind.STREAM, H), Buffer("s", Kind.COLUMN_SUM, H))
    kernel = Kernel("sums", buffers, (Group(H, (Store(Access("s"), load(Access("x")), Reduce.COLUMNS),)),))
    x, s = torch.rand(T, B, H), torch.empty(H)
    NativeKernel(kernel, "float")([x, s], steps=T, rows=B)
    torch.testing.assert_close(s.double(), x.double().sum((0, 1)), rtol=3e-7, atol=0)


UNARY = [Op.NEG, Op.ABS, Op.EXP, Op.LOG, Op.SQRT, Op.TANH, Op.SIGMOID, Op.ERF]
UNARY += [Op.SIN, Op.COS, Op.ATAN, Op.FLOOR]
# Largest error in units of the last place, and torch's own beside it in notes and papers: 0.5 to 2.
ULPS = {Op.NEG: 0, Op.ABS: 0, Op.EXP: 2, Op.LOG: 2, Op.SQRT: 0.51, Op.TANH: 3, Op.SIGMOID: 3, Op.ERF: 4}
ULPS |= {Op.SIN: 2, Op.COS: 2, Op.ATAN: 3, Op.FLOOR: 0}


def pointwise(ops: list[Op]) -> Kernel:
    """y<i> = ops[i](x, x + 1 step of a second stream, ...)"""
    sources = [at("a"), at("b"), at("c")]
    buffers = tuple(Buffer(n, Kind.STREAM, 1001) for n in ("a", "b", "c", *(f"y{i}" for i in range(len(ops)))))
    stores = tuple(Store(Access(f"y{i}"), Expr(op, *sources[: op.arity])) for i, op in enumerate(ops))
    return Kernel("pointwise", buffers, (Group(1001, stores),))


def evaluate(ops: list[Op], a: Tensor, b: Tensor, c: Tensor) -> list[Tensor]:
    """Each op of `ops` on rows [T, 1, 1001]."""
    results = [torch.empty_like(a) for _ in ops]
    real = next(name for name, dtype in DTYPES.items() if dtype is a.dtype)
    NativeKernel(pointwise(ops), real)([a, b, c, *results], steps=a.shape[0], rows=1)
    return results


def ulps(ours: Tensor, truth: Tensor) -> Tensor:
    """Error in units in the last place of `ours.dtype` at the truth, which is given in a wider type."""
    info = torch.finfo(ours.dtype)
    _, exponent = torch.frexp(truth)
    unit = torch.ldexp(torch.full_like(truth, info.eps), exponent - 1).clamp_min(info.tiny * info.eps)
    error = ((ours.to(truth.dtype) - truth) / unit).abs()
    return torch.where(ours.to(truth.dtype) == truth, torch.zeros_like(error), error)


@pytest.mark.parametrize("reach", [1e-6, 1e-3, 1.0, 12.0, 80.0])
def test_functions_are_accurate_to_a_few_ulp(reach: float) -> None:
    x = torch.randn(200, 1, 1001, generator=torch.Generator().manual_seed(1)) * (reach / 3)
    for op, ours in zip(UNARY, evaluate(UNARY, x, x, x), strict=True):
        inside = torch.ones_like(x, dtype=torch.bool) if op not in (Op.LOG, Op.SQRT) else x > 0
        truth = interpret.EVALUATE[op](x.double())
        normal = inside & (truth.abs() >= torch.finfo(x.dtype).tiny) & (truth.abs() <= torch.finfo(x.dtype).max)
        worst = ulps(ours, truth)[normal].max()
        assert worst <= ULPS[op], (op, worst)


@pytest.mark.parametrize("reach", [1e-3, 1.0, 12.0, 500.0])
def test_double_functions_agree_with_torch(reach: float) -> None:
    x = torch.randn(200, 1, 1001, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * (reach / 3)
    for op, ours in zip(UNARY, evaluate(UNARY, x, x, x), strict=True):
        theirs = interpret.EVALUATE[op](x)
        normal = (theirs.abs() >= torch.finfo(x.dtype).tiny) & theirs.isfinite()
        error = ((ours - theirs) / theirs).abs()[normal]
        assert error.max() <= 6 * torch.finfo(x.dtype).eps, (op, error.max())


@pytest.mark.parametrize("dtype", DTYPES.values())
def test_special_values(dtype: torch.dtype) -> None:
    info = torch.finfo(dtype)
    special = [0.0, -0.0, torch.inf, -torch.inf, torch.nan, info.max, -info.max, info.tiny, info.tiny * info.eps]
    special += [1.0, -1.0, 30.0, -30.0, 89.0, -89.0, -100.0, -104.5, 710.5, -745.0, -750.0]
    a = torch.tensor(special, dtype=dtype).repeat(60)[:1001].reshape(1, 1, -1)
    b = torch.tensor(special, dtype=dtype).repeat_interleave(60)[:1001].reshape(1, 1, -1)
    ops = [op for op in Op if op not in STRUCTURAL]
    for op, ours in zip(ops, evaluate(ops, a, b, b.flip(-1)), strict=True):
        theirs = interpret.EVALUATE[op](*(a, b, b.flip(-1))[: op.arity])
        close = torch.isclose(ours, theirs, rtol=8 * info.eps, atol=info.tiny, equal_nan=True)
        if op is Op.LDEXP:  # of nothing but whole numbers of a certain size
            close |= ~((b == b.round()) & (b.abs() < math.frexp(info.max)[1] - 1))
        if op is Op.FMOD:  # torch's own gives NaN where the quotient leaves the range
            close |= b.abs() <= info.tiny
        assert close.all(), (op, a[~close], b[~close], ours[~close])


MPMATH: dict[Op, Callable[..., Any]] = {
    Op.ERFC: mpmath.erfc,
    Op.ERFCX: lambda x: mpmath.exp(x * x) * mpmath.erfc(x),
    Op.ERFINV: lambda x: mpmath.erfinv(x) if abs(x) < 1 else mpmath.nan,
    Op.NDTRI: lambda x: mpmath.sqrt(2) * mpmath.erfinv(2 * x - 1) if 0 < x < 1 else mpmath.nan,
    Op.LGAMMA: lambda x: mpmath.log(abs(mpmath.gamma(x))),
    Op.DIGAMMA: mpmath.digamma,
    Op.ZETA: lambda s, q: mpmath.zeta(s, q) if s > 1 and q > 0 else mpmath.nan,
    Op.I0E: lambda x: mpmath.exp(-abs(x)) * mpmath.besseli(0, x),
    Op.I1E: lambda x: mpmath.exp(-abs(x)) * mpmath.besseli(1, x),
}
assert set(MPMATH) == SPECIAL


@pytest.mark.parametrize("dtype", DTYPES.values())
def test_special_functions_are_exact_to_a_few_ulp(dtype: torch.dtype) -> None:
    """Near a zero of the function: to a few roundings of one."""
    near, far = torch.linspace(-0.999, 0.999, 40), torch.linspace(1.1, 25, 40)
    a = torch.cat([near, far, -far / 3 + 0.01]).to(dtype).repeat(9)[:1001].reshape(1, 1, -1)
    b = torch.rand(1, 1, 1001, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype) * 12
    ops, count = [op for op in Op if op not in STRUCTURAL], 120
    info = torch.finfo(dtype)
    for op, ours in zip(ops, evaluate(ops, a, b, b), strict=True):
        if op not in MPMATH:
            continue
        with mpmath.workdps(60):
            points = zip(a.flatten()[:count].tolist(), b.flatten()[:count].tolist(), strict=True)
            exact = [float(MPMATH[op](*map(mpmath.mpf, p[: op.arity]))) for p in points]
        truth = torch.tensor(exact, dtype=torch.float64)
        there = truth.isfinite() & (truth.abs() < info.max) & (truth.abs() > info.tiny)
        error = (ours.flatten()[:count].double() - truth).abs()[there]
        limit = 16 * info.eps * truth.abs()[there].clamp_min(0.25)
        assert (error <= limit).all(), (op, (error / limit).max())


@pytest.mark.skipif(shutil.which("objdump") is None, reason="needs objdump")
@pytest.mark.parametrize("H", [20, 64])
def test_sums_of_products_stay_in_registers(H: int) -> None:
    """No vector of a microkernel goes to or comes from the stack."""
    library = build.library(print_cpp.source(gated_forward(H), "float"))._name
    listing = subprocess.run(["objdump", "-d", "-C", library], capture_output=True, text=True, check=True).stdout
    kernels = [part for part in listing.split("\n\n") if re.match(r"[0-9a-f]+ <.*gemm_tile<", part)]
    assert kernels
    for text in kernels:
        assert not re.findall(r"\bv\S+ .*\(%r[sb]p\)", text)


def test_staging_leaves_safe_kernels_alone() -> None:
    for make in (gated_forward, gated_backward, normalised):
        assert staged(make(20)) == make(20)
    assert len(staged(swapped(20)).buffers) > len(swapped(20).buffers)


def test_two_python_threads_may_call_one_kernel() -> None:
    kernel = gated_backward(20)
    native = NativeKernel(kernel, "float")
    given = [operands(kernel, 40, 16, torch.float32, seed) for seed in range(4)]
    expected = [clone(tensors) for tensors in given]
    for tensors in expected:
        native(tensors, steps=40, rows=16, threads=1)
    size = {"steps": 40, "rows": 16, "threads": 2}
    workers = [threading.Thread(target=native, args=(tensors,), kwargs=size) for tensors in given]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for ours, theirs in zip(given, expected, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b)


def call_in_child(native: NativeKernel, given: list[Tensor]) -> None:
    assert native.threads(10**6, 10**6) == 1
    native(given, steps=200, rows=16)


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_computes_on_one_thread() -> None:
    kernel = gated_backward(20)
    native, given = NativeKernel(kernel, "float"), operands(kernel, 200, 16, torch.float32)
    native(clone(given), steps=200, rows=16, threads=2)
    child = multiprocessing.get_context("fork").Process(target=call_in_child, args=(native, given))
    child.start()
    child.join(60)
    assert child.exitcode == 0

"""Groups of several axes: the C++ printer against the interpreter on drawn kernels, that against einsum."""

from __future__ import annotations

import random as draws
from math import prod

import pytest
import torch

from bppsa.codegen.arrange.hazards import staged
from bppsa.codegen.cpu import build
from bppsa.codegen.cpu.native import NativeKernel
from bppsa.codegen.cpu.print_cpp import source
from bppsa.codegen.language import interpret
from bppsa.codegen.language.expr import Access, Expr, Op, contiguous, load
from bppsa.codegen.language.ir import Buffer, Group, Kernel, Kind, Reduce, Store
from bppsa.codegen.language.verify import verify
from tests.codegen.kernels import mul, operands
from tests.scan.support import close

SHAPES = ((2, 3, 5), (4, 17), (33,), (1, 3, 1), (3, 8, 2, 3), (2, 16, 16), (2, 3, 71))


def matrix_vector(h: int, D: int, N: int) -> Kernel:
    """S [h, D, N] and q [h, D] -> y [h, N], the largest of each row of S, and the sum of all outer products."""
    matrix = load(Access("S", strides=(D * N, N, 1)))
    q = load(Access("q", strides=(D, 1, 0)))
    stores = (
        Store(Access("inner", strides=(N, 0, 1)), mul(q, matrix), Reduce.ROWS),
        Store(Access("most", strides=(D, 1, 0)), matrix, Reduce.MAX),
        Store(Access("total", strides=(0, N, 1)), mul(q, matrix), Reduce.COLUMNS),
    )
    out = [Store(Access("y"), load(Access("inner")))], [Store(Access("z"), load(Access("most")))]
    groups = (Group(h * D * N, stores, (h, D, N)), Group(h * N, tuple(out[0])), Group(h * D, tuple(out[1])))
    buffers = (
        Buffer("S", Kind.STREAM, h * D * N),
        Buffer("q", Kind.STREAM, h * D),
        Buffer("y", Kind.STREAM, h * N),
        Buffer("z", Kind.STREAM, h * D),
        Buffer("total", Kind.COLUMN_SUM, D * N),
        Buffer("inner", Kind.SCRATCH, h * N),
        Buffer("most", Kind.SCRATCH, h * D),
    )
    return verify(Kernel("matrix_vector", buffers, groups))


def test_folds_mean_what_einsum_does() -> None:
    T, B, h, D, N = 3, 2, 2, 4, 5
    kernel = matrix_vector(h, D, N)
    tensors = operands(kernel, T, B, torch.float64)
    interpret.run(kernel, tensors, steps=T, rows=B)
    S, q, y, z, total = tensors
    S, q = S.unflatten(-1, (h, D, N)), q.unflatten(-1, (h, D))
    close(y, torch.einsum("tbhd,tbhdn->tbhn", q, S).flatten(2), 1e-12)
    assert torch.equal(z, S.amax(-1).flatten(2))
    close(total, torch.einsum("tbhd,tbhdn->dn", q, S).flatten(), 1e-12)


def vector_matrix(h: int, D: int, N: int) -> Kernel:
    """S [h, D, N] and q [h, N] -> y [h, D], and its sum over heads and rows. What is folded is the vectors' axis, and
    each q stays in a register for all of D."""
    matrix, q = load(Access("S", strides=(D * N, N, 1))), load(Access("q", strides=(N, 0, 1)))
    stores = (
        Store(Access("inner", strides=(D, 1, 0)), mul(q, matrix), Reduce.ROWS),
        Store(Access("total", strides=(0, 1, 0)), mul(q, matrix), Reduce.COLUMNS),
    )
    groups = (
        Group(h * D * N, stores, (h, D, N)),
        Group(h * D, (Store(Access("y"), load(Access("inner"))),)),
    )
    buffers = (
        Buffer("S", Kind.STREAM, h * D * N),
        Buffer("q", Kind.STREAM, h * N),
        Buffer("y", Kind.STREAM, h * D),
        Buffer("total", Kind.COLUMN_SUM, D),
        Buffer("inner", Kind.SCRATCH, h * D),
    )
    return verify(Kernel("vector_matrix", buffers, groups))


@pytest.mark.skipif(build.available() is not None, reason="needs a C++ compiler")
@pytest.mark.parametrize(
    ("real", "dtype", "tolerance"), [("float", torch.float32, 1e-5), ("double", torch.float64, 1e-12)]
)
def test_sums_along_the_vectors_of_four_rows_at_once(real: str, dtype: torch.dtype, tolerance: float) -> None:
    for h, D, N in ((2, 9, 69), (1, 4, 16), (3, 3, 5), (2, 8, 33)):
        T, B = 3, 5
        kernel = vector_matrix(h, D, N)
        assert "in_fours(n" in source(kernel, real)
        tensors = operands(kernel, T, B, dtype)
        NativeKernel(kernel, real)(tensors, steps=T, rows=B, threads=2)
        S, q, y, total = tensors
        S, q = S.unflatten(-1, (h, D, N)), q.unflatten(-1, (h, N))
        close(y, torch.einsum("tbhn,tbhdn->tbhd", q, S).flatten(2), tolerance)
        close(total, torch.einsum("tbhn,tbhdn->d", q, S).flatten(), tolerance)


def drawn(shape: tuple[int, ...], seed: int) -> Kernel:
    """Loads that move along some axes, in any order; stores that keep some; a state that is read and written."""
    draw = draws.Random(seed)
    width = prod(shape)
    buffers = [Buffer("h", Kind.STATE, width), Buffer("g", Kind.RUNNING, width), Buffer("y", Kind.STREAM, width)]
    values: list[Expr] = [load(Access(name, strides=contiguous(shape))) for name in ("h", "g")]
    for i, kind in enumerate((Kind.STREAM, Kind.VECTOR, Kind.STREAM)):
        axes = [a for a in range(len(shape)) if draw.random() < 0.6] or [0]
        draw.shuffle(axes)
        steps = dict(zip(axes, contiguous(tuple(shape[a] for a in axes)), strict=True))
        column, step = draw.randrange(3), draw.choice((1, 1, 2))
        strides = tuple(step * steps.get(a, 0) for a in range(len(shape)))
        buffers.append(Buffer(f"in{i}", kind, column + step * prod(shape[a] for a in axes)))
        values.append(load(Access(f"in{i}", column, strides=strides)))
    values.append(load(Access("in0", broadcast=True)))
    for _ in range(6):
        op = draw.choice((Op.ADD, Op.MUL, Op.SUB, Op.MAX, Op.TANH))
        values.append(Expr(op, *draw.choices(values, k=op.arity)))
    stores = [Store(Access("h", after=True, strides=contiguous(shape)), Expr(Op.TANH, values[-1]))]
    stores.append(Store(Access("g", strides=contiguous(shape)), values[-2]))
    after = []
    for i, reduce in enumerate((Reduce.ROWS, Reduce.MAX, Reduce.COLUMNS)):
        kept = [a for a in range(len(shape)) if draw.random() < 0.5]
        own = dict(zip(kept, contiguous(tuple(shape[a] for a in kept)), strict=True))
        strides = tuple(own.get(a, 0) for a in range(len(shape))) if own else ()
        size = prod(shape[a] for a in kept)
        kind = Kind.COLUMN_SUM if reduce is Reduce.COLUMNS else Kind.SCRATCH
        buffers.append(Buffer(f"fold{i}", kind, size))
        stores.append(Store(Access(f"fold{i}", broadcast=not own, strides=strides), draw.choice(values), reduce))
        if kind is Kind.SCRATCH:
            buffers.append(Buffer(f"out{i}", Kind.STREAM, size))
            after.append(Group(size, (Store(Access(f"out{i}"), load(Access(f"fold{i}"))),)))
    back = tuple(reversed(contiguous(tuple(reversed(shape)))))
    turned = Store(Access("y", strides=contiguous(shape)), load(Access("h", after=True, strides=back)))
    groups = (Group(width, tuple(stores), shape), *after, Group(width, (turned,), shape))
    return verify(Kernel("drawn", tuple(buffers), groups))


@pytest.mark.skipif(build.available() is not None, reason="needs a C++ compiler")
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_printed_kernels_are_the_interpreters(shape: tuple[int, ...], seed: int) -> None:
    kernel = drawn(shape, seed)
    run = NativeKernel(kernel, "double")
    for T, B, reverse, threads in ((1, 1, False, 1), (4, 3, True, 2), (0, 2, False, 1)):
        expected = operands(kernel, T, B, torch.float64, seed)
        got = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype).copy_(t) for t in expected]
        interpret.run(kernel, expected, steps=T, rows=B, reverse=reverse)
        run(got, steps=T, rows=B, reverse=reverse, threads=threads)
        for one, other in zip(got, expected, strict=True):
            close(one, other, 1e-12)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_staging_changes_nothing(shape: tuple[int, ...], seed: int) -> None:
    kernel = drawn(shape, seed)
    results = []
    for one in (kernel, verify(staged(kernel))):
        results.append(operands(one, 3, 2, torch.float64))
        interpret.run(one, results[-1], steps=3, rows=2)
    assert all(map(torch.equal, *results))

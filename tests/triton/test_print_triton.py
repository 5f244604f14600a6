"""The Triton printer against the interpreter of the kernel language, on kernels built by hand and on whole programs."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from bppsa.codegen.assembling.program import Program
from bppsa.codegen.gpu.native import TritonKernel
from bppsa.codegen.gpu.triton import print_triton
from bppsa.codegen.gpu.triton.print_tile import TRITON
from bppsa.codegen.language import interpret
from bppsa.codegen.language.expr import SPECIAL, STRUCTURAL, Access, Dot, Expr, Op, dot
from bppsa.codegen.language.ir import Buffer, Group, Kernel, Kind, Store
from bppsa.codegen.language.traffic import traffic
from bppsa.runtime.recurrent.scan.extent import Extent
from bppsa.runtime.recurrent.sweep import Sweep
from tests.codegen.kernels import (
    add,
    at,
    delayed,
    gated_backward,
    gated_forward,
    normalised,
    operands,
    swapped,
    two_stage,
)
from tests.codegen.programs import by_inference, by_sweep, interpreted, packed
from tests.codegen.programs import operands as given_to
from tests.scan.support import reduction_of, same
from tests.triton import needed
from tests.triton.models import MODELS, built

needed.triton()

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # where Triton's interpreter runs them (tests/conftest.py)
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-12}
REAL = {torch.float32: "float", torch.float64: "double"}
BY_HAND = (gated_forward, gated_backward, normalised, two_stage, swapped, delayed)
SIZES = [(1, 1), (2, 3), (3, 18), (0, 2), (2, 0)]
EXTENTS = [Extent(1, 1), Extent(2, 3, reverse=True), Extent(7, 3), packed([4, 2, 1]), packed([4, 4, 1], reverse=True)]


def clone(tensors: list[Tensor], device: str = "cpu") -> list[Tensor]:
    """Copies with the same strides."""
    copies = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=device) for t in tensors]
    return [copy.copy_(t) for copy, t in zip(copies, tensors, strict=True)]


def check(kernel: Kernel, T: int, B: int, dtype: torch.dtype = torch.float64, **flags: object) -> None:
    expected = operands(kernel, T, B, dtype)
    got = clone(expected, DEVICE)
    interpret.run(kernel, expected, steps=T, rows=B, **flags)
    on_device = {name: f.to(DEVICE) if isinstance(f, Tensor) else f for name, f in flags.items()}
    TritonKernel(kernel, REAL[dtype])(got, steps=T, rows=B, **on_device)
    agree(kernel, got, expected)


def agree(kernel: Kernel, got: list[Tensor], expected: list[Tensor]) -> None:
    for b, ours, theirs in zip(kernel.arguments, got, expected, strict=True):
        tolerance = TOLERANCE[theirs.dtype]
        torch.testing.assert_close(
            ours.cpu(), theirs, rtol=tolerance, atol=tolerance, equal_nan=True, msg=lambda m, b=b: f"{b}: {m}"
        )


# ---- kernels built by hand


@pytest.mark.parametrize(
    ("make", "H"), [(make, H) for make in BY_HAND for H in (2 if make is swapped else 1, 5, 17, 70)]
)
def test_agrees_with_the_interpreter(make: Callable[[int], Kernel], H: int) -> None:
    for T, B in SIZES:
        check(make(H), T, B, reverse=B == 3)


@pytest.mark.parametrize("make", BY_HAND)
def test_in_float32(make: Callable[[int], Kernel]) -> None:
    check(make(20), 4, 3, torch.float32)


@pytest.mark.parametrize("make", BY_HAND)
@pytest.mark.parametrize("reverse", [False, True])
def test_packed_rows_join_and_leave(make: Callable[[int], Kernel], reverse: bool) -> None:
    lengths = torch.tensor([6, 5, 3, 3, 1])
    active = torch.tensor([int((lengths > t).sum()) for t in range(6)])
    check(make(5), 6, len(lengths), active=active, reverse=reverse)


def test_a_value_is_stored_where_later_groups_did_not_store_over_it() -> None:
    """And read in part, across two tiles, and as the source of a product that begins in memory."""

    def store(buffer: str, column: int, value: Expr) -> Store:
        return Store(Access(buffer, column), value)

    groups = (
        Group(6, (store("y", 0, at("x")),)),
        Group(3, (store("y", 2, Expr(Op.NEG, at("x", 1))),)),
        Group(4, (store("z", 1, add(at("y", 1), at("y", 4, broadcast=True))),)),
        Group(2, (store("p", 0, dot(Dot(Access("y", 1), "w", 1))),)),
        Group(1, (store("p", 2, dot(Dot(Access("z", 1), "v"))),)),
    )
    buffers = (
        *(Buffer(name, Kind.STREAM, width) for name, width in (("x", 6), ("y", 9), ("z", 6), ("p", 3))),
        Buffer("w", Kind.WEIGHT, 3, 8),
        Buffer("v", Kind.WEIGHT, 1, 5),
    )
    check(Kernel("pieces", buffers, groups), 3, 2)


@pytest.mark.parametrize("make", [gated_forward, gated_backward, normalised, two_stage])
def test_touches_nothing_outside_its_rows(make: Callable[[int], Kernel]) -> None:
    """NaN around every row must neither be read nor overwritten."""
    kernel, T, B = make(5), 3, 2
    framed, given = [], []
    for tensor in operands(kernel, T, B, torch.float64):
        frame = torch.full([n + 4 for n in tensor.shape], torch.nan, dtype=torch.float64, device=DEVICE)
        inside = frame[tuple(slice(2, -2) for _ in tensor.shape)]
        framed.append(frame)
        given.append(inside.copy_(tensor))
    TritonKernel(kernel, "double")(given, steps=T, rows=B)
    for frame, inside in zip(framed, given, strict=True):
        assert not inside.isnan().any()
        assert frame.isnan().sum() == frame.numel() - inside.numel()


def test_expanded_operands_are_read_with_stride_zero() -> None:
    kernel = gated_backward(5)
    expected = operands(kernel, 3, 2, torch.float64)
    expected[2] = expected[2][:1, :1].expand(3, 2, -1)
    got = [t.clone().to(DEVICE) if i != 2 else t.to(DEVICE).expand(3, 2, -1) for i, t in enumerate(expected)]
    interpret.run(kernel, expected, steps=3, rows=2)
    TritonKernel(kernel, "double")(got, steps=3, rows=2)
    agree(kernel, got, expected)


# ---- chunks


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("lengths", [None, [7, 5, 2]])
@pytest.mark.parametrize("model", ["by hand", "GRU", "LSTM"])
def test_chunks_from_their_boundaries_are_the_whole_sweep(model: str, lengths: list[int] | None, reverse: bool) -> None:
    kernel = gated_backward(5) if model == "by hand" else built(model, 5).backward
    T, B, L = 7, 3, 3
    active = None if lengths is None else torch.tensor([sum(n > t for n in lengths) for t in range(T)])
    given = operands(kernel, T, B, torch.float64)
    running = [i for i, b in enumerate(kernel.arguments) if b.kind is Kind.RUNNING]
    starts = range(0, T, L)
    boundary: dict[int, list[Tensor]] = {}
    now = [given[i] for i in running]
    for c, start in sorted(enumerate(starts), reverse=kernel.along == reverse):
        boundary[c] = now
        part = [within(b.kind, t, start, min(start + L, T)) for b, t in zip(kernel.arguments, given, strict=True)]
        part = clone(part)
        for i, value in zip(running, now, strict=True):
            part[i].copy_(value)
        rows = None if active is None else active[start : start + L]
        interpret.run(kernel, part, steps=min(L, T - start), rows=B, active=rows, reverse=reverse)
        now = [part[i] for i in running]
    got = clone(given, DEVICE)
    for n, i in enumerate(running):
        got[i] = torch.stack([boundary[c][n] for c in range(len(starts))]).to(DEVICE)
    TritonKernel(kernel, "double")(
        got, steps=T, rows=B, active=None if active is None else active.to(DEVICE), reverse=reverse, chunk=L
    )
    expected = clone(given)
    interpret.run(kernel, expected, steps=T, rows=B, active=active, reverse=reverse)
    last = len(starts) - 1 if kernel.along != reverse else 0
    for i in running:
        got[i] = got[i][last]
    agree(kernel, got, expected)


def within(kind: Kind, tensor: Tensor, start: int, stop: int) -> Tensor:
    return {Kind.STREAM: tensor[start:stop], Kind.STATE: tensor[start : stop + 1]}.get(kind, tensor)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_forward_chunk_starts_from_the_state_before_it(reverse: bool) -> None:
    kernel = gated_forward(5)
    expected = operands(kernel, 7, 3, torch.float64)
    whole = clone(expected)
    interpret.run(kernel, expected, steps=7, rows=3, reverse=reverse)
    whole[1].copy_(expected[1])  # the state, after all steps
    got = clone(whole, DEVICE)
    TritonKernel(kernel, "double")(got, steps=7, rows=3, reverse=reverse, chunk=2)
    agree(kernel, got, expected)


# ---- whole programs


def printed(program: Program) -> Sweep:
    def build(kernels: Sequence[Kernel]) -> list[TritonKernel]:
        return [TritonKernel(kernel, "double") for kernel in kernels]

    return Sweep(program, torch.float64, build, lambda: reduction_of(program.recurrence, False))


@pytest.mark.skipif(DEVICE != "cpu", reason="the runtime keeps its buffers on the CPU")
@pytest.mark.parametrize("H", [1, 5, 17])
@pytest.mark.parametrize("model", MODELS)
def test_programs_agree_with_interpreted_ones(model: str, H: int) -> None:
    program = built(model, H)
    for extent in EXTENTS if H == 5 else EXTENTS[1:2]:
        given = given_to(program.recurrence, extent)
        same(by_sweep(printed(program), given, extent), by_sweep(interpreted(program), given, extent), 1e-11)
        same(by_inference(printed(program), given, extent), by_inference(interpreted(program), given, extent), 1e-11)


@pytest.mark.skipif(DEVICE != "cpu", reason="the runtime keeps its buffers on the CPU")
@pytest.mark.parametrize("model", ["GRU", "LayerNormLSTM"])
def test_products_within_the_sweep(model: str) -> None:
    program, extent = built(model, 5, inline=True), Extent(3, 2)
    given = given_to(program.recurrence, extent)
    same(by_inference(printed(program), given, extent), by_inference(interpreted(program), given, extent), 1e-11)


# ---- the text


def test_the_table_is_complete() -> None:
    assert set(TRITON) == set(Op) - STRUCTURAL - SPECIAL


def test_nothing_goes_through_memory_within_a_step() -> None:
    """No load in the loop but those for the next step; what the step stores is not among them."""
    for model in MODELS:
        for kernel in (built(model, 20).forward, built(model, 20).backward):
            text = print_triton.printed(kernel, "float").source
            loop = [line for line in text.split("for i in range")[1].splitlines() if "tl.load(" in line]
            assert all("ahead" in line for line in loop)
            assert "scratch" not in text


def test_large_weights_are_read_step_by_step() -> None:
    """What does not fit a program's shared memory."""
    small, large = (print_triton.printed(built("GRU", H).forward, "float").source for H in (64, 100))
    assert "weight" not in small.split("for i in range")[1]
    assert "weight" in large.split("for i in range")[1]


def test_texts_are_python_and_short_of_nothing() -> None:
    for model in MODELS:
        ast.parse(print_triton.printed(built(model, 33).backward, "double").source)


@pytest.mark.parametrize("extent", EXTENTS, ids=str)
@pytest.mark.parametrize("model", ["RNN", "GRU", "LSTM", "ResetGRU", "MinGRU"])
def test_columns_share_a_sample(model: str, extent: Extent) -> None:
    """The reduction of a chunk: all its columns, their powers of two, and what is not a number."""
    sweep = interpreted(built(model, 5))
    made, given = sweep.reduction(), given_to(sweep.recurrence, extent)
    for tensor in (*given.sources, *given.params):
        tensor /= 4  # near h = 1 a column is as exact as 1 - h * h, in which a GPU rounds once and the CPU twice
    passed = sweep.forward(given.sources, given.carries, given.params, extent, save=True)
    known = {f"carry{i}": state for i, state in enumerate(passed.states)} | passed.private
    known |= {f"g_output{k}": g for k, g in enumerate(given.g_outputs)}
    known |= made.buffers(made.start(extent.rows, extent.device).flatten(0, 1))
    expected = list(sweep.named(made.kernel, known, given.sources, given.params, extent).values())
    got = clone(expected, DEVICE)
    where = {"steps": extent.steps, "rows": extent.rows, "reverse": extent.reverse, "columns": made.columns}
    interpret.run(made.kernel, expected, active=extent.active, **where)
    active = None if extent.active is None else extent.active.to(DEVICE)
    TritonKernel(made.kernel, "double")(got, active=active, **where)
    agree(made.kernel, got, expected)


def test_traffic_of_a_kernel_by_hand() -> None:
    """tanh(x + h @ W): a stream of 5 columns comes in, a state goes out; the one before it is in registers."""
    work = traffic(built("RNN", 5).forward, "float")
    assert work.bytes == 4 * (5 + 5)
    assert work.flops >= 5 * (2 * 5 + 2)

"""The definition of the kernel language, rule by rule, on kernels small enough to work out by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bppsa.codegen.language import interpret
from bppsa.codegen.language.expr import Access, Dot, Expr, Op, const, dot
from bppsa.codegen.language.ir import Buffer, Group, Kernel, Kind, Reduce, Store
from tests.codegen.kernels import add, at, gated_forward, mul, operands

T, B = 4, 3


def run(
    buffers: list[Buffer], groups: list[Group], tensors: list[Tensor], *, along: bool = True, **flags: object
) -> None:
    kernel = Kernel("by hand", tuple(buffers), tuple(groups), along)
    interpret.run(kernel, tensors, steps=T, rows=B, **flags)  # type: ignore[arg-type]


def counted(*shape: int) -> Tensor:
    return torch.arange(1.0, 1 + torch.Size(shape).numel(), dtype=torch.float64).view(shape)


def stream(name: str, width: int = 1) -> Buffer:
    return Buffer(name, Kind.STREAM, width)


def group(width: int, *stores: tuple[Access, Expr], reduce: Reduce = Reduce.NONE) -> Group:
    return Group(width, tuple(Store(target, value, reduce) for target, value in stores))


def test_columns_line_up() -> None:
    """Element j reads column + j, or the very column if broadcast, and writes column + j."""
    x, y = counted(T, B, 5), torch.zeros(T, B, 5, dtype=torch.float64)
    value = add(at("x", 1), mul(const(10), at("x", 4, broadcast=True)))
    run([stream("x", 5), stream("y", 5)], [group(3, (Access("y", 2), value))], [x, y])
    assert torch.equal(y[..., 2:], x[..., 1:4] + 10 * x[..., 4:])
    assert not y[..., :2].any()


def test_stores_of_a_group_come_after_all_its_loads() -> None:
    x = counted(T, B, 2)
    expected = x.flip(-1)
    swapped = x.clone()
    run([stream("x", 2)], [group(1, (Access("x"), at("x", 1)), (Access("x", 1), at("x")))], [swapped])
    assert torch.equal(swapped, expected)


def test_a_later_group_sees_the_stores_of_an_earlier_one() -> None:
    x, y = counted(T, B, 1), torch.zeros(T, B, 1, dtype=torch.float64)
    groups = [group(1, (Access("x"), add(at("x"), const(1)))), group(1, (Access("y"), at("x")))]
    run([stream("x"), stream("y")], groups, [x, y])
    assert torch.equal(y, counted(T, B, 1) + 1)


def test_scratch_lives_within_a_step() -> None:
    y = torch.zeros(T, B, 2, dtype=torch.float64)
    x = counted(T, B, 2)
    groups = [group(2, (Access("s"), mul(at("x"), const(2)))), group(2, (Access("y"), at("s")))]
    run([stream("x", 2), Buffer("s", Kind.SCRATCH, 2), stream("y", 2)], groups, [x, y])
    assert torch.equal(y, 2 * x)


def test_running_reads_what_the_previous_step_left() -> None:
    """Also in a group that comes after the store."""
    x, r, y = (
        counted(T, B, 1),
        torch.full((B, 1), 100.0, dtype=torch.float64),
        torch.zeros(T, B, 1, dtype=torch.float64),
    )
    groups = [group(1, (Access("r"), at("x"))), group(1, (Access("y"), at("r")))]
    run([stream("x"), Buffer("r", Kind.RUNNING, 1), stream("y")], groups, [x, r, y])
    assert torch.equal(y[0], torch.full((B, 1), 100.0, dtype=torch.float64))
    assert torch.equal(y[1:], x[:-1])
    assert torch.equal(r, x[-1])


def test_a_running_source_of_a_product_is_the_previous_one_too() -> None:
    r, y, w = counted(B, 2), torch.zeros(T, B, 1, dtype=torch.float64), counted(2, 1)
    first = r.clone()
    groups = [group(2, (Access("r"), const(0))), group(1, (Access("y"), dot(Dot(Access("r"), "w"))))]
    run([Buffer("r", Kind.RUNNING, 2), stream("y"), Buffer("w", Kind.WEIGHT, 1, 2)], groups, [r, y, w])
    assert torch.equal(y[0], first @ w)
    assert not y[1:].any()


@pytest.mark.parametrize(("along", "reverse", "order"), [
    (True, False, [0, 1, 2, 3]), (False, False, [3, 2, 1, 0]), (True, True, [3, 2, 1, 0]), (False, True, [0, 1, 2, 3])
])  # fmt: skip
def test_the_direction_of_time(along: bool, reverse: bool, order: list[int]) -> None:
    """Against its recurrence for a backward sweep, and all the other way round with `reverse`."""
    count, y = torch.zeros(B, 1, dtype=torch.float64), torch.zeros(T, B, 1, dtype=torch.float64)
    groups = [group(1, (Access("y"), at("n")), (Access("n"), add(at("n"), const(1))))]
    run([Buffer("n", Kind.RUNNING, 1), stream("y")], groups, [count, y], along=along, reverse=reverse)
    assert torch.argsort(y[:, 0, 0]).tolist() == order


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("along", [False, True])
def test_rows_between_steps(along: bool, reverse: bool) -> None:
    """STATE row t stands before step t and row t+1 after it; with `reverse` the other way round, whoever sweeps."""
    h, before, after = counted(T + 1, B, 1), *torch.zeros(2, T, B, 1, dtype=torch.float64)
    groups = [group(1, (Access("before"), at("h")), (Access("after"), at("h", after=True)))]
    run(
        [Buffer("h", Kind.STATE, 1), stream("before"), stream("after")],
        groups,
        [h, before, after],
        along=along,
        reverse=reverse,
    )
    lower, upper = h[:-1], h[1:]
    assert torch.equal(before, upper if reverse else lower)
    assert torch.equal(after, lower if reverse else upper)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_state_carries_on(reverse: bool) -> None:
    h = torch.zeros(T + 1, B, 1, dtype=torch.float64)
    x = counted(T, B, 1)
    run(
        [Buffer("h", Kind.STATE, 1), stream("x")],
        [group(1, (Access("h", after=True), add(at("h"), at("x"))))],
        [h, x],
        reverse=reverse,
    )
    sums = x.flip(0).cumsum(0).flip(0) if reverse else x.cumsum(0)
    assert torch.equal(h[:-1] if reverse else h[1:], sums)


def test_products() -> None:
    """Of a stretch of columns with a stretch of the weight's columns."""
    x, w, y = counted(T, B, 4), counted(2, 5), torch.zeros(T, B, 3, dtype=torch.float64)
    buffers = [stream("x", 4), Buffer("w", Kind.WEIGHT, 5, 2), stream("y", 3)]
    run(buffers, [group(3, (Access("y"), dot(Dot(Access("x", 1), "w", 2))))], [x, w, y])
    assert torch.equal(y, x[..., 1:3] @ w[:, 2:])


def test_vectors_are_the_same_in_every_row() -> None:
    v, y = counted(3), torch.zeros(T, B, 2, dtype=torch.float64)
    value = add(at("v", 1), at("v", broadcast=True))
    run([Buffer("v", Kind.VECTOR, 3), stream("y", 2)], [group(2, (Access("y"), value))], [v, y])
    assert torch.equal(y, (v[1:] + v[0]).expand(T, B, 2))


def test_sums_over_columns_and_over_rows() -> None:
    x, total, y = (
        counted(T, B, 3),
        torch.full((4,), 7.0, dtype=torch.float64),
        torch.zeros(T, B, 1, dtype=torch.float64),
    )
    buffers = [stream("x", 3), Buffer("total", Kind.COLUMN_SUM, 4), Buffer("s", Kind.SCRATCH, 2), stream("y")]
    groups = [
        group(3, (Access("total", 1), at("x")), reduce=Reduce.COLUMNS),
        group(3, (Access("s", 1), at("x")), reduce=Reduce.ROWS),
        group(1, (Access("y"), at("s", 1))),
    ]
    run(buffers, groups, [x, total, y])
    assert torch.equal(total, torch.cat([torch.zeros(1, dtype=torch.float64), x.sum((0, 1))])), (
        "what was there is no part"
    )
    assert torch.equal(y, x.sum(2, keepdim=True))


def test_rows_that_take_no_part_are_neither_read_nor_written() -> None:
    active = torch.tensor([3, 3, 1, 1])
    x, y = counted(T, B, 2), torch.full((T, B, 2), -1.0, dtype=torch.float64)
    total, r = torch.zeros(2, dtype=torch.float64), torch.zeros(B, 2, dtype=torch.float64)
    x[2:, 1:] = torch.nan
    buffers = [stream("x", 2), stream("y", 2), Buffer("t", Kind.COLUMN_SUM, 2), Buffer("r", Kind.RUNNING, 2)]
    stores = Store(Access("y"), at("x")), Store(Access("t"), at("x"), Reduce.COLUMNS), Store(Access("r"), at("x"))
    run(buffers, [Group(2, stores)], [x, y, total, r], active=active)
    taken = torch.arange(B) < active[:, None]
    assert torch.equal(y[taken], x[taken])
    assert (y[~taken] == -1).all()
    assert torch.equal(total, x[taken].sum(0))
    assert torch.equal(r, torch.stack([x[3, 0], x[1, 1], x[1, 2]]))


def test_no_steps_and_no_rows() -> None:
    for steps, rows in ((0, B), (T, 0)):
        kernel = gated_forward(4)
        given = operands(kernel, steps, rows, torch.float64)
        interpret.run(kernel, given, steps=steps, rows=rows)


def test_truth_values_are_numbers() -> None:
    x, y = (
        torch.tensor([-1.0, 0.0, torch.nan], dtype=torch.float64).expand(T, B, 3),
        torch.zeros(T, B, 3, dtype=torch.float64),
    )
    value = Expr(Op.WHERE, at("x"), const(1), const(2))
    run([stream("x", 3), stream("y", 3)], [group(3, (Access("y"), value))], [x, y])
    assert y[0, 0].tolist() == [1, 2, 1]

"""Rows: slices, concatenations and broadcasts that cost nothing. Lowering: what stands in memory, and refusals."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import reduce
from typing import Any

import pytest
import torch
from hypothesis import given as for_all
from hypothesis import strategies as st
from torch import Tensor

from bppsa.codegen.assembling.assemble import row_of
from bppsa.codegen.language import interpret
from bppsa.codegen.language.expr import Access, Dot, Expr, Op, const
from bppsa.codegen.language.ir import Buffer, Group, Kernel, Kind, Reduce, Store
from bppsa.codegen.lowering.lower import ColumnRun, Lowering, Workspace
from bppsa.codegen.lowering.row import Row, RowSegment, concatenate, leaf, shift, zip_with
from bppsa.errors import Unsupported
from tests.codegen.kernels import at
from tests.fxpasses.graphs import split_cell
from tests.scan.zoo import B, H, T, example, h, random, x

# A row and the tensor it stands for, both drawn by the same recipe.
Drawn = tuple[Row, Tensor]
WIDTH = 9
VALUES = torch.randn(2, B, WIDTH, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def evaluate(row: Row) -> Tensor:
    """[B, n], each segment as a group of its own."""
    stores, at_column = [], 0
    for segment in row.segments:
        stores.append(Group(segment.width, (Store(Access("out", at_column), segment.expr),)))
        at_column += segment.width
    buffers = (*(Buffer(name, Kind.STREAM, WIDTH) for name in ("a", "b")), Buffer("out", Kind.STREAM, row.width))
    out = torch.empty(1, B, row.width, dtype=torch.float64)
    interpret.run(Kernel("row", buffers, tuple(stores)), [VALUES[:1], VALUES[1:], out], steps=1, rows=B)
    return out[0]


@st.composite
def pieces(draw: st.DrawFn) -> Drawn:
    which = draw(st.integers(0, 1))
    start = draw(st.integers(0, WIDTH - 2))
    end = draw(st.integers(start + 2, WIDTH))
    row = leaf(Access("ab"[which]), WIDTH).columns(start, end)
    return row, VALUES[which, :, start:end]


@st.composite
def rows(draw: st.DrawFn) -> Drawn:
    """Pieces side by side, cut and put side by side again."""
    parts = draw(st.lists(pieces(), min_size=1, max_size=3))
    row, value = concatenate(row for row, _ in parts), torch.cat([value for _, value in parts], 1)
    start = draw(st.integers(0, row.width - 2))
    end = draw(st.integers(start + 2, row.width))
    return row.columns(start, end), value[:, start:end]


@for_all(drawn=rows())
def test_a_row_is_its_tensor(drawn: Drawn) -> None:
    row, value = drawn
    assert row.width == value.shape[1]
    assert torch.equal(evaluate(row), value)


@for_all(drawn=rows(), start=st.integers(0, 20), length=st.integers(1, 20))
def test_columns(drawn: Drawn, start: int, length: int) -> None:
    row, value = drawn
    part = row.columns(start, min(start + length, row.width))
    expected = value[:, start : start + length]
    assert part.width == expected.shape[1]
    assert not part.segments or torch.equal(evaluate(part), expected)


@for_all(a=rows(), b=rows())
def test_side_by_side(a: Drawn, b: Drawn) -> None:
    assert torch.equal(evaluate(concatenate([a[0], b[0]])), torch.cat([a[1], b[1]], 1))


@for_all(drawn=st.lists(rows(), min_size=1, max_size=3))
def test_column_by_column(drawn: list[Drawn]) -> None:
    """Segments that are cut at different places meet in their common pieces."""
    width = min(row.width for row, _ in drawn)
    narrowed = [row.columns(0, width) for row, _ in drawn]
    total = zip_with(lambda *exprs: reduce(lambda p, q: Expr(Op.ADD, p, q), exprs), narrowed)
    assert total is not None
    assert total.width == width
    assert torch.allclose(evaluate(total), reduce(operator.add, [value[:, :width] for _, value in drawn]))


@for_all(drawn=rows(), column=st.integers(0, WIDTH - 1))
def test_a_single_column_meets_all(drawn: Drawn, column: int) -> None:
    one = leaf(Access("b", column), 1)
    for order in (1, -1):
        product = zip_with(lambda *exprs: Expr(Op.MUL, *exprs), [drawn[0], one][::order])
        assert product is not None
        assert torch.equal(evaluate(product), drawn[1] * VALUES[1, :, column : column + 1])


def test_no_expression_for_one_column_is_none_for_the_row() -> None:
    assert zip_with(lambda *exprs: None, [leaf(Access("a"), 3)]) is None


def test_shifting_moves_what_depends_on_the_column() -> None:
    value = Expr(
        Op.ADD, at("a", 1), Expr(Op.MUL, at("b", 2, broadcast=True), Expr(Op.DOT, payload=Dot(Access("c"), "w", 3)))
    )
    moved = shift(value, 2)
    assert at("a", 3) in moved.args
    assert moved.args[1].args[0] is at("b", 2, broadcast=True)
    assert moved.args[1].args[1].payload == Dot(Access("c"), "w", 5), "the product's source stays"
    assert shift(value, 0) is value
    assert shift(const(1), 5) is const(1)


def test_a_workspace_stores_a_segment_once() -> None:
    workspace, roots = Workspace("w", Kind.STREAM), []
    first = Row((RowSegment(3, at("a")), RowSegment(2, at("b"))))
    assert workspace.runs(first, roots) == (ColumnRun(0, 0, 5),), "neighbours are one run"
    assert workspace.runs(Row((RowSegment(2, at("b")), RowSegment(4, at("c")), RowSegment(3, at("a")))), roots) == (
        ColumnRun(0, 3, 6),
        ColumnRun(6, 0, 3),
    )
    assert [(root.target.column, root.width) for root in roots] == [(0, 3), (3, 2), (5, 4)]
    assert workspace.buffer() == Buffer("w", Kind.STREAM, 9)


def lowered(cell: Callable[[Tensor, Tensor], Tensor]) -> Lowering:
    recurrence = split_cell(example(lambda h, x: ((n := cell(h, x)), n), h(), x(H)))
    lowering = Lowering(row_of)
    lowering.lower(recurrence.body)
    return lowering


W, V = random(H, H), random(H)


def test_slices_and_concatenations_need_no_memory() -> None:
    lowering = lowered(lambda h, x: torch.cat([h[:, 2:], x[:, :2]], 1) * x + V)
    assert not lowering.roots
    assert not lowering.scratch_widths


def test_the_left_operand_of_a_product_stands_in_memory() -> None:
    assert not lowered(lambda h, x: torch.tanh(h @ W + x)).roots, "the carry already does"
    lowering = lowered(lambda h, x: torch.tanh((h * x) @ W))
    assert [(root.target.buffer, root.width, root.reduce) for root in lowering.roots] == [("scratch0", H, Reduce.NONE)]


def test_one_operand_of_two_products_is_stored_once() -> None:
    lowering = lowered(lambda h, x: torch.tanh((h * x) @ W) + torch.sigmoid((h * x) @ W.t()))
    assert lowering.scratch_widths == [H]
    assert len(lowering.weights) == 2


def test_an_operand_of_pieces_is_put_together() -> None:
    lowering = lowered(lambda h, x: torch.tanh(torch.cat([h[:, 3:] * 2, h[:, :3] * x[:, :3]], 1).relu() @ W))
    assert [(root.target.column, root.width) for root in lowering.roots] == [(0, 3), (3, 3)]


def test_row_sums_are_stored_as_one_number() -> None:
    lowering = lowered(lambda h, x: h * torch.cat([h, x * 2, x[:, :2]], 1).sum(1, keepdim=True))
    assert [(root.width, root.reduce) for root in lowering.roots] == [(H, Reduce.ROWS), (2, Reduce.ROWS)]
    assert lowering.scratch_widths == [1, 1]


def test_a_sum_that_is_taken_twice_is_stored_once() -> None:
    lowering = lowered(lambda h, x: h * h.sum(1, keepdim=True) + x * h.sum(1, keepdim=True))
    assert lowering.scratch_widths == [1]


def test_a_single_column_is_read_from_memory() -> None:
    """It meets every column of wider rows."""
    for cell in (lambda h, x: h * x[:, 2:3], lambda h, x: h * h[:, 2].unsqueeze(1), lambda h, x: h * (h @ W[:, :1])):
        lowering = lowered(cell)
        assert [root.width for root in lowering.roots] == [1]
        single = [row.segments[0].expr.payload for row in lowering.rows.values() if row.width == 1]
        assert all(isinstance(access, Access) and access.broadcast for access in single)


REFUSED: list[tuple[str, Callable[[Tensor, Tensor], Any]]] = [
    ("aten.special_bessel_j0.default: has no kernel", lambda h, x: torch.special.bessel_j0(h) + x),
    ("changes torch.float64 to torch.float32", lambda h, x: h + h.float()),
    ("adds truth values", lambda h, x: h + x * ((h > 0) + (x > 0))),
]


@pytest.mark.parametrize(("reason", "cell"), REFUSED)
def test_what_has_no_words_is_refused(reason: str, cell: Callable[[Tensor, Tensor], Any]) -> None:
    with pytest.raises(Unsupported) as caught:
        lowered(cell)
    assert reason in str(caught.value)


def test_the_letters_agree() -> None:
    """The examples of this file rely on widths that differ from the batch."""
    assert len({T, B, H}) == 3

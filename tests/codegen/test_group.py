"""Groups of a step: what has to wait for what, what runs together, and that no work is done twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from bppsa.codegen.assembling.columns import ValueNumbering
from bppsa.codegen.assembling.group import EXPENSIVE, Grouping
from bppsa.codegen.language.expr import Access, Dot, Expr, Op, const, dot
from bppsa.codegen.language.ir import Buffer, Group, Kernel, Kind, Reduce
from bppsa.codegen.language.verify import verify
from bppsa.codegen.lowering.lower import Root
from tests.codegen.kernels import add, at, mul
from tests.codegen.programs import build, kernels
from tests.scan import zoo
from tests.scan.zoo import CASES, Example, H, example, h, make, random, x

W = 4
BUFFERS = {
    b.name: b
    for b in (
        *(Buffer(name, Kind.STREAM, W) for name in ("a", "b", "y", "z")),
        Buffer("h", Kind.STATE, W),
        Buffer("r", Kind.RUNNING, W),
        Buffer("w", Kind.WEIGHT, W, W),
        Buffer("scratch0", Kind.SCRATCH, W),
        Buffer("scratch1", Kind.SCRATCH, 1),
    )
}


def tanh(value: Expr) -> Expr:
    return Expr(Op.TANH, value)


def product(source: str, column: int = 0) -> Expr:
    return dot(Dot(Access(source, column), "w"))


def grouped(*roots: Root) -> tuple[Group, ...]:
    widths = [W, 1]
    groups = Grouping(dict(BUFFERS), widths).run(roots)
    scratch = [Buffer(f"scratch{i}", Kind.SCRATCH, width) for i, width in enumerate(widths)]
    buffers = {**BUFFERS, **{b.name: b for b in scratch}}
    verify(Kernel("grouped", tuple(buffers.values()), groups))
    return groups


def targets(groups: tuple[Group, ...]) -> list[list[str]]:
    return [[store.target.buffer for store in group.stores] for group in groups]


def test_independent_stores_of_a_width_run_together() -> None:
    groups = grouped(Root(Access("y"), at("a"), W), Root(Access("z"), tanh(at("b")), W))
    assert targets(groups) == [["y", "z"]]


def test_widths_do_not_mix() -> None:
    groups = grouped(Root(Access("y"), at("a"), W), Root(Access("z"), at("b"), 2), Root(Access("z", 2), at("b", 2), 2))
    assert [(group.width, len(group.stores)) for group in groups] == [(W, 1), (2, 2)]


def test_a_product_waits_for_its_operand() -> None:
    groups = grouped(
        Root(Access("scratch0"), mul(at("a"), at("b")), W), Root(Access("y"), tanh(product("scratch0")), W)
    )
    assert targets(groups) == [["scratch0"], ["y"]]


def test_a_sum_over_columns_is_waited_for() -> None:
    groups = grouped(
        Root(Access("scratch1", broadcast=True), at("a"), W, Reduce.ROWS),
        Root(Access("y"), mul(at("a"), at("scratch1", broadcast=True)), W),
    )
    assert targets(groups) == [["scratch1"], ["y"]]


def test_only_columns_that_overlap_wait() -> None:
    apart = grouped(Root(Access("y"), at("a"), 2), Root(Access("z"), at("y", 2), 2))
    assert targets(apart) == [["y", "z"]]
    over = grouped(Root(Access("y"), at("a"), 2), Root(Access("z"), at("y", 1), 2))
    assert targets(over) == [["y"], ["z"]]


def test_both_sides_of_a_state_are_told_apart() -> None:
    groups = grouped(Root(Access("h", after=True), at("a"), W), Root(Access("y"), at("h"), W))
    assert targets(groups) == [["h", "y"]]
    groups = grouped(Root(Access("h", after=True), at("a"), W), Root(Access("y"), at("h", after=True), W))
    assert targets(groups) == [["h"], ["y"]]


def test_what_the_last_step_left_need_not_be_waited_for() -> None:
    groups = grouped(Root(Access("r"), tanh(at("a")), W), Root(Access("y"), at("r"), W))
    assert targets(groups) == [["r", "y"]]


def test_work_of_an_earlier_group_is_read_from_where_it_was_stored() -> None:
    costly = tanh(at("a"))
    groups = grouped(
        Root(Access("y"), costly, W),
        Root(Access("scratch0"), at("b"), W),
        Root(Access("z"), mul(costly, product("scratch0")), W),
    )
    later = groups[1].stores[0].value
    assert later is mul(at("y"), product("scratch0"))


def test_work_that_was_stored_nowhere_gets_a_place() -> None:
    costly = tanh(at("a"))
    groups = grouped(
        Root(Access("scratch0"), mul(costly, at("b")), W), Root(Access("z"), mul(costly, product("scratch0")), W)
    )
    assert targets(groups) == [["scratch0", "scratch2"], ["z"]]
    assert groups[1].stores[0].value is mul(at("scratch2"), product("scratch0"))


def test_cheap_work_is_done_again() -> None:
    cheap = add(at("a"), const(1))
    groups = grouped(Root(Access("scratch0"), cheap, W), Root(Access("z"), mul(cheap, product("scratch0")), W))
    assert targets(groups) == [["scratch0"], ["z"]]
    assert groups[1].stores[0].value is mul(cheap, product("scratch0"))


def test_a_running_buffer_is_no_place_to_read_from() -> None:
    """A load there gives what the previous step stored."""
    costly = tanh(at("a"))
    groups = grouped(
        Root(Access("r"), costly, W),
        Root(Access("scratch0"), at("b"), W),
        Root(Access("z"), mul(costly, product("scratch0")), W),
    )
    assert groups[1].stores[0].value is mul(at("scratch2"), product("scratch0"))


def test_a_number_for_a_whole_row_takes_one_column() -> None:
    costly = Expr(Op.SQRT, at("b", 1, broadcast=True))
    groups = grouped(
        Root(Access("scratch0"), mul(costly, at("a")), W), Root(Access("z"), mul(costly, product("scratch0")), W)
    )
    assert [(group.width, len(group.stores)) for group in groups] == [(W, 1), (1, 1), (W, 1)] or sorted(
        group.width for group in groups[:2]
    ) == [1, W]
    assert groups[-1].stores[0].value.args[0].payload.broadcast  # type: ignore[union-attr]


def test_work_that_one_group_needs_waits_for_it() -> None:
    groups = grouped(Root(Access("scratch0"), at("b"), W), Root(Access("z"), mul(product("a"), product("scratch0")), W))
    assert targets(groups) == [["scratch0"], ["z"]]
    assert len(groups[1].dots) == 2


def test_parts_of_a_value_are_read_from_the_whole() -> None:
    """A row sum needs all columns at once, the groups after it some of them each."""
    total = at("scratch1", broadcast=True)
    groups = grouped(
        Root(Access("scratch1", broadcast=True), product("a"), W, Reduce.ROWS),
        Root(Access("y"), mul(product("a"), total), 2),
        Root(Access("y", 2), mul(dot(Dot(Access("a"), "w", 2)), total), 2),
    )
    assert [len(group.dots) for group in groups] == [1, 0]
    assert targets(groups) == [["scratch1", "scratch2"], ["y", "y"]]
    assert groups[1].stores[1].value is mul(at("scratch2", 2), total)


def test_what_is_stored_later_in_the_list_is_read_all_the_same() -> None:
    costly = tanh(at("a"))
    groups = grouped(
        Root(Access("scratch0"), at("b"), W),
        Root(Access("z"), mul(costly, product("scratch0")), W),
        Root(Access("y"), costly, W),
    )
    assert targets(groups) == [["scratch0", "y"], ["z"]]
    assert groups[1].stores[0].value is mul(at("y"), product("scratch0"))


def test_cheap_work_on_what_is_stored_is_done_again() -> None:
    costly = tanh(at("a"))
    cheap = mul(costly, at("b"))
    groups = grouped(
        Root(Access("y"), costly, W),
        Root(Access("scratch0"), cheap, W),
        Root(Access("z"), mul(add(cheap, const(1)), product("scratch0")), W),
    )
    assert targets(groups) == [["y", "scratch0"], ["z"]]


def test_uniform() -> None:
    assert add(const(1), at("a", 2, broadcast=True)).uniform
    assert not add(const(1), at("a")).uniform
    assert not product("a").uniform


def test_slices_of_one_value_are_told_from_others() -> None:
    columns = ValueNumbering()
    whole, part = (mul(at("a", c), dot(Dot(Access("b"), "w", c + 1))) for c in (0, 3))
    other = mul(at("a", 3), dot(Dot(Access("b"), "w", 1)))
    assert columns.of(whole) == (columns.of(part)[0], 0)
    assert columns.of(part)[1] == 3
    assert columns.of(other)[0] != columns.of(whole)[0]
    assert columns.of(at("a", 2, broadcast=True)) != columns.of(at("a", 1, broadcast=True))
    assert columns.of(at("a", 2, broadcast=True))[1] is None


# ---- on whole cells


def test_a_gate_that_a_product_needs_comes_first() -> None:
    """Two dependent products: the reset gate, which is an output, then the candidate; its operand stands in scratch."""
    forward = build(make(zoo.two_products)).inference
    assert [len(group.dots) for group in forward.groups] == [1, 1]
    assert [b.width for b in forward.buffers if b.kind is Kind.SCRATCH] == [H]
    first, second = forward.groups
    assert first.dots[0].source.buffer == "carry0"
    assert [store.target.buffer for store in first.stores] == ["scratch0", "output1"]
    assert second.dots[0].source.buffer.startswith("scratch")


def test_one_product_is_one_group() -> None:
    for case in (zoo.vanilla, zoo.gru, zoo.lstm):
        assert len(build(make(case)).inference.groups) == 1


@pytest.mark.parametrize("case", CASES)
def test_nothing_costly_is_computed_in_two_groups(case: Callable[[], Example]) -> None:
    for kernel in kernels(build(make(case))):
        found = Counter(
            (node, group.width)
            for group in kernel.groups
            for node in group.nodes()
            if node.op in EXPENSIVE and not node.uniform
        )
        assert not [(str(node)[:80], kernel.name) for (node, _), count in found.items() if count > 1]


def test_a_long_chain_of_products_has_as_many_levels() -> None:
    u = random(H, H)

    def cell(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        for _ in range(4):
            h = torch.tanh(h @ u + x)
        return h, h

    assert len(build(example(cell, h(), x(H), u)).inference.groups) == 4

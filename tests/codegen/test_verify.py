"""Each rule that kernels must keep: a sound kernel passes, and one that breaks the rule is refused by name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bppsa.codegen.language.expr import Access, Dot, Expr, Op, const, dot, load
from bppsa.codegen.language.ir import Buffer, Group, Kernel, Kind, Reduce, Store
from bppsa.codegen.language.verify import verify
from tests.codegen.kernels import add, at, gated_backward, gated_forward, normalised, swapped, two_stage

W = 4
BUFFERS = (
    Buffer("x", Kind.STREAM, 2 * W),
    Buffer("h", Kind.STATE, W),
    Buffer("r", Kind.RUNNING, W),
    Buffer("s", Kind.SCRATCH, W),
    Buffer("one", Kind.SCRATCH, 1),
    Buffer("v", Kind.VECTOR, W),
    Buffer("w", Kind.WEIGHT, W, W),
    Buffer("c", Kind.COLUMN_SUM, W),
)


def kernel(*groups: Group, buffers: tuple[Buffer, ...] = BUFFERS) -> Kernel:
    return Kernel("tried", buffers, groups)


def storing(value: Expr, target: Access = Access("x"), width: int = W, reduce: Reduce = Reduce.NONE) -> Group:  # noqa: B008
    return Group(width, (Store(target, value, reduce),))


@pytest.mark.parametrize("make", [gated_forward, gated_backward, normalised, two_stage])
@pytest.mark.parametrize("H", [1, 3, 20])
def test_sound_kernels_pass(make, H: int) -> None:
    assert verify(sound := make(H)) is sound


SOUND = [
    storing(add(at("x"), at("v"))),
    storing(at("x", W), Access("x", W)),
    storing(at("x", 2 * W - 1, broadcast=True), Access("x")),
    storing(dot(Dot(Access("x", W), "w"))),
    storing(at("h"), Access("r")),
    storing(at("r"), Access("h", after=True)),
    storing(at("x"), Access("c"), reduce=Reduce.COLUMNS),
    storing(at("x"), Access("one"), reduce=Reduce.ROWS),
    storing(at("x", 1), Access("x"), width=1),
    storing(at("x", broadcast=True), Access("x"), width=1),
]


@pytest.mark.parametrize("group", SOUND)
def test_sound_groups_pass(group: Group) -> None:
    verify(kernel(group))


def bare(op: Op, *args: Expr, payload: object = None) -> Expr:
    """An expression as no helper would build it."""
    return Expr(op, *args, payload=payload)  # type: ignore[arg-type]


# what is said, the group
BROKEN: list[tuple[str, Group]] = [
    ("Op.ADD takes 2 operands, not 1", storing(bare(Op.ADD, at("x")))),
    ("Op.NEG takes 1 operands, not 2", storing(bare(Op.NEG, at("x"), at("v")))),
    ("Op.LOAD with payload None", storing(bare(Op.LOAD))),
    ("Op.NEG with payload 1.0", storing(bare(Op.NEG, at("x"), payload=1.0))),
    ("reads 4 columns", storing(at("x", W + 1))),
    ("reads 4 columns", storing(at("x", 2 * W, broadcast=True))),
    ("reads 4 columns", storing(at("v", 1))),
    ("reads 4 columns", storing(dot(Dot(Access("h", 1), "w")))),
    ("reads outside", storing(dot(Dot(Access("h"), "w", 1)))),
    ("multiplies one column", storing(dot(Dot(Access("h", broadcast=True), "w")))),
    ("reads outside", storing(dot(Dot(Access("h"), "v")))),
    ("loads from", storing(at("w"))),
    ("loads from", storing(at("c"))),
    ("loads from", storing(dot(Dot(Access("c"), "w")))),
    ("before any group of the step stores it", storing(at("s"))),
    ("before any group of the step stores it", storing(dot(Dot(Access("s"), "w")))),
    ("before any group of the step stores it", storing(at("s"), Access("s"))),
    ("goes outside", storing(const(0), Access("x", W + 1))),
    ("goes outside", storing(const(0), Access("one", 1), reduce=Reduce.ROWS)),
    ("goes outside", storing(const(0), Access("c", 1), reduce=Reduce.COLUMNS)),
    ("into a Kind.VECTOR", storing(const(0), Access("v"))),
    ("into a Kind.WEIGHT", storing(const(0), Access("w"))),
    ("into a Kind.COLUMN_SUM", storing(const(0), Access("c"))),
    ("into a Kind.STREAM", storing(const(0), Access("x"), reduce=Reduce.COLUMNS)),
    ("into a Kind.STREAM", storing(const(0), Access("x"), reduce=Reduce.ROWS)),
    ("overlaps", storing(at("x", 1), Access("x"))),
    ("overlaps", storing(at("x"), Access("x", W - 1))),
    ("overlaps", storing(at("x", 2, broadcast=True), Access("x"))),
]


@pytest.mark.parametrize(("said", "group"), BROKEN, ids=[f"{i} {said}" for i, (said, _) in enumerate(BROKEN)])
def test_a_broken_rule_is_named(said: str, group: Group) -> None:
    with pytest.raises(AssertionError) as caught:
        verify(kernel(group))
    assert said in str(caught.value)
    assert "tried, group 0" in str(caught.value)


def test_a_buffer_is_declared_once() -> None:
    with pytest.raises(AssertionError, match="declared twice"):
        verify(kernel(SOUND[0], buffers=(*BUFFERS, replace(BUFFERS[0], width=1))))


def test_a_store_serves_later_groups_only() -> None:
    fill, use = storing(at("x"), Access("s")), storing(at("s"))
    verify(kernel(fill, use))
    with pytest.raises(AssertionError, match=r"group 0: .* is read before"):
        verify(kernel(use, fill))


def test_the_group_is_named() -> None:
    with pytest.raises(AssertionError, match="group 2"):
        verify(kernel(SOUND[0], SOUND[1], storing(load(Access("w")))))


def test_columns_that_another_element_still_reads() -> None:
    """`swapped` is legal in the language, but nothing that a lowering should make: halves change places in place."""
    with pytest.raises(AssertionError, match="overlaps"):
        verify(swapped(4))

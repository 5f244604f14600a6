"""Expressions are one object where they are equal; what is read off kernels."""

from __future__ import annotations

import gc
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from bppsa.codegen.cpu import print_point
from bppsa.codegen.language import interpret
from bppsa.codegen.language.expr import STRUCTURAL, Access, Dot, Expr, Op, const, dot, load, rewrite, topological
from bppsa.codegen.language.ir import Group, Kind, Store, accessed
from tests.codegen.kernels import add, at, gated_backward, gated_forward, mul, two_stage


def test_equal_expressions_are_one() -> None:
    assert at("x", 3) is load(Access("x", 3))
    assert add(at("x"), at("y")) is add(at("x"), at("y"))
    assert add(at("x"), at("y")) is not add(at("y"), at("x"))
    assert dot(Dot(Access("x"), "w", 2)) is dot(Dot(Access("x"), "w", 2))
    assert at("x", broadcast=True) is not at("x")
    assert at("x", after=True) is not at("x")


def test_threads_share_expressions(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(weakref.WeakValueDictionary):
        def get(self, *args: Any) -> Any:
            found = super().get(*args)
            time.sleep(0.02)
            return found

    monkeypatch.setattr(Expr, "_interned", Slow())
    with ThreadPoolExecutor(4) as threads:
        made = list(threads.map(lambda _: at("met by four threads"), range(4)))
    assert len(set(map(id, made))) == 1


def test_constants_are_told_apart_by_their_bits() -> None:
    assert const(1) is const(1.0)
    assert const(0.0) is not const(-0.0)
    assert const(float("nan")) is const(float("nan"))


def test_an_expression_that_nobody_holds_is_forgotten() -> None:
    gc.collect()
    before = len(Expr._interned)
    held = add(at("forgotten", 1), at("forgotten", 2))
    assert len(Expr._interned) == before + 3
    del held
    gc.collect()
    assert len(Expr._interned) == before


def test_every_op_states_its_operands_and_has_a_definition_and_a_text() -> None:
    assert {op for op in Op if op.arity == 0} == STRUCTURAL
    assert set(interpret.EVALUATE) == set(Op) - STRUCTURAL
    assert set(print_point.CPP) == set(Op) - STRUCTURAL


def test_operands_come_before_users_and_each_once() -> None:
    x, y = at("x"), at("y")
    total = add(x, y)
    product = mul(total, total)
    order = topological([product, add(product, x)])
    assert set(order) == {x, y, total, product, add(product, x)}
    assert all(order.index(arg) < order.index(node) for node in order for arg in node.args)
    assert len(order) == len(set(order))


def test_a_deep_expression_is_walked() -> None:
    """A cell of some hundred ops must not meet Python's limit of recursion."""
    value = at("x")
    for _ in range(400):
        value = add(value, at("y"))
    assert len(topological([value])) == 402


def test_rewriting_takes_the_outermost_match() -> None:
    x, y = at("x"), at("y")
    inner = add(x, y)
    outer = mul(inner, x)
    changed = rewrite(outer, lambda node: at("z") if node is inner else at("never") if node is y else None)
    assert changed is mul(at("z"), x)
    assert rewrite(outer, lambda node: None) is outer
    assert rewrite(outer, lambda node: y if node is outer else None) is y


def test_a_shared_part_is_rewritten_once() -> None:
    asked = []
    shared = add(at("x"), at("y"))
    rewrite(mul(shared, shared), lambda node: asked.append(node))
    assert asked.count(shared) == 1


def test_what_a_group_touches() -> None:
    kernel = gated_forward(4)
    assert accessed(kernel.groups) == {b.name for b in kernel.buffers}
    group = Group(2, (Store(Access("a"), add(at("b"), dot(Dot(Access("c"), "w")))),))
    assert accessed([group]) == {"a", "b", "c", "w"}
    assert group.dots == (Dot(Access("c"), "w"),)


def test_scratch_is_no_argument() -> None:
    kernel = two_stage(4)
    assert [b.name for b in kernel.arguments] == [b.name for b in kernel.buffers if b.kind is not Kind.SCRATCH]
    assert kernel.buffer("inner").kind is Kind.SCRATCH
    with pytest.raises(StopIteration):
        kernel.buffer("nowhere")


def test_a_text_shows_the_expression() -> None:
    assert repr(add(const(1), at("x", 2))).startswith("add(const(1.0), load(Access(buffer='x', column=2")
    assert gated_backward(3).along is False

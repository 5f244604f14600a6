"""The transposed body against torch.func.vjp: cotangents of carries, streams and parameters, for the whole zoo."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given as for_all
from hypothesis import strategies as st
from torch import Tensor, fx

from bppsa.common.chain import Recurrence, Transposed
from bppsa.errors import Unsupported
from bppsa.fxpasses.network.jacobian import transpose
from bppsa.sparsity.rules.registry import RULES
from tests.breadth import examples
from tests.fxpasses.graphs import evaluate, ops, random_like, split_cell
from tests.scan import zoo
from tests.scan.grammar import Cell, Program, programs
from tests.scan.support import same
from tests.scan.zoo import CASES, B, Example, H, example, h, make, random, stopped, x

Roles = dict[tuple[str, int], Tensor]


def inputs(recurrence: Recurrence) -> dict[fx.Node, Tensor]:
    placeholders = [node for node in recurrence.body.nodes if node.op == "placeholder"]
    return {node: random_like(node, seed) for seed, node in enumerate(placeholders)}


def role(node: fx.Node) -> tuple[str, int]:
    return node.meta["role"].kind, node.meta["role"].index


def by_rules(recurrence: Recurrence, transposed: Transposed, given: dict[fx.Node, Tensor], gs: list[Tensor]) -> Roles:
    """The transposed graph run by hand; gradients of parameters from its products and sums."""
    values = evaluate(recurrence.body, given)
    named = {node.name: value for node, value in values.items()}
    roles = {role(node): value for node, value in given.items()}
    roles |= {("g_carry", i): g for i, g in enumerate(gs[: len(recurrence.carries)])}
    roles |= {("g_output", i): g for i, g in enumerate(gs[len(recurrence.carries) :])}
    known = {}
    for node in transposed.graph.nodes:
        if node.op == "placeholder":
            kind, index = role(node)
            known[node] = named[index] if kind == "value" else roles[kind, index]
    g = evaluate(transposed.graph, known)
    found: Roles = {}
    for kind, nodes in (("carry", transposed.carries), ("stream", transposed.streams)):
        found |= {(kind, i): g[node] for i, node in enumerate(nodes) if node is not None}
    for part in transposed.sums:
        like = roles["param", part.param]
        add(found, part.param, g[part.right].sum_to_size(like.shape))
    for outer in transposed.outers:
        gradient = values[outer.left].t() @ g[outer.right]
        add(found, outer.weight.param, gradient.t() if outer.weight.transposed else gradient)
    return found


def add(found: Roles, param: int, gradient: Tensor) -> None:
    key = ("param", param)
    found[key] = found[key] + gradient if key in found else gradient


def by_autograd(recurrence: Recurrence, given: dict[fx.Node, Tensor], gs: list[Tensor]) -> Roles:
    real = [node for node, value in given.items() if value.is_floating_point()]
    fixed = {node: value for node, value in given.items() if not value.is_floating_point()}

    def body(*tensors: Tensor) -> tuple[Tensor, ...]:
        values = evaluate(recurrence.body, {**fixed, **dict(zip(real, tensors, strict=True))})
        return tuple(values[node] for node in (*recurrence.next_carries, *recurrence.output_nodes))

    _, vjp = torch.func.vjp(body, *(given[node] for node in real))
    return {role(node): g for node, g in zip(real, vjp(tuple(gs)), strict=True)}


def compare(recurrence: Recurrence) -> Transposed:
    transposed = transpose(recurrence)
    transposed.graph.lint()
    given = inputs(recurrence)
    gs = [random_like(node, 99 + i) for i, node in enumerate((*recurrence.next_carries, *recurrence.output_nodes))]
    got, expected = by_rules(recurrence, transposed, given, gs), by_autograd(recurrence, given, gs)
    for key, gradient in expected.items():
        same([got.get(key)], [gradient if key in got or gradient.any() else None], 1e-11)
    assert set(got) <= set(expected)
    return transposed


@pytest.mark.parametrize("case", CASES)
def test_the_transposed_body_is_the_vjp(case: Callable[[], Example]) -> None:
    compare(split_cell(make(case)))


@examples(60)
@for_all(program=programs, seed=st.integers(0, 3))
def test_of_random_cells(program: Program, seed: int) -> None:
    torch.manual_seed(seed)
    cell = Cell(program)
    carry, xs = [random(B, width) for width in program.carries], [random(2, B, width) for width in program.xs]
    cell(carry, [leaf[0] for leaf in xs])
    compare(split_cell(Example(cell, carry, xs, [])))


CORNERS: list[Callable[[Tensor, Tensor], Any]] = [
    lambda h, x: torch.maximum(h, h),
    lambda h, x: torch.relu(h - h),
    lambda h, x: torch.clamp(h, -0.5, 0.5) * h,
    lambda h, x: h * h * h,
    lambda h, x: h[:, :1] * h + h[:, 1:2] * x,
    lambda h, x: torch.where(h > x, h, x * h),
    lambda h, x: torch.cat([h, h, x], 1)[:, 2 : 2 + H],
    lambda h, x: (h * x).sum(1, keepdim=True) * h,
    lambda h, x: (h.sum(1) * x.sum(1)).unsqueeze(1) * x,
    lambda h, x: torch.zeros_like(h) + 0 * h + x,
    lambda h, x: h.masked_fill(h > 0, 2.0) * x,
    lambda h, x: torch.sqrt(torch.abs(h) + 1) / (2 + torch.sigmoid(x)),
]


@pytest.mark.parametrize("which", range(len(CORNERS)))
def test_corners(which: int) -> None:
    torch.manual_seed(0)
    compare(split_cell(example(lambda h, x: ((n := CORNERS[which](h, x)), (n, h)), h(), x(H))))


def test_a_parameter_used_twice_gathers_its_gradients() -> None:
    u, b = random(H, H), random(H)

    def cell(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(torch.relu(h @ u + b) @ u.t() * b + x)
        return h, h

    transposed = compare(split_cell(example(cell, h(), x(H), u, b)))
    assert len(transposed.outers) == 2
    assert {outer.weight.transposed for outer in transposed.outers} == {False, True}
    assert len(transposed.sums) == 2


def test_nothing_flows_through_a_detach() -> None:
    transposed = transpose(split_cell(make(stopped)))
    assert all(node is not None for node in transposed.carries)
    recurrence = split_cell(example(lambda h, x: (torch.tanh(h.detach() + x), x), h(), x(H)))
    transposed = compare(recurrence)
    assert transposed.carries == (None,)
    assert transposed.streams[0] is not None


def test_forward_values_are_read_not_computed_again() -> None:
    """The derivative of tanh is one of its output."""
    transposed = transpose(split_cell(example(lambda h, x: ((n := torch.tanh(h + x)), n), h(), x(H))))
    assert "tanh" not in ops(transposed.graph)
    assert [role(n)[0] for n in transposed.graph.nodes if n.op == "placeholder" and n.users].count("value") == 1


def test_hooks_on_saved_tensors_see_no_stand_in() -> None:
    recurrence = split_cell(make(zoo.vanilla))

    def seen(tensor: Tensor) -> Tensor:
        pytest.fail("autograd saved a tensor in sight of the hooks around the walk")

    with torch.autograd.graph.saved_tensors_hooks(seen, seen):
        transpose(recurrence)


def test_an_op_without_a_rule_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    recurrence = split_cell(example(lambda h, x: (torch.tanh(h + x), h), h(), x(H)))
    monkeypatch.delitem(RULES, torch.ops.aten.tanh.default)
    with pytest.raises(Unsupported, match=r"aten\.tanh\.default: no rule"):
        transpose(recurrence)

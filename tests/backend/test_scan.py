"""bppsa.scan and PyTorch's own scan inside a compiled model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._dynamo.utils import counters
from torch._higher_order_ops.scan import scan as torch_scan

import bppsa
from bppsa.frontend.call_log import collecting
from bppsa.frontend.dynamo import scan_node
from bppsa.fxpasses.cell import heads
from tests.backend.support import B, H, I, T, compiled, nodes, random, results, same
from tests.breadth import diagonal


class Looped(nn.Module):
    """A recurrence over a cell of its own, with parameters, a closed-over tensor, and the carry among the outputs."""

    def __init__(self, scan: Callable[..., Any], **how: bool) -> None:
        super().__init__()
        self.scan, self.how = scan, how
        self.cell, self.gain = nn.GRUCell(I, H), nn.Parameter(torch.randn(H))

    def forward(self, x: Tensor, h: Tensor) -> Any:
        scale = x.mean()

        def cell(h: Tensor, x: dict[str, Tensor]) -> tuple[Tensor, Any]:
            h = self.cell(x["x"] * scale, h)
            return h.clone(), (h.clone(), h * self.gain)

        return self.scan(cell, h * 2, {"x": x + 1}, **self.how)


def by_hand(cell: Callable[..., Any], carry: Any, xs: Any, reverse: bool = False) -> Any:
    ys: list[Any] = []
    order = range(len(xs["x"]))
    for t in reversed(order) if reverse else order:
        carry, y = cell(carry, {"x": xs["x"][t]})
        ys.insert(0 if reverse else len(ys), y)
    return carry, tuple(torch.stack(column) for column in zip(*ys, strict=True))


@pytest.mark.parametrize("scan", [torch_scan, bppsa.scan])
@pytest.mark.parametrize(("reverse", "fallback"), diagonal([False, True], ["eager", "inductor"]))
def test_scan_becomes_one_op(scan: Any, reverse: bool, fallback: str, graphs: list[fx.GraphModule]) -> None:
    model = Looped(scan, reverse=reverse).double()
    fast = compiled(model, fallback)
    for steps in (5, 9, 7):
        inputs = [random(steps, B, I), random(B, H)]
        got = results(fast, inputs, [*model.parameters()])
        model.scan = by_hand
        expected = results(model, inputs, [*model.parameters()])
        model.scan = scan
        same(got, expected)
    assert len(graphs) == 2
    assert [len(nodes(graph, torch.ops.bppsa.scan)) for graph in graphs] == [1, 1]
    assert not any(nodes(graph, torch.ops.higher_order.scan) for graph in graphs)


def branches(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    h = h + x if x.sum().item() > 0 else h - x
    return h, h


def in_place(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    seen = torch.zeros_like(h)
    seen += h + x
    return seen, seen


@pytest.mark.parametrize("cell", [branches, in_place])
def test_any_cell_runs(cell: Callable[..., Any]) -> None:
    def call(x: Tensor, h: Tensor) -> Any:
        return bppsa.scan(cell, h, x * 2)

    inputs = [random(T, B), random(B)]
    same(results(compiled(call, fullgraph=False), inputs, []), results(call, inputs, []))


@pytest.mark.parametrize("scan", [torch_scan, bppsa.scan])
@pytest.mark.parametrize("fallback", ["eager", "inductor"])
def test_a_node_that_is_not_fused_runs(scan: Any, fallback: str) -> None:
    weight = torch.randn(B, B, dtype=torch.float64, requires_grad=True)

    def cell(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.igamma(torch.ones_like(h), h * h) @ weight + x  # not one of the ops of a fused cell
        return h, h.clone()

    def call(x: Tensor, h: Tensor) -> Any:
        return scan(cell, h, x * 2)

    fast = compiled(call, fallback)
    for steps in (5, 3):
        inputs = [random(steps, B, B), random(B, B)]
        expected = results(lambda x, h: bppsa.scan(cell, h, x * 2), inputs, [weight])
        same(results(fast, inputs, [weight]), expected)


def test_a_carry_with_a_counter_and_a_flag_runs() -> None:
    def cell(state: Any, x: Tensor) -> Any:
        h, n, seen = state
        h = torch.where(seen, h, torch.tanh(h + x / (n + 1)))
        return (h, n + 1, seen | (h > 0.9)), h.clone()

    def call(x: Tensor, h: Tensor) -> Any:
        (h, n, _), ys = bppsa.scan(cell, (h, torch.zeros(B, 1, dtype=torch.int64), torch.zeros(B, B) > 0), x * 2)
        return h * n, ys

    inputs = [random(T, B, B), random(B, B)]
    same(results(compiled(call, fullgraph=False), inputs, []), results(call, inputs, []))


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_scan_under_another_backend_runs_outside(backend: str) -> None:
    model = Looped(bppsa.scan).double()
    inputs = [random(T, B, I), random(B, H)]
    fast = torch.compile(model, backend=backend)
    same(results(fast, inputs, [*model.parameters()]), results(model, inputs, [*model.parameters()]))
    assert any("bppsa.scan" in reason for reason in counters["graph_break"])


def test_scan_under_a_transform_runs_outside(graphs: list[fx.GraphModule]) -> None:
    def loss(x: Tensor) -> Tensor:
        return bppsa.scan(lambda h, x: ((h * x).sin(), h), torch.ones(B, dtype=x.dtype), x)[1].sum()

    x = random(T, B, grad=False)
    gradient = torch.func.grad(loss)
    same([compiled(lambda x: gradient(x) * 1, fullgraph=False)(x)], [gradient(x)])
    assert not any(nodes(graph, torch.ops.bppsa.scan) for graph in graphs)


@pytest.mark.parametrize("strategy", ["blelloch", "chunked(length=2)"])
def test_a_strategy_of_the_options_is_the_nodes(strategy: str, graphs: list[fx.GraphModule]) -> None:
    cell = bppsa.cells.MinGRU(3, 4).double()

    def model(x: torch.Tensor) -> torch.Tensor:
        return bppsa.scan(cell, cell.initial(2), x)[1].sin()

    options = {"fallback": "eager", "strategy": strategy}
    fast = torch.compile(model, backend="bppsa", fullgraph=True, options=options)
    for steps in (5, 7, 9):
        inputs = [torch.randn(steps, 2, 3, dtype=torch.float64, requires_grad=True)]
        same(results(fast, inputs, [*cell.parameters()]), results(model, inputs, [*cell.parameters()]))
    assert len(graphs) == 2
    assert all(node.args[5] == strategy for graph in graphs for node in nodes(graph, torch.ops.bppsa.scan))


def test_a_strategy_of_its_own_breaks_the_graph_and_runs() -> None:
    cell = bppsa.cells.MinGRU(3, 4).double()

    def model(x: torch.Tensor) -> torch.Tensor:
        return bppsa.scan(cell, cell.initial(2), x.cos(), strategy="blelloch")[1].sin()

    fast = torch.compile(model, backend="bppsa", options={"fallback": "eager"})
    inputs = [torch.randn(6, 2, 3, dtype=torch.float64, requires_grad=True)]
    with collecting() as taken:
        same(results(fast, inputs, [*cell.parameters()]), results(model, inputs, [*cell.parameters()]))
    assert [decision.strategy for decision in taken] == ["blelloch"] * 2


def test_heads_are_rows_for_any_batch_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "LARGE", 1)
    w = random(12, 5)

    def cell(S: Tensor, x: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        k, v = x
        S = 0.5 * S + k.unsqueeze(-1) * v.unsqueeze(-2)
        return S, (k.unsqueeze(-1) * S).sum(-2).flatten(1) @ w

    def call(S: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return bppsa.scan(cell, S * 2, (k, v))

    fast = compiled(call, "eager")
    for rows in (2, 3, 5):
        inputs = [random(rows, 3, 4, 4), random(T, rows, 3, 4), random(T, rows, 3, 4)]
        same(results(fast, inputs, [w]), results(call, inputs, [w]))
    assert {plan.recurrence.heads for plan in scan_node.SCANS.values()} >= {3}

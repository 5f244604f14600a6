"""Splitting a cell: what runs before the loop, as one matmul, in the body, after the loop; and what cannot be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional
from torch.utils import _pytree as pytree

from bppsa.common.chain import Recurrence, Weight
from bppsa.errors import Unsupported
from bppsa.fxpasses.cell.recurrence import split
from bppsa.runtime.recurrent import reference
from bppsa.runtime.recurrent.scan.extent import Extent
from tests.fxpasses.graphs import ops, record_cell, split_cell
from tests.scan import zoo
from tests.scan.support import same
from tests.scan.zoo import CASES, B, Example, H, I, T, example, h, make, random, x


def by_parts(given: Example, *, reverse: bool) -> tuple[list[Tensor], list[Tensor]]:
    """The scan by what a split gives: hoisted work, the body step by step, the tail."""
    recording, carries, xs = record_cell(given)
    nexts, ys = recording.result
    recurrence = split(recording, carries, xs, ys, nexts)
    stacked = [leaf.flatten(0, 1) for leaf in pytree.tree_leaves(given.xs)]
    captured = [tensor for tensor, _ in recording.captured]
    sources, params = stacked, captured
    if recurrence.hoisted is not None:
        sources, params = fx.GraphModule({}, recurrence.hoisted)(*stacked, *captured)
    rows = [source.reshape(T, B, -1) for source in sources]
    first = [leaf.reshape(B, -1) for leaf in pytree.tree_leaves(given.carry)]
    outputs, last = reference.run(recurrence, rows, first, params, Extent(T, B, reverse))
    values: Any = [
        o.reshape(T * B, *n.meta["val"].shape[1:]) for o, n in zip(outputs, recurrence.output_nodes, strict=True)
    ]
    if recurrence.tail is not None:
        values = fx.GraphModule({}, recurrence.tail)(*values, *stacked, *captured)
    ys = [y.reshape(T, *node.meta["val"].shape) for y, node in zip(values, ys, strict=True)]
    return [c.reshape(n.meta["val"].shape) for c, n in zip(last, nexts, strict=True)], ys


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_the_parts_are_the_whole(case: Callable[[], Example], reverse: bool) -> None:
    given = make(case)
    last, ys = by_parts(given, reverse=reverse)
    expected = pytree.tree_leaves(reference.loop(*given[:3], reverse=reverse))
    same([*last, *ys], expected, 1e-12)


def weights(recurrence: Recurrence) -> list[Weight | None]:
    return [stream.weight for stream in recurrence.streams]


def test_the_product_of_x_is_one_matmul_before_the_loop() -> None:
    """GRU: x @ W_ih is a stream, its bias and all that follows it belong to the body, and nothing else is hoisted."""
    recurrence = split_cell(make(zoo.gru))
    assert weights(recurrence) == [Weight(0, True)]
    assert (recurrence.streams[0].source, recurrence.streams[0].width) == (0, 3 * H)
    assert recurrence.hoisted is None
    assert recurrence.tail is None
    assert ops(recurrence.body).count("mm") == 1
    assert (recurrence.carries, recurrence.outputs) == ((H,), (H,))


def test_one_product_of_x_and_h_becomes_two() -> None:
    """cat([x, h]) @ W: only the half with h waits for h; the halves of W are cut before the loop."""
    recurrence = split_cell(make(zoo.joined))
    assert len([w for w in weights(recurrence) if w]) == 1
    assert "cat" not in ops(recurrence.body)
    assert ops(recurrence.body).count("mm") == 1
    assert ops(recurrence.hoisted).count("slice") == 2
    assert not {"mm", "cat"} & set(ops(recurrence.hoisted))


def test_a_product_of_x_and_h_may_be_an_output_itself() -> None:
    w = random(I + H, H)

    def cell(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.cat([x, h], 1) @ w, torch.cat([h, x], 1) @ w

    given = example(cell, h(), x(), w)
    same(pytree.tree_leaves(by_parts(given, reverse=False)), pytree.tree_leaves(reference.loop(*given[:3])), 1e-12)


def test_gates_of_x_alone_stay_pointwise_in_the_body() -> None:
    """minGRU: two products of x, no product in the loop; the sigmoid is cheaper there than a pass over memory."""
    recurrence = split_cell(make(zoo.diagonal))
    assert len(recurrence.streams) == 2
    assert all(weights(recurrence))
    assert "mm" not in ops(recurrence.body)
    assert "sigmoid" in ops(recurrence.body)
    assert recurrence.hoisted is None


def test_a_normalisation_of_x_stays_in_the_body() -> None:
    """Its sums are taken with those of the products of h; before the loop each op would be a pass over memory."""
    recurrence = split_cell(make(zoo.layer_norm))
    assert recurrence.hoisted is None
    assert ops(recurrence.body).count("mm") == 1
    assert ops(recurrence.body).count("sum") == 6, "mean and variance of both products' and of the state's norm"


def test_layers_on_x_run_before_the_loop() -> None:
    recurrence = split_cell(make(zoo.hoisted))
    assert recurrence.hoisted is not None
    assert not {"mm", "silu"} & set(ops(recurrence.body))


def test_a_mask_is_a_stream_of_its_own() -> None:
    recurrence = split_cell(make(zoo.resets))
    assert sorted((s.width, s.weight is None) for s in recurrence.streams) == [(1, True), (3 * H, False)]
    assert "where" in ops(recurrence.body)


def test_what_only_outputs_need_runs_after_the_loop() -> None:
    recurrence = split_cell(make(zoo.tail))
    assert "_log_softmax" in ops(recurrence.tail)
    assert ops(recurrence.tail).count("mm") == 2
    assert "mm" not in ops(recurrence.body), "the state reads x @ w alone"
    assert len(recurrence.outputs) == 2, "the new state and the old one"


def test_outputs_of_x_alone_never_enter_the_loop() -> None:
    w, u = random(I, H), random(I, 2)
    recurrence = split_cell(example(lambda h, x: (torch.tanh(h + x @ w), (h, x @ u)), h(), x(), w, u))
    assert recurrence.tail is not None
    assert len(recurrence.streams) == 1
    assert recurrence.outputs == (H,)


def test_constants_of_parameters_alone_are_made_once() -> None:
    u, gain = random(H, H), random(H)

    def cell(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(h @ torch.softmax(u, 1) * torch.exp(gain) + x)
        return h, h

    recurrence = split_cell(example(cell, h(), x(H), u, gain))
    assert {"_softmax", "exp"} == set(ops(recurrence.hoisted))
    assert not {"_softmax", "exp"} & set(ops(recurrence.body))


def test_dead_work_is_left_out() -> None:
    u = random(H, H)

    def cell(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        torch.sigmoid(h @ u).cumsum(1)
        return h + x, h

    recurrence = split_cell(example(cell, h(), x(H), u))
    assert ops(recurrence.body) == ["add"]


def test_stacked_work_does_not_count_rows() -> None:
    """`zeros_like` has as many rows as all steps together; `new_zeros` would have those of one step."""

    def cell(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        padded = torch.cat([x, torch.zeros_like(x[:, :2])], 1)
        h = torch.tanh(h + functional.layer_norm(padded, (H,)))
        return h, torch.cat([h, torch.ones_like(x)], 1).softmax(1)

    given = example(cell, h(), x(H - 2))
    same(pytree.tree_leaves(by_parts(given, reverse=False)), pytree.tree_leaves(reference.loop(*given[:3])), 1e-12)


ROWS, SQUARE = random(B, H), random(H, H)
Cell = Callable[[Tensor, Tensor], Tensor]
# what the reason must say; y or carry as a function of h and x
REFUSED: list[tuple[str, str, Cell]] = [
    ("sum.dim_IntList", "along the batch", lambda h, x: h - h.sum(0)),
    ("sum.dim_IntList", "along the batch", lambda h, x: h - h.sum((0, 1))),
    ("sum.default", "along the batch", lambda h, x: h - h.sum()),
    ("max.default", "along the batch", lambda h, x: h - h.max()),
    ("linalg_vector_norm.default", "along the batch", lambda h, x: h - h.norm()),
    ("slice.Tensor", "along the batch", lambda h, x: h[:1] + x),
    ("select.int", "along the batch", lambda h, x: h[0] + x),
    ("cat.default", "along the batch", lambda h, x: torch.cat([h[:, :1], x[:, :1]]).sum(1, keepdim=True)[:B] + x),
    ("cumsum.default", "batch is not its first", lambda h, x: h.t().cumsum(0).t() + x),
    ("cumsum.default", "along the batch", lambda h, x: h.cumsum(0) + x),
    ("_softmax.default", "along the batch", lambda h, x: h.softmax(0) + x),
    ("mm.default", "across the batch", lambda h, x: (h.t() @ x).sum(1) + x),
    ("mm.default", "across the batch", lambda h, x: ROWS[:, :B] @ h + x),
    ("mm.default", "across the batch", lambda h, x: h @ h.t() @ h + x),
    ("bmm.default", "across the batch", lambda h, x: torch.einsum("bi,bij->bj", h, ROWS[:, :, None] * SQUARE) + x),
    ("view.default", "across the batch", lambda h, x: h.view(2, B, B)[0].sum(1, keepdim=True) + x),
    ("flip.default", "along the batch", lambda h, x: h.flip(0) + x),
    ("linalg_vector_norm.default", "along the batch", lambda h, x: h.norm(dim=0) + x),
    ("repeat.default", "along the batch", lambda h, x: h.repeat(2, 1)[:B] + x),
]


@pytest.mark.parametrize(("op", "what", "cell"), REFUSED, ids=[f"{i} {op}" for i, (op, _, _) in enumerate(REFUSED)])
def test_what_is_not_done_row_by_row_is_refused(op: str, what: str, cell: Cell) -> None:
    with pytest.raises(Unsupported) as caught:
        split_cell(example(lambda h, x: ((n := torch.tanh(cell(h, x))), n), h(), x(H)))
    assert caught.value.reason.op.endswith(op)
    assert what in caught.value.reason.what
    assert str(caught.value.reason).startswith(caught.value.reason.op)


SHAPES: list[tuple[str, Callable[[], Example]]] = [
    ("neither carry nor x", lambda: example(lambda h, x: (ROWS * 2, h + x), h(), x(H))),
    ("without columns", lambda: example(lambda h, x: (h, h), random(B, 0), x(H))),
]


@pytest.mark.parametrize(("what", "case"), SHAPES)
def test_carries_and_outputs_that_are_no_rows(what: str, case: Callable[[], Example]) -> None:
    with pytest.raises(Unsupported, match=what.replace("[", r"\[")):
        split_cell(case())


def test_a_tensor_for_each_row_is_a_stream() -> None:
    """With a batch as large as the vector is long it is a vector, as PyTorch lines it up."""
    bias, linear = random(B), nn.Linear(H, B).double()
    of_columns = split_cell(example(lambda h, x: (h + bias, x), random(B, B), x(H)))
    assert (ops(of_columns.body), len(of_columns.streams)) == (["add"], 0)
    of_rows = split_cell(example(lambda h, x: (h + bias, x), random(B), x(H)))
    assert (ops(of_rows.body), len(of_rows.streams)) == (["add"], 1)
    split_cell(example(lambda h, x: (h + linear(x), x), random(B, B), x(H)))

"""Columns and rows chosen by numbers, layers of PyTorch's called for one step, and changes in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import bppsa
from tests.breadth import alternate
from tests.cells.support import B, Cell, H, I, T, fuses, h, random, x
from tests.scan.support import check
from tests.scan.zoo import example

W, V, TABLE = random(H, H), random(I, H), random(H, I)
PAIRS = torch.tensor([0, 2, -1]), torch.tensor([1, 0, 1])
BAGS = nn.EmbeddingBag(H, H, mode="sum").double()
BOUNDS, POINTS = torch.tensor([-0.5, -0.1, 0.2, 0.7]).double(), torch.linspace(0.05, 0.95, H).double()
ORDER, NONE = torch.tensor([3, 0, -1, 1, 1, 2]), torch.zeros(B, dtype=torch.int64)
EMBEDDING, NORM = nn.Embedding(H, I).double(), nn.BatchNorm1d(H).double().eval()
LSTM, GRU, RNN = nn.LSTM(I, H, num_layers=2).double(), nn.GRU(I, H, batch_first=True).double(), nn.RNN(I, H).double()


def by_embedding(state: Any, x: Tensor) -> Any:
    h, last = state
    h = torch.tanh((x + EMBEDDING(last)) @ V + h @ W)
    return (h, h.argmax(1)), h


def by_table(state: Any, x: Tensor) -> Any:
    h, last = state
    h = torch.tanh((x + TABLE[last]) @ V + h @ W)
    return (h, h.max(1)[1]), h


SCALES, MOVES, GRIDS = random(H), random(H, H, H), random(H, 2, I, 3)


def by_mode(state: Any, x: Tensor) -> Any:
    """Switching dynamics: a number, a matrix and more for each mode."""
    h, mode = state
    moved = torch.bmm(MOVES[mode - H], h.unsqueeze(2)).squeeze(2) * SCALES[mode].unsqueeze(1)
    seen = (GRIDS.index_select(0, mode) * x.view(-1, 1, x.shape[1], 1)).sum((1, 2, 3))
    h = torch.tanh(x @ V + moved + seen.unsqueeze(1))
    return (h, h.argmax(1)), h


@pytest.mark.parametrize("cell", [by_embedding, by_table, by_mode])
def test_what_was_chosen_is_looked_up(cell: Cell) -> None:
    fuses(cell, (h(), NONE), x(), W, V, TABLE, SCALES, MOVES, GRIDS, *EMBEDDING.parameters())


MEMORY = random(B, 5, H)


def by_pointer(h: Tensor, x: Tensor) -> Any:
    """An element of each row, read and written by numbers of the carry; from the end too."""
    rows = torch.arange(len(h))
    h = torch.tanh(x @ V + h @ W + MEMORY[rows, h[:, :5].argmax(1)])
    h = written(h, (rows, h.argmin(1)), 0.25)
    return written(h, (rows, h.argmin(1) - H), x[:, 0]), h[torch.arange(0, B), h.argmax(1) - H]


def test_an_element_of_each_row_is_read_and_written() -> None:
    fuses(by_pointer, h(), x(), W, V, MEMORY)


def test_a_table_with_infinities_is_not_multiplied() -> None:
    allowed = torch.where(torch.eye(H, dtype=torch.bool), 0.0, -torch.inf).double()

    def cell(state: Any, x: Tensor) -> Any:
        scores = state[0] @ W + x
        h = torch.softmax(scores + allowed[state[1]] * 0.5, 1)
        return (h, (h @ W).argmax(1)), h

    fuses(cell, (h(), NONE), x(H), W)


def written(h: Tensor, at: Any, value: Any) -> Tensor:
    h = h.clone()
    h[at] = value
    return h


CHOICES: dict[str, Any] = {
    "columns by a tensor": lambda h: h[:, ORDER],
    "columns by a list": lambda h: h[:, [3, 0, -1, 1, 1, 2]],
    "index_select": lambda h: h.index_select(1, ORDER % H),
    "gather": lambda h: h.gather(1, h.topk(H, 1).indices),
    "take_along_dim": lambda h: torch.take_along_dim(h, h.argmax(1, keepdim=True), 1) - h,
    "scatter": lambda h: torch.zeros_like(h).scatter(1, h.argmax(1, keepdim=True), 1.0) * h,
    "scatter of values": lambda h: h.scatter(1, h.topk(2, 1).indices, 2 * h[:, :2]),
    "hard gumbel softmax": lambda h: (
        (s := h.softmax(1)) + (torch.zeros_like(s).scatter_(1, s.max(1, keepdim=True)[1], 1.0) - s).detach()
    ),
    "one-hot of the best": lambda h: (
        h + functional.one_hot(h.argmax(1), H) - functional.one_hot(h.max(1)[1], H + 1)[:, 1:]
    ),
    "one-hot within heads": lambda h: h + functional.one_hot(h.view(-1, 2, 3).argmax(-1), 3).flatten(1).to(h.dtype),
    "columns of heads by pairs": lambda h: h.view(-1, 3, 2)[:, PAIRS[0], PAIRS[1]].repeat(1, 2),
    "columns of heads by pairs, written": lambda h: written(
        h.view(-1, 3, 2), (slice(None), *PAIRS), h[:, :3] * 2
    ).flatten(1),
    "a sum at each place": lambda h: h.scatter_reduce(1, ORDER[:5].expand(len(h), -1) % H, h[:, 1:] + h[:, :1], "sum"),
    "a mean at each place": lambda h: h.scatter_reduce(
        1, ORDER.expand(len(h), -1) % H, h.exp(), "mean", include_self=False
    ),
    "the largest at each place": lambda h: h.scatter_reduce(
        1, ORDER.expand(len(h), -1) % H, torch.cat([h.relu(), h], 1), "amax"
    ),
    "the least at each place": lambda h: torch.zeros_like(h).scatter_reduce(
        1, ORDER.expand(len(h), -1) % H, (2 * h).round().detach() + h - h.detach(), "amin", include_self=False
    ),
    "columns by a table": lambda h: h[:, ORDER.view(2, 3)].flatten(1),
    "gather within heads": lambda h: (
        h.view(-1, 2, 3).gather(2, h.view(-1, 2, 3).argsort(-1)[:, :1]).repeat(1, 2, 1).flatten(1)
    ),
    "scatter_add": lambda h: h.scatter_add(1, h.topk(2, 1).indices, 2 * h[:, :2]),
    "index_add": lambda h: h.index_add(1, ORDER % H, h, alpha=0.5),
    "index_copy": lambda h: h.index_copy(1, ORDER[:2], h[:, 4:]),
    "index_fill": lambda h: h.index_fill(1, ORDER[:2], 0.5),
    "rows where a mask is true": lambda h: written(h, h[:, 0] > 0, 0.0),
    "rows of a value": lambda h: written(h, h[:, 0] > 0, W[0]),
    "elements where a mask is true": lambda h: written(h, h > 0.5, 0.5),
    "columns by a list, written": lambda h: written(h, (slice(None), [0, 2]), h[:, 3:5]),
    "columns by a tensor, written": lambda h: written(h, (slice(None), ORDER[:3]), 0.5),
    "columns by a mask": lambda h: written(h, (slice(None), V[0] > 0), 0.5),
    "batch norm in evaluation": NORM,
    "cosine to the state reversed": lambda h: h * functional.cosine_similarity(h, h.flip(1), dim=1).unsqueeze(1),
    "bags of rows": lambda h: h + BAGS(h.topk(2, 1).indices) + functional.embedding_bag(h.topk(2, 1).indices, W),
    "gate by a vector": lambda h: torch.sigmoid(h @ W[0]).unsqueeze(1) * h,
    "in place": lambda h: (2 * h).add_(1).mul_(0.5),
    "the class of a number": lambda h: h + torch.bucketize(h, BOUNDS).to(h.dtype) / 9,
    "the class of a number, from the right": lambda h: h + torch.searchsorted(BOUNDS, h, right=True).to(h.dtype) / 9,
    "drawn anew by weights": lambda h: h.gather(
        1, torch.searchsorted(torch.softmax(h, 1).cumsum(1), POINTS.expand(len(h), H).contiguous()).clamp(max=H - 1)
    ),
}


@pytest.mark.parametrize("name", alternate(CHOICES))
def test_of_the_carry(name: str) -> None:
    torch.manual_seed(0)
    f = CHOICES[name]

    def cell(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(f(torch.tanh(h @ W + x)))
        return h, h

    fuses(cell, h(), x(H), W, *NORM.parameters())


def test_an_index_that_changes_needs_no_new_plan() -> None:
    order = torch.arange(H)
    given = example(lambda h, x: ((n := torch.tanh(h[:, order] + x)), n), h(), x(H))
    check(given)
    order.copy_(torch.arange(H).flip(0))
    assert check(given).strategy == "sequential"


def test_an_index_out_of_range_gives_no_number() -> None:
    order = torch.arange(H)
    cell = lambda h, x: ((n := h[:, order] + x), n)  # noqa: E731
    bppsa.scan(cell, h(), x(H))
    order[0] = H
    assert bppsa.scan(cell, h(), x(H))[1][:, :, 0].isnan().all()


def lstm(state: Any, x: Tensor) -> Any:
    y, state = LSTM(x.unsqueeze(0), state)
    return state, y[0]


def layer_by_layer(state: Any, x: Tensor) -> Any:
    """The carries of two layers, [B, H] each."""
    (a, b), (c, d) = state
    y, (hidden, cell) = LSTM(x[None], (torch.stack([a, b]), torch.stack([c, d])))
    return (hidden.unbind(0), cell.unbind(0)), y.squeeze(0)


def gru(h: Tensor, x: Tensor) -> Any:
    y, h = GRU(x.unsqueeze(1), h.unsqueeze(0))
    return h[0], y[:, 0]


def rnn(h: Tensor, x: Tensor) -> Any:
    y, h = RNN(x[None], h[None])
    return h.squeeze(0), y.squeeze(0)


def test_a_layer_called_for_one_step() -> None:
    fuses(gru, h(), x(), *GRU.parameters())
    fuses(rnn, h(), x(), *RNN.parameters())


def test_layers_called_for_one_step_give_the_loops_numbers() -> None:
    """States [layers, B, H] and stacks of rows have more than two dimensions: fused or not, the numbers are right."""
    states = random(2, B, H), random(2, B, H)
    check(example(lstm, states, random(T, B, I), *LSTM.parameters()), tolerance=1e-9)
    check(example(layer_by_layer, ((h(), h()), (h(), h())), x(), *LSTM.parameters()), tolerance=1e-9)


# Whether they fuse or not.
ODD_FORMS: dict[str, Any] = {
    "rows where bytes are true": lambda h: written(h, (h[:, 0] > 0).to(torch.uint8), W[0]),
    "scatter into the first row": lambda h: h.scatter(1, torch.tensor([[0, 2]]), 0.5),
    "gather of the first row": lambda h: h + h.gather(1, torch.tensor([[0, 2]])).sum(),
    "gather of fewer heads": lambda h: (
        h + h.view(-1, 2, 3).gather(2, h.view(-1, 2, 3).argsort(2)[:, :1, :2]).sum((1, 2))[:, None]
    ),
    "rows by numbers": lambda h: h[torch.arange(len(h)).flip(0)],
    "a row for each true": lambda h: written(h, h[:, 0] < 9, torch.arange(len(h) * H).view(-1, H).double()),
    "two indices": lambda h: written(
        h.view(-1, 2, 3), (slice(None), torch.tensor([0, 1]), torch.tensor([2, 0])), 0.5
    ).flatten(1),
    "a table of columns, written": lambda h: written(h, (slice(None), ORDER[:4].view(2, 2)), 0.5),
    "added, not replaced": lambda h: h.index_put((h > 0,), h.new_tensor(0.5), accumulate=True),
    "filled from behind": lambda h: h.index_fill(1, torch.tensor([0, -2]), 0.3),
    "the best of nothing": lambda h: h + h.topk(0, 1).values.sum(1, keepdim=True),
    "a sum in another dtype": lambda h: h.cumsum(1, dtype=torch.float32).to(h.dtype),
    "no classes": lambda h: h + functional.one_hot(h.argmax(1).clamp(0, 2), 3).sum(1, keepdim=True),
}


@pytest.mark.parametrize("name", ODD_FORMS)
def test_odd_forms_are_right(name: str) -> None:
    f = ODD_FORMS[name]
    check(example(lambda h, x: ((n := torch.tanh(f(h) + x)), n), h(), x(H)))


def test_one_hot_refuses_what_may_be_no_class() -> None:
    """PyTorch raises an error for it."""

    def cell(state: Any, x: Tensor) -> Any:
        h, last = state
        h = torch.tanh(h @ W + x + functional.one_hot(last + 0, H))
        return (h, (last + 1) % H), h

    decision = check(example(cell, (h(), NONE), x(H), W))
    assert decision.strategy == "pytorch"
    assert "clamp(0, 5)" in decision.reason


def test_one_hot_of_x_alone_raises_as_pytorch_does() -> None:
    cell = lambda h, x: ((n := torch.tanh(h + functional.one_hot(x, H))), n)  # noqa: E731
    with pytest.raises(RuntimeError, match="Class values must be"):
        bppsa.scan(cell, h(), torch.full((T, B), H))
    assert check(example(cell, h(), torch.arange(T * B).view(T, B) % H)).strategy == "sequential"


def visited(state: Any, x: Tensor) -> Any:
    """Each step takes the best column that none before it took."""
    h, taken = state
    h = torch.tanh(h @ W + x)
    best = h.masked_fill(taken, -9.0).argmax(1, keepdim=True)
    taken = taken.scatter(1, best, True)
    return (h.masked_fill(taken, 0.1), taken), (best, taken.gather(1, best))


def test_truth_values_are_written_at_places_that_are_there() -> None:
    fuses(visited, (h(), torch.zeros(B, H, dtype=torch.bool)), x(H), W)


def test_whole_numbers_at_places_that_may_be_none_are_left() -> None:
    def cell(state: Any, x: Tensor) -> Any:
        h, counts = state
        first = counts.gather(1, counts[:, :1])
        return (torch.tanh(h + x), counts + 0 * first), first

    decision = check(example(cell, (h(), torch.zeros(B, H, dtype=torch.int64)), x(H)))
    assert decision.strategy == "pytorch"
    assert "a step may take out of 0 to 5" in decision.reason


def chosen_before(state: Any, x: Tensor) -> Any:
    h, last = state
    h = torch.tanh(h @ W + x + 0.5 * functional.one_hot(last, H).to(x.dtype))
    return (h, torch.where(h[:, 0] > 0, h.argmax(1), last)), h


def around(state: Any, x: Tensor) -> Any:
    h, at = state
    h = torch.tanh(h @ W + x + functional.one_hot(at, H).to(x.dtype))
    return (h, (at + 1) % H), h


@pytest.mark.parametrize("cell", [chosen_before, around])
def test_numbers_of_the_carry_are_classes(cell: Cell) -> None:
    fuses(cell, (h(), NONE + 2), x(H), W)


@pytest.mark.parametrize("start", [-1, H])
def test_a_start_that_is_no_class_is_pytorchs_error(start: int) -> None:
    with pytest.raises(RuntimeError, match="Class values"):
        bppsa.scan(chosen_before, (h(), NONE + start), x(H))


def test_an_index_that_counts_from_behind_is_none_where_pytorch_raises() -> None:
    def cell(h: Tensor, x: Tensor) -> Any:
        h = torch.tanh(h + x).index_select(1, torch.tensor([-1, 0, 1, 2, 3, 4]))
        return h, h

    assert bppsa.scan(cell, h(), x(H))[1].isnan().any()


def read_before(state: Any, x: Tensor) -> Any:
    h, last = state
    h = torch.tanh(h @ W + x + EMBEDDING(last) @ V + h.gather(1, last[:, None]))
    return (h, h.argmax(1)), h.argmax(1)


@pytest.mark.parametrize("start", [-1, H])
def test_a_start_that_is_no_place_is_pytorchs_error(start: int) -> None:
    assert check(example(read_before, (h(), NONE), x(H), W, V)).strategy == "sequential"
    with pytest.raises(IndexError, match="out of range"):
        bppsa.scan(read_before, (h(), NONE + start), x(H))


HALVED: dict[str, Any] = {
    "numbers": lambda v: v.detach().sin(),
    "a comparison": lambda v: (v > 0).to(v.dtype),
    "a place": lambda v: v.argmax(1, keepdim=True).to(v.dtype),
}


@pytest.mark.parametrize("name", HALVED)
def test_an_output_that_no_gradient_leads_through_is_none_of_autograds(name: str) -> None:
    def cell(h: Tensor, x: Tensor) -> Any:
        y = HALVED[name](h + x)
        return torch.tanh(y + 0.3 * h + x), y

    assert check(example(cell, h(), x(H))).strategy == "sequential"
    final, ys = bppsa.scan(cell, h(), x(H).requires_grad_(), strategy="sequential")
    assert (final.requires_grad, ys.requires_grad) == (True, False)


@pytest.mark.parametrize("op", [torch.amax, torch.amin, lambda v, *d: v.median(*d)[0], lambda v, *d: v.max(*d)[0]])
def test_gradients_of_a_nan(op: Any) -> None:
    def cell(h: Tensor, x: Tensor) -> Any:
        y = op(x + 0.1 * h, 1, True)
        return torch.nan_to_num(y, 0.0).expand(h.shape) * 0.5, y

    given = x(H).detach()
    given[3, 0, 1] = torch.nan
    assert check(example(cell, h(), given.requires_grad_())).strategy == "sequential"


OF_EQUAL_ONES: dict[str, Callable[[Tensor], Tensor]] = {
    "topk": lambda v: v.topk(3, 1).values,
    "places of topk": lambda v: (v + torch.arange(1.0, H + 1)).gather(1, v.topk(2, 1, largest=False).indices),
    "kthvalue": lambda v: v.kthvalue(2, 1, keepdim=True).values,
    "median": lambda v: v.median(1, keepdim=True).values,
}


@pytest.mark.parametrize("op", OF_EQUAL_ONES.values(), ids=OF_EQUAL_ONES)
@pytest.mark.parametrize("step", [1.0, 0.0])
def test_which_of_equal_ones_is_chosen_is_pytorchs(op: Callable[[Tensor], Tensor], step: float) -> None:
    """step: between the numbers at the start."""

    def cell(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        found = op(h)
        return h * 0.9 + x * found.sum(1, keepdim=True).sigmoid(), found

    start = (torch.arange(H, dtype=torch.float64) * step).expand(B, H).clone().requires_grad_()
    decision = check(example(cell, start, 0.1 * step * random(T, B, 1)), tolerance=1e-12)
    assert decision.strategy == ("sequential" if step else "pytorch")
    assert step or "equal numbers" in decision.reason


def test_weights_of_a_mean_of_bags_are_refused_as_by_pytorch() -> None:
    def cell(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        h = functional.embedding_bag(h.topk(2, 1).indices, W, per_sample_weights=h[:, :2], mode="mean") + x
        return h, h

    with pytest.raises(NotImplementedError):
        bppsa.scan(cell, h(), x(H))

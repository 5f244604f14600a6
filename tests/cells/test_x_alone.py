"""What does not depend on the carry leaves the loop whatever the op is, and so does what only the outputs need."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

import bppsa
from tests.cells.support import B, Cell, H, T, Table, fuses, h, random, squashed, x
from tests.scan.support import check
from tests.scan.zoo import example

W, V, SQUARE, TABLE = random(H, H), random(H), random(H, H, grad=False), random(7, H)
PERIODS = torch.tensor([1, 1, 2, 2, 4, 4])
CONV = nn.Conv1d(1, 1, 3, padding=1).double()
NORM = nn.GroupNorm(2, H).double()
ROWS, COLUMN = random(B, H), random(B, 1)

OPS: Table = [
    ("sin", squashed(lambda h, x: h + torch.sin(x))),
    ("logaddexp", squashed(lambda h, x: h @ W + torch.logaddexp(x, 2 * x))),
    ("fmod", squashed(lambda h, x: h + torch.fmod(x, 0.7))),
    ("glu", squashed(lambda h, x: h * functional.glu(torch.cat([x, x], 1), 1))),
    ("stack", squashed(lambda h, x: h + torch.stack([x, x.sin()], 1).sum(1))),
    ("a lookup by what x says", squashed(lambda h, x: h + TABLE[(x[:, 0] > 0).long()])),
    ("group norm", squashed(lambda h, x: h + NORM(x))),
    ("sort", squashed(lambda h, x: h + x.sort(1).values)),
    ("sort, descending", squashed(lambda h, x: h + torch.sort(x, dim=-1, descending=True)[0])),
    ("convolution over features", squashed(lambda h, x: h + CONV(x.unsqueeze(1)).squeeze(1))),
    ("mean over the batch", squashed(lambda h, x: h @ W + (x - x.mean(0)))),
    ("batch norm", squashed(lambda h, x: h + functional.batch_norm(x, None, None, training=True))),
    ("the whole of x as one number", squashed(lambda h, x: h * x.mean())),
    ("one row for all", squashed(lambda h, x: h + x.sum(0, keepdim=True))),
    ("one vector for all", squashed(lambda h, x: h + x.max(0).values)),
    ("three dimensions on the way", squashed(lambda h, x: h + x.view(B, 2, 3).flip(2).reshape(B, H))),
    ("a product of x with itself", squashed(lambda h, x: h + x @ x.t() @ x)),
    ("heads of x", squashed(lambda h, x: h + torch.einsum("bi,bj->bij", x, x).sum(2))),
    ("topk", squashed(lambda h, x: h * x.topk(2, 1).values[:, 1:])),
    ("log_sigmoid", squashed(lambda h, x: h + functional.logsigmoid(x))),
    ("std_mean", squashed(lambda h, x: h + sum(torch.std_mean(x, 1, keepdim=True)))),
    ("a remainder of whole numbers", squashed(lambda h, x: torch.where((10 * x).long() % PERIODS == 0, h @ W + x, h))),
    ("a fill as large as the batch", squashed(lambda h, x: h + torch.cat([x[:, 1:], x.new_ones(B, 1)], 1))),
]

TAILS: Table = [
    ("of probabilities", lambda h, x: (torch.tanh(h + x), functional.binary_cross_entropy(h.sigmoid(), x.sigmoid()))),
    (
        "of probabilities alone",
        lambda h, x: (torch.tanh(h + x), functional.binary_cross_entropy(h.sigmoid(), x.sigmoid())),
    ),
    ("cumsum", lambda h, x: (torch.tanh(h + x), h.cumsum(1))),
    ("sort", lambda h, x: (torch.tanh(h + x), h.sort(1).values)),
    ("several results", lambda h, x: (torch.tanh(h + x), h.max(1))),
    ("three dimensions", lambda h, x: (torch.tanh(h + x), h.view(B, 2, 3))),
    ("mean over the batch", lambda h, x: (torch.tanh(h + x), h - h.mean(0))),
    ("transposed", lambda h, x: (torch.tanh(h + x), h.t())),
    ("a number", lambda h, x: (torch.tanh(h + x), (h * x).sum())),
    ("truth values", lambda h, x: ((m := h > x), (torch.where(m, 0.5 * h, x), m))[1]),
    ("x itself", lambda h, x: (torch.tanh(h + x), (x, h))),
    ("a parameter", lambda h, x: (torch.tanh(h + x), (V, W[:2], ROWS))),
    ("constants", lambda h, x: (torch.tanh(h + x), (torch.ones(B, H), torch.zeros_like(h), torch.arange(B)))),
    ("beside the batch", lambda h, x: (torch.tanh(h + x), torch.cat([h, ROWS], 1))),
]

OWN_ROWS: Table = [
    ("variational dropout", squashed(lambda h, x: (h * ROWS) @ W + x)),
    ("one number a row", squashed(lambda h, x: h * COLUMN + x)),
    ("beside the state", squashed(lambda h, x: torch.cat([h[:, :2], ROWS[:, 2:]], 1) + x)),
    ("with x as well", squashed(lambda h, x: h + x * ROWS)),
]


@pytest.mark.parametrize("cell", [cell for _, cell in OPS], ids=[name for name, _ in OPS])
def test_of_x_alone(cell: Cell) -> None:
    torch.manual_seed(0)
    fuses(cell, h(), x(H), W, TABLE, *CONV.parameters(), *NORM.parameters())


@pytest.mark.parametrize("cell", [cell for _, cell in TAILS], ids=[name for name, _ in TAILS])
def test_for_outputs_alone(cell: Cell) -> None:
    torch.manual_seed(0)
    fuses(cell, h(), x(H), ROWS, V, W)


def test_an_output_of_a_parameter_has_memory_of_its_own() -> None:
    weight = torch.ones(H, dtype=torch.float64)
    _, ys = bppsa.scan(lambda h, x: (torch.tanh(h + x), weight), h(), x(H), strategy="sequential")
    ys += 1
    assert weight.eq(1).all()
    assert ys.eq(2).all()


@pytest.mark.parametrize("cell", [cell for _, cell in OWN_ROWS], ids=[name for name, _ in OWN_ROWS])
def test_a_tensor_with_a_row_for_each_of_the_batch(cell: Cell) -> None:
    torch.manual_seed(0)
    fuses(cell, h(), x(H), W, ROWS, COLUMN)


def test_tokens_are_looked_up_before_the_loop() -> None:
    embedding = nn.Embedding(7, H).double()
    tokens = torch.randint(7, (T, B))
    fuses(squashed(lambda h, x: h @ W + embedding(x)), h(), tokens, W, *embedding.parameters())
    fuses(squashed(lambda h, x: h @ W + TABLE[x]), h(), tokens, W, TABLE)


@pytest.mark.parametrize("rows", [B, H])
def test_columns_are_picked_before_the_loop(rows: int) -> None:
    """Of a table with a column for each symbol; with as many rows as units no shape says which are which."""
    table, symbols = random(H, 7), torch.randint(7, (T, rows))
    fuses(squashed(lambda h, s: h @ W + table[:, s].T), random(rows, H), symbols, W, table)
    fuses(squashed(lambda h, s: h @ W + table[:, s].sum(0).unsqueeze(1)), random(rows, H), symbols, W, table)


def test_integers_meet_the_state() -> None:
    counts = torch.randint(-3, 4, (T, B, H))
    fuses(squashed(lambda h, x: h * x), h(), counts)
    fuses(lambda h, x: (torch.where(h > x, 0.5 * h, x), (x, h)), h(), counts)
    fuses(squashed(lambda h, x: h * 0.9 ** (x > 0).sum(1, keepdim=True)), h(), counts)


def dt_spellings() -> list[Cell]:
    return [
        lambda h, dt: ((n := h + dt * torch.tanh(h @ W)), n),
        lambda h, dt: ((n := h * torch.exp(-dt.abs()) + dt.view(1, 1) * V), n),
        lambda h, dt: (torch.lerp(torch.tanh(h @ W), h, torch.sigmoid(dt)), dt * h),
    ]


@pytest.mark.parametrize("cell", dt_spellings())
def test_a_number_for_each_step(cell: Cell) -> None:
    fuses(cell, h(), random(T), W, V)


def test_a_number_for_each_step_beside_rows() -> None:
    fuses(lambda h, x: ((n := torch.tanh(h * x[1] + x[0])), n), h(), (x(H), random(T)))
    fuses(lambda s, x: ((n := torch.tanh(s * x[1] + x[0].sum(1))), n), random(B), (x(H), random(T)))


def test_a_vector_as_long_as_the_batch_is_no_row() -> None:
    """With B = H their shapes would not tell them apart; PyTorch lines up the last dimension."""
    vector = random(B)
    cell = squashed(lambda h, x: h + x.mean(0) + vector)
    fuses(cell, random(B, B), random(T, B, B), vector)
    fuses(squashed(lambda h, x: h + x.sum(1)), random(B, B), random(T, B, B))


def test_a_batch_of_one() -> None:
    rows = random(1, H)
    fuses(squashed(lambda h, x: (h * rows) @ W + x.sin() + x.mean(0)), random(1, H), random(T, 1, H), rows, W)


def test_each_step_keeps_its_own_order_when_run_backwards() -> None:
    given = example(squashed(lambda h, x: h @ W + x.sort(1).values), h(), x(H), W)
    assert check(given, reverse=True).strategy == "sequential"


def test_the_outer_graph_takes_any_number_of_steps() -> None:
    cell = squashed(lambda h, x: h + x.sort(1).values)
    for steps in (1, 2, 17):
        fuses(cell, h(), random(steps, B, H))


@pytest.mark.parametrize("width", [H, 33])
def test_a_weight_that_is_another_one_in_each_step(width: int) -> None:
    """As the state of HiPPO has it. It is written down for each row, so a large one is left alone."""
    weight, numbers = random(width, width), torch.arange(1.0, T + 1).double()

    def cell(h: torch.Tensor, given: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        u, t = given
        h = torch.tanh(h @ (torch.eye(width).to(h) - weight / t) + u)
        return h, h

    decision = check(example(cell, random(B, width), (x(width), numbers), weight), tolerance=1e-9)
    assert decision.strategy == ("sequential" if width == H else "pytorch")
    assert width == H or "another one in each step; with at most 1024 numbers" in decision.reason

"""The ready cells of bppsa.cells against what their papers say, written out, and against a plain loop."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm

import bppsa
from bppsa import cells, strategies
from bppsa.plan.strategy import Strategy
from bppsa.runtime.recurrent.reference import loop
from tests.scan.support import check, leaves, results, same
from tests.scan.zoo import B, Example, H, I, T, h, random, x

State = tuple[Tensor, Tensor]
LSTM_LIKE = (cells.ResetLSTM, cells.LayerNormLSTM)
RESETTING = (cells.ResetGRU, cells.ResetLSTM)
CELLS = (
    cells.ResetGRU,
    cells.ResetLSTM,
    cells.LayerNormLSTM,
    cells.MinGRU,
    cells.IndRNN,
    cells.SRU,
    cells.DiagonalSSM,
    cells.GroupedGRU,
)
GROUPS = 2
STRUCTURES = {
    cells.MinGRU: f"diagonal {H}x{H}, {H} non-zeros",
    cells.IndRNN: f"diagonal {H}x{H}, {H} non-zeros",
    cells.SRU: f"diagonal {H}x{H}, {H} non-zeros",
    cells.DiagonalSSM: f"diagonal {H}x{H}, {H} non-zeros",
    cells.GroupedGRU: f"block-diagonal {H}x{H}, {GROUPS} blocks of {H // GROUPS}, {H * H // GROUPS} non-zeros",
}
SCANS = (strategies.sequential(), strategies.chunked(2), strategies.blelloch(), strategies.hybrid(1))


def gru_step(cell: cells.ResetGRU, h: Tensor, given: State) -> tuple[Tensor, Tensor]:
    x, reset = given
    h = torch.stack([torch.zeros_like(row) if at else row for row, at in zip(h, reset, strict=True)])
    gates, inner = cell.cell, [h @ cell.cell.weight_hh.t() + cell.cell.bias_hh]
    r, z, n = (x @ gates.weight_ih.t() + gates.bias_ih).chunk(3, 1)
    h_r, h_z, h_n = inner[0].chunk(3, 1)
    r, z = torch.sigmoid(r + h_r), torch.sigmoid(z + h_z)
    h = (1 - z) * torch.tanh(n + r * h_n) + z * h
    return h, h


def lstm_gates(gates: Tensor, c: Tensor) -> State:
    i, f, g, o = gates.chunk(4, 1)
    return torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g), torch.sigmoid(o)


def lstm_step(cell: cells.ResetLSTM, state: State, given: State) -> tuple[State, Tensor]:
    x, reset = given
    h, c = (torch.stack([0 * row if at else row for row, at in zip(s, reset, strict=True)]) for s in state)
    own = cell.cell
    c, o = lstm_gates(x @ own.weight_ih.t() + own.bias_ih + h @ own.weight_hh.t() + own.bias_hh, c)
    h = o * torch.tanh(c)
    return (h, c), h


def layer_norm_step(cell: cells.LayerNormLSTM, state: State, x: Tensor) -> tuple[State, Tensor]:
    def normal(norm: nn.LayerNorm, value: Tensor) -> Tensor:
        return layer_norm(value, norm.normalized_shape, norm.weight, norm.bias)

    h, c = state
    gates = normal(cell.input_norm, x @ cell.input.weight.t() + cell.input.bias)
    c, o = lstm_gates(gates + normal(cell.hidden_norm, h @ cell.hidden.weight.t()), c)
    h = o * torch.tanh(normal(cell.state_norm, c))
    return (h, c), h


def min_gru_step(cell: cells.MinGRU, h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    z = torch.sigmoid(x @ cell.gate.weight.t() + cell.gate.bias)
    h = h + z * (x @ cell.candidate.weight.t() + cell.candidate.bias - h)
    return h, h


def ind_rnn_step(cell: cells.IndRNN, h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    h = torch.relu(x @ cell.input.weight.t() + cell.input.bias + cell.recurrent * h)
    return h, h


def sru_step(cell: cells.SRU, c: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    f = torch.sigmoid(x @ cell.forget.weight.t() + cell.forget_state * c + cell.forget.bias)
    r = torch.sigmoid(x @ cell.reset.weight.t() + cell.reset_state * c + cell.reset.bias)
    new = f * c + (1 - f) * (x @ cell.input.weight.t())
    return new, r * new + (1 - r) * (x @ cell.skip.weight.t())


def ssm_step(cell: cells.DiagonalSSM, h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    h = h @ torch.diag((-cell.rate.exp()).exp()) + x @ cell.input.weight.t()
    return h, h @ cell.output.weight.t() + x @ torch.diag(cell.skip)


def grouped_step(cell: cells.GroupedGRU, h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """One GRU whose weights are block-diagonal, gate by gate."""

    def product(given: Tensor, name: str) -> list[Tensor]:
        by_gate = zip(*(getattr(part, f"weight_{name}").chunk(3) for part in cell.parts), strict=True)
        biases = zip(*(getattr(part, f"bias_{name}").chunk(3) for part in cell.parts), strict=True)
        pairs = zip(by_gate, biases, strict=True)
        return [given @ torch.block_diag(*weights).t() + torch.cat(bias) for weights, bias in pairs]

    (r, z, n), (h_r, h_z, h_n) = product(x, "ih"), product(h, "hh")
    r, z = torch.sigmoid(r + h_r), torch.sigmoid(z + h_z)
    h = (1 - z) * torch.tanh(n + r * h_n) + z * h
    return h, h


OF_CELLS = (gru_step, lstm_step, layer_norm_step, min_gru_step, ind_rnn_step, sru_step, ssm_step, grouped_step)
STEPS: dict[type[cells.Cell], Callable[..., Any]] = dict(zip(CELLS, OF_CELLS, strict=True))


def make(kind: type[cells.Cell]) -> Example:
    torch.manual_seed(0)
    cell = (kind(I, H, GROUPS) if kind is cells.GroupedGRU else kind(I, H)).double()
    for parameter in cell.parameters():
        nn.init.normal_(parameter, std=0.7)  # a norm's gains are ones otherwise
    carry = (h(), h()) if kind in LSTM_LIKE else h()
    xs = (x(), torch.rand(T, B) < 0.3) if kind in RESETTING else x()
    return Example(cell, carry, xs, list(cell.parameters()))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("kind", CELLS)
def test_a_fused_cell_equals_its_loop(kind: type[cells.Cell], reverse: bool) -> None:
    decision = check(make(kind), reverse=reverse)
    assert (decision.strategy, decision.path) == ("sequential", kind.__name__)


@pytest.mark.parametrize("strategy", SCANS, ids=str)
@pytest.mark.parametrize("kind", STRUCTURES)
def test_structured_cells_by_every_scan(kind: type[cells.Cell], strategy: Strategy) -> None:
    given = make(kind)
    got, expected = (results(scan, given) for scan in (functools.partial(bppsa.scan, strategy=strategy), loop))
    same(got[0], expected[0])
    same(got[1], expected[1])
    report = bppsa.explain(lambda: bppsa.scan(*given[:3], strategy=strategy))
    (decision,) = report.decisions
    assert (decision.strategy, decision.numbers["J^T"]) == (str(strategy), STRUCTURES[kind])


def test_groups_are_blocks_at_any_size() -> None:
    cell = cells.GroupedGRU(12, 64, 4)
    (decision,) = bppsa.explain(lambda: bppsa.scan(cell, cell.initial(B), torch.randn(T, B, 12))).decisions
    assert decision.numbers["J^T"] == "block-diagonal 64x64, 4 blocks of 16, 1024 non-zeros"
    for sizes in ((12, 62), (13, 64)):
        with pytest.raises(ValueError, match="not multiples of 4 groups"):
            cells.GroupedGRU(*sizes, 4)


def test_a_skip_between_equal_widths_is_x_itself() -> None:
    torch.manual_seed(0)
    cell = cells.SRU(H, H).double()
    assert not [name for name, _ in cell.named_parameters() if name.startswith("skip")]
    assert check(Example(cell, h(), x(H), list(cell.parameters()))).strategy == "sequential"


def test_the_decays_of_a_new_ssm() -> None:
    cell = cells.DiagonalSSM(I, H)
    first = torch.exp(-torch.exp(cell.rate))
    torch.testing.assert_close(first, torch.exp(-0.01 * torch.arange(1.0, H + 1)))


@pytest.mark.parametrize("kind", CELLS)
def test_a_cell_computes_what_it_is_named_for(kind: type[cells.Cell]) -> None:
    given = make(kind)
    state, outputs = given.carry, []
    for t in range(T):
        step = (given.xs[0][t], given.xs[1][t]) if kind in RESETTING else given.xs[t]
        state, y = STEPS[kind](given.cell, state, step)
        outputs.append(y)
    wanted = [given.xs[0] if kind in RESETTING else given.xs, *leaves(given.carry), *given.parameters]
    ours_state, ours = bppsa.scan(*given[:3])
    same([ours, *leaves(ours_state)], [torch.stack(outputs), *leaves(state)])
    got = torch.autograd.grad(ours.pow(2).sum(), wanted)
    same(got, torch.autograd.grad(torch.stack(outputs).pow(2).sum(), wanted))
    assert all(g.any() for g in got)


@pytest.mark.parametrize("kind", CELLS)
def test_the_first_carry(kind: type[cells.Cell]) -> None:
    given = make(kind)
    first = given.cell.initial(B)
    assert [leaf.shape for leaf in leaves(first)] == [leaf.shape for leaf in leaves(given.carry)]
    assert not any(leaf.any() or leaf.dtype != torch.float64 or leaf.requires_grad for leaf in leaves(first))
    check(given._replace(carry=first))


@pytest.mark.parametrize("kind", RESETTING)
def test_a_reset_everywhere_forgets_everything(kind: type[cells.Cell]) -> None:
    """Each step is then the first step of a sequence, and no gradient reaches the first carry."""
    given = make(kind)
    always = torch.ones(T, B, dtype=torch.bool)
    _, ys = bppsa.scan(given.cell, given.carry, (given.xs[0], always))
    alone = [bppsa.scan(given.cell, given.cell.initial(B), (given.xs[0][t : t + 1], always[:1]))[1] for t in range(T)]
    same([ys], [torch.cat(alone)])
    assert not any(g.any() for g in torch.autograd.grad(ys.sum(), leaves(given.carry)))


def test_the_cells_have_state_like_any_module() -> None:
    one, other = cells.LayerNormLSTM(I, H), cells.LayerNormLSTM(I, H)
    other.load_state_dict(one.state_dict())
    xs = random(T, B, I, dtype=torch.float32)
    same([bppsa.scan(one, one.initial(B), xs)[1]], [bppsa.scan(other, other.initial(B), xs)[1]], 0)

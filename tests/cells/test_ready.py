"""The younger ready cells: fused, and equal to the equations of their papers spelled in another way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bppsa
from bppsa import cells
from bppsa.errors import InputValueError
from tests.cells.support import B, H, I, T, fuses, random
from tests.scan.support import leaves, same

HEADS, D = 2, H // 2
Spelling = Callable[[Any, Any], Tensor]  # (cell, xs) -> ys [T, B, ...], from the first carry on


def slstm(cell: cells.sLSTM, xs: Tensor) -> Tensor:
    """Without the stabiliser (equations 8 to 14), and with one dense block-diagonal matrix a gate."""
    names = "z", "i", "f", "o"
    weights = cell.input.weight.view(HEADS, 4, D, I)
    W = {name: weights[:, place].reshape(H, I) for place, name in enumerate(names)}
    b = {name: cell.input.bias.view(HEADS, 4, D)[:, place].reshape(H) for place, name in enumerate(names)}
    R = {name: torch.block_diag(*cell.hidden[:, :, D * at : D * (at + 1)]).T for at, name in enumerate(names)}
    h = c = n = torch.zeros(B, H, dtype=torch.float64)
    ys = []
    for x in xs:
        z, i, f, o = (x @ W[name].T + h @ R[name].T + b[name] for name in names)
        i, f = i.exp(), 1 / (1 + (-f).exp())
        c, n = f * c + i * z.tanh(), f * n + i
        h = o.sigmoid() * (c / n)
        ys.append(h)
    return torch.stack(ys)


def mlstm(cell: cells.mLSTM, xs: Tensor) -> Tensor:
    """The parallel form, quadratic in T: weights of all steps for all later ones."""

    def heads(linear: nn.Linear) -> Tensor:  # [B, heads, T, D]
        return linear(xs).view(T, B, HEADS, -1).permute(1, 2, 0, 3)

    i, f = heads(cell.input_gate).squeeze(3), heads(cell.forget_gate).squeeze(3)  # [B, heads, T]
    since = f.sigmoid().log().cumsum(2)
    logs = (since.unsqueeze(3) - since.unsqueeze(2) + i.unsqueeze(2)).masked_fill(
        torch.ones(T, T).triu(1) > 0, -torch.inf
    )
    scores = heads(cell.query) @ heads(cell.key).transpose(2, 3) / D**0.5 * logs.exp()
    values = scores / scores.sum(3, keepdim=True).abs().clamp(min=1) @ heads(cell.value)
    return cell.output_gate(xs).sigmoid() * values.permute(2, 0, 1, 3).flatten(2)


def mamba(cell: cells.MambaStep, xs: Tensor) -> Tensor:
    """Number by number."""
    R, N = cell.rank, cell.hidden_size
    ys = torch.zeros(T, B, I, dtype=torch.float64)
    for b in range(B):
        state = [[torch.zeros((), dtype=torch.float64)] * N for _ in range(I)]
        for t in range(T):
            projected = cell.x_proj.weight @ xs[t, b]
            for d in range(I):
                delta = (1 + (cell.dt_proj.weight[d] @ projected[:R] + cell.dt_proj.bias[d]).exp()).log()
                y = cell.D[d] * xs[t, b, d]
                for n in range(N):
                    kept = (-delta * cell.A_log[d, n].exp()).exp() * state[d][n]
                    state[d][n] = kept + delta * projected[R + n] * xs[t, b, d]
                    y = y + projected[R + N + n] * state[d][n]
                ys = ys.index_put([torch.tensor(place) for place in (t, b, d)], y)
    return ys


def delta_net(cell: cells.DeltaNet, xs: Tensor) -> Tensor:
    """By products of whole transitions: S_t = sum over s of beta v k^T times (I - beta k k^T) of all steps after s."""

    def heads(linear: nn.Linear) -> Tensor:  # [T, B, heads, D]
        return linear(xs).view(T, B, HEADS, -1)

    def unit(part: Tensor) -> Tensor:
        part = part / (1 + torch.exp(-part))
        return part / (part * part).sum(3, keepdim=True).sqrt()

    q, k, v = unit(heads(cell.query)), unit(heads(cell.key)), heads(cell.value)
    beta = torch.sigmoid(cell.beta(xs))[..., None, None]
    written = beta * v.unsqueeze(4) @ k.unsqueeze(3)
    transition = torch.eye(D, dtype=torch.float64) - beta * k.unsqueeze(4) @ k.unsqueeze(3)
    ys = []
    for t in range(T):
        S = torch.zeros_like(written[0])
        for s in range(t + 1):
            part = written[s]
            for later in transition[s + 1 : t + 1]:
                part = part @ later
            S = S + part
        ys.append((S @ q[t].unsqueeze(3)).flatten(1))
    return torch.stack(ys)


def light_gru(cell: cells.LiGRU, xs: Tensor) -> Tensor:
    """Gate by gate, h moved by what the candidate differs."""
    U_h, U_z = cell.hidden.weight[:H], cell.hidden.weight[H:]
    h, ys = torch.zeros(B, H, dtype=torch.float64), []
    for w_h, w_z in zip(*cell.input(xs).split(H, 2), strict=True):
        z = 1 / (1 + torch.exp(-(w_z + h @ U_z.T)))
        h = h + (1 - z) * ((w_h + h @ U_h.T).clamp(min=0) - h)
        ys.append(h)
    return torch.stack(ys)


def closed_form(cell: cells.CfC, xs: tuple[Tensor, Tensor]) -> Tensor:
    """The paper's gates of -f: what s leaves goes to g."""
    h, ys = torch.zeros(B, H, dtype=torch.float64), []
    W_x, W_h = cell.backbone.weight.split([I, H], 1)
    for x, gap in zip(*xs, strict=True):
        u = 1.7159 * torch.tanh(0.666 * (x @ W_x.T + h @ W_h.T + cell.backbone.bias))
        away = torch.stack(
            [cell.time_a(row) * -by - cell.time_b(row) for row, by in zip(u, gap, strict=True)]
        ).sigmoid()
        h = away * torch.tanh(cell.ff1(u)) + (1 - away) * torch.tanh(cell.ff2(u))
        ys.append(h)
    return torch.stack(ys)


CASES: dict[str, tuple[Callable[[], cells.Cell], Spelling]] = {
    "sLSTM": (lambda: cells.sLSTM(I, H, HEADS), slstm),
    "mLSTM": (lambda: cells.mLSTM(I, H, HEADS), mlstm),
    "MambaStep": (lambda: cells.MambaStep(I, 3, rank=2), mamba),
    "DeltaNet": (lambda: cells.DeltaNet(I, H, HEADS), delta_net),
    "LiGRU": (lambda: cells.LiGRU(I, H), light_gru),
    "CfC": (lambda: cells.CfC(I, H, units=5), closed_form),
}


def made(name: str) -> tuple[cells.Cell, Any]:
    torch.manual_seed(0)
    cell = CASES[name][0]().double()
    with torch.no_grad():
        for parameter in cell.parameters():
            parameter += 0.3 * torch.randn_like(parameter)  # biases and gains begin alike
    xs = random(T, B, I)
    return cell, (xs, torch.rand(T, B, dtype=torch.float64, requires_grad=True)) if name == "CfC" else xs


@pytest.mark.parametrize("name", CASES)
def test_is_fused_and_equals_its_loop_in_every_call(name: str) -> None:
    cell, xs = made(name)
    carry = cell.initial(B)
    for _ in range(3):
        fuses(cell, carry, xs, *cell.parameters())
        with torch.no_grad():
            carry, _ = bppsa.scan(cell, carry, xs)
            for parameter in cell.parameters():
                parameter *= 0.9


@pytest.mark.parametrize("name", CASES)
def test_is_what_its_paper_says(name: str) -> None:
    cell, xs = made(name)
    (_, got), expected = bppsa.scan(cell, cell.initial(B), xs), CASES[name][1](cell, xs)
    wanted = [*leaves(xs), *cell.parameters()]
    weights = torch.linspace(0.5, 1.5, got.numel(), dtype=got.dtype).view_as(got)
    gradients = [torch.autograd.grad((ys * weights).sum(), wanted) for ys in (got, expected)]
    same([got, *gradients[0]], [expected, *gradients[1]], 1e-9)
    assert all(g.any() for g in gradients[0])


def test_a_light_gru_after_a_batch_norm() -> None:
    torch.manual_seed(0)
    cell, linear, norm = cells.LiGRU(None, H).double(), nn.Linear(I, 2 * H).double(), nn.BatchNorm1d(2 * H).double()
    w = norm(linear(random(T, B, I)).flatten(0, 1)).view(T, B, 2 * H)
    fuses(cell, cell.initial(B), w.detach().requires_grad_(), *cell.parameters())
    same([bppsa.scan(cell, cell.initial(B), w)[1]], [light_gru(cell, w)])


@pytest.mark.parametrize("name", ["sLSTM", "mLSTM"])
@pytest.mark.parametrize("extent", [-300.0, 300.0])
def test_exponential_gates_never_overflow(name: str, extent: float) -> None:
    """Nor does a memory that was almost nothing divide by zero."""
    torch.manual_seed(0)
    cell = CASES[name][0]()
    with torch.no_grad():
        for bias in (cell.input.bias.view(HEADS, 4, D)[:, 1],) if name == "sLSTM" else (cell.input_gate.bias,):
            bias += extent
    xs = torch.randn(T, B, I, requires_grad=True)
    _, ys = bppsa.scan(cell, cell.initial(B), xs)
    gradients = torch.autograd.grad(ys.sum(), [xs, *cell.parameters()])
    assert all(found.isfinite().all() for found in (ys, *gradients))
    assert name == "mLSTM" or ys.any()


@pytest.mark.parametrize("kind", [cells.sLSTM, cells.mLSTM, cells.DeltaNet])
@pytest.mark.parametrize(("hidden_size", "heads"), [(6, 4), (6, 0), (0, 1), (6, -2)])
def test_heads_have_to_divide_the_width(kind: Any, hidden_size: int, heads: int) -> None:
    with pytest.raises(InputValueError, match=rf"hidden_size={hidden_size}, heads={heads}: no heads of equal width"):
        kind(I, hidden_size, heads)


@pytest.mark.parametrize("sizes", [(0, 3, 1), (4, 0, 1), (4, 3, 0)])
def test_a_selective_scan_of_nothing(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(InputValueError, match="less than 1"):
        cells.MambaStep(*sizes)


def test_a_new_selective_scan() -> None:
    torch.manual_seed(0)
    cell = cells.MambaStep(40, 4)
    delta = nn.functional.softplus(cell.dt_proj.bias)
    assert cell.rank == 3
    assert 1e-3 <= delta.min() < 3e-3 < 3e-2 < delta.max() <= 1e-1
    torch.testing.assert_close(-torch.exp(cell.A_log[7]), -torch.arange(1.0, 5.0))

"""Ops that PyTorch has on a GPU alone are written down as what they compute; here the CPU is given such kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bppsa.fxpasses.reroll.log.targets import CUDNN, spelled
from tests.loops.beside import Pair
from tests.loops.cells import B, Cell, H, N, x

aten = torch.ops.aten


def gru_forward(
    x_gates: Tensor, h_gates: Tensor, h: Tensor, b_x: Tensor | None = None, b_h: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    x_r, x_z, x_n = (x_gates if b_x is None else x_gates + b_x).chunk(3, 1)
    h_r, h_z, h_n = (h_gates if b_h is None else h_gates + b_h).chunk(3, 1)
    r, z = (x_r + h_r).sigmoid(), (x_z + h_z).sigmoid()
    n = (x_n + r * h_n).tanh()
    return n + z * (h - n), torch.cat([r, z, n, h, h_n], 1)


def gru_backward(g: Tensor, workspace: Tensor, has_bias: bool) -> tuple[Tensor, ...]:
    r, z, n, h, h_n = workspace.chunk(5, 1)
    of_n = g * (1 - z) * (1 - n * n)
    of_r, of_z = of_n * h_n * r * (1 - r), g * (h - n) * z * (1 - z)
    of_x, of_h = torch.cat([of_r, of_z, of_n], 1), torch.cat([of_r, of_z, of_n * r], 1)
    return of_x, of_h, g * z, of_x.sum(0), of_h.sum(0)


def lstm_forward(
    x_gates: Tensor, h_gates: Tensor, c: Tensor, b_x: Tensor | None = None, b_h: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    gates = x_gates + h_gates + (0 if b_x is None else b_x) + (0 if b_h is None else b_h)
    i, f, g, o = gates.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    now = f * c + i * g
    return o * now.tanh(), now, torch.cat([i, f, g, o], 1)


def lstm_backward(
    g_h: Tensor | None, g_c: Tensor | None, c: Tensor, now: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, ...]:
    i, f, g, o = workspace.chunk(4, 1)
    of_h, of_c = torch.zeros_like(c) if g_h is None else g_h, torch.zeros_like(c) if g_c is None else g_c
    bent = now.tanh()
    of_now = of_c + of_h * o * (1 - bent * bent)
    slopes = of_now * g * i * (1 - i), of_now * c * f * (1 - f), of_now * i * (1 - g * g), of_h * bent * o * (1 - o)
    of_gates = torch.cat(slopes, 1)
    return of_gates, of_now * f, of_gates.sum(0)


KERNELS = {
    "_thnn_fused_gru_cell": gru_forward,
    "_thnn_fused_gru_cell_backward": gru_backward,
    "_thnn_fused_lstm_cell": lstm_forward,
    "_thnn_fused_lstm_cell_backward_impl": lstm_backward,
}


@pytest.fixture
def kernels() -> Iterator[None]:
    with torch.library._scoped_library("aten", "IMPL") as library:
        for name, kernel in KERNELS.items():
            library.impl(name, kernel, "CPU")
        yield


class Gru(Cell):
    bias = True

    def __init__(self) -> None:
        super().__init__()
        self.cell = self.kind(N, H, bias=self.bias)

    def step(self, x: Tensor, state: Any) -> Any:
        return aten._thnn_fused_gru_cell(*self.gates(x, state), state, *self.biases())[0]

    def gates(self, x: Tensor, h: Tensor) -> Sequence[Tensor]:
        return nn.functional.linear(x, self.cell.weight_ih), nn.functional.linear(h, self.cell.weight_hh)

    def biases(self) -> Sequence[Tensor]:
        return (self.cell.bias_ih, self.cell.bias_hh) if self.bias else ()

    def forward(self, x: Tensor) -> Any:
        state, out = self.first(x), []
        for x_t in x.unbind(1):
            state = self.step(x_t, state)
            out.append(state)
        return self.shown(out)

    def first(self, x: Tensor) -> Any:
        return self.start(x)

    def shown(self, out: list[Any]) -> Any:
        return torch.stack(out, 1)


class Lstm(Gru):
    kind = nn.LSTMCell

    def first(self, x: Tensor) -> Any:
        return self.start(x), self.start(x)

    def step(self, x: Tensor, state: Any) -> Any:
        h, c = state
        return aten._thnn_fused_lstm_cell(*self.gates(x, h), c, *self.biases())[:2]

    def shown(self, out: list[Any]) -> Any:
        return torch.stack([h for h, _ in out], 1), out[-1][1]


class GruWithoutBias(Gru):
    bias = False


class LstmWithoutBias(Lstm):
    bias = False


@pytest.mark.parametrize("kind", [Gru, GruWithoutBias, Lstm, LstmWithoutBias])
def test_cells(kind: type[Gru], kernels: None) -> None:
    assert Pair(kind()).strategies(x()) == ["sequential"]


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("mode", CUDNN)
def test_one_step_of_a_module(mode: str, bias: bool, batch_first: bool) -> None:
    kind = {"LSTM": nn.LSTM, "GRU": nn.GRU}.get(mode, nn.RNN)
    how = {"nonlinearity": mode.removeprefix("RNN_").lower()} if kind is nn.RNN else {}
    module = kind(N, H, bias=bias, batch_first=batch_first, dtype=torch.float64, **how)
    step = torch.randn((B, 1, N) if batch_first else (1, B, N), dtype=torch.float64)
    states = [torch.randn(1, B, H, dtype=torch.float64) for _ in range(1 + (kind is nn.LSTM))]
    y, last = module(step, tuple(states) if len(states) > 1 else states[0])
    c = states[1] if len(states) > 1 else None
    weights = list(module.parameters())
    options = CUDNN.index(mode), H, 0, 1, batch_first, 0.0, True, False, [], None
    made = spelled(aten._cudnn_rnn.default, (step, weights, len(weights), None, states[0], c, *options))
    assert made is not None
    for found, expected in zip(made(), (y, *(last if isinstance(last, tuple) else (last,))), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("eps", [None, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
def test_rms_norm(weighted: bool, eps: float | None) -> None:
    given, weight = torch.randn(B, N, H), torch.randn(N, H) if weighted else None
    made = spelled(aten._fused_rms_norm.default, (given, (N, H), weight, eps))
    assert made is not None
    torch.testing.assert_close(made()[0], nn.functional.rms_norm(given, (N, H), weight, eps))

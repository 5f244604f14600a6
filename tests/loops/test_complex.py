"""Loops over complex values that do odd things with views of them: whoever runs them, the numbers are PyTorch's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.loops.beside import Pair
from tests.loops.cells import B, H, T
from tests.loops.complex_models import C, parameter

ODD: dict[type[nn.Module], bool] = {}  # whether they become scans


class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w, self.b = parameter(H, H), parameter(H)

    def next(self, h: Tensor, x: Tensor) -> Tensor:
        h = h @ self.w + self.b * x
        return h / (1 + h.abs())


def odd(found: bool) -> Any:
    def add(cls: type[nn.Module]) -> type[nn.Module]:
        ODD[cls] = found
        return cls

    return add


@odd(found=False)
class WritesThroughAConjugate(Cell):
    def forward(self, x: Tensor) -> Any:
        h, out = torch.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            h = self.next(h, x[:, t])
            new = h * 2
            turned = new.conj()
            turned.mul_(0.5 + 0.2j)
            out.append(new)
        return torch.stack(out, 1)


@odd(found=False)
class WritesParts(Cell):
    def forward(self, x: Tensor) -> Any:
        h, out = torch.zeros_like(x[:, 0]), torch.zeros(B, T, H, dtype=C)
        for t in range(x.shape[1]):
            h = self.next(h, x[:, t])
            out.real[:, t] = h.imag
            out.imag[:, t] = h.real
        return out


@odd(found=True)
class ReadsANegatedView(Cell):
    def forward(self, x: Tensor) -> Any:
        h, out = torch.zeros_like(x[:, 0].real), []
        signs = x.conj().imag
        for t in range(x.shape[1]):
            h = torch.tanh(h + signs[:, t])
            out.append(h)
        return torch.stack(out, 1), signs


@odd(found=True)
class CarriesAConjugate(Cell):
    def forward(self, x: Tensor) -> Any:
        h, out = x[:, 0].conj(), []
        for t in range(x.shape[1]):
            h = self.next(h, x[:, t]).conj()
            out.append(h)
        return torch.stack(out, 1), h


@odd(found=True)
class ReturnsConjugatesOfParameters(Cell):
    def forward(self, x: Tensor) -> Any:
        h, out, w, b = torch.zeros_like(x[:, 0]), [], self.w.mH, self.b.conj()
        for t in range(x.shape[1]):
            h = torch.tanh((h @ w + b * x[:, t]) * 0.2)
            out.append(h.imag)
        return torch.stack(out, 1), h, w, b


@odd(found=True)
class CarriesRealAndComplex(Cell):
    def forward(self, x: Tensor) -> Any:
        h, phase, out = torch.zeros_like(x[:, 0]), torch.zeros_like(x[:, 0].real), []
        for t in range(x.shape[1]):
            phase = torch.tanh(phase + h.abs() / (t + 1))
            h = self.next(h, torch.polar(phase, x[:, t].imag))
            out.append(torch.fft.fft(h, dim=1).angle())
        return torch.stack(out, 1), h, phase


@pytest.mark.parametrize("kind", ODD)
def test_numbers_are_pytorchs(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    strategies = Pair(kind()).strategies(torch.randn(B, T, H, dtype=C, requires_grad=True))
    assert ("sequential" in strategies) is ODD[kind]

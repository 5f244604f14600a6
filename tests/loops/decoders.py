"""Decoders: of one sequence at a time, which have no batch, and with what is fed back or goes by the step's number."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.loops.cells import B, Cell, H, N, T, row, x


class OneByOne(nn.Module):
    """A decoder for one sequence at a time, as PyTorch's tutorials had it: no batch, but dimensions of one."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.rnn, self.out = nn.Embedding(5, H), nn.GRU(H, H), nn.Linear(H, 5)
        self.attention, self.combine = nn.Linear(2 * H, 6), nn.Linear(2 * H, H)

    def step(self, token: Tensor, h: Tensor, encoded: Tensor) -> tuple[Tensor, Tensor]:
        embedded = self.embedding(token).view(1, 1, -1)
        weights = F.softmax(self.attention(torch.cat((embedded[0], h[0]), 1)), dim=1)
        read = torch.bmm(weights.unsqueeze(0), encoded.unsqueeze(0))
        output, h = self.rnn(F.relu(self.combine(torch.cat((embedded[0], read[0]), 1)).unsqueeze(0)), h)
        return F.log_softmax(self.out(output[0]), dim=1), h


def one_sequence() -> Tensor:
    return torch.randn(6, H, dtype=torch.float64, requires_grad=True)


@row("one sequence, its target's tokens fed", one_sequence, lambda: torch.randint(5, (T, 1)))
class Fed(OneByOne):
    def forward(self, encoded: Tensor, target: Tensor) -> Any:
        h, token, loss = encoded[-1:].unsqueeze(0), torch.tensor([[0]]), encoded.new_zeros(())
        for i in range(len(target)):
            output, h = self.step(token, h, encoded)
            loss = loss + F.nll_loss(output, target[i])
            token = target[i]
        return loss, h


@row("one sequence, its own best tokens fed", one_sequence)
class Greedy(OneByOne):
    def forward(self, encoded: Tensor) -> Any:
        h, token, out = encoded[-1:].unsqueeze(0), torch.tensor([[0]]), []
        for _ in range(T):
            output, h = self.step(token, h, encoded)
            token = output.topk(1)[1].squeeze().detach()
            out.append(output)
        return torch.cat(out)


@row("input feeding, with nothing fed at first", x, lambda: torch.randn(B, H, dtype=torch.float64, requires_grad=True))
class Feeding(Cell):
    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(H, N)

    def forward(self, x: Tensor, h: Tensor) -> Any:
        fed, out = torch.zeros_like(h), []
        for x_t in x.unbind(1):
            h = self.cell(x_t + self.query(fed), h)
            fed = h
            out.append(h)
        return torch.stack(out, 1), fed


@row("the last states but one and two, zeros at first")
class Memory(Cell):
    def forward(self, x: Tensor) -> Any:
        h, last, out = self.start(x) + 1, (self.start(x),) * 3, []
        for x_t in x.unbind(1):
            h = self.cell(x_t, h + last[0] * last[2])
            last = (*last, h)[-3:]
            out.append(h)
        return torch.stack(out, 1), last


@row("learned angles and decays of the step's number")
class Rotates(Cell):
    def __init__(self) -> None:
        super().__init__()
        self.angle, self.decay = nn.Parameter(torch.rand(H)), nn.Parameter(torch.rand(3))

    def forward(self, x: Tensor) -> Any:
        h, out = self.start(x), []
        for t, x_t in enumerate(x.unbind(1)):
            h = self.cell(x_t, h * torch.cos(t * self.angle)) * self.decay[t % 3] ** (t / x.shape[1])
            out.append(h)
        return torch.stack(out, 1)

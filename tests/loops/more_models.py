"""Loops over time as people write them: what their steps do."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.loops.cells import B, Cell, H, N, T, row, x


@row("teacher forcing by a given mask", x, lambda: torch.rand(B, T, 1) < 0.5)
class Teacher(Cell):
    def __init__(self) -> None:
        super().__init__(2)
        self.enter = nn.Linear(N, 2)

    def forward(self, x: Tensor, mask: Tensor) -> Any:
        h, y, out = self.start(x), x.new_zeros(x.shape[0], 2), []
        for t in range(x.shape[1]):
            h = self.cell(torch.where(mask[:, t], self.enter(x[:, t]), y), h)
            y = self.head(h)
            out.append(y)
        return torch.stack(out, 1)


@row("resets", x, lambda: (torch.rand(B, T) < 0.2).double())
class Resets(Cell):
    kind = nn.LSTMCell

    def forward(self, x: Tensor, done: Tensor) -> Any:
        h, c, out = self.start(x), self.start(x), []
        for x_t, done_t in zip(x.unbind(1), done.unbind(1), strict=True):
            keep = (1.0 - done_t).unsqueeze(-1)
            h, c = self.cell(x_t, (h * keep, c * keep))
            out.append(h)
        return torch.stack(out, 1)


@row("masks by length", x, lambda: torch.tensor([T, 5, 9]))
class Lengths(Cell):
    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        h, out = self.start(x), []
        for t in range(x.shape[1]):
            new = self.cell(x[:, t], h)
            h = torch.where((t < lengths).unsqueeze(1), new, h)
            out.append(h)
        return torch.stack(out, 1)


@row("own gates")
class Gates(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w, self.u = nn.Linear(N, 2 * H, bias=False), nn.Linear(H, 2 * H, bias=False)

    def forward(self, x: Tensor) -> Any:
        w = self.w(x)
        h = torch.zeros(x.shape[0], H, dtype=x.dtype)
        out = []
        for k in range(w.shape[1]):
            a, z = (w[:, k] + self.u(h)).chunk(2, 1)
            z = torch.sigmoid(z)
            h = z * h + (1 - z) * F.relu(a)
            out.append(h)
        return torch.stack(out, dim=1)


@row("LSTM inline, transposed")
class Inline(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.W = nn.Parameter(torch.randn(N, 4 * H) * 0.3)
        self.U = nn.Parameter(torch.randn(H, 4 * H) * 0.3)
        self.b = nn.Parameter(torch.zeros(4 * H))

    def forward(self, x: Tensor) -> Any:
        x = x.transpose(0, 1)
        h = c = torch.zeros(x.shape[1], H, dtype=x.dtype)
        out = []
        for t in range(x.size(0)):
            gates = x[t] @ self.W + h @ self.U + self.b
            i, f, g, o = (gates[:, :H], gates[:, H : 2 * H], gates[:, 2 * H : 3 * H], gates[:, 3 * H :])
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            out.append(h.unsqueeze(0))
        return torch.cat(out, dim=0).transpose(0, 1).contiguous(), (h, c)


@row("numbers that differ per step")
class Differs(Cell):
    def forward(self, x: Tensor) -> Any:
        h, out, steps = self.start(x), [], x.shape[1]
        for t in range(steps):
            h = self.cell(x[:, t], h) * (t / steps) + 0.1 * t
            out.append(h)
        return torch.stack(out, 1)


@row("inner solver loop")
class Solver(Cell):
    def forward(self, x: Tensor) -> Any:
        h, out = self.start(x), []
        for t in range(x.shape[1]):
            for _ in range(4):
                h = h + 0.1 * (torch.tanh(self.cell(x[:, t], h)) - h)
            out.append(h)
        return torch.stack(out, 1)


@row("dropout and noise")
class Noise(Cell):
    def forward(self, x: Tensor) -> Any:
        h, out = self.start(x), []
        for t in range(x.shape[1]):
            h = self.cell(F.dropout(x[:, t], 0.3), h)
            h = F.dropout(h, 0.2) + 0.1 * torch.randn_like(h)
            out.append(h)
        return torch.stack(out, 1)


@row("attention with heads", x, lambda: torch.randn(B, 2, 5, H // 2, dtype=torch.float64, requires_grad=True))
class AttendsByHeads(Cell):
    def forward(self, x: Tensor, memory: Tensor) -> Any:
        h = self.start(x)
        for step in x.unbind(1):
            asked = h.view(len(h), 2, 1, H // 2)
            h = self.cell(step, F.scaled_dot_product_attention(asked, memory, memory).flatten(1))
        return h


@row("gates in front of the rows")
class GatesInFront(Cell):
    """No dimension is the rows' in all values of a step."""

    def __init__(self) -> None:
        super().__init__()
        self.given, self.own = nn.Parameter(torch.randn(4, N, H)), nn.Parameter(torch.randn(4, H, H))

    def forward(self, x: Tensor) -> Any:
        h = c = self.start(x)
        for given in torch.einsum("btn,gnh->tgbh", x, self.given):
            i, f, o, z = given + torch.einsum("bh,ghk->gbk", h, self.own)
            c = f.sigmoid() * c + i.sigmoid() * z.tanh()
            h = o.sigmoid() * c.tanh()
        return h, c


@row("detach every 5 steps", lambda: x(60))
class Truncated(Cell):
    every = 5

    def forward(self, x: Tensor) -> Any:
        h, out = self.start(x), []
        for t in range(x.shape[1]):
            if t % self.every == 0:
                h = h.detach()
            h = self.cell(x[:, t], h)
            out.append(h)
        return torch.stack(out, 1)


@row("detach thrice", lambda: x(60))
class SeldomTruncated(Truncated):
    every = 20


@row("states of two steps before")
class Delayed(Cell):
    def forward(self, x: Tensor) -> Any:
        states = [self.start(x), self.start(x)]
        for t in range(x.shape[1]):
            states.append(self.cell(x[:, t], states[-1]) + 0.5 * states[-2])
        return torch.stack(states[2:], 1)


@row("losses summed in the loop", x, lambda: torch.randn(B, T, 2, dtype=torch.float64))
class Losses(Cell):
    def forward(self, x: Tensor, target: Tensor) -> Any:
        h, loss = self.start(x), 0.0
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            loss = loss + F.mse_loss(self.head(h), target[:, t])
        return loss / x.shape[1]


@row("first step peeled")
class Peeled(Cell):
    def forward(self, x: Tensor) -> Any:
        h = torch.tanh(self.cell(x[:, 0], self.start(x)))
        out = [h]
        for t in range(1, x.shape[1]):
            h = self.cell(x[:, t], h)
            out.append(h)
        return torch.stack(out, 1)


@row("rollout without gradients")
class Rollout(Cell):
    def __init__(self) -> None:
        super().__init__(2)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Any:
        h, y, out = self.start(x), x[:, 0, :2], []
        for _ in range(40):
            h = self.cell(y, h)
            y = self.head(h)
            out.append(y)
        return torch.stack(out, 1)


@row("while, a step of nn.GRU")
class Single(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(N, H, batch_first=True)

    def forward(self, x: Tensor) -> Any:
        h, out, t = None, [], 0
        while t < x.shape[1]:
            y, h = self.rnn(x[:, t : t + 1], h)
            out.append(y)
            t += 1
        return torch.cat(out, 1), h


@row("a step of nn.LSTM, time first", lambda: x(dim=0))
class SingleLstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(N, H)

    def forward(self, x: Tensor) -> Any:
        state, out = None, []
        for x_t in x:
            y, state = self.rnn(x_t.unsqueeze(0), state)
            out.append(y)
        return torch.cat(out), state


@row("embeddings", lambda: torch.randint(7, (B, T)))
class Embeds(Cell):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, N)

    def forward(self, tokens: Tensor) -> Any:
        h, out = torch.zeros(tokens.shape[0], H, dtype=self.head.weight.dtype), []
        for t in range(tokens.shape[1]):
            h = self.cell(self.embed(tokens[:, t]), h)
            out.append(self.head(h))
        return torch.stack(out, 1)


@row("attention over the encoder's states")
class Attends(Cell):
    def __init__(self) -> None:
        super().__init__()
        self.decoder = nn.GRUCell(H, H)

    def forward(self, x: Tensor) -> Any:
        h, states = self.start(x), []
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            states.append(h)
        memory, out = torch.stack(states, 1), []
        for _ in range(10):
            scores = torch.softmax((memory @ h.unsqueeze(-1)).squeeze(-1), -1)
            context = (scores.unsqueeze(1) @ memory).squeeze(1)
            h = self.decoder(context, h)
            out.append(h)
        return torch.stack(out, 1)


@row("liquid time constants")
class Liquid(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w, self.u = nn.Linear(N, H), nn.Linear(H, H)
        self.tau = nn.Parameter(torch.rand(H) + 0.5)
        self.a = nn.Parameter(torch.randn(H))

    def forward(self, x: Tensor) -> Any:
        h, out = x.new_zeros(x.shape[0], H), []
        for t in range(x.shape[1]):
            drive = self.w(x[:, t])
            for _ in range(6):
                f = torch.sigmoid(drive + self.u(h))
                h = (h + 0.1 * f * self.a) / (1 + 0.1 * (1 / self.tau + f))
            out.append(h)
        return torch.stack(out, 1)


@row("layer norm, elementwise state, 3 outputs")
class Outputs(Cell):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(H)

    def forward(self, x: Tensor) -> Any:
        h, total, states, outs = self.start(x), self.start(x), [], []
        for x_t in torch.unbind(x, dim=1):
            h = self.norm(self.cell(x_t, h))
            total = total + h
            states.append(h)
            outs.append(self.head(total).tanh())
        return {"states": torch.stack(states, 1), "outs": torch.stack(outs), "last": h, "steps": len(outs)}


@row("truth values carried, and counted")
class Halts(Cell):
    def forward(self, x: Tensor) -> Any:
        h, out = self.start(x), []
        done, count = torch.zeros(len(x), dtype=torch.bool), torch.zeros(len(x), dtype=torch.long)
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            done = done | (h.sum(-1) > 0.3)
            count = count + (~done).long()
            h = torch.where(done[:, None], h * 0.5, h)
            out.append(h)
        return torch.stack(out, 1), count, done


@row("an element of each row, read and written by numbers of the state")
class Pointers(Cell):
    def forward(self, x: Tensor) -> Any:
        h, out, rows = self.start(x), [], torch.arange(x.shape[0])
        memory = self.head(torch.tanh(self.cell(x[:, 0], h)))[:, :, None] * x.transpose(1, 2).sum(1)[:, None, :H]
        for t in range(x.shape[1]):
            read = memory[rows, h[:, :2].argmax(1)].mean(1, keepdim=True)
            h = self.cell(x[:, t] + read, h)
            marked = h.clone()
            marked[torch.arange(len(h)), h.argmin(1)] = 0.25
            h = marked
            out.append(h[rows, h.argmax(1) - H])
        return torch.stack(out, 1), h


@row("a window of a buffer of states")
class Windows(Cell):
    def forward(self, x: Tensor) -> Any:
        lags = 3
        states = x.new_zeros(x.shape[0], x.shape[1] + lags, H)
        states[:, 0] = 0.1
        for t in range(lags, x.shape[1] + lags):
            window = states[:, t - lags : t].clone()
            states[:, t] = self.cell(x[:, t - lags], window.mean(1)) - window[:, 0] / 9
        return self.head(states[:, lags:]), states


@row("a window of a buffer with time in front, returned without its start")
class FirstSteps(Cell):
    def forward(self, x: Tensor) -> Any:
        states = x.new_zeros(x.shape[1] + 2, x.shape[0], H)
        for t in range(x.shape[1]):
            states[t + 2] = self.cell(x[:, t], states[t : t + 2].sum(0))
        return states[2:].transpose(0, 1) * 1.0


@row("a series that grows by what a window of it tells")
class Grows(Cell):
    def forward(self, x: Tensor) -> Any:
        series, lags = x[:, :2, 0], 2
        for t in range(x.shape[1] - lags):
            window = torch.cat([series[:, -lags:], x[:, t, :1]], 1)
            new = self.head(self.cell(window, self.start(x)))[:, :1] + 0.5 * series[:, -1:] - 0.1 * series[:, t, None]
            series = torch.cat([series, new], dim=-1)
        return series, series[:, lags:].sum(1)


@row("additive attention, and its output's best as the next input")
class Decodes(Cell):
    def forward(self, x: Tensor) -> Any:
        memory, table, out = self.head.weight[:, :N] + x[:, :2, None].sum(-2, keepdim=True), x[0, :2], []
        h, best = self.start(x), torch.zeros(len(x), dtype=torch.long)
        for _ in range(x.shape[1]):
            h = self.cell(table[best], h)
            scores = torch.tanh(h[:, :N].unsqueeze(1) + memory.flatten(1, 2)).sum(-1)
            context = torch.bmm(torch.softmax(scores, -1).unsqueeze(1), memory.flatten(1, 2)).squeeze(1)
            y = self.head(h) + context[:, :2]
            best = y.argmax(-1)
            out.append(y)
        return torch.stack(out, 1)

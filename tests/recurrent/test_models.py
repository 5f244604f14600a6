"""Recurrent modules as parts of something larger: PyTorch's numbers in one step, and in a run of twenty."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tests.breadth import diagonal
from tests.recurrent.support import compiled, leaves, results, same, sweeps

WORDS, H, STEPS, ROWS = 13, 11, 7, 4


class Tagger(nn.Module):
    """Embedding, recurrences of three kinds, one after the other and side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 6)
        self.first, self.second = nn.GRU(6, H, bidirectional=True), nn.LSTM(2 * H, H, num_layers=2)
        self.beside, self.head = nn.RNN(6, H), nn.Linear(2 * H, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        y, _ = self.second(self.first(x)[0])
        return self.head(torch.cat([y, self.beside(x)[0]], -1))


class Attentive(nn.Module):
    """An encoder of sequences of any lengths, and a decoder that looks at all of it and starts from its end."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, H)
        self.encoder, self.decoder = nn.GRU(H, H, batch_first=True), nn.GRU(H, H, batch_first=True)
        self.attention = nn.MultiheadAttention(H, 1, batch_first=True)
        self.head = nn.Linear(2 * H, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens.t())
        packed = pack_padded_sequence(x, torch.tensor([3, 7, 1, 6]), batch_first=True, enforce_sorted=False)
        memory, state = self.encoder(packed)
        memory, lengths = pad_packed_sequence(memory, batch_first=True)
        y, _ = self.decoder(x, state)
        seen, _ = self.attention(y, memory, memory, key_padding_mask=torch.arange(STEPS) >= lengths[:, None])
        return self.head(torch.cat([y, seen], -1)).transpose(0, 1)


class Repeated(nn.Module):
    """One recurrence called three times, two that share their weights, and a state carried on."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, H)
        self.again, self.left, self.right = nn.LSTM(H, H), nn.GRU(H, H), nn.GRU(H, H)
        for name in ("weight_hh_l0", "bias_ih_l0"):
            setattr(self.right, name, getattr(self.left, name))
        self.head = nn.Linear(H, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        first, state = self.again(x[:3])
        second, _ = self.again(x[3:], state)
        y, _ = self.again(torch.cat([first, second]))
        left, end = self.left(y)
        right, _ = self.right(y.flip(0), end)
        return self.head(left + right.flip(0))


class Inner(nn.Module):
    """A recurrence within a loop that PyTorch's autograd unrolls, each time on what it gave before."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.gru = nn.Embedding(WORDS, H), nn.GRU(H, H, num_layers=2, dropout=0.3)
        self.norm, self.head = nn.LayerNorm(H), nn.Linear(H, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for _ in range(4):
            y, state = self.gru(x)
            x = self.norm(x + y * state[-1])
        return self.head(x)


MODELS: list[Callable[[], nn.Module]] = [Tagger, Attentive, Repeated, Inner]


@pytest.mark.parametrize("make", MODELS)
def test_one_step(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model, tokens = make().double(), torch.randint(WORDS, (STEPS, ROWS))
    wanted = [*model.parameters()]
    fast = compiled(model)
    results(fast, [tokens], wanted)  # a forward with a loop is logged in its first call, which PyTorch runs
    with sweeps() as ran:
        got = results(fast, [tokens], wanted)
    assert ran.count("forward") == ran.count("backward") >= 2
    same(got, results(model, [tokens], wanted))


def train(model: nn.Module, run: Any, make: Callable[..., torch.optim.Optimizer]) -> list[float]:
    """The losses of twenty steps from one seed, on one batch."""
    torch.manual_seed(1)
    optimizer, losses = make(model.parameters(), lr=0.05), []
    tokens = torch.randint(WORDS, (STEPS, ROWS))
    for _ in range(20):
        loss = functional.cross_entropy(run(tokens).flatten(0, 1), tokens.roll(1, 0).flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(("make", "optimizer"), diagonal(MODELS, [torch.optim.SGD, torch.optim.Adam]))
def test_twenty_steps(make: Callable[[], nn.Module], optimizer: Any) -> None:
    curves = []
    for prepare in (lambda model: model, compiled):
        torch.manual_seed(0)
        model = make().double()
        curves.append(torch.tensor(train(model, prepare(model), optimizer), dtype=torch.float64))
    assert curves[0][-1] < curves[0][0]
    torch.testing.assert_close(curves[1], curves[0], rtol=1e-9, atol=0)


def test_truncated_back_propagation() -> None:
    """A state is detached and carried into the next call, while the optimizer moves the weights."""
    curves = []
    for prepare in (lambda model: model, compiled):
        torch.manual_seed(0)
        model = nn.LSTM(3, H, 2).double()
        run, state, losses = prepare(model), None, []
        optimizer = torch.optim.SGD(model.parameters(), 0.5)
        for _ in range(10):
            y, state = run(torch.randn(STEPS, ROWS, 3, dtype=torch.float64), state)
            state = tuple(s.detach() for s in state)
            loss = y.square().mean() + 1
            model.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        curves.append(torch.tensor([*losses, *leaves(state)[0].flatten().tolist()]))
    torch.testing.assert_close(curves[1], curves[0], rtol=1e-9, atol=1e-12)


def test_gradients_accumulate() -> None:
    """In `.grad`, over calls: added to what is there, and never shared between parameters."""
    torch.manual_seed(0)
    model, x = nn.GRU(3, H).double(), torch.randn(STEPS, ROWS, 3, dtype=torch.float64)
    grads = []
    for module in (model, compiled(model)):
        model.zero_grad(set_to_none=True)
        for scale in (1, 2, 3):
            module(scale * x)[0].sum().backward()
        assert len({p.grad.untyped_storage().data_ptr() for p in model.parameters()}) == 4
        grads.append([p.grad.clone() for p in model.parameters()])
    same(grads[1], grads[0])

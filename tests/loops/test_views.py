"""Views of one memory in a loop: with and without gradients, and of all of it. A first call of zeros tells little."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bppsa
from tests.loops.beside import Pair

B, T, H = 3, 12, 4


class Views(nn.Module):
    def __init__(self, step: Callable[[Views, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.step, self.weight = step, nn.Parameter(0.3 * torch.randn(H, H))
        self.scalar = nn.Linear(1, 1)

    def forward(self, x: Tensor) -> Tensor:
        h, out = x.new_zeros(len(x), H), []
        for t in range(x.shape[1]):
            h = torch.tanh(self.step(self, x[:, t], h))
            out.append(h)
        return torch.stack(out, 1)


def constant_first(m: Views, x: Tensor, h: Tensor) -> Tensor:
    detached, weight = m.weight.detach().t(), m.weight.t()
    return x + h @ detached + h @ weight


def constant_last(m: Views, x: Tensor, h: Tensor) -> Tensor:
    weight, detached = m.weight.t(), m.weight.detach().t()
    return x + h @ detached + h @ weight


def constant_without_gradients(m: Views, x: Tensor, h: Tensor) -> Tensor:
    with torch.no_grad():
        above = m.weight[:2]
    below = m.weight[:2]
    return x + h[:, :2] @ below + h[:, 2:] @ above


def state_first(m: Views, x: Tensor, h: Tensor) -> Tensor:
    detached, half = h.detach()[:, :2], h[:, :2]
    return x + torch.cat([detached, half], 1)


def state_last(m: Views, x: Tensor, h: Tensor) -> Tensor:
    half, detached = h[:, :2], h.detach()[:, :2]
    return x + torch.cat([detached, half], 1)


def state_without_gradients(m: Views, x: Tensor, h: Tensor) -> Tensor:
    with torch.no_grad():
        unseen = h[:, :2][:, :1]
    return x + torch.cat([unseen, h[:, :1], h[:, :2]], 1)


def parts(m: Views, x: Tensor, h: Tensor) -> Tensor:
    detached, halves = h.detach().chunk(2, 1), h.chunk(2, 1)
    return x + torch.cat([detached[0], halves[0]], 1)


STEPS = (
    *(constant_first, constant_last, constant_without_gradients),
    *(state_first, state_last, state_without_gradients, parts),
)
WHOLES: dict[str, Callable[[Views, Tensor, Tensor], Tensor]] = {
    "a slice of all": lambda m, x, h: x + h @ m.weight[:],
    "a view of its own shape": lambda m, x, h: x + h @ m.weight.view(H, H),
    "a transpose of a transpose": lambda m, x, h: x + h @ m.weight.T.T,
    "one number, transposed": lambda m, x, h: x + m.scalar(h[:, :1]),
}


def strategies(model: nn.Module) -> Any:
    """Of the compiled model, whose calls gave PyTorch's outputs and gradients."""
    fast: Any = bppsa.compile(copy.deepcopy(model), strategy="sequential")
    for x in (torch.zeros(B, T, H), torch.randn(B, T, H)):
        found = []
        for each in (model, fast):
            given = x.clone().requires_grad_()
            each.zero_grad()
            y = each(given)
            (y * torch.linspace(-1, 1, y.numel()).view(y.shape)).sum().backward()
            found.append([y, given.grad, *(p.grad for p in each.parameters())])
        for theirs, ours in zip(*found, strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
    return [decision.strategy for decision in bppsa.report(fast).decisions]


@pytest.mark.parametrize("step", STEPS)
def test_what_is_detached_and_what_is_not(step: Callable[[Views, Tensor, Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    assert strategies(Views(step)) == ["sequential"]


@pytest.mark.parametrize("name", WHOLES)
def test_a_view_of_all_of_it_is_the_same_in_each_step(name: str) -> None:
    torch.manual_seed(0)
    assert strategies(Views(WHOLES[name])) == ["sequential"]


def jitter(m: Views, x: Tensor, h: Tensor) -> Tensor:
    outer = h.unsqueeze(2) * x.unsqueeze(1)
    outer.diagonal(dim1=1, dim2=2).add_(x)
    outer.diagonal(-1, dim1=1, dim2=2)[:, :2].mul_(h[:, 2:])
    return outer.sum(1)


def test_a_diagonal_that_is_written_to() -> None:
    torch.manual_seed(0)
    assert strategies(Views(jitter)) == ["sequential"]


def clamped(m: Views, x: Tensor, h: Tensor) -> Tensor:
    y = x + h @ m.weight
    y.detach()[:, :2].clamp_(-0.1, 0.1)
    return y


def clamped_without_gradients(m: Views, x: Tensor, h: Tensor) -> Tensor:
    y = x + h @ m.weight
    with torch.no_grad():
        y[:, :2].clamp_(-0.1, 0.1)
    return y


@pytest.mark.parametrize("step", [clamped, clamped_without_gradients])
def test_a_change_that_autograd_does_not_see(step: Callable[[Views, Tensor, Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    assert strategies(Views(step)) == ["pytorch"]


def test_a_view_of_all_that_is_returned_is_another_tensor() -> None:
    class Returning(nn.Module):
        def forward(self, x: Tensor) -> Any:
            h, out = torch.zeros_like(x[:, 0]), []
            for t in range(x.shape[1]):
                h = torch.tanh(0.5 * h + x[:, t])
                out.append(h)
            return torch.stack(out, 1), x[:]

    fast: Any = bppsa.compile(Returning(), strategy="sequential")
    x = torch.randn(B, T, H)
    for _ in range(2):
        assert fast(x)[1].requires_grad_() is not x
    assert not x.requires_grad


def written(step: Callable[[Tensor, Tensor, Tensor], None]) -> Callable[[Views, Tensor, Tensor], Tensor]:
    def whole(m: Views, x: Tensor, h: Tensor) -> Tensor:
        y = torch.zeros_like(h)
        step(y, x, h)
        return y

    return whole


def halves(y: Tensor, x: Tensor, h: Tensor) -> None:
    y[:, :2] = x[:, :2] + h[:, :2]
    y[:, 2:] = x[:, 2:] + h[:, 2:]


def a_half_by_the_other(y: Tensor, x: Tensor, h: Tensor) -> None:
    y[:, :2] = x[:, :2] + h[:, :2]
    y[:, 2:] = y[:, :2] + h[:, 2:]


def halves_that_meet(y: Tensor, x: Tensor, h: Tensor) -> None:
    y[:, :2] = x[:, :2] + h[:, :2]
    y[:, 1:3] = x[:, 2:] + h[:, 2:]


def a_column_of_a_half(y: Tensor, x: Tensor, h: Tensor) -> None:
    y[:, :2] = x[:, :2] + h[:, :2]
    y[:, 0] = h[:, 2]


def within_a_view(y: Tensor, x: Tensor, h: Tensor) -> None:
    most = y[:, :3]
    most[:, 0] = x[:, 0] + h[:, 1]
    most[:, 1:] = most[:, :1] + x[:, 2:]
    y[:, 3] = most.sum(1)


@pytest.mark.parametrize("step", [halves, a_half_by_the_other, halves_that_meet, a_column_of_a_half, within_a_view])
def test_what_was_written_to_one_view_stays_when_another_is_written_to(step: Any) -> None:
    torch.manual_seed(0)
    model = Views(written(step))
    fast: Any = bppsa.compile(copy.deepcopy(model), strategy="sequential")
    with torch.no_grad():
        for x in (torch.zeros(B, T, H), torch.randn(B, T, H)):
            torch.testing.assert_close(fast(x), model(x))
    assert [decision.strategy for decision in bppsa.report(fast).decisions] == ["sequential"]


class Slices(nn.Module):
    """What each step gives is one slice of the output, or two."""

    def __init__(self, parts: int) -> None:
        super().__init__()
        self.parts = parts

    def forward(self, x: Tensor) -> Tensor:
        h, out = torch.zeros_like(x[:, 0]), torch.zeros_like(x)
        for t in range(x.shape[1]):
            h = torch.tanh(0.5 * h + x[:, t])
            if self.parts == 1:
                out[:, t : t + 1] = h.unsqueeze(1)
            else:
                out[:, t, 2:] = 2 * h[:, 2:]
                out[:, t, :2] = h[:, :2]
        return out


@pytest.mark.parametrize("parts", [1, 2])
def test_slices_that_are_all_of_the_output(parts: int) -> None:
    assert strategies(Slices(parts)) == ["sequential"]


def test_an_output_lies_in_memory_as_pytorchs() -> None:
    model = Slices(1)
    fast: Any = bppsa.compile(copy.deepcopy(model), strategy="sequential")
    for steps in (T, T, T + 3):
        x = torch.randn(steps, B, H, dtype=torch.float64).transpose(0, 1)
        got, expected = fast(x), model(x)
        torch.testing.assert_close(got, expected)
        assert got.stride() == expected.stride() == (H, B * H, 1)
        got.detach_()  # it is no view, as PyTorch's is none
    assert [decision.strategy for decision in bppsa.report(fast).decisions] == ["sequential"]


class Overlapping(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        h, out = torch.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            h = torch.tanh(0.5 * h + x[:, t])
            h[:, 1:].addcmul_(h[:, :3].clone(), h[:, :-1].clone())
            h[:, :2].copy_(2 * h[:, 1:3])
            out.append(h)
        return torch.stack(out, 1)


def test_slices_that_meet() -> None:
    fast: Any = bppsa.compile(Overlapping(), strategy="sequential")
    with torch.no_grad():
        for x in (torch.zeros(B, T, H), torch.randn(B, T, H)):
            torch.testing.assert_close(fast(x), Overlapping()(x))


class MixesNodes(nn.Module):
    """Each step mixes the middle axis of a state [B, N, C], which puts what it makes in another order in memory."""

    def __init__(self, mix: Callable[[MixesNodes, Tensor], Tensor]) -> None:
        super().__init__()
        self.mix, self.nodes, self.channels = mix, nn.Linear(3, 3), nn.Linear(H, H)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        state, out = torch.zeros_like(x[0]), []
        for x_t in x:
            state = torch.tanh(self.mix(self, state) + self.channels(state) + x_t)
            out.append(state.mean(1))
        return torch.stack(out), state.transpose(1, 2).reshape(len(state), -1), state


MIXES: dict[str, Callable[[MixesNodes, Tensor], Tensor]] = {
    "linear": lambda m, state: m.nodes(state.transpose(1, 2)).transpose(1, 2),
    "einsum": lambda m, state: torch.einsum("ij,bjc->bic", m.nodes.weight, state),
}


@pytest.mark.parametrize("mix", MIXES)
def test_a_state_that_a_step_puts_in_another_order_in_memory(mix: str) -> None:
    pair = Pair(MixesNodes(MIXES[mix]))
    x = torch.randn(T, B, 3, H, dtype=torch.float64, requires_grad=True)
    assert pair.strategies(x) == ["sequential"]


class Window(nn.Module):
    """Its state is a part of what each step makes, so that other numbers lie between those that it returns."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        window, out = x.new_zeros(len(x), 3, H), []
        for t in range(x.shape[1]):
            window = torch.cat([window, torch.tanh(window.mean(1) + x[:, t])[:, None]], 1)[:, 1:]
            out.append(window.sum(1))
        return torch.stack(out, 1), window


def test_gaps_in_what_is_returned() -> None:
    pair = Pair(Window())
    for steps in (T, T, T + 3):
        x = torch.randn(B, steps, H, dtype=torch.float64, requires_grad=True)
        assert pair.strategies(x) == ["sequential"]
        assert pair.fast(x)[1].stride() == pair.plain(x)[1].stride()

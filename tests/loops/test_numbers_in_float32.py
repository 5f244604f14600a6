"""Loops in float32, where rounding must not be blamed for anything else."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bppsa
from bppsa.frontend.loops import plans
from bppsa.fxpasses.reroll.log import writing

aten = torch.ops.aten
B, T, H = 3, 12, 4

STARTS: dict[str, Callable[[Tensor], Tensor]] = {
    "new_full": lambda x: x.new_full((len(x), H), 0.3),
    "new_full of a whole number": lambda x: x.new_full((len(x), H), 2),
    "new_full with options": lambda x: x.new_full([len(x), H], fill_value=-1.5, requires_grad=False),
    "full": lambda x: torch.full((len(x), H), 0.7),
    "full_like": lambda x: torch.full_like(x[:, 0], 0.3),
    "full_like of another dtype": lambda x: torch.full_like(x[:, 0], 2, dtype=torch.float32),
    "ones_like": lambda x: torch.ones_like(x[:, 0]),
    "new_ones": lambda x: x.new_ones(len(x), H),
    "a sum": lambda x: x.new_zeros(len(x), H) + 0.25,
}


class Started(nn.Module):
    def __init__(self, start: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.cell, self.start = nn.GRUCell(H, H), start

    def forward(self, x: Tensor) -> Tensor:
        h, out = self.start(x), []
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            out.append(h)
        return torch.stack(out, 1)


def alike(model: nn.Module, *args: Tensor, calls: int = 3, tolerance: float = 1e-4) -> Any:
    """The strategies of the compiled model's last call; each call gave PyTorch's outputs and gradients."""
    fast: Any = bppsa.compile(copy.deepcopy(model), strategy="sequential")
    for _ in range(calls):
        found = []
        for each in (model, fast):
            given = [arg.clone().requires_grad_() for arg in args]
            each.zero_grad()
            y = each(*given)
            (y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape)).sum().backward()
            found.append([y, *(x.grad for x in given), *(p.grad for p in each.parameters())])
        for theirs, ours in zip(*found, strict=True):
            assert (theirs - ours).norm() <= tolerance * (theirs.norm() + 1e-6)
    return [decision.strategy for decision in bppsa.report(fast).decisions]


@pytest.mark.parametrize("name", STARTS)
def test_what_a_state_starts_at(name: str) -> None:
    torch.manual_seed(0)
    assert "sequential" in alike(Started(STARTS[name]), torch.randn(B, T, H))


def test_a_wrong_log_is_no_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistake in what is written down shows, though loop and scan are made of the same log."""
    monkeypatch.setattr(writing, "sized", zeros_instead)
    torch.manual_seed(0)
    model = Started(STARTS["new_full"])
    fast: Any = bppsa.compile(copy.deepcopy(model), strategy="sequential")
    reasons = []
    for _ in range(3):
        x = torch.randn(B, T, H)
        torch.testing.assert_close(fast(x), model(x))
        reasons.append(bppsa.report(fast).decisions[0].reason)
    assert "differs from PyTorch's" in reasons[0]  # later the loop alone, without what the state starts at, is a scan


def zeros_instead(func: Any, leaves: list[Any], out: Tensor) -> tuple[Any, list[Any], Any]:
    spec = ((None,) * out.dim(),), (("dtype", None), ("device", None))
    return aten.zeros.default, [*out.shape, out.dtype, out.device], spec


def test_a_fault_of_a_pass_is_told_and_the_loop_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: object) -> None:
        raise KeyError("a mistake")

    monkeypatch.setattr(plans, "program_of", fails)
    monkeypatch.delenv("BPPSA_CHECK", raising=False)
    model = Started(STARTS["new_ones"])
    fast: Any = bppsa.compile(copy.deepcopy(model), strategy="sequential")
    x = torch.randn(B, T, H)
    with pytest.warns(RuntimeWarning, match="fails to plan it: KeyError"):
        assert torch.equal(fast(x), model(x))
    assert "please report" in bppsa.report(fast).decisions[0].reason


class Heads(nn.Module):
    """A matrix for each of two heads, by matmuls that fold batch and heads."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(H, 3 * H)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (2, -1)) for part in self.project(x).chunk(3, -1))
        state, out = x.new_zeros(len(x), 2, H // 2, H // 2), []
        for t in range(x.shape[1]):
            state = 0.9 * state + v[:, t, :, :, None] @ k[:, t, :, None, :]
            out.append((state @ q[:, t, :, :, None]).squeeze(-1))
        return torch.stack(out, 1)


class Convolved(nn.Module):
    """A depthwise convolution with a kernel that it is given, the same in all steps or one for each."""

    def __init__(self, each: bool) -> None:
        super().__init__()
        self.each = each

    def forward(self, x: Tensor, kernels: Tensor) -> Tensor:
        h, out = torch.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            kernel = kernels[t] if self.each else kernels
            h = torch.tanh(F.conv1d(h, kernel, padding=1, groups=len(kernel)) + x[:, t])
            out.append(h)
        return torch.stack(out, 1)


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_heads_and_rows_that_are_as_many(rows: int) -> None:
    torch.manual_seed(0)
    assert "sequential" in alike(Heads().double(), torch.randn(rows, T, H, dtype=torch.float64), tolerance=1e-9)


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize(("rows", "channels"), [(1, 1), (2, 2), (3, 2)])
def test_kernels_with_as_many_channels_as_rows(rows: int, channels: int, each: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(rows, T, channels, 5, dtype=torch.float64)
    kernels = torch.randn(*[T] * each, channels, 1, 3, dtype=torch.float64)
    alike(Convolved(each), x, kernels, tolerance=1e-9)
    if each:
        return

    def cell(h: Tensor, xs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        h = torch.tanh(F.conv1d(h, xs[1], padding=1, groups=channels) + xs[0])
        return h, h

    given = x.transpose(0, 1), kernels.expand(T, *kernels.shape)
    found = bppsa.scan(cell, torch.zeros_like(x[:, 0]), given)[1]
    torch.testing.assert_close(found.transpose(0, 1), Convolved(False)(x, kernels))


def test_threads_that_a_step_counts() -> None:
    class Threads(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            h, out = x.new_zeros(len(x), H), []
            for t in range(x.shape[1]):
                h = torch.tanh(h + x[:, t] / torch.get_num_threads())
                out.append(h)
            return torch.stack(out, 1)

    fast: Any = bppsa.compile(Threads(), strategy="sequential")
    before, x = torch.get_num_threads(), torch.randn(B, T, H)
    try:
        for count in (1, 1, 2, 2):
            torch.set_num_threads(count)
            torch.testing.assert_close(fast(x), Threads()(x))
    finally:
        torch.set_num_threads(before)

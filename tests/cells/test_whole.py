"""Whole numbers and truth values in the carry: counters, clocks, flags, what was chosen last."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import bppsa
from bppsa.errors import CarryError
from bppsa.frontend.call_log import collecting
from tests.cells.support import B, Cell, H, T, fuses, h, random, x
from tests.scan.support import check
from tests.scan.zoo import example

W, V = random(H, H), random(H)
PERIODS = torch.tensor([1, 1, 2, 2, 3, 3])
NONE, ROW = torch.zeros(B, 1, dtype=torch.int64), torch.arange(B)


def counter(state: Any, x: Tensor) -> Any:
    h, n = state
    h = torch.tanh(h @ W / (n + 1) + x)
    return (h, n + 1), h


def clockwork(state: Any, x: Tensor) -> Any:
    h, n = state
    h = torch.where(n % PERIODS == 0, torch.tanh(h @ W + x), h)
    return (h, n + 1), (h, n)


def clockwork_by_lerp(state: Any, x: Tensor) -> Any:
    h, n = state
    due = torch.remainder(n, PERIODS).eq(0)
    h = torch.lerp(h, torch.tanh(h @ W + x), due.to(h.dtype))
    return (h, n.add(1)), h


def refractory(state: Any, x: Tensor) -> Any:
    """A neuron rests for two steps after each spike."""
    v, rest = state
    v = torch.where(rest > 0, 0.0, 0.9 * v + x)
    spike = v > 0.5
    return (v, torch.where(spike, 2, (rest - 1).clamp(min=0))), (v, spike)


def flag(state: Any, x: Tensor) -> Any:
    h, seen = state
    seen = seen | (x > 1)
    return (torch.tanh(torch.where(seen, h @ W, h) + x), seen), seen


def flag_by_logic(state: Any, x: Tensor) -> Any:
    h, seen = state
    seen = torch.logical_or(seen, x.gt(1))
    return (torch.tanh(h @ W * seen + h * ~seen + x), seen), h


def chosen(state: Any, x: Tensor) -> Any:
    """The best feature is fed back as a number."""
    h, last = state
    h = torch.tanh(h @ W + x + V * (last == torch.arange(H)))
    return (h, h.argmax(1, keepdim=True)), last


def chosen_by_max(state: Any, x: Tensor) -> Any:
    h, last = state
    h = torch.tanh(h @ W + x + torch.where(torch.arange(H).eq(last), V, 0.0))
    return (h, h.max(1, keepdim=True)[1]), h


def bits(state: Any, x: Tensor) -> Any:
    h, n = state
    n = ((n * 5 + 7) & 91) ^ 5
    chosen = ((n >> 1) | 8) + (n << 2) - torch.div(n - 40, 3, rounding_mode="trunc")
    h = torch.tanh(h @ W + torch.sin(chosen.to(h.dtype)) * x)
    return (h, n), (n - 30) & 13


def halves(state: Any, x: Tensor) -> Any:
    h, n = state
    n = torch.div(n, 2, rounding_mode="floor") - 3
    return (torch.tanh(h @ W + n * x), n), n


def rounded(state: Any, x: Tensor) -> Any:
    return (torch.tanh(state[0] + x), (100 * state[0]).long()), state[1]


def constants(state: Any, x: Tensor) -> Any:
    h, seen = state
    seen = ((seen | (x > 1)) & True) ^ False
    return (torch.tanh(torch.where(seen | False, h @ W, h) + x), seen ^ True), (seen | True, seen & False)


def delay_line(state: Any, x: Tensor) -> Any:
    """Read between two places."""
    h, n = state
    delay = 1.5 + 2 * torch.sigmoid(h[:, :1]) + n
    at = torch.floor(delay).long()
    part = delay - at
    y = h.gather(1, at % H) * (1 - part) + h.gather(1, (at + 1) % H) * part
    return (torch.cat([torch.tanh(x[:, :1] + y), h[:, :-1]], 1), n + 1), at


CELLS: dict[str, tuple[Cell, Tensor]] = {
    "counter": (counter, NONE),
    "clockwork": (clockwork, NONE),
    "clockwork by lerp": (clockwork_by_lerp, NONE),
    "refractory": (refractory, torch.zeros(B, H, dtype=torch.int64)),
    "refractory, int32": (
        lambda s, x: (lambda r: ((r[0][0], r[0][1].int()), r[1]))(refractory(s, x)),
        torch.zeros(B, H, dtype=torch.int32),
    ),
    "flag": (flag, torch.zeros(B, H, dtype=torch.bool)),
    "flag by logic": (flag_by_logic, torch.zeros(B, H, dtype=torch.bool)),
    "bits": (bits, ROW[:, None] - 1),
    "halves": (halves, ROW[:, None] - 1),
    "chosen": (chosen, NONE),
    "rounded": (rounded, torch.zeros(B, H, dtype=torch.int64)),
    "truth values and constants": (constants, torch.zeros(B, H, dtype=torch.bool)),
    "delay line": (delay_line, NONE),
    "chosen by max": (chosen_by_max, NONE),
}


@pytest.mark.parametrize("name", CELLS)
def test_equals_the_loop(name: str) -> None:
    torch.manual_seed(0)
    cell, state = CELLS[name]
    fuses(cell, (h(), state), x(H), W, V)


def test_a_number_for_each_row_beside_the_state() -> None:
    fuses(lambda s, x: ((torch.tanh(s[1] + x / (s[0][:, None] + 1)), s[0] + 1)[::-1], s[1]), (ROW, h()), x(H))


def test_numbers_of_x_are_counted() -> None:
    steps = torch.randint(4, (T, B, 1))
    fuses(lambda s, x: ((torch.tanh(s[0] + x[0] * s[1]), s[1] + x[1]), s[1]), (h(), NONE), (x(H), steps))


LEFT: dict[str, tuple[str, Cell, Tensor]] = {
    "doubling": ("grow by more", lambda s, x: ((torch.tanh(s[0] + x + s[1]), 2 * s[1] + 1), s[1]), NONE),
    "squares": ("multiplies whole numbers", lambda s, x: ((torch.tanh(s[0] + x), s[1] * s[1] % 7), s[1]), NONE),
    "bits": ("bitwise_xor", lambda s, x: ((torch.tanh(s[0] + x), s[1] ^ (s[1] // 2)), s[1]), NONE),
    "shifted": ("grow by more", lambda s, x: ((torch.tanh(s[0] + x + s[1]), s[1] << 1), s[1]), NONE),
    "large": ("whole numbers of up to", counter, NONE + 2**53),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_might_not_be_exact_runs_by_the_loop(name: str) -> None:
    reason, cell, state = LEFT[name]
    with collecting() as taken:
        bppsa.scan(cell, (h(), state), x(H))
    assert (taken[-1].strategy, reason in taken[-1].reason) == ("pytorch", True), taken[-1].reason


def test_whole_numbers_alone() -> None:
    flags = torch.zeros(B, H, dtype=torch.bool)

    def cell(state: Any, x: Tensor) -> Any:
        n, best, seen = state
        n = torch.where(x > 0, n + 1, 0)
        best, seen = torch.maximum(best, n), seen ^ (x > 1)
        return (n, best, seen), (best, V * torch.where(seen, x, -x))

    fuses(cell, (flags.long(), flags.long(), flags), x(H), V)
    with pytest.raises(CarryError, match=r"carry was \[3\] torch.int64 and is \[3\] torch.float64"):
        bppsa.scan(lambda n, x: (n.double(), x), flags[:, 0].long(), x(H))


@pytest.mark.parametrize("large", [2.0**21, -torch.inf, torch.nan])
def test_a_number_too_large_for_a_whole_one_is_pytorchs(large: float) -> None:
    given = example(lambda h, x: (x + h.long() % 7, h), h(), x(H).detach().masked_fill(x(H) > 1, large))
    assert check(given).strategy == "pytorch"


def test_a_counter_beyond_float32_runs_by_the_loop() -> None:
    start = NONE + 2**24 - 3
    state, xs = (h().detach().float(), start), x(H).detach().float()
    weight = W.detach().float()
    with collecting() as taken:
        _, n = bppsa.scan(lambda s, x: ((torch.tanh(s[0] @ weight + x), s[1] + 1), s[1]), state, xs)
    assert taken[-1].strategy == "pytorch"
    assert n[:, 0, 0].tolist() == [2**24 - 3 + t for t in range(T)]


def test_a_division_by_zero_is_pytorchs_error() -> None:
    periods = torch.tensor([1, 1, 2, 2, 3, 3])

    def cell(s: Any, x: Tensor) -> Any:
        return (torch.where(s[1] % periods == 0, torch.tanh(s[0] + x), s[0]), s[1] + 1), s[0]

    fuses(cell, (h(), NONE), x(H))
    periods[2] = 0
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        bppsa.scan(cell, (h(), NONE), x(H))

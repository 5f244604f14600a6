"""What a forward reads without naming it, and what a call does beside its ops: seen, or the loop is left to PyTorch."""

from __future__ import annotations

import array
import ctypes
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.loops.beside import Pair, run
from tests.loops.cells import B, Cell, H, N, T, x
from tests.loops.effects import Steps

GAIN = 1.0


class State:
    """Made by the forward, of a global number."""

    def __init__(self) -> None:
        self.gain = GAIN


class Scaled:
    def __enter__(self) -> float:
        return GAIN

    def __exit__(self, *error: Any) -> None: ...


class Called(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(N, H)

    def __call__(self, x: Tensor, h: Tensor) -> Tensor:
        result: Tensor = self.cell(x, h) * GAIN
        return result


class Listed(nn.ModuleList):
    def __getitem__(self, i: Any) -> Any:
        return super().__getitem__(i if GAIN == 1.0 else i + 1)


class OfClass:
    gain_a = 1.0


class Constructed(Steps):
    def beside(self, h: Tensor) -> Tensor:
        return h * State().gain


class Within(Steps):
    def beside(self, h: Tensor) -> Tensor:
        with Scaled() as gain:
            return h * gain


class OfCall(Steps):
    kind = lambda self, *sizes: Called()  # noqa: E731


class OfItem(Steps):
    def __init__(self) -> None:
        super().__init__()
        self.rates = Listed([nn.Linear(H, H), nn.Linear(H, H)])

    def beside(self, h: Tensor) -> Tensor:
        return torch.tanh(self.rates[0](h))


class ByString(Steps):
    def beside(self, h: Tensor) -> Tensor:
        return h * float(getattr(OfClass, "gain_" + "a"))


class Array(Steps):
    def __init__(self) -> None:
        super().__init__()
        self.gains = array.array("d", [1.0])

    def beside(self, h: Tensor) -> Tensor:
        return h * self.gains[0]


class Number(Steps):
    def __init__(self) -> None:
        super().__init__()
        self.gains = ctypes.c_double(1.0)

    def __deepcopy__(self, memo: Any) -> Number:
        """ctypes has no copies."""
        other = Number().double()
        other.load_state_dict(self.state_dict())
        return other

    def beside(self, h: Tensor) -> Tensor:
        return h * self.gains.value


class OfTensor(Steps):
    def beside(self, h: Tensor) -> Tensor:
        return h * 0.5 if getattr(self.head.weight, "halves", False) else h


def anew(model: nn.Module) -> None:
    globals()["GAIN"] = 0.5


HIDDEN: dict[type[Steps], Callable[[Any], Any]] = {
    **dict.fromkeys((Constructed, Within, OfCall, OfItem), anew),
    ByString: lambda model: setattr(OfClass, "gain_a", 0.5),
    Array: lambda model: model.gains.__setitem__(0, 0.5),
    Number: lambda model: setattr(model.gains, "value", 0.5),
    OfTensor: lambda model: setattr(model.head.weight, "halves", True),
}


@pytest.mark.parametrize("cls", HIDDEN, ids=lambda cls: cls.__name__)
def test_change_is_seen(cls: type[Steps], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OfClass, "gain_a", 1.0)
    monkeypatch.setitem(globals(), "GAIN", 1.0)
    pair = Pair(cls())
    assert pair.strategies(x()) == ["sequential"]
    pair.both(HIDDEN[cls])
    for seed in range(2):
        pair.call(x(), seed=seed)


def test_another_object_at_the_same_address() -> None:
    """A range has no references to it, so its address is free as soon as another is in its place."""

    class Ordered(Cell):
        order = range(1, T)

        def forward(self, x: Tensor) -> Any:
            h = self.start(x)
            for t in self.order:
                h = self.cell(x[:, t], h)
            return h

    pair = Pair(Ordered())
    for first in range(6):
        for model in (pair.plain, pair.fast):
            model.order = None
            model.order = range(first, T)
        for _ in range(2):
            pair.call(x())


@pytest.mark.parametrize("kind", ["generator", "state"])
def test_random_numbers_of_an_object(kind: str) -> None:
    class Draws(Steps):
        def __init__(self) -> None:
            super().__init__()
            make = np.random.default_rng if kind == "generator" else np.random.RandomState
            self.config = {"of": types.SimpleNamespace(random=make(0))}

        def beside(self, h: Tensor) -> Tensor:
            return h * float(self.config["of"].random.normal())

    pair = Pair(Draws())
    for seed in range(3):
        (decision,) = pair.call(x(), seed=seed)
    assert "random" in decision.reason


def test_attributes_of_what_is_returned() -> None:
    class Tells(Steps):
        def forward(self, x: Tensor) -> Any:
            y = super().forward(x)
            y.steps = x.shape[1]
            return y

    pair = Pair(Tells())
    for _ in range(3):
        assert pair.fast(x()).steps == T


def test_numbers_that_only_few_values_are_defined_for() -> None:
    """Probabilities of 1 and scales of nearly 0 cannot be moved to look at other numbers."""

    class Drawn(Cell):
        def forward(self, x: Tensor, keep: Tensor, scale: Tensor) -> Any:
            h = self.start(x)
            for t in range(x.shape[1]):
                h = self.cell(x[:, t], h) * torch.bernoulli(keep[:, t]) + torch.normal(torch.zeros_like(scale), scale)
            return h

    keep, scale = torch.ones(B, T, 1, dtype=torch.float64), torch.full((B, H), 0.001, dtype=torch.float64)
    assert Pair(Drawn()).strategies(x(), keep, scale) == ["sequential"]


def test_what_cannot_be_differentiated_is_called_as_ever() -> None:
    """PyTorch raises in a backward, which evaluation does not have."""

    class Spoils(Steps):
        def beside(self, h: Tensor) -> Tensor:
            z = torch.sigmoid(h)
            z *= 0.5
            return z

    pair = Pair(Spoils())
    given = x()
    for _ in range(3):
        assert torch.allclose(pair.plain(given), pair.fast(given))
    assert "differentiate" in pair.decisions()[0].reason


def test_a_number_that_is_no_operand() -> None:
    class Shares(Cell):
        def forward(self, x: Tensor) -> Any:
            h = self.start(x)
            for t in range(x.shape[1]):
                h = torch.add(h, self.cell(x[:, t], h), alpha=0.1 * t)
            return h

    assert Pair(Shares()).strategies(x()) == ["pytorch"]


class Returns(Cell):
    """dim: along which states are put together; how: by which function."""

    def __init__(self, how: Any, dim: int) -> None:
        super().__init__()
        self.how, self.dim = how, dim

    def forward(self, x: Tensor) -> Any:
        h, out = self.start(x), []
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            out.append(h)
        return self.how(out, self.dim)


@pytest.mark.parametrize("rows", [1, B])
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("how", [torch.stack, torch.cat])
def test_what_is_returned_may_be_detached_in_place(how: Any, dim: int, rows: int) -> None:
    pair = Pair(Returns(how, dim))
    assert pair.strategies(x()[:rows].detach()) == ["sequential"]
    for model in (pair.plain, pair.fast):
        run(model, (x()[:rows],), {}, 0)
        y = model(x()[:rows])
        y.sum().backward()
        assert not y.detach_().requires_grad


def test_draws_for_outputs_between_draws_for_the_carry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan would draw all of one kind before all of the other: that is known before anything is compared."""
    monkeypatch.setenv("BPPSA_CHECK", "1")

    class Samples(Cell):
        def forward(self, x: Tensor) -> Any:
            h, out = self.start(x), []
            for t in range(x.shape[1]):
                h = self.cell(nn.functional.dropout(x[:, t], 0.2), h)
                out.append(torch.bernoulli(torch.sigmoid(self.head(h))))
            return torch.stack(out, 1), h

    pair = Pair(Samples())
    assert pair.strategies(x()) == ["pytorch"]
    assert "draws" in pair.decisions()[0].reason


def test_detach_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which autograd alone knows."""
    monkeypatch.setenv("BPPSA_CHECK", "1")

    class Truncates(Cell):
        def forward(self, x: Tensor) -> Any:
            h, out = self.start(x), []
            for t in range(x.shape[1]):
                if t % 20 == 10:
                    h.detach_()
                h = self.cell(x[:, t], h)
                out.append(h * 1)
            return torch.stack(out, 1)

    pair = Pair(Truncates())
    assert pair.strategies(x(40)) == ["pytorch"]
    assert "detach" in pair.decisions()[0].reason


def test_retained_gradients_are_those_of_the_users_backward() -> None:
    model = Pair(Steps()).fast
    for _ in range(3):
        given = x() * 1
        given.retain_grad()
        y = model(given)
        assert given.grad is None
        y.sum().backward()
        assert given.grad is not None


def test_a_forward_that_calls_itself() -> None:
    class Both(Steps):
        def forward(self, x: Tensor, other: bool = True) -> Any:
            y = super().forward(x)
            return torch.cat([y, self(x.flip(1), False)], -1) if other else y

    assert "sequential" in Pair(Both()).strategies(x())


def test_a_branch_in_the_loop_is_told() -> None:
    """Whatever the values are: its steps need not be alike. No run of these is thrice the same, so none is a scan."""

    class Branches(Steps):
        def forward(self, x: Tensor) -> Any:
            h, out = self.start(x), []
            for t in range(x.shape[1]):
                h = self.cell(x[:, t], h)
                h = torch.tanh(h) if h.sum() + 100 * x[:, t].sum() > 0 else h.sigmoid() * 0.5 + h.cos()
                out.append(h)
            return torch.stack(out, 1)

    def thue_morse(steps: int, first: int) -> Tensor:
        signs = torch.tensor([1.0 - 2 * (t.bit_count() % 2) for t in range(first, first + steps)])
        return (x(steps).abs() + 0.1) * signs[:, None].double()

    pair = Pair(Branches())
    for seed in range(8):
        (decision,) = pair.call(thue_morse(9 + seed, seed), seed=seed)
        assert "value" in decision.reason
    pair.call(x(1))
    assert "value" in pair.decisions()[0].reason


@pytest.mark.parametrize("asks", [lambda x: x.is_leaf, lambda x: x.grad_fn is None, lambda x: x.storage_offset() == 0])
def test_where_an_argument_is_from(asks: Callable[[Tensor], bool]) -> None:
    class Asks(Steps):
        def forward(self, x: Tensor) -> Any:
            return super().forward(x) * (1.0 if asks(x) else 2.0)

    model, plain = Pair(Asks()).fast, Asks().double()
    plain.load_state_dict(model.state_dict())
    whole = torch.cat([x(), x()])
    for given in (x(), x(), x() * 1, x() * 1, whole[B:], whole[B:]):
        torch.testing.assert_close(model(given), plain(given))

"""Python around a loop runs in every call; the plan stands for the loop alone."""

from __future__ import annotations

import copy
import pickle
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bppsa.frontend.loops import call, state
from bppsa.frontend.state import state_of
from tests.loops import around
from tests.loops.around import AROUND
from tests.loops.beside import Pair
from tests.loops.cells import Cell, H, x


def attributes(model: nn.Module) -> dict[str, Any]:
    return {name: value for name, value in vars(model).items() if name[0] != "_" and isinstance(value, (int, list))}


@pytest.mark.parametrize("cls", AROUND, ids=lambda cls: cls.__name__)
def test_python_around_the_loop_runs(cls: type[Cell]) -> None:
    torch.manual_seed(0)
    pair = Pair(cls())
    for seed in range(4):
        decisions = pair.call(x(16), seed=seed)
        assert attributes(pair.plain) == attributes(pair.fast)
    assert "sequential" in {decision.strategy for decision in decisions}, decisions
    pair.both(lambda model: model.eval())
    for steps in (16, 16, 16, 9, 9, 0 if cls in (around.Counted, around.OfBase) else 2):
        given = x(steps) if steps else x(1)[:, :0]
        if steps or cls is around.OfBase:
            pair.call(given)
        assert attributes(pair.plain) == attributes(pair.fast)


class Centred(Cell):
    """Keeps a running mean of its states, which is changed before the backward."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(H))

    def forward(self, x: Tensor) -> Tensor:
        h, out = x.new_zeros(x.shape[0], H), []
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h - self.mean)
            out.append(h)
        self.mean.mul_(0.9).add_(h.detach().mean(0), alpha=0.1)
        return torch.stack(out, 1)


def test_a_running_mean_that_is_changed_before_the_backward() -> None:
    pair = Pair(Centred())
    for seed in range(4):
        decisions = pair.call(x(16), seed=seed)
    assert "sequential" in {decision.strategy for decision in decisions}, decisions
    assert torch.allclose(pair.plain.mean, pair.fast.mean)


def test_what_changes_between_calls() -> None:
    pair = Pair(around.Counted())
    for seed in range(3):
        pair.call(x(), seed=seed)
    pair.both(lambda model: setattr(model, "cell", nn.GRUCell(3, H, bias=False).double()))
    pair.plain.cell.load_state_dict(pair.fast.cell.state_dict())
    assert pair.strategies(x()) == ["sequential"]
    pair.both(lambda model: model.cell.register_forward_hook(lambda module, args, out: out * 0.5))
    pair.call(x())
    pair.both(lambda model: model.requires_grad_(False))
    pair.call(x())
    for again in (copy.deepcopy(pair.fast), pickle.loads(pickle.dumps(Pair(around.Counted()).fast))):
        assert state_of(again).loops.outlined is None
        again(x())


class Aliases(Cell):
    """The loop reads what it changes by another name."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Any:
        self.seen.clear()
        h, out, seen = self.start(x), x.new_zeros(x.shape[1] + 1, len(x), H), self.seen
        other = out[:-1]
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            out[t + 1] = h + other[t].detach()
            seen.append(h + len(self.seen))
        return h, out, torch.stack(seen)


def test_what_is_known_by_two_names_is_left_to_pytorch() -> None:
    pair = Pair(Aliases())
    assert pair.strategies(x()) == ["pytorch"]
    assert "by two names" in pair.decisions()[0].reason


class Late(Cell):
    """Functions within the forward that see the loop's variables, or change them."""

    def forward(self, x: Tensor) -> Any:
        self.before = True
        h, t = self.start(x), 0
        late = lambda: self.cell(x[:, t], h)  # noqa: E731
        for t in range(x.shape[1]):  # noqa: B007
            h = late()
        kept = []
        for i in range(x.shape[1]):
            h = self.cell(x[:, i], h)
            kept.append(lambda: h * i)  # noqa: B023
        i = 3
        return h, kept[0](), late()


class Writes(Cell):
    def forward(self, x: Tensor) -> Any:
        self.before = True
        h = self.start(x)

        def step(x: Tensor) -> None:
            nonlocal h
            h = self.cell(x, h)

        for t in range(x.shape[1]):
            step(x[:, t])
        return h


@pytest.mark.parametrize("cls", [Late, Writes])
def test_functions_that_see_variables_of_the_loop(cls: type[Cell]) -> None:
    pair = Pair(cls())
    for seed in range(4):
        pair.call(x(), seed=seed)


def test_a_method_that_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(around.Counted())
    for seed in range(3):
        pair.call(x(), seed=seed)
    monkeypatch.setattr(around.Counted, "run", lambda self, x, h: self.cell(x[:, 0], h))
    pair.call(x())
    monkeypatch.setattr(around.Counted, "forward", lambda self, x: self.head(self.start(x)))
    pair.call(x())


def test_states_that_a_loop_is_given_do_not_live_on() -> None:
    class State:
        def __init__(self, h: Tensor) -> None:
            self.h = h

    class Holds(Cell):
        def forward(self, x: Tensor) -> Tensor:
            self.before = True
            state = State(self.start(x) + x[:, 0, :1])
            given.append(weakref.ref(state))
            h = state.h
            for t in range(x.shape[1]):
                h = self.cell(x[:, t], h) + state.h
            return h

    given: list[weakref.ref[State]] = []
    pair = Pair(Holds())
    for seed in range(4):
        pair.call(x(), seed=seed)
    assert [refer() for refer in given] == [None] * 8


class Raises(Cell):
    def forward(self, x: Tensor) -> Tensor:
        self.before = True
        h = self.start(x)
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
        if bool(h.isnan().any()):
            raise ValueError("a state is no number")
        return h


def test_what_python_raises_behind_the_loop() -> None:
    pair = Pair(Raises())
    for seed in range(3):
        pair.call(x(), seed=seed)
    with pytest.raises(ValueError, match="no number"):
        pair.fast(x() * float("nan"))
    assert pair.strategies(x()) == ["sequential"]


class Anneals(Cell):
    gain: float = 1.0

    def forward(self, x: Tensor) -> Tensor:
        h = self.start(x)
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h) * self.gain
        return h


def test_a_number_that_changes_from_call_to_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole number may be an index: each is a kind of call, and to log each takes longer than to run it."""
    monkeypatch.setattr(state, "FREE", 3)
    pair = Pair(Anneals())
    for seed in range(4):
        pair.both(lambda model, seed=seed: setattr(model, "gain", 1 + seed))
        pair.call(x(), seed=seed)
    assert [decision.strategy for decision in pair.decisions()] == ["pytorch"]
    assert "of a new kind" in pair.decisions()[0].reason
    steady = Pair(Anneals())
    assert steady.strategies(x(), calls=6) == ["sequential"]


class ReadsLengths(Cell):
    """How many steps there are is asked of a tensor in the line of the loop."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def forward(self, x: Tensor, lens: Tensor) -> Tensor:
        h, out = self.start(x), []
        if self.how == "int":
            for t in range(int(lens.max())):
                h = self.cell(x[:, t], h)
                out.append(h)
        elif self.how == "item":
            for t in reversed(range(lens.max().item())):
                h = torch.where((t < lens)[:, None], self.cell(x[:, t], h), h)
                out.append(h)
        elif self.how == "max":
            for i, t in enumerate(range(max(lens))):
                h = self.cell(x[:, t], h) + i
                out.append(h)
        else:
            steps = lens.max()
            for t in range(1, steps):
                h = self.cell(x[:, t], h)
                out.append(h)
        return torch.stack(out, 1)


@pytest.mark.parametrize("how", ["int", "item", "max", "variable"])
def test_the_line_of_the_loop_asks_a_tensor_for_its_steps(how: str) -> None:
    pair = Pair(ReadsLengths(how))
    lens = torch.tensor([16, 12, 9, 3][: len(x())])
    lens = torch.cat([lens, lens.new_full((len(x(16)) - len(lens),), 5)])
    decisions = [pair.call(x(16), lens, seed=seed) for seed in range(4)]
    assert "the number of steps is read from a tensor" in decisions[0][0].reason
    assert "::" not in decisions[0][0].reason
    assert [decision.strategy for decision in decisions[-1]] == ["sequential"]
    pair.call(x(16), lens - 2)


class OwnRange(Cell):
    """A `range` that is not Python's stays in the loop."""

    def forward(self, x: Tensor) -> Tensor:
        self.last = len(x)
        h, range = self.start(x), lambda steps: iter([*reversed(list(enumerate([0] * steps)))])
        for t, _ in range(x.shape[1]):
            h = self.cell(x[:, t], h)
        return h


def test_a_range_of_the_users_own() -> None:
    pair = Pair(OwnRange())
    for seed in range(4):
        pair.call(x(16), seed=seed)


class CountsAround(Cell):
    """Forward counts its calls; the loop calls a method, which reads one number of the model."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.scale, self.log = 0, 1, [0]

    def step(self, h: Tensor, x: Tensor) -> Tensor:
        return self.cell(x, h) * self.scale

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.log.append(self.calls)
        h, out = self.start(x), []
        for t in range(x.shape[1]):
            h = self.step(h, x[:, t])
            out.append(h)
        return torch.stack(out, 1)


def test_what_the_loop_does_not_read_makes_no_new_kind_of_call(monkeypatch: pytest.MonkeyPatch) -> None:
    logged = []
    first_call = call.first_call
    monkeypatch.setattr(call, "first_call", lambda first: logged.append(first) or first_call(first))
    pair = Pair(CountsAround())
    for seed in range(6):
        decisions = pair.call(x(), seed=seed)
    assert [decision.strategy for decision in decisions] == ["sequential"]
    assert len(logged) == 2, "the forward as a whole, and its loop"
    pair.both(lambda model: setattr(model, "scale", 3))
    pair.call(x())
    assert len(logged) == 3


class ReturnsWhatItHolds(Cell):
    """In evaluation a Parameter and a buffer that no op reads."""

    def __init__(self) -> None:
        super().__init__()
        self.spread = nn.Parameter(torch.randn(2))
        self.register_buffer("last", torch.zeros(H))

    def forward(self, x: Tensor) -> Any:
        h = self.start(x)
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
        if self.training:
            self.last = h.detach()
        return self.head(h), self.last, None if self.training else self.spread


def test_a_tensor_that_it_holds_is_returned_as_it_is() -> None:
    pair = Pair(ReturnsWhatItHolds())
    for training in (True, False):
        pair.both(lambda model: model.train(training))  # noqa: B023
        assert pair.strategies(x()) == ["sequential"]
    _, *held = pair.fast(x())
    assert all(one is other for one, other in zip(held, (pair.fast.last, pair.fast.spread), strict=True))

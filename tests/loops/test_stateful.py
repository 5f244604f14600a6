"""What a loop leaves in attributes, lists and buffers of layers and models that keep a state, the scan leaves there."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils import _pytree as pytree

import bppsa
from tests.loops.beside import Pair
from tests.loops.cells import B, Cell, H, N, x

KEPT = ("h", "state", "trace", "last", "seen", "memory")
STATEFUL: dict[str, type[nn.Module]] = {}


def stateful(cls: type[nn.Module]) -> type[nn.Module]:
    STATEFUL[cls.__name__] = cls
    return cls


@stateful
class InLoop(Cell):
    """h is reset in each call, and None before the first."""

    h: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.h = None

    def forward(self, x: Tensor) -> Tensor:
        self.h, out = self.start(x), []
        for t in range(x.shape[1]):
            self.h = self.cell(x[:, t], self.h)
            out.append(self.head(self.h))
        return torch.stack(out, 1)


@stateful
class FromCallToCall(Cell):
    def __init__(self) -> None:
        super().__init__()
        self.h = torch.zeros(B, H, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        h, out = self.h, []
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            out.append(h)
        self.h = h.detach()
        return torch.stack(out, 1)


class Membrane(nn.Module):
    """A leaky integrator that fires softly, its potential a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mem", torch.zeros(B, H, dtype=torch.float64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.mem = 0.9 * self.mem + x
        fired = torch.sigmoid(4 * self.mem - 1)
        self.mem = self.mem * (1 - fired)
        return fired

    def reset(self) -> None:
        self.mem = torch.zeros_like(self.mem)


@stateful
class Layers(nn.Module):
    """Two layers that keep their own states; Python runs around the loop, as the model counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.calls = nn.Linear(N, H), nn.Linear(H, H), 0
        self.membranes = nn.ModuleList([Membrane(), Membrane()])

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        for membrane in self.membranes:
            membrane.reset()  # type: ignore[operator]
        out = []
        for t in range(x.shape[1]):
            fired = self.membranes[0](self.first(x[:, t]))
            out.append(self.membranes[1](self.second(fired)))
        return torch.stack(out, 1)


@stateful
class InAList(Cell):
    """One item for each layer: a tensor, and a tuple of two."""

    def __init__(self) -> None:
        super().__init__()
        self.above = nn.LSTMCell(H, H)
        self.state: list[Any] = [None, None]

    def forward(self, x: Tensor) -> Tensor:
        h, out = self.start(x), []
        self.state[0], self.state[1] = h, (h, h)
        for t in range(x.shape[1]):
            self.state[0] = self.cell(x[:, t], self.state[0])
            self.state[1] = self.above(self.state[0], self.state[1])
            out.append(self.state[1][0])
        return torch.stack(out, 1)


class Memory:
    """No module: an object that holds what was seen."""

    def __init__(self) -> None:
        self.seen: Any = None


@stateful
class InAnObject(Cell):
    def __init__(self) -> None:
        super().__init__()
        self.memory, self.started = Memory(), False

    def forward(self, x: Tensor) -> Tensor:
        self.started = True
        h = self.start(x)
        self.memory.seen = {"last": h, "sum": h}
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            self.memory.seen = {"last": h, "sum": self.memory.seen["sum"] + h}
        return self.head(self.memory.seen["sum"])


@stateful
class BegunByForward(Cell):
    """Its attributes are there from its first call on; a method of its own adds to one in place."""

    h: Tensor
    memory: Tensor

    def decode(self, x: Tensor) -> Tensor:
        self.h = self.cell(x, self.h - 0.1 * self.memory)
        self.memory += self.h
        return self.head(self.h)

    def forward(self, x: Tensor) -> Tensor:
        self.h, self.memory = self.start(x), self.start(x)
        out = []
        for t in range(x.shape[1]):
            out.append(self.decode(x[:, t]))
        return torch.stack(out, 1)


def kept(model: nn.Module) -> list[Any]:
    found = []
    for module in model.modules():
        for name in KEPT:
            value = vars(module).get(name)
            found += pytree.tree_leaves(value.seen if isinstance(value, Memory) else value)
    return found


class Stateful(Pair):
    """Also compares what stands in the attributes behind a call."""

    def run(self, model: nn.Module, args: Sequence[Any], kwargs: dict[str, Any], seed: int) -> list[Any]:
        found = super().run(model, args, kwargs, seed)
        state = kept(model)
        needs = [leaf.requires_grad for leaf in state if isinstance(leaf, Tensor)]
        return [*found, *state, *needs]


@pytest.mark.parametrize("name", STATEFUL)
def test_the_state_is_left_where_python_leaves_it(name: str) -> None:
    torch.manual_seed(0)
    pair = Stateful(STATEFUL[name]())
    for seed in range(6):
        pair.call(x(), seed=seed)
        if name == "Layers" and seed == 3:
            pair.both(lambda model: model.membranes[0].mem.add_(1))  # which the next call resets
    assert "sequential" in [decision.strategy for decision in pair.decisions()]


def test_a_state_has_the_gradient_of_its_loop() -> None:
    """The next call goes on from where the last ended, and one backward goes through both."""
    plain = InLoop().double()
    fast = bppsa.compile(copy.deepcopy(plain))
    for _ in range(4):
        given, grads = x().detach(), []
        for model in (plain, fast):
            ours = given.clone().requires_grad_()
            model(ours)
            grads.append(torch.autograd.grad((model.h**2).sum(), [ours, *model.cell.parameters()]))
            assert not model.h._is_view()
        for one, other in zip(*grads, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


class Continued(InLoop):
    def forward(self, x: Tensor) -> Tensor:
        out = []
        for t in range(x.shape[1]):
            self.h = self.cell(x[:, t], self.h)
            out.append(self.head(self.h))
        return torch.stack(out, 1)


def test_a_state_that_nobody_resets() -> None:
    plain = Continued().double()
    fast = bppsa.compile(copy.deepcopy(plain))
    for _ in range(3):
        given, grads = [x().detach() for _ in range(3)], []
        for model in (plain, fast):
            model.h = given[0].new_zeros(B, H)
            ours = [one.clone().requires_grad_() for one in given]
            total = sum((model(one) ** 2).sum() for one in ours)
            grads.append(torch.autograd.grad(total, [*ours, *model.parameters()]))
        for one, other in zip(*grads, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
    assert bppsa.report(fast).decisions[0].strategy == "sequential"


class Counts(InLoop):
    """Its steps go on from call to call."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0

    def forward(self, x: Tensor) -> Tensor:
        self.h, out = self.start(x), []
        for t in range(x.shape[1]):
            self.steps += 1
            self.h = self.cell(x[:, t], self.h) / self.steps
            out.append(self.h)
        return torch.stack(out, 1)


def test_numbers_of_pythons_that_change_are_refused() -> None:
    pair = Stateful(Counts())
    for seed in range(4):
        (decision,) = pair.call(x(), seed=seed)
    assert decision.strategy == "pytorch"
    assert "changes" in decision.reason


class Elsewhere(InLoop):
    """Where the state begins, a function holds the same tensor, and goes on to hold it."""

    def __init__(self) -> None:
        super().__init__()
        self.h = torch.full((B, H), 0.1, dtype=torch.float64)
        self.shifted = partial(torch.add, self.h)

    def forward(self, x: Tensor) -> Tensor:
        h, out = self.h, []
        for t in range(x.shape[1]):
            h = self.shifted(self.cell(x[:, t], h))
            out.append(h)
        self.h = h.detach()
        return torch.stack(out, 1)


def test_a_tensor_that_stands_elsewhere_too_stays_there() -> None:
    torch.manual_seed(0)
    pair = Stateful(Elsewhere())
    for seed in range(6):
        pair.call(x(), seed=seed)


class LooksUp(InLoop):
    """An index out of range is an error in the middle, after some random numbers."""

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        h, out = self.start(x), []
        for t in range(x.shape[1]):
            h = functional.dropout(self.cell(x[:, t] + functional.embedding(at[:, t], self.head.weight)[:, :N], h), 0.1)
            out.append(h)
        return torch.stack(out, 1)


def test_an_error_leaves_the_random_numbers_where_pytorch_leaves_them() -> None:
    pair, steps = Pair(LooksUp()), x().shape[1]
    for seed in range(3):
        pair.call(x(), torch.zeros(B, steps, dtype=torch.long), seed=seed)
    assert [d.strategy for d in pair.decisions()] == ["sequential"]
    at, after = torch.zeros(B, steps, dtype=torch.long), []
    at[:, steps // 2] = 9
    given = x()
    for model in (pair.plain, pair.fast):
        torch.manual_seed(0)
        with pytest.raises(IndexError):
            model(given, at)
        after.append(torch.get_rng_state())
    assert torch.equal(*after)


class Twice(InLoop):
    """The list that is kept is the one that is returned."""

    def forward(self, x: Tensor) -> Any:
        self.state = [self.start(x)]
        for t in range(x.shape[1]):
            self.state = [self.cell(x[:, t], self.state[0])]
        return self.state


def test_a_list_that_is_returned_too_is_one_list() -> None:
    model = bppsa.compile(Twice().double())
    model.state = [None]
    for _ in range(6):
        assert model(x()) is model.state


class Neuron(nn.Module):
    """Hands out its potential and keeps it too; the class resets all that it has made."""

    made: ClassVar[list[Neuron]] = []

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("potential", torch.zeros(0, dtype=torch.float64), persistent=False)
        Neuron.made.append(self)

    @classmethod
    def reset_all(cls) -> None:
        for each in cls.made:
            each.potential = torch.zeros_like(each.potential)

    def forward(self, x: Tensor, potential: Any = None) -> tuple[Tensor, Tensor]:
        if potential is not None:
            self.potential = potential
        if self.potential.shape != x.shape:
            self.potential = torch.zeros_like(x)
        self.potential = 0.9 * self.potential + torch.tanh(x)
        return torch.sigmoid(self.potential), self.potential


class Net(nn.Module):
    def __init__(self, hands_on: bool) -> None:
        super().__init__()
        self.inner, self.neuron, self.hands_on = nn.Linear(N, H), Neuron(), hands_on

    def forward(self, x: Tensor) -> Any:
        Neuron.reset_all()
        state, out = self.neuron.potential if self.hands_on else None, []
        for t in range(x.shape[1]):
            fired, new = self.neuron(self.inner(x[:, t]), state)
            state = new if self.hands_on else None
            out.append(fired)
        return torch.stack(out, 1), new


@pytest.mark.parametrize("hands_on", [True, False])
def test_a_class_resets_the_compiled_layers_too(hands_on: bool) -> None:
    plain, given = Net(hands_on).double(), Net(hands_on).double()
    given.load_state_dict(plain.state_dict())
    fast = bppsa.compile(given)
    assert len({id(neuron) for neuron in Neuron.made}) == len(Neuron.made)
    for _ in range(6):
        inputs, grads = x().detach(), []
        for model in (plain, fast):
            ours = inputs.clone().requires_grad_()
            out, last = model(ours)
            assert last is model.neuron.potential
            grads.append([out, *torch.autograd.grad((out**2).sum() + last.sum(), [ours, *model.parameters()])])
        for one, other in zip(*grads, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
    assert "sequential" in [decision.strategy for decision in bppsa.report(fast).decisions]

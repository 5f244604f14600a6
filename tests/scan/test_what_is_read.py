"""A cell is read again where something changes that its code may read, however that is spelled, and nowhere else."""

from __future__ import annotations

import functools
import operator
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bppsa
from bppsa.frontend.cell import plans
from bppsa.runtime.recurrent.reference import loop
from tests.scan.support import leaves, same
from tests.scan.zoo import H, h, x

factor = 1.0  # a global of the name of an attribute
read = operator.attrgetter("factor")
FIND = getattr


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(H, H).double()
        self.factor, self.steps, self.log, self.last = 1.0, 0, [0], 0.0
        self.again = self

    def step(self, h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(self.linear(h) * self.factor + x)
        return h, h

    @property
    def twofold(self) -> float:
        return 2 * self.factor

    def given(self, name: str) -> Any:
        return self.__dict__[name]

    def forward(self, value: Tensor) -> Tensor:
        self.steps += 1
        return self.linear(value) * self.factor


def run(cell: Any) -> list[Tensor]:
    torch.manual_seed(0)
    carry, xs = h(), x(H)
    found = leaves(bppsa.scan(cell, carry, xs))
    same(found, leaves(loop(cell, carry, xs)))
    return found


def closed(act: Callable[[Net, Tensor], Tensor]) -> Callable[[Net], Any]:
    def of(net: Net) -> Any:
        def cell(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            h = torch.tanh(act(net, h) + x)
            return h, h

        return cell

    return of


CELLS: dict[str, Callable[[Net], Any]] = {
    "method": lambda net: net.step,
    "partial": lambda net: functools.partial(net.step),
    "attribute": lambda net: lambda h, x: (torch.tanh(net.linear(h) * net.factor + x),) * 2,
}


def count(net: Net) -> None:
    net.steps += 1


UNREAD: dict[str, Callable[[Net], Any]] = {
    "number": count,
    "list": lambda net: net.log.append(1),
    "float": lambda net: setattr(net, "last", net.last + 0.5),
    "global of an attribute's name": lambda net: globals().update(factor=factor + 1),
    "new attribute": lambda net: setattr(net, f"more_{len(net.__dict__)}", 1),
}


@pytest.mark.parametrize("change", UNREAD)
@pytest.mark.parametrize("made", CELLS)
def test_what_is_not_read_may_change(made: str, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net()
    del net.again
    read_again = []
    make = plans.make
    monkeypatch.setattr(plans, "make", lambda *args: read_again.append(made) or make(*args))
    for _ in range(3):
        run(CELLS[made](net))
        UNREAD[change](net)
    assert len(read_again) == 1


def by_match(net: Net, h: Tensor) -> Tensor:
    names: dict[str, Any] = {}
    text = "def f(net, h):\n    match net:\n        case Net(factor=f): return h * f\n"
    exec(text, {"Net": Net}, names)
    found: Tensor = names["f"](net, h)
    return found


def own_type(net: Net, h: Tensor) -> Tensor:
    names = [name for name in vars(net) if name.startswith("fac")]
    return h * vars(net)[names[0]]


READS: dict[str, Callable[[Net, Tensor], Tensor]] = {
    "attribute": lambda net, h: h * net.factor,
    "property": lambda net, h: h * net.twofold,
    "getattr": lambda net, h: h * getattr(net, "fac" + "tor"),
    "getattr by another name": lambda net, h: h * FIND(net, "fac" + "tor"),
    "getter made before": lambda net, h: h * read(net),
    "vars": own_type,
    "dict": lambda net, h: h * net.given("fac" + "tor"),
    "format": lambda net, h: h * float("{0.factor}".format(net)),  # noqa: UP030, UP032
    "text": lambda net, h: h * float(eval("net.factor", {"net": net})),
    "call of the module": lambda net, h: net(h),
    "call of what holds it": lambda net, h: net.again(h),
    "call of an alias": lambda net, h: (lambda own: own(h))(net),
    "call by a method of every module": lambda net, h: net.requires_grad_()(h),
    "iterated": lambda net, h: next(net.modules())(h),
    "match": by_match,
}


@pytest.mark.parametrize("name", READS)
def test_what_is_read_is_seen_to_change(name: str) -> None:
    net = Net()
    if name != "call of what holds it":
        del net.again
    cell = closed(READS[name])(net)
    before = run(cell)
    net.factor = 3.0
    assert not torch.allclose(run(cell)[0], before[0])


def test_a_class_of_a_librarys_may_read_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    library = types.ModuleType("library_of_another")
    library.__file__ = "/usr/lib/site-packages/library_of_another.py"
    monkeypatch.setitem(sys.modules, library.__name__, library)
    names = {"__name__": library.__name__, "nn": nn}
    text = (
        "class Base(nn.Module):\n    def scaled(self, h): return h * self.hidden\ndef of(net, h): return h * net.hidden"
    )
    exec(text, names)

    class Derived(names["Base"]):  # type: ignore[misc]
        hidden = 1.0

        def step(self, h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            return (torch.tanh(self.scaled(h) + x),) * 2

    net, other = Derived(), Net()
    net.hidden = other.hidden = 1.0  # type: ignore[assignment]
    of = names["of"]
    for cell, owner in ((net.step, net), (closed(lambda net, h: of(net, h))(other), other)):
        before = run(cell)
        owner.hidden = 3.0  # type: ignore[assignment]
        assert not torch.allclose(run(cell)[0], before[0])


class Held:
    """Stands for an object of PyTorch's that runs what it is given."""

    def __init__(self, act: Callable[[Tensor], Tensor]) -> None:
        self.act = act

    def __call__(self, value: Tensor) -> Tensor:
        return self.act(value)


def test_what_an_object_of_pytorchs_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Held, "__module__", "torch.distributions.transforms")
    net = Net()
    del net.again  # by which it might be called
    held = Held(lambda value: value * net.factor)
    cell = lambda h, x: (torch.tanh(held(net.linear(h)) + x),) * 2  # noqa: E731
    before = run(cell)
    net.factor = 3.0
    assert not torch.allclose(run(cell)[0], before[0])


def test_a_class_that_gets_a_forward_later() -> None:
    class Base(nn.Module):
        def forward(self, h: Tensor) -> Tensor:
            return h

    class Derived(Base):
        pass

    net = Derived()
    cell = lambda h, x: (torch.tanh(net(h) + x),) * 2  # noqa: E731
    before = run(cell)
    Derived.forward = lambda self, h: 3 * h  # type: ignore[method-assign]
    assert not torch.allclose(run(cell)[0], before[0])


def test_which_of_two_modules_has_the_number() -> None:
    class Scaled(nn.Module):
        factor = 1.0

        def forward(self, h: Tensor) -> Tensor:
            return h * self.factor

    one, two = Scaled(), Scaled()
    cell = lambda h, x: (torch.tanh(one(h) + two(x)),) * 2  # noqa: E731
    one.factor = 3.0
    before = run(cell)
    del one.factor
    two.factor = 3.0
    assert not torch.allclose(run(cell)[0], before[0])


def test_a_cell_that_each_call_reads_again_is_told() -> None:
    class Counting(Net):
        def forward(self, xs: Tensor) -> Any:
            self.factor += 1.0
            return bppsa.scan(self.step, h(), xs)[1]

    model = bppsa.compile(Counting())
    decisions = []
    for _ in range(5):
        model(x(H))
        decisions.append(model.report.decisions[-1])
    assert "read again" not in decisions[1].reason
    assert decisions[-1].strategy == "sequential"
    assert "read again in each of the last 4 calls, because Counting.factor changed" in decisions[-1].reason
    assert decisions[-1].times_as_fast is None

"""What a cell depends on may change between calls: each call must see it as the loop does, and equal cells share a
recording."""

from __future__ import annotations

import builtins
import functools
import gc
import importlib
import sys
import types
import weakref
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from torch.nn.utils import parametrizations

import bppsa
from bppsa.frontend.cell import plans
from bppsa.runtime.recurrent.reference import loop
from tests.scan.support import check, leaves, same
from tests.scan.zoo import B, H, I, T, example, h, random, x

Cell = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
Change = tuple[Cell, Callable[[], Any]]  # a cell, and what is done to what it depends on
SCALE = 1.0


def twice(tensor: Tensor) -> tuple[Tensor, Tensor]:
    return tensor, tensor


def closed_over() -> Change:
    factor = 2.0

    def change() -> None:
        nonlocal factor
        factor = 3.0

    return lambda h, x: twice(torch.tanh(factor * h + x)), change


def of_the_module() -> Change:
    def change() -> None:
        global SCALE
        SCALE += 1

    return lambda h, x: twice(torch.tanh(SCALE * h + x)), change


def in_container(make: Callable[[float], Any], read: Callable[[Any], float], write: Callable[[Any], Any]) -> Change:
    box = make(2.0)
    return lambda h, x: twice(torch.tanh(read(box) * h + x)), lambda: write(box)


class Slotted:
    __slots__ = ("factor",)

    def __init__(self, factor: float) -> None:
        self.factor = factor


class Shared:
    factor = 1.0


class Heir(Shared):
    def act(self, value: Tensor) -> Tensor:
        return torch.tanh(value * SCALE)


OTHER = types.ModuleType("other_module_of_the_users")
OTHER.factor = 1.0  # type: ignore[attr-defined]


def method() -> Change:
    helper = Heir()
    return lambda h, x: twice(helper.act(h + x)), of_the_module()[1]


class Cellular(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.factor = nn.Linear(H, H).double(), 1.0

    def forward(self, h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.linear(h) * self.factor + x * SCALE
        return twice(torch.tanh(h) if self.training else h)


def module(change: Callable[[Cellular], Any]) -> Change:
    cell = Cellular()
    return cell, lambda: change(cell)


def tensor(change: Callable[[list[Tensor]], Any]) -> Change:
    box = [random(H)]
    return lambda h, x: twice(torch.tanh(h * box[0] + x)), lambda: change(box)


def zero(parameter: Tensor) -> None:
    with torch.no_grad():
        parameter.zero_()


CHANGES: dict[str, Callable[[], Change]] = {
    "closed-over number": closed_over,
    "global number": of_the_module,
    "list": lambda: in_container(lambda f: [f], lambda b: b[0], lambda b: b.append(b.pop() + 1)),
    "deque": lambda: in_container(lambda f: deque([f]), lambda b: b[0], lambda b: b.append(b.pop() + 1)),
    "dict": lambda: in_container(lambda f: {"f": f}, lambda b: b["f"], lambda b: b.update(f=3.0)),
    "numpy": lambda: in_container(lambda f: numpy.full(1, f), lambda b: float(b[0]), lambda b: b.fill(3.0)),
    "object": lambda: in_container(lambda f: types.SimpleNamespace(f=f), lambda b: b.f, lambda b: setattr(b, "f", 3.0)),
    "nested object": lambda: in_container(
        lambda f: types.SimpleNamespace(of=types.SimpleNamespace(f=f)),
        lambda b: b.of.f,
        lambda b: setattr(b.of, "f", 3.0),
    ),
    "slots": lambda: in_container(Slotted, lambda b: b.factor, lambda b: setattr(b, "factor", 3.0)),
    "function in a dict": lambda: in_container(
        lambda f: {"f": torch.tanh}, lambda b: b["f"](torch.ones(())) * 0 + 1, lambda b: b.update(f=torch.relu)
    ),
    "class": lambda: (lambda h, x: twice(h * Shared.factor + x), lambda: setattr(Shared, "factor", Shared.factor + 1)),
    "inherited": lambda: in_container(
        lambda f: Heir(), lambda b: b.factor, lambda b: setattr(Shared, "factor", Shared.factor + 1)
    ),
    "method": method,
    "Python module": lambda: (lambda h, x: twice(h * OTHER.factor + x), lambda: setattr(OTHER, "factor", 5.0)),
    "Python module by its name": lambda: (
        lambda h, x: twice(h * sys.modules[__name__].SCALE + x),
        of_the_module()[1],
    ),
    "computed Python module": lambda: (
        lambda h, x: twice(h * importlib.import_module(__name__).SCALE + x),
        of_the_module()[1],
    ),
    "mode": lambda: module(nn.Module.eval),
    "number of a Module": lambda: module(lambda m: setattr(m, "factor", 3.0)),
    "global read by a Module": lambda: (Cellular(), of_the_module()[1]),
    "parameter replaced": lambda: module(lambda m: setattr(m.linear, "weight", nn.Parameter(random(H, H)))),
    "parameter changed": lambda: module(lambda m: zero(m.linear.weight)),
    "parameter frozen": lambda: module(lambda m: m.linear.requires_grad_(False)),
    "bias gone": lambda: module(lambda m: m.linear.register_parameter("bias", None)),
    "layer replaced": lambda: module(lambda m: setattr(m, "linear", nn.Identity())),
    "forward hook": lambda: module(lambda m: m.linear.register_forward_hook(lambda m, a, out: 2 * out)),
    "forward pre-hook": lambda: module(lambda m: m.linear.register_forward_pre_hook(lambda m, a: (2 * a[0],))),
    "forward replaced": lambda: module(lambda m: setattr(m, "forward", lambda h, x: twice(h * x))),
    "bound method": lambda: (lambda m: (m.forward, m.eval))(Cellular()),
    "tensor replaced": lambda: tensor(lambda box: box.append(box.pop() * 2)),
    "tensor of another shape": lambda: tensor(lambda box: box.append(box.pop()[:1].detach())),
    "tensor changed": lambda: tensor(lambda box: zero(box[0])),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_call_sees_what_changed(name: str) -> None:
    torch.manual_seed(0)
    cell, change = CHANGES[name]()
    carry, xs = h(), x(H)
    before = leaves(bppsa.scan(cell, carry, xs))
    same(before, leaves(loop(cell, carry, xs)))
    change()
    after = leaves(bppsa.scan(cell, carry, xs))
    same(after, leaves(loop(cell, carry, xs)))
    if name not in ("parameter frozen", "function in a dict"):
        assert not torch.allclose(before[0], after[0])


LIBRARIES: dict[str, tuple[Cell, Any, str]] = {
    "number": (lambda h, x: twice(h * torch.test_scale + x), torch, "test_scale"),
    "number of a class": (lambda h, x: twice(h * nn.Linear.test_scale + x), nn.Linear, "test_scale"),
    "number among Python's names": (lambda h, x: twice(h * test_scale + x), builtins, "test_scale"),  # noqa: F821
    "function": (lambda h, x: twice(functional.hardtanh(h * x)), functional, "hardtanh"),
    "method of a tensor": (lambda h, x: twice(h.sigmoid() * x), Tensor, "sigmoid"),
    "number of a tensor": (lambda h, x: twice(h.test_scale * h * x), Tensor, "test_scale"),
    "forward of a layer": (Cellular(), nn.Linear, "forward"),
}


@pytest.mark.parametrize("name", LIBRARIES)
def test_what_a_library_has_by_a_name_may_change(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a number of a user's is put there, or a function is replaced."""
    torch.manual_seed(0)
    cell, library, attribute = LIBRARIES[name]
    plain = getattr(library, attribute, None)
    if plain is None:
        monkeypatch.setattr(library, attribute, 1.0, raising=False)
    carry, xs = h(), x(H)
    before = leaves(bppsa.scan(cell, carry, xs))
    monkeypatch.setattr(library, attribute, 3.0 if plain is None else lambda *args, **kw: plain(*args, **kw) * 2)
    after = leaves(bppsa.scan(cell, carry, xs))
    same(after, leaves(loop(cell, carry, xs)))
    assert not torch.allclose(before[0], after[0])


def test_a_replaced_function_is_refused_as_pytorch_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Tensor.register_hook
    monkeypatch.setattr(Tensor, "register_hook", lambda tensor, hook: plain(tensor, hook))

    def cell(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(h + x)
        if h.requires_grad:
            h.register_hook(lambda g: 2 * g)
        return h, h

    assert check(example(cell, h(), x(H))).strategy == "pytorch"


def halved(given: Tensor, by: float = 2.0) -> Tensor:
    """It may be overridden, as functions of libraries are."""
    if torch.overrides.has_torch_function_unary(given):
        return torch.overrides.handle_torch_function(halved, (given,), given)
    return given / by


def test_a_function_of_a_user_s_that_asks_modes_is_his() -> None:
    assert check(example(lambda h, x: twice(torch.tanh(halved(h) + x)), h(), x(H))).strategy == "sequential"


def test_new_weights_need_no_new_recording() -> None:
    cell = Cellular()
    for _ in range(3):
        check(example(cell, h(), x(H), modules=(cell,)))
        cell.linear.weight = nn.Parameter(random(H, H))
    assert len(plans._plans) == 1


def test_a_lambda_made_anew_needs_no_new_recording() -> None:
    u = random(H, H)
    for factor in (1.0, 2.0, 1.0):
        check(example(lambda h, x, f=factor: twice(torch.tanh(f * (h @ u) + x)), h(), x(H), u))
        check(example(lambda h, x: twice(torch.tanh(factor * (h @ u) + x)), h(), x(H), u))  # noqa: B023
    assert len(plans._plans) == 4


def test_memory_of_recordings_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans._plans.kept, "most", 3)
    for factor in range(6):
        check(example(functools.partial(lambda f, h, x: twice(f * h + x), float(factor)), h(), x(H)))
    assert len(plans._plans) == 3


class Decay:
    """No module: the key knows it by its address."""

    def __init__(self, factor: float) -> None:
        self.factor = factor
        self.weight = random(H, H)

    def step(self, h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return twice(torch.tanh(self.factor * (h @ self.weight) + x))


@pytest.mark.slow
def test_plans_keep_no_object_alive() -> None:
    """And what comes to its address is another's."""
    gone = []
    for factor in range(6):
        decay = Decay(float(factor % 3))
        check(example(decay.step, h(), x(H), decay.weight))
        gone += [weakref.ref(decay), weakref.ref(decay.weight)]
        del decay
        gc.collect()
    assert not [refer for refer in gone if refer() is not None]
    check(example(lambda h, x: twice(h + x), h(), x(H)))
    assert len(plans._plans) == 1, "their plans went with them"


@pytest.mark.parametrize("divisors", [(0.0, -0.0), (-0.0, 0.0)], ids=str)
def test_zeros_of_both_signs(divisors: tuple[float, float]) -> None:
    for divisor in divisors:
        check(example(lambda h, x, d=divisor: twice(torch.tanh(h + x / d)), h(), x(H)))


@pytest.mark.parametrize("alias", [torch.clone, lambda t: t, torch.detach, lambda t: t.view(H), lambda t: t + 0])
def test_closed_over_tensors_that_are_one(alias: Callable[[Tensor], Tensor]) -> None:
    """Each call with another relation between the two: neither values nor gradients may be those of the call before."""
    a, b = random(H), random(H)
    for p, q in ((a, b), (a, alias(a)), (alias(a), a), (b, a)):
        check(example(lambda h, x, p=p, q=q: twice(torch.tanh(h * p) + x * q), h(), x(H), a, b))


def test_views_of_one_tensor() -> None:
    base = random(2, H)
    for i, j in ((0, 0), (0, 1), (1, 1)):
        p, q = base[i], base[j]
        check(example(lambda h, x, p=p, q=q: twice(torch.tanh(h * p) + x * q), h(), x(H), base))


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gains = nn.ParameterList([nn.Parameter(random(H)) for _ in range(2)])
        self.layers = nn.ModuleDict({"a": nn.Linear(H, H).double()})
        self.register_buffer("offset", random(H, grad=False))

    def forward(self, h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return twice(torch.tanh(self.layers["a"](h) * self.gains[0]) + x * self.gains[1] + self.offset)


def test_wherever_parameters_live() -> None:
    torch.manual_seed(0)
    holder = Holder()
    normal = parametrizations.weight_norm(nn.Linear(H, H).double())
    cell, recurrent = Cellular(), nn.RNNCell(I, H).double()
    own = {name: torch.randn_like(p).requires_grad_() for name, p in cell.named_parameters()}
    box = {"deep": [(random(H),)]}
    for given in (
        example(holder, h(), x(H), modules=(holder,)),
        example(lambda h, x: twice(torch.tanh(normal(h) + x)), h(), x(H), modules=(normal,)),
        example(lambda h, x: functional_call(cell, own, (h, x)), h(), x(H), *own.values()),
        example(lambda h, x: twice(h * box["deep"][0][0] + x), h(), x(H), *box["deep"][0]),
        example(functools.partial(lambda p, h, x: twice(h * p + x), own["linear.bias"]), h(), x(H), own["linear.bias"]),
        example(cell.forward, h(), x(H), modules=(cell,)),
        example(lambda h, x: twice(recurrent(x, h)), h(), x(), modules=(recurrent,)),
    ):
        assert check(given).strategy == "sequential"


def test_a_parameter_that_cannot_be_found_is_left_to_the_loop() -> None:
    weight, name, hidden = random(H), ContextVar("weight"), copy_context()
    hidden.run(name.set, weight)  # nothing looks into another context
    decision = check(example(lambda h, x: twice(h * hidden[name] + x), h(), x(H), weight))
    assert "cannot be followed" in decision.reason


def test_other_sizes_are_other_recordings() -> None:
    cell = lambda h, x: twice(torch.tanh(h + x) * h.shape[0])  # noqa: E731  it reads the size
    for rows in (1, 2, B):
        check(example(cell, random(rows, H), random(T, rows, H)))

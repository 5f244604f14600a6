"""The key of a cell: equal while the cell would record the same, another one otherwise; and the tensors it may reach.

tests/scan/test_changes.py checks the same through `bppsa.scan`: what changes is seen.
"""

from __future__ import annotations

import copy
import functools
import gc
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

import hypothesis
import numpy
import pytest
import torch
from torch import Tensor, nn

from bppsa.fxpasses.environment import known
from bppsa.fxpasses.environment.known import known_environment
from bppsa.fxpasses.environment.walk import environment_of
from tests.scan.zoo import CASES, Example, H, make

FACTOR = 1.0


def key(cell: Any) -> Any:
    """As a walk gives it, and as a call gives it that may follow the trail of an earlier one."""
    found = known_environment(cell).key
    assert hash(found) == hash(environment_of(cell).key)
    assert found == environment_of(cell).key
    return found


def closing_over(value: Any) -> Callable[[Any, Any], Any]:
    return lambda h, x: (h, value)


class Plain:
    def __init__(self, value: Any) -> None:
        self.value = value


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class Net(nn.Module):
    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.linear, self.factor = nn.Linear(H, H), factor

    def forward(self, h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.linear(h) * self.factor * FACTOR, x


VALUES: list[tuple[Any, Any]] = [
    (1, 2),
    (1, 1.0),
    (1, True),
    ("a", "b"),
    (None, 0),
    (torch.float32, torch.float64),
    (torch.tanh, torch.sigmoid),
    (1j, 2j),
    (b"a", b"b"),
    ([1, 2], [1, 2, 3]),
    ([1, 2], (1, 2)),
    ([[1], 2], [1, [2]]),
    ({"a": 1}, {"a": 2}),
    ({"a": 1}, {"b": 1}),
    ({1, 2}, {1, 3}),
    (numpy.ones(3), numpy.zeros(3)),
    (numpy.ones(3), numpy.ones((3, 1))),
    (numpy.float32(1), numpy.float32(2)),
    (torch.ones(3), torch.ones(4)),
    (torch.ones(3), torch.ones(3, dtype=torch.float64)),
    (torch.ones(3), torch.ones(3, requires_grad=True)),
    (torch.ones(3), torch.ones(3, device="meta")),
    (torch.ones(3), nn.Parameter(torch.ones(4))),
    (functools.partial(max, 1), functools.partial(max, 2)),
    (functools.partial(max, default=1), functools.partial(max, default=2)),
    (functools.partial(max, 1), functools.partial(min, 1)),
    (lambda a: a, lambda a: a + 1),
    (lambda a, b=1: b, lambda a, b=2: b),
    (lambda a, *, b=1: b, lambda a, *, b=2: b),
    (closing_over(1), closing_over(2)),
    (nn.Linear(2, 3), nn.Linear(3, 2)),
    (nn.Linear(2, 3), nn.Linear(2, 3, bias=False)),
    (nn.Dropout(0.1), nn.Dropout(0.2)),
    (nn.ReLU(), nn.Tanh()),
    (nn.ReLU(), nn.ReLU().eval()),
    (nn.ModuleList([nn.Linear(2, 2)]), nn.ModuleList([nn.Linear(2, 2)] * 2)),
    (nn.ModuleList([nn.Linear(2, 2)] * 2), nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])),
]


@pytest.mark.parametrize("which", range(len(VALUES)))
def test_another_value_is_another_key(which: int) -> None:
    one, other = VALUES[which]
    for wrap in (lambda v: v, lambda v: [v], lambda v: {"k": (v,)}):
        assert key(closing_over(wrap(one))) != key(closing_over(wrap(other)))
        assert key(closing_over(wrap(one))) == key(closing_over(wrap(one)))


@pytest.mark.parametrize("holder", [Plain, Slotted, types.SimpleNamespace])
def test_the_state_of_an_object(holder: Any) -> None:
    held = holder(value=1)
    before = key(closing_over(held))
    assert key(closing_over(held)) == before
    held.value = 2
    assert key(closing_over(held)) != before
    referred = [refer() for refer in environment_of(closing_over(held)).opaque]
    assert any(found is held for found in referred), "its address may be given to another object once it is gone"


ALTERATIONS: list[Callable[[Net], Any]] = [
    nn.Module.eval,
    nn.Module.double,
    lambda net: setattr(net, "factor", 2.0),
    lambda net: net.requires_grad_(False),
    lambda net: net.linear.register_forward_hook(lambda *args: None),
    lambda net: net.linear.register_forward_pre_hook(lambda *args: None),
    lambda net: net.linear.register_full_backward_hook(lambda *args: None),
    lambda net: net.register_buffer("more", torch.ones(1)),
    lambda net: setattr(net.linear, "weight", nn.Parameter(torch.ones(H, H + 1))),
    lambda net: setattr(net, "linear", nn.Identity()),
    lambda net: setattr(net, "forward", lambda h, x: (h, x)),
]


@pytest.mark.parametrize("alter", ALTERATIONS)
def test_a_module_that_was_altered(alter: Callable[[Net], Any]) -> None:
    net = Net()
    before = key(net)
    alter(net)
    assert key(net) != before


NEUTRAL: list[Callable[[Net], Any]] = [
    lambda net: setattr(net.linear, "weight", nn.Parameter(torch.randn(H, H))),
    lambda net: net.load_state_dict(Net().state_dict()),
    lambda net: net.linear(torch.ones(1, H)).sum().backward(),
    lambda net: net.register_state_dict_post_hook(lambda *args: None),
]


@pytest.mark.parametrize("change", NEUTRAL)
def test_new_weights_keep_the_key(change: Callable[[Net], Any]) -> None:
    net = Net()
    before = key(net)
    change(net)
    assert key(net) == before


def test_equal_cells_made_twice_share_a_key() -> None:
    assert key(Net()) == key(Net()) == key(copy.deepcopy(Net()))
    assert key(closing_over([1, {"a": torch.ones(2)}])) == key(closing_over([1, {"a": torch.zeros(2)}]))
    assert key(functools.partial(closing_over(1), None)) != key(closing_over(1))
    net = Net()
    assert key(net.forward) != key(net)
    assert key(net.forward) == key(Net().forward)


def test_globals_that_a_function_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    def outer(h: Tensor, x: Tensor) -> Any:
        def inner() -> float:
            return FACTOR

        return h * inner(), x

    for cell in (outer, Net(), Net().forward, Plain(outer).value):
        before = key(cell)
        with monkeypatch.context() as patch:
            patch.setitem(globals(), "FACTOR", 2.0)
            assert key(cell) != before
        assert key(cell) == before


def test_a_name_without_a_value_yet() -> None:
    def cell(h: Tensor, x: Tensor) -> Any:
        return later(h), x

    before = key(cell)
    later = torch.tanh
    assert key(cell) != before


def test_what_contains_itself() -> None:
    box: list[Any] = [1]
    box.append(box)
    assert key(closing_over(box)) == key(closing_over(box))


ALIASES: list[Callable[[Tensor], tuple[Tensor, Tensor]]] = [
    lambda t: (t, t),
    lambda t: (t, t.clone()),
    lambda t: (t, t.detach()),
    lambda t: (t[0], t[1]),
    lambda t: (t[:1], t[1:]),
    lambda t: (t, t.t()),
]


def test_which_tensors_are_one() -> None:
    """What a cell records with W and W is not what it records with two tensors of that size."""
    keys = [key(closing_over(alias(torch.ones(2, 2, requires_grad=True)))) for alias in ALIASES]
    assert keys[0] != keys[1]
    assert keys[0] != keys[2]
    assert keys[0] != keys[5]
    base = torch.ones(2, 2)
    assert key(closing_over((base[0], base[0]))) != key(closing_over((base[0], base[1])))
    assert key(closing_over((base[0], base[0]))) == key(closing_over((base[1], base[1])))


@pytest.mark.parametrize("case", CASES)
def test_every_parameter_is_found(case: Callable[[], Example]) -> None:
    given = make(case)
    found = {id(tensor) for tensor in environment_of(given.cell).tensors}
    assert {id(parameter) for parameter in given.parameters} <= found


def test_tensors_are_found_wherever_they_are() -> None:
    tensors = [torch.randn(2) for _ in range(9)]
    net = Net()
    net.register_buffer("held", tensors[0])
    net.loose, net.listed = tensors[1], [tensors[2]]

    def cell(h: Tensor, x: Tensor, more: Tensor = tensors[3], *, last: Tensor = tensors[4]) -> Any:
        return net(h, x), net.loose, net.listed, deep, Plain, more, last

    deep = [{"a": (tensors[5],)}, Plain(tensors[6]), Slotted(tensors[7])]
    found = environment_of(functools.partial(cell, more=tensors[8])).tensors
    assert {id(t) for t in tensors} <= {id(t) for t in found}
    assert {id(p) for p in net.parameters()} <= {id(t) for t in found}
    assert len({id(t) for t in found}) == len(found), "each once"


# ---- the trail of an earlier walk


def test_the_trail_is_followed_while_nothing_has_changed() -> None:
    net = Net()
    first = known_environment(net)
    assert known_environment(net) is first
    assert known_environment(net.forward) is known_environment(net.forward), "a bound method is made anew each time"
    assert known_environment(net.forward) is not first
    net.linear.weight.data = torch.ones(H, H)
    assert known_environment(net) is not first, "the tensor is the same, its memory is not"


CHANGED: list[tuple[Callable[[], Any], Callable[[Any], Any]]] = [
    (lambda: Plain(1), lambda held: setattr(held, "value", 2)),
    (lambda: Plain(1), lambda held: setattr(held, "__dict__", {"value": 2})),
    (lambda: Plain(1), lambda held: setattr(held, "__class__", Other)),
    (lambda: Slotted([1]), lambda held: held.value.append(2)),
    (lambda: [1], lambda held: held.__setitem__(0, True)),
    (list, lambda held: held.append(1)),
    (lambda: {"a": 1}, lambda held: held.update(a=1.0)),
    (lambda: {1}, lambda held: held.add(2)),
    (lambda: numpy.ones(2), lambda held: held.fill(2)),
    (lambda: torch.ones(2), lambda held: held.requires_grad_()),
    (lambda: torch.ones(2), lambda held: held.resize_(3)),
    (lambda: nn.ReLU(), lambda held: setattr(held, "__class__", nn.Tanh)),
    (lambda: nn.Linear(2, 2), lambda held: held.half()),
    (lambda: lambda a=1: a, lambda held: setattr(held, "__defaults__", (2,))),
    (lambda: lambda a=1: a, lambda held: setattr(held, "__code__", (lambda a: a + 1).__code__)),
]


class Other(Plain):
    factor = 1


@pytest.mark.parametrize("which", range(len(CHANGED)))
def test_a_change_is_seen_from_the_trail(which: int) -> None:
    make_held, change = CHANGED[which]
    held = make_held()
    cell = closing_over([held])
    before = key(cell)
    change(held)
    assert key(cell) != before


def test_a_cell_that_is_gone_leaves_nothing() -> None:
    net = Net()
    known_environment(net)
    weight, at = weakref.ref(net.linear.weight), (id(net), None, False, ())
    assert at in known._known
    del net
    gc.collect()
    assert weight() is None
    assert at not in known._known


@pytest.mark.parametrize("pair", [(0.0, -0.0), (1, True), (1, 1.0), (0j, -0j)], ids=str)
def test_numbers_that_are_equal_and_not_the_same(pair: tuple[Any, Any]) -> None:
    """h / 0.0 is not h / -0.0, and x[:, True] is not x[:, 1]."""
    assert key(closing_over(pair[0])) != key(closing_over(pair[1]))


def test_few_cells_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "REMEMBERED", 2)
    nets = [Net() for _ in range(4)]
    found = [known_environment(net) for net in nets]
    assert [known_environment(net) is e for net, e in zip(nets[2:], found[2:], strict=True)] == [True, True]
    assert len(known._known) == 2


def test_what_a_function_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("a_module_of_the_users")
    module.factor = 1.0  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)

    def cell(h: Tensor, x: Tensor) -> Any:
        import a_module_of_the_users as users

        return h * users.factor, x

    before = key(cell)
    module.factor = 2.0  # type: ignore[attr-defined]
    assert key(cell) != before


def test_what_an_operator_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    class Scaled:
        def __matmul__(self, value: Tensor) -> Tensor:
            return value * FACTOR

    scaled = Scaled()
    cell = closing_over(scaled)
    before = key(cell)
    monkeypatch.setitem(globals(), "FACTOR", 2.0)
    assert key(cell) != before


def test_a_library_is_not_walked_through() -> None:
    """Only that the very same function of it is called is in the key; a library has no end."""
    found = environment_of(lambda h, x: (hypothesis.note(str(h)) or h, x))
    assert len(found.parts) < 200
    assert key(closing_over(hypothesis.note)) != key(closing_over(hypothesis.event))

"""Python's state that a forward reads: a change after the cut is noticed, and one by the forward is refused."""

from __future__ import annotations

import argparse
import functools
import itertools
import types
from collections import ChainMap, UserDict, deque
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import bppsa
from tests.workers.partition.support import (
    Model,
    batch,
    check,
    check_step,
    compiled_for,
    error_of_step,
    place,
    refused,
)

WIDTH = 4
Change = Callable[[Any], object]


class Slotted:
    __slots__ = ("s",)

    def __init__(self, s: float) -> None:
        self.s = s

    def __deepcopy__(self, memo: Any) -> Slotted:
        return Slotted(self.s)


class Doubled(Slotted):
    """As it, of another class."""

    __slots__ = ()

    def __getattribute__(self, name: str) -> Any:
        return 2 * super().__getattribute__(name) if name == "s" else super().__getattribute__(name)


class Table(dict[str, float]):
    """A container of a user's class."""


class Part(nn.Module):
    """Reads what is not in `vars(self)` when it is cut."""

    s = 1.0
    held = 3.0

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def part(self, x: Tensor) -> Tensor:
        return x

    def forward(self, x: Tensor) -> Tensor:
        if hasattr(self, "shift"):
            x = x + self.shift
        return self.layer(self.part(x)) * self.s * getattr(self, "extra", 1.0)


def scaled(x: Tensor, by: float = 1.0) -> Tensor:
    return x * by


class Reading(nn.Module):
    """Reads state of many kinds."""

    s = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.blk, self.first, self.third = Part(), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm, self.conv = nn.LayerNorm(WIDTH), Scaled(1, 1, 3, padding=1)
        self.extra, self._p, self.t = 1.0, 1.0, torch.ones(WIDTH)
        self.simple, self.parsed = types.SimpleNamespace(s=1.0, of=[1.0]), argparse.Namespace(s=1.0)
        self.user = UserDict(s=1.0)
        self.chain, self.queue = ChainMap({"s": 1.0}), deque([1.0, 2.0])
        self.partial, self.slotted, self.table = functools.partial(scaled, by=1.0), Slotted(1.0), Table(s=1.0)
        self.pair = (torch.ones(WIDTH), [1.0])
        self.drawn = torch.distributions.Normal(torch.zeros(WIDTH), torch.ones(WIDTH))

    @property
    def p(self) -> float:
        return self._p

    @p.setter
    def p(self, value: float) -> None:
        self._p = value

    def part(self, x: Tensor, by: float = 1.0) -> Tensor:
        return x * by

    def forward(self, x: Tensor) -> Tensor:
        x = self.blk(self.first(x)) * self.s * getattr(self, "extra", 2.0) * self.p
        x = self.norm(x) * self.t * self.simple.s * self.simple.of[0] * self.parsed.s * self.user["s"]
        x = self.conv(x[:, None])[:, 0] * getattr(self, "later", 1.0)
        x = self.part(x) * self.chain["s"] * self.queue[0] * self.slotted.s * self.table["s"] * self.pair[0]
        return self.third(torch.tanh(self.partial(x) * self.pair[1][0])) + self.drawn.log_prob(x)


class Scaled(nn.Conv1d):
    """What PyTorch's own forward reads of it, no code of the user's names."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 2


def put(path: str, value: Any) -> Change:
    """Sets an attribute of what is compiled."""
    owner, _, name = path.rpartition(".")

    def change(model: Any) -> None:
        for each in owner.split(".") if owner else ():
            model = getattr(model, each)
        setattr(model, name, value)

    return change


def doubled(x: Tensor) -> Tensor:
    return x * 2


CHANGES: dict[str, Change] = {
    "an attribute of the class": put("s", 2.0),
    "a property": put("p", 2.0),
    "an attribute that there was not": put("later", 2.0),
    "an attribute that is taken away": lambda model: delattr(model, "extra"),
    "an attribute of a child's class": put("blk.s", 2.0),
    "an attribute that a child had not": put("blk.extra", 2.0),
    "an attribute that a child is asked for": put("blk.shift", 2.0),
    "a child's method": put("blk.part", doubled),
    "a child's forward": put("blk.forward", doubled),
    "a layer's forward": put("blk.layer.forward", doubled),
    "a number of a layer": put("norm.eps", 1.0),
    "a number of a layer's base": put("conv.padding_mode", "circular"),
    "a namespace": put("simple.s", 2.0),
    "a list in a namespace": lambda model: model.simple.of.__setitem__(0, 2.0),
    "parsed arguments": put("parsed.s", 2.0),
    "a UserDict": lambda model: model.user.__setitem__("s", 2.0),
    "all that a namespace has": put("parsed.__dict__", {"s": 2.0}),
    "the class of an object": put("slotted.__class__", Doubled),
    "a distribution": put("drawn.loc", torch.ones(WIDTH, dtype=torch.float64)),
    "a ChainMap": lambda model: model.chain.__setitem__("s", 2.0),
    "a deque": lambda model: model.queue.rotate(1),
    "keywords of a partial": lambda model: model.partial.keywords.__setitem__("by", 2.0),
    "a slot": put("slotted.s", 2.0),
    "a dict of the user's class": lambda model: model.table.__setitem__("s", 2.0),
    "a tensor's data": put("t.data", torch.full((WIDTH,), 2.0, dtype=torch.float64)),
    "a tensor in a tuple": lambda model: model.pair[0].mul_(2),
    "another tuple of tensors": put("pair", (torch.full((WIDTH,), 2.0, dtype=torch.float64), [1.0])),
    "a list in a tuple": lambda model: model.pair[1].__setitem__(0, 2.0),
}


def twins(make: Callable[[], nn.Module]) -> tuple[nn.Module, Any]:
    """A model, and one with the same weights that is cut and has run a step; they share no state."""
    model, other = make(), make()
    other.load_state_dict(model.state_dict())
    compiled = compiled_for(other, batch())
    check_step(compiled, model, batch())
    return model, compiled


@pytest.mark.filterwarnings("ignore:.*has changed since the model was cut")
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_after_the_cut_is_followed(change: Change) -> None:
    model, compiled = twins(Reading)
    given = batch()
    before = model(*given.args)
    change(compiled), change(model)
    assert not torch.equal(model(*given.args), before)
    error = error_of_step(compiled, model, given)
    assert error is None, error


@pytest.mark.filterwarnings("ignore:.*has changed since the model was cut")
def test_defaults_of_functions() -> None:
    model, compiled = twins(Reading)
    try:
        for function in (Reading.part, scaled):
            function.__defaults__ = (2.0,)
            assert error_of_step(compiled, model, batch()) is None
    finally:
        Reading.part.__defaults__ = scaled.__defaults__ = (1.0,)


@pytest.mark.filterwarnings("ignore:.*has changed since the model was cut")
def test_a_name_that_a_class_gets() -> None:
    model, compiled = twins(Reading)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Part, "extra", 2.0, raising=False)
        assert error_of_step(compiled, model, batch()) is None


@pytest.mark.filterwarnings("ignore:.*has changed since the model was cut")
def test_backward_hooks_that_come_after_the_cut() -> None:
    model, compiled = twins(Reading)
    for each in (model, compiled):
        each.blk.register_full_backward_hook(lambda module, grads, _: tuple(g if g is None else g / 2 for g in grads))
    error_of_step(compiled, model, batch())  # it is the model's, or an error of ours


def test_what_no_forward_reads_may_change() -> None:
    """A model is cut again for nothing else."""

    class Listed(nn.Sequential):
        epoch = 0

    class Ring(Part):
        def part(self, x: Tensor) -> Tensor:
            return x * self.ring[0].s

    ring = Ring()
    ring.ring, ring.count = [types.SimpleNamespace(s=1.0)], 0
    ring.ring[0].ring = ring.ring
    model = Listed(ring, nn.Linear(WIDTH, WIDTH))
    model.epoch = 1
    compiled = compiled_for(model, batch())
    stages = bppsa.trainer(compiled).stages
    ring, linear = compiled.get_submodule("0"), compiled.get_submodule("1")
    ring.count, ring.noted, compiled.name, linear.name = 1, "x", "y", "z"
    ring.ring[0].note, compiled.epoch, ring.held, linear.bias.tag = 1, 2, 3.0, "a"
    assert stages.changed() == ""


def test_the_wrapper_has_what_it_was_given() -> None:
    compiled = compiled_for(Reading(), batch())
    given = bppsa.trainer(compiled).given
    compiled.s, compiled.p, compiled.later = 2.0, 3.0, 4.0
    assert (given.s, given._p, given.later) == (2.0, 3.0, 4.0) == (compiled.s, compiled.p, compiled.later)
    del compiled.s, compiled.later
    assert compiled.s == 1.0
    with pytest.raises(AttributeError):
        del compiled.later
    with pytest.raises(AttributeError):
        del compiled.step
    del compiled.third
    assert "third" not in dict(given.named_children())


# ---- what a forward changes


class Noting:
    n = 0.0

    def __init__(self) -> None:
        self.deep = {"a": [0.0]}


def in_a_list(self: Any, x: Tensor) -> Tensor:
    self.stats[0].add_(1)
    return x + self.stats[0]


def in_a_queue(self: Any, x: Tensor) -> Tensor:
    self.log.append(1.0)
    return x * len(self.log)


def in_a_namespace(self: Any, x: Tensor) -> Tensor:
    self.space.l.append(1.0)
    return x * sum(self.space.l)


def of_a_namespace(self: Any, x: Tensor) -> Tensor:
    self.space.n += 1
    return x * self.space.n


def in_an_object(self: Any, x: Tensor) -> Tensor:
    self.noting.deep["a"][0] += 1
    return x * self.noting.deep["a"][0]


def in_a_slot(self: Any, x: Tensor) -> Tensor:
    self.slotted.s += 1
    return x * self.slotted.s


def in_a_user_dict(self: Any, x: Tensor) -> Tensor:
    self.user["n"] += 1
    return x * self.user["n"]


def in_a_class(self: Any, x: Tensor) -> Tensor:
    self.shared[0] += 1
    return x * self.shared[0]


def in_a_default(self: Any, x: Tensor) -> Tensor:
    return self.counted(x)


def counts(self: Any, x: Tensor) -> Tensor:
    return x * next(self.numbers)


def in_a_class_that_is_named(self: Any, x: Tensor) -> Tensor:
    Noting.n += 1
    return x * Noting.n


STATEFUL = types.SimpleNamespace(n=0)


def in_a_global(self: Any, x: Tensor) -> Tensor:
    STATEFUL.n += 1
    return x * STATEFUL.n


class Stateful(Model):
    shared: ClassVar[list[float]] = [0.0]

    def __init__(self, function: Any) -> None:
        super().__init__(function)
        self.stats, self.log, self.user = [torch.zeros(WIDTH)], deque([1.0]), UserDict(n=0)
        self.space, self.noting, self.slotted = types.SimpleNamespace(l=[1.0], n=0), Noting(), Slotted(0.0)
        self.numbers = itertools.count()
        self.itself = [self.space, self]

    def counted(self, x: Tensor, seen: list[float] = [1.0]) -> Tensor:  # noqa: B006
        seen.append(1.0)
        return x * len(seen)


LOST = {
    in_a_list: "self.stats[0].add_",
    in_a_queue: "self.log.append",
    in_a_namespace: "self.space.l.append",
    of_a_namespace: "self.space.n += 1",
    in_an_object: "self.noting.deep",
    in_a_slot: "self.slotted.s += 1",
    in_a_user_dict: 'self.user["n"] += 1',
    in_a_class: "self.shared[0] += 1",
    counts: "next(self.numbers)",
    in_a_class_that_is_named: "Noting.n += 1",
    in_a_global: "STATEFUL.n += 1",
}


@pytest.mark.parametrize(("forward", "text"), LOST.items(), ids=lambda each: getattr(each, "__name__", ""))
def test_what_a_forward_changes_within_is_refused(forward: Any, text: str) -> None:
    refused(Stateful(forward), place(forward, text))


def test_a_default_that_a_forward_changes() -> None:
    refused(Stateful(in_a_default), place(Stateful.counted, "seen.append"))


class Running(Model):
    """Buffers that are in a list too are state all the same."""

    def __init__(self) -> None:
        super().__init__(lambda self, x: self.normed(x) + self.bias[0])
        self.norm = nn.BatchNorm1d(WIDTH)
        self.ring = [self.norm.running_mean, self.norm.num_batches_tracked]
        self.bias = (torch.ones(WIDTH), {"unread": [1.0]})

    def normed(self, x: Tensor) -> Tensor:
        return self.norm(x)


def test_buffers_in_a_list() -> None:
    model = Running()
    compiled = compiled_for(model, batch())
    for _ in range(2):
        given = batch()
        bppsa.trainer(compiled).step(*given.args, given.target)
    assert compiled.norm.num_batches_tracked > 0


def test_a_cut_of_what_changes_nothing() -> None:
    check(Stateful(lambda self, x: x * self.slotted.s + self.space.n + self.user["n"]))

"""What comes back from a rewrite: the same tree around the same tensors, and the given model as it was."""

from __future__ import annotations

import functools
import types
import weakref
from collections import OrderedDict, deque, namedtuple
from typing import Any

import pytest
import torch
from torch import nn

from bppsa import strategies
from bppsa.frontend.clone import clone
from bppsa.frontend.rnn.classes import Recurrent, rewrite
from bppsa.frontend.state import state_of
from tests.modules.conftest import Taken
from tests.modules.models import Reassigning, Tagger, fast


def snapshot(value: Any, seen: set[int]) -> Any:
    """Everything a module tree is made of, by identity and class."""
    if isinstance(value, (list, tuple)):
        return [id(value), *(snapshot(item, seen) for item in value)]
    if isinstance(value, dict):
        return [id(value), *((key, snapshot(item, seen)) for key, item in value.items())]
    if isinstance(value, nn.Module) and id(value) not in seen:
        seen.add(id(value))
        return type(value), id(value), snapshot(value.__dict__, seen)
    return id(value)


def test_the_given_model_is_left_as_it_was() -> None:
    model = Tagger()
    before = snapshot(model, set())
    copy = fast(model)
    assert snapshot(model, set()) == before
    copy(torch.arange(6).view(3, 2))
    copy.eval()
    copy.encoder.extra = 1
    copy.encoder.weight_hh_l0 = nn.Parameter(torch.zeros(12, 4))
    assert snapshot(model, set()) == before
    assert model.last is None


def test_same_tree_same_tensors() -> None:
    model = Tagger()
    copy = fast(model)
    assert type(copy) is Tagger
    assert [name for name, _ in copy.named_modules()] == [name for name, _ in model.named_modules()]
    assert list(copy.state_dict()) == list(model.state_dict())
    for name in ("named_parameters", "named_buffers"):
        ours, theirs = getattr(copy, name)(), getattr(model, name)()
        assert all(a == b and x is y for (a, x), (b, y) in zip(ours, theirs, strict=True))
    assert all(isinstance(a, type(b)) for a, b in zip(copy.modules(), model.modules(), strict=True))
    assert not {id(module) for module in copy.modules()} & {id(module) for module in model.modules()}
    assert repr(copy) == repr(model)
    assert copy.encoder is copy.tower[1]["same"]


def test_every_recurrent_module_is_rewritten_once_and_knows_its_path(taken: list[Taken]) -> None:
    model = Tagger()
    copy, found = rewrite(model, strategies.sequential())
    assert list(found) == ["encoder", "tower.0", "tower.1.up", "plain[0]", "plain[1].deep[0]"]
    assert {decision.strategy for decision in found.values()} == {"waiting"}
    tokens = torch.arange(6).view(3, 2)
    assert torch.equal(copy(tokens), model(tokens))
    paths = [state_of(call.module).path for call in taken]
    assert paths == ["encoder", "encoder", "tower.0", "tower.1.up", "plain[0]", "plain[1].deep[0]"]
    assert copy.plain[0] is not model.plain[0]
    assert type(model.plain[0]) is nn.GRU


def test_a_rewritten_model_can_be_rewritten_again(taken: list[Taken]) -> None:
    twice = fast(fast(nn.GRU(3, 3)))
    assert sum(cls is Recurrent for cls in type(twice).__mro__) == 1
    twice(torch.zeros(2, 1, 3))
    assert len(taken) == 1


def test_attributes_assigned_in_forward_and_own_methods_as_hooks() -> None:
    model, x = Reassigning(), torch.randn(5, 2, 3)
    copy = fast(model)
    assert torch.equal(copy(x), model(x))
    assert torch.equal(copy(x), model(x))
    assert copy.seen == model.seen == [5, 5]
    assert copy.h is not model.h
    assert copy.count is not model.count
    assert float(copy.count) == 2
    copy.handle.remove()
    assert not copy.gru._forward_hooks
    assert model.gru._forward_hooks


class Slots(nn.Module):
    __slots__ = ("note",)


Pair = namedtuple("Pair", "module size")


class Everything(nn.Module):
    """One of each thing that can hold a module."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.pair = Pair(self.inner, 3)
        self.size = Pair(1, 2)
        self.ordered = OrderedDict(a=self.inner)
        self.queue = deque([self.inner], maxlen=3)
        self.group = {self.inner, 4}
        self.keys = {self.inner: "x"}
        self.call = functools.partial(self.step, self.inner, scale=2)
        self.forward = self.step  # type: ignore[method-assign]
        self.cycle: list[Any] = [self]
        self.cycle.append(self.cycle)
        self.shared = object()
        self.slotted = Slots()
        self.slotted.note = self.inner
        self.register_load_state_dict_pre_hook(Everything.loading)
        self.register_load_state_dict_post_hook(lambda *args: None)

    def step(self, x: Any, scale: int = 1) -> Any:
        return self, x, scale

    def loading(self, *args: Any) -> None:
        self.loaded = True


def test_whatever_holds_a_module_holds_its_clone() -> None:
    model = Everything()
    copy, found = clone(model)
    inner = copy.inner
    assert list(found) == ["", "inner", "slotted"]
    assert inner is not model.inner
    assert copy.pair == Pair(inner, 3)
    assert type(copy.pair) is Pair
    assert copy.size is model.size
    assert copy.ordered == OrderedDict(a=inner)
    assert list(copy.queue) == [inner]
    assert copy.queue.maxlen == 3
    assert copy.group == {inner, 4}
    assert list(copy.keys) == [inner]
    assert copy.call() == (copy, inner, 2)
    assert copy(1) == (copy, 1, 1)
    assert copy.cycle[0] is copy
    assert copy.cycle[1] is copy.cycle
    assert copy.shared is model.shared
    assert copy.slotted.note is inner
    copy.load_state_dict(copy.state_dict())
    assert copy.loaded
    assert not hasattr(model, "loaded")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_lazy_modules_and_script_modules_and_graph_modules() -> None:
    lazy = fast(nn.Sequential(nn.LazyLinear(3)))
    assert lazy(torch.ones(2, 5)).shape == (2, 3)
    assert type(lazy[0]) is nn.Linear
    script = torch.jit.script(nn.Linear(2, 2))
    assert fast(nn.Sequential(script))[0] is script
    graph = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    x = torch.randn(3, 2)
    assert torch.equal(fast(graph)(x), graph(x))


def test_module_compile_is_not_carried_over() -> None:
    model = nn.Linear(2, 2)
    model.compile(backend="eager")
    assert fast(model)._compiled_call_impl is None
    assert model._compiled_call_impl is not None


def test_the_clone_keeps_nothing_of_the_model_alive() -> None:
    model = Tagger()
    gone, copy = weakref.ref(model.encoder), fast(model)
    del model
    assert gone() is None
    assert copy.encoder._flat_weights[0] is copy.encoder.weight_ih_l0


def test_a_mapping_proxy_shows_the_clone_s_own_dict() -> None:
    model = nn.Linear(2, 2)
    model.numbers, model.kind = {"scale": 1.0}, vars(Tagger)
    model.shown = types.MappingProxyType(model.numbers)
    copy = fast(model)
    copy.numbers["scale"] = 2.0
    assert (copy.shown["scale"], model.shown["scale"]) == (2.0, 1.0)
    assert copy.kind == model.kind


@pytest.mark.parametrize("flat", ["_flat_weights", "_flat_weight_refs", "_flat_weights_names", "_all_weights"])
def test_weight_lists_are_the_clone_s_own(flat: str) -> None:
    model = nn.LSTM(2, 3, bidirectional=True)
    copy = fast(model)
    assert getattr(copy, flat) is not getattr(model, flat)
    assert getattr(copy, flat) == getattr(model, flat) or flat == "_flat_weights"

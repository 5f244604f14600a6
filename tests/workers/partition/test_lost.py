"""What a graph of a forward does not hold is refused with the user's line, or is done: never a wrong number."""

from __future__ import annotations

import contextlib
import copy
import random
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor

from bppsa.errors import PartitionError
from tests.workers import support
from tests.workers.partition.support import (
    Model,
    batch,
    check,
    check_or_refused,
    check_step,
    compiled_for,
    error_of_step,
    place,
    refused,
)

STEP, SEEN = 0, []
RANDOM, DRAWS = random.Random(0), np.random.default_rng(0)
Forward = Callable[[Model, Tensor], Tensor]


# ---- hooks


def tensor_hook(self: Model, x: Tensor) -> Tensor:
    y = x * 2
    y.register_hook(lambda g: g * 3)
    return y


def hook_that_looks(self: Model, x: Tensor) -> Tensor:
    """A norm taken of a gradient does not change it, but is lost just as well."""
    x.register_hook(SEEN.append)
    return x


@pytest.mark.parametrize("forward", [tensor_hook, hook_that_looks])
def test_hooks_of_tensors(forward: Forward) -> None:
    check_or_refused(Model(forward), place(forward, "register_hook"))
    SEEN.clear()


def halved(module: nn.Module, *grads: Any) -> Any:
    """Of a full backward hook (inputs', outputs') or of one before it (outputs'): the first, halved."""
    return tuple(None if g is None else g / 2 for g in grads[0])


@pytest.mark.parametrize("name", ["register_full_backward_hook", "register_full_backward_pre_hook"])
@pytest.mark.parametrize("path", ["second", ""])
def test_backward_hooks_of_modules(name: str, path: str) -> None:
    """They stand on no line of the forward: the module is named."""
    model = Model()
    getattr(model.get_submodule(path), name)(halved)
    check_or_refused(model, rf"(?i)(?=.*\b{path or 'Model'}\b).*backward.*hook")


def tripled(gradient: Tensor) -> Tensor:
    return gradient * 3


def tripled_in_place(parameter: Tensor) -> None:
    parameter.grad.mul_(3)


def test_hooks_of_parameters() -> None:
    def change(model: Model) -> None:
        model.second.weight.register_hook(tripled)

    check_or_refused(Model(), r"second\.weight.*hook", change=change)


def test_hooks_that_follow_a_gradient() -> None:
    """Such as an optimizer that is run in the backward: a step is one backward of the whole batch."""
    model, given = Model(), batch()
    compiled = compiled_for(copy.deepcopy(model), given)
    compiled.step(*given.args, given.target)
    once = compiled.second.weight.grad.clone()
    compiled.second.weight.register_post_accumulate_grad_hook(tripled_in_place)
    compiled.step(*given.args, given.target)
    support.close(compiled.second.weight.grad, once * 6)


def test_forward_hooks_are_run() -> None:
    model = Model()
    model.first.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    model.second.register_forward_hook(lambda module, args, output: output * 2 + args[0])
    check(model)


def test_forward_hooks_of_the_whole_model() -> None:
    model = Model()
    model.register_forward_hook(lambda module, args, output: {"y": output * 2})
    check_or_refused(model, r"Model has hooks of its own.*submodules")


# ---- random numbers that are not torch's


def pythons(self: Model, x: Tensor) -> Tensor:
    return x * random.random()


def numpys(self: Model, x: Tensor) -> Tensor:
    return x * float(np.random.rand())


def skips_a_layer(self: Model, x: Tensor) -> Tensor:
    if random.random() < 0.5:
        return x
    return torch.tanh(x)


def by_value(self: Model, x: Tensor) -> Tensor:
    if torch.rand(()).item() < 0.5:
        return x
    return torch.tanh(x)


RANDOMS = (
    (pythons, "random.random"),
    (numpys, "np.random.rand"),
    (skips_a_layer, "random.random"),
    (by_value, "torch.rand"),
)


@pytest.mark.parametrize(("forward", "text"), RANDOMS, ids=lambda case: getattr(case, "__name__", ""))
def test_random_numbers_of_others(forward: Forward, text: str) -> None:
    states = random.getstate(), np.random.get_state()[1].tolist()
    error = refused(Model(forward), place(forward, text))
    assert isinstance(error, PartitionError)
    assert states == (random.getstate(), np.random.get_state()[1].tolist())


def own_pythons(self: Model, x: Tensor) -> Tensor:
    return x * RANDOM.random()


def own_numpys(self: Model, x: Tensor) -> Tensor:
    return x * DRAWS.random()


@pytest.mark.parametrize("forward", [own_pythons, own_numpys])
def test_generators_of_the_models_own(forward: Forward) -> None:
    """Nobody can see them drawn from, but two calls differ."""
    refused(Model(forward), "")


# ---- what a forward changes beside tensors


def counts_in_a_global(self: Model, x: Tensor) -> Tensor:
    global STEP
    STEP += 1
    return x * STEP


def appends_to_a_global(self: Model, x: Tensor) -> Tensor:
    SEEN.append(x.detach())
    return x


def counts_in_an_attribute(self: Model, x: Tensor) -> Tensor:
    self.calls = getattr(self, "calls", 0) + 1
    return x * self.calls


def keeps_an_activation(self: Model, x: Tensor) -> Tensor:
    self.last = x
    return x


def replaces_a_buffer(self: Model, x: Tensor) -> Tensor:
    self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
    return x - self.mean


# The line where it happens, or the name of what is changed, is told.
CHANGES = (
    (counts_in_a_global, "STEP += 1", "STEP"),
    (appends_to_a_global, "SEEN.append", "SEEN"),
    (counts_in_an_attribute, "self.calls = ", "calls"),
    (keeps_an_activation, "self.last = ", "last"),
    (replaces_a_buffer, "self.mean = ", "mean"),
)


@pytest.mark.parametrize(("forward", "text", "name"), CHANGES, ids=lambda case: getattr(case, "__name__", ""))
def test_changes_beside_tensors(forward: Forward, text: str, name: str) -> None:
    global STEP
    STEP = 0
    model = Model(forward)
    check_or_refused(model, rf"{place(forward, text)}|\b{name}\b")
    assert not any(isinstance(x, FakeTensor) for x in (*vars(model).values(), *SEEN))
    SEEN.clear()


def test_a_closure_that_counts() -> None:
    calls = 0

    def counts(self: Model, x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return x * calls

    check_or_refused(Model(counts), rf"{place(counts, 'calls += 1')}|\bcalls\b")


def test_a_list_of_a_closure() -> None:
    seen: list[Tensor] = []

    def appends(self: Model, x: Tensor) -> Tensor:
        seen.append(x)
        return torch.stack(seen).sum(0)

    check_or_refused(Model(appends), rf"{place(appends, 'seen.append')}|\bseen\b")
    assert not any(isinstance(x, FakeTensor) for x in seen)


def made_once(self: Model, x: Tensor) -> Tensor:
    if getattr(self, "ramp", None) is None:
        self.ramp = torch.arange(4, dtype=x.dtype)
    return x * self.ramp


def test_an_attribute_that_the_first_call_makes() -> None:
    """The model can be called by itself afterwards."""
    model = Model(made_once)
    check_or_refused(model, place(made_once, "self.ramp = "))
    compiled_or_not = Model(made_once)
    with contextlib.suppress(PartitionError):
        compiled_for(compiled_or_not, batch())
    assert type(compiled_or_not(*batch().args)) is Tensor


# ---- what others change after the cut


class Tempered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.temperature, self.table = 2.0, torch.ones(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x) / self.temperature)) * self.table


def after_a_change(change: Callable[[nn.Module], None], said: str) -> None:
    """The step after it is the model's, or an error that says this."""
    model, given = Tempered(), batch()
    compiled = compiled_for(copy.deepcopy(model), given)
    check_step(compiled, model, given)
    change(compiled)
    change(model)
    error = error_of_step(compiled, model, given)
    assert error is None or said in str(error)


def test_an_attribute_that_others_change() -> None:
    """Such as a temperature that a training loop lowers."""

    def cooler(model: Any) -> None:
        model.temperature = 0.5

    after_a_change(cooler, "temperature")


def test_a_tensor_that_others_change_in_place() -> None:
    def doubled(model: Any) -> None:
        model.table.mul_(2)

    after_a_change(doubled, "table")


def test_a_forward_hook_that_comes_after_the_cut() -> None:
    def hooked(model: Any) -> None:
        model.second.register_forward_hook(lambda module, args, output: output * 2)

    after_a_change(hooked, "hook")


class Nested:
    def __init__(self, scale: float) -> None:
        self.scale = scale


class Config:
    factor = 2.0

    def __init__(self) -> None:
        self.nested, self.table = [Nested(2.0)], {"shift": torch.ones(4)}

    def __call__(self, x: Tensor) -> Tensor:
        return x * self.factor * self.nested[0].scale + self.table["shift"]


CONFIG, FACTOR = Config(), 2.0
NAMES = types.ModuleType("names_of_a_user")
NAMES.bias = 1.0


def by_config(self: Model, x: Tensor) -> Tensor:
    return CONFIG(x) * FACTOR + NAMES.bias + abs(self.shift)


def doubled_in_place(table: dict[str, Tensor]) -> None:
    table["shift"].mul_(2)


OTHERS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "a global": lambda patch: patch.setitem(globals(), "FACTOR", 3.0),
    "an object": lambda patch: patch.setattr(CONFIG.nested[0], "scale", 3.0),
    "a list": lambda patch: patch.setattr(CONFIG, "nested", [Nested(5.0)]),
    "a tensor": lambda patch: patch.setitem(CONFIG.table, "shift", torch.zeros(4)),
    "a tensor in place": lambda patch: doubled_in_place(CONFIG.table),
    "a class": lambda patch: patch.setattr(Config, "factor", 3.0),
    "a method": lambda patch: patch.setattr(Config, "__call__", lambda self, x: x),
    "a Python module": lambda patch: patch.setattr(NAMES, "bias", 3.0),
    "a name before a builtin": lambda patch: patch.setitem(globals(), "abs", lambda value: value * 2),
    "a class of the model": lambda patch: patch.setattr(Model, "shift", 3.0, raising=False),
}


@pytest.mark.parametrize("change", OTHERS.values(), ids=OTHERS)
def test_what_others_change_elsewhere(change: Callable[[pytest.MonkeyPatch], None]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Model, "shift", -1.0, raising=False)
        model, given = Model(by_config), batch()
        compiled = compiled_for(copy.deepcopy(model), given)
        check_step(compiled, model, given)
        change(patch)
        assert error_of_step(compiled, model, given) is None


def test_a_variable_of_a_closure_that_others_change() -> None:
    scale = 2.0

    def scaled(self: Model, x: Tensor) -> Tensor:
        return x * scale

    model, given = Model(scaled), batch()
    compiled = compiled_for(copy.deepcopy(model), given)
    check_step(compiled, model, given)
    scale = 3.0
    assert error_of_step(compiled, model, given) is None


def adds_to_a_tensor(self: Model, x: Tensor) -> Tensor:
    SHIFT.add_(1)
    return x + SHIFT


SHIFT = torch.zeros(4)


def test_a_tensor_of_a_global_that_the_forward_changes() -> None:
    check_or_refused(Model(adds_to_a_tensor), place(adds_to_a_tensor, "SHIFT.add_"))
    assert type(SHIFT) is Tensor

"""Calls of every kind: what runs on blocked images, what is left to PyTorch, and what is said about it."""

from __future__ import annotations

import copy
import re
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils import prune

import bppsa
from bppsa.codegen.cpu import build
from bppsa.errors import Reason
from bppsa.plan import sparse
from tests.pruned.support import NETWORKS, assert_same_step, error, kernels, lenet, pruned, twins

HOOKS = ["register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook"]


class Deciding(nn.Module):
    """Its forward looks at a value, but that of its part does not."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
        self.alone = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.part(x)
        return self.alone(x) if x.sum() > 0 else self.alone(-x)


def test_explain_names_every_layer() -> None:
    torch.manual_seed(0)
    report = str(bppsa.explain(pruned(NETWORKS["mobile"][0](), 0.75), torch.randn(16, 6, 8, 8)))
    told, *lines = report.splitlines()
    assert re.match(r"(depthwise, )?pointwise.* predicted [\d.]+ .*times as fast as PyTorch's", told)
    assert [line.split(" ")[0] for line in lines] == ["depthwise", "pointwise", "grouped", "head"]
    assert re.search(
        r"pointwise \(conv2d; density=0\.25, B=16, kept=12, gain=[\d.]+\): sparse: in a region of 2 layers, forward",
        report,
    )
    assert "converts its input" in lines[0]
    assert re.search(r"converted back \(.*support.py:\d+: x = torch.sinc.*: no kernel for ", lines[1])
    assert lines[3].endswith("converted back")


def test_what_does_not_gain_is_left_to_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse, "MARGIN", 1.2)
    plain, fast, batch = twins("lenet", amount=0.1)
    assert_same_step(plain, fast, batch(4))
    assert set(kernels(fast)) == {"pytorch"}
    assert "predicted 0." in fast.report.decisions[0].reason


def test_a_forward_that_decides_by_values_has_its_parts_rewritten() -> None:
    torch.manual_seed(0)
    plain = Deciding().double()
    fast = copy.deepcopy(plain)
    pruned(plain, 0.5), pruned(fast, 0.5)
    fast = bppsa.compile(fast)
    assert_same_step(plain, fast, torch.randn(5, 8).double())
    said = {d.path: d for d in fast.report.decisions}
    assert said[""].strategy == "pytorch"
    assert "test_calls.py:35: return self.alone(x) if x.sum() > 0" in said[""].reason
    assert said["part.0"].strategy == "sparse"


def test_images_and_batches_of_other_sizes() -> None:
    plain, fast, _ = twins("mobile")
    for samples, size in ((2, 8), (9, 8), (3, 7), (2, 8)):
        assert_same_step(plain, fast, torch.randn(samples, 6, size, 8).double())
        assert set(kernels(fast)) == {"sparse"}


def test_pytorchs_own_error_for_what_does_not_fit() -> None:
    _, fast, batch = twins("lenet")
    with pytest.raises(RuntimeError, match="to have 1 channels, but got 3 channels"):
        fast(torch.randn(2, 3, 16, 16).double())
    with pytest.raises(RuntimeError, match="should be the same"):
        fast(batch(2).float())
    assert fast(batch(2)).shape == (2, 5)


@pytest.mark.parametrize("hook", HOOKS)
def test_hooks_run(hook: str) -> None:
    plain, fast, batch = twins("lenet")
    called = []
    for m in (plain, fast):
        getattr(m[3], hook)(lambda *args: called.append(args[0]))
    assert_same_step(plain, fast, batch(3))
    assert called == [plain[3], fast[3]]


@pytest.mark.parametrize("hook", [*HOOKS, "register_full_backward_pre_hook"])
@pytest.mark.parametrize("place", ["3", "4"])  # a pruned layer, and a ReLU after one
def test_hooks_registered_after_the_first_call_run(hook: str, place: str) -> None:
    plain, fast, batch = twins("lenet")
    assert_same_step(plain, fast, batch(3))
    called: list[nn.Module] = []
    handles = [getattr(m.get_submodule(place), hook)(lambda module, *_: called.append(module)) for m in (plain, fast)]
    assert_same_step(plain, fast, batch(3))
    assert called == [plain.get_submodule(place), fast.get_submodule(place)]
    for handle in handles:
        handle.remove()
    assert_same_step(plain, fast, batch(3))
    assert set(kernels(fast)) == {"sparse"}


def test_hooks_of_a_part_registered_after_the_first_call_run() -> None:
    plain, fast, batch = twins("residual")
    assert_same_step(plain, fast, batch(3))
    called: list[nn.Module] = []
    for m in (plain, fast):
        m.get_submodule("blocks.1").register_forward_hook(lambda module, *_: called.append(module))
    assert_same_step(plain, fast, batch(3))
    assert called == [plain.get_submodule("blocks.1"), fast.get_submodule("blocks.1")]


def test_hooks_of_all_modules_run() -> None:
    _, fast, batch = twins("lenet")
    fast(batch(3))
    called: list[nn.Module] = []
    handle = register_module_forward_hook(lambda module, *_: called.append(module))
    try:
        fast(batch(3))
    finally:
        handle.remove()
    assert called == [*fast, fast]


def test_other_precisions_transforms_and_autocast_are_pytorchs() -> None:
    _, fast, batch = twins("lenet")
    x = batch(3)
    expected = fast(x)
    with torch.no_grad():
        mapped = torch.vmap(lambda row: fast(row[None])[0])(x)
    assert error(expected, mapped) < 1e-12
    fast.bfloat16()
    assert fast(x.bfloat16()).dtype is torch.bfloat16
    assert "torch.bfloat16 on cpu" in fast.report.decisions[0].reason
    with torch.autocast("cpu", torch.bfloat16):
        assert fast.float()(x.float()).dtype is torch.bfloat16
    assert "autocast" in fast.report.decisions[0].reason


def test_a_weight_changed_before_its_backward_is_noticed() -> None:
    _, fast, batch = twins("lenet")
    y = fast(batch(2))
    with torch.no_grad():
        fast[7].weight_orig.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize("held", [{"twice": [False]}, [("twice", {"twice": False})]], ids=["dict", "list"])
def test_flags_in_containers_are_looked_at_in_each_call(held: Any) -> None:
    class Switched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers, self.held = nn.Sequential(nn.Linear(6, 6), nn.ReLU()), held

        def forward(self, x: Tensor) -> Tensor:
            twice = self.held["twice"][0] if isinstance(self.held, dict) else self.held[0][1]["twice"]
            return self.layers(self.layers(x)) if twice else self.layers(x)

    torch.manual_seed(0)
    model = Switched().double()
    prune.l1_unstructured(model.layers[0], "weight", 0.7)
    fast, x = bppsa.compile(model), torch.randn(3, 6).double()
    for _ in range(3):
        once = fast(x)
    if isinstance(fast.held, dict):
        fast.held["twice"][0] = True
    else:
        fast.held[0][1]["twice"] = True
    assert error(fast.layers(once), fast(x)) < 1e-12


def test_flags_of_the_users_own_are_looked_at_in_each_call() -> None:
    class Switched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers, self.twice = nn.Sequential(nn.Linear(6, 6), nn.ReLU()), False

        def forward(self, x: Tensor) -> Tensor:
            return self.layers(self.layers(x)) if self.twice else self.layers(x)

    torch.manual_seed(0)
    fast, x = bppsa.compile(pruned(Switched(), 0.5)), torch.randn(4, 6)
    once = fast(x)
    fast.twice = True
    assert error(fast.layers(fast.layers(x)), fast(x)) < 1e-6
    assert error(once, fast(x)) > 0.01


def test_a_module_put_in_the_place_of_another_after_the_first_call_runs() -> None:
    plain, fast, batch = twins("lenet")
    assert_same_step(plain, fast, batch(3))
    for m in (plain, fast):
        m[4] = nn.GELU()
    assert_same_step(plain, fast, batch(3))


def test_without_a_compiler_nothing_is_rewritten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "available", lambda: Reason("no C++ compiler"))
    fast = bppsa.compile(pruned(lenet(), 0.9))
    assert type(fast) is nn.Sequential
    assert fast(torch.randn(2, 1, 16, 16)).shape == (2, 5)


def test_a_removed_mask_leaves_a_dense_layer() -> None:
    plain, fast, batch = twins("perceptron")
    for m in (plain, fast):
        for layer in (m[0], m[3], m[5]):
            prune.remove(layer, "weight")
    assert_same_step(plain, fast, batch(4))
    assert set(kernels(fast)) == {"pytorch"}
    assert "no pruned layer in its region" in str(fast.report)


def test_what_nobody_reads_any_more_is_let_go() -> None:
    """Without gradients PyTorch holds a layer's input and its output; hooks leave the layers to PyTorch."""
    _, fast, batch = twins("perceptron")
    given: list[weakref.ref[Tensor]] = []

    def look(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        assert all(x() is None or x() is args[0] for x in given)
        given.append(weakref.ref(output))

    for layer in fast:
        layer.register_forward_hook(look)
    with torch.no_grad():
        fast(batch(3))
    assert len(given) == len(fast)


def test_a_compiled_model_within_another_one() -> None:
    """Which tells of both; and what has been noted is put away after an error too."""
    torch.manual_seed(0)
    inner = bppsa.compile(pruned(nn.Sequential(nn.Linear(8, 8), nn.ReLU()), 0.5))
    outer = bppsa.compile(nn.Sequential(inner, pruned(nn.Sequential(nn.Linear(8, 4)), 0.5)))
    x = torch.randn(3, 8)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        outer(x[:, :5])
    for _ in range(3):
        assert error(outer[1](inner(x)), outer(x)) < 1e-6
    assert [(d.path, d.strategy) for d in outer.report.decisions if d.path] == [("0.0", "sparse"), ("1.0", "sparse")]
    assert kernels(inner) == ["sparse"]

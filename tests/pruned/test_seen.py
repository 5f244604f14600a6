"""What is changed after several calls, when nothing is found out anew that has been seen before."""

from __future__ import annotations

import copy
import gc
import weakref
from collections import OrderedDict
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune

import bppsa
from tests.pruned.support import Mask, assert_same_step, error, kernels, pruned, twins

CALLS = 3  # the first makes a plan, the second looks it up, from the third on it is there


def warm(plain: nn.Module, fast: nn.Module, x: Tensor) -> None:
    for _ in range(CALLS):
        assert_same_step(plain, fast, x)


def other(mask: Tensor) -> Tensor:
    return (torch.rand(mask.shape, generator=torch.Generator().manual_seed(3)) < 0.4).to(mask)


def double(module: nn.Module, _: tuple[Tensor, ...], y: Tensor) -> Tensor:
    return y * 2


def hook_in_another_table(m: nn.Module) -> None:
    m[3]._forward_hooks = OrderedDict({0: double})


def mask_in_place(m: nn.Module) -> None:
    m[3].weight_mask.copy_(other(m[3].weight_mask))


def another_mask(m: nn.Module) -> None:
    m[3].weight_mask = other(m[3].weight_mask)


def memory_of_a_mask(m: nn.Module) -> None:
    m[3].weight_mask.data = other(m[3].weight_mask)


def another_weight(m: nn.Module) -> None:
    m[3].weight_orig = nn.Parameter(m[3].weight_orig.detach().flip(0))


def memory_of_a_weight(m: nn.Module) -> None:
    m[3].weight_orig.data = m[3].weight_orig.data.flip(0)


def weight_that_is_not_contiguous(m: nn.Module) -> None:
    m[7].weight_orig.data = m[7].weight_orig.data.t().contiguous().t()


def weight_that_is_negated_lazily(m: nn.Module) -> None:
    m[3].weight_orig.data = m[3].weight_orig.data._neg_view()


def weight_of_another_number(m: nn.Module) -> None:
    with torch.no_grad():
        m[3].weight_orig.mul_(2)


def no_bias(m: nn.Module) -> None:
    m[3].bias = None


def another_class(m: nn.Module) -> None:
    m[8].__class__ = nn.Tanh


def wider_window(m: nn.Module) -> None:
    m[1].kernel_size, m[1].padding, m[1].stride = 4, 1, 2


def own_forward(m: nn.Module) -> None:
    m[2].forward = lambda y, before=m[2].forward: before(y) * 2


def own_forward_of_a_pruned_layer(m: nn.Module) -> None:
    m[3].forward = lambda y, before=m[3].forward: before(y) * 2


CHANGES: list[Callable[[nn.Module], object]] = [
    lambda m: m.eval(),
    lambda m: m[8].register_forward_hook(double),
    lambda m: prune.l1_unstructured(m[7], "bias", 0.5),
    lambda m: prune.l1_unstructured(m[7], "weight", 0.5),
    lambda m: prune.remove(m[7], "weight"),
    lambda m: m.append(nn.Softplus()),
    lambda m: m.__setitem__(8, nn.GELU()),
    *(hook_in_another_table, mask_in_place, another_mask, memory_of_a_mask, another_weight, memory_of_a_weight),
    *(weight_that_is_not_contiguous, weight_of_another_number, no_bias, another_class, wider_window),
    *(weight_that_is_negated_lazily, own_forward, own_forward_of_a_pruned_layer),
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_change_is_noticed(change: Callable[[nn.Module], object]) -> None:
    plain, fast, batch = twins("lenet", amount=0.5)
    x = batch(4)
    warm(plain, fast, x)
    for model in (plain, fast):
        change(model)
    warm(plain, fast, x)


class Asking(nn.Module):
    """Its forward asks for a part and for a flag by name, for one in a mapping, and for the length of a large list."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.ReLU()
        self.flags, self.names, self.once = OrderedDict(double=False), ["name"] * 2000, True

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        y = self.last(y) if hasattr(self, "last") else y
        y = y * 2 if self.flags["double"] or hasattr(self, "twice") else y
        return y * 3 if len(self.names) < 3 else y


def another_name(m: nn.Module) -> None:
    m.other = m.last
    del m.last


def another_flag(m: nn.Module) -> None:
    del m.once
    m.twice = True


ASKED: dict[str, Callable[[nn.Module], object]] = {
    "name": another_name,
    "flag": another_flag,
    "mapping": lambda m: m.flags.update(double=True),
    "length": lambda m: m.names.clear(),
}


@pytest.mark.parametrize("change", ASKED.values(), ids=ASKED)
def test_what_a_forward_asks_for_is_noticed(change: Callable[[nn.Module], object]) -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(Asking()).double()
    fast = bppsa.compile(pruned(copy.deepcopy(plain), 0.5))
    plain, x = pruned(plain, 0.5), torch.randn(3, 6).double()
    warm(plain, fast, x)
    for model in (plain, fast):
        change(model[0])
    warm(plain, fast, x)


def test_a_copy_of_a_called_model_that_is_parametrized_begins_anew() -> None:
    layer = nn.Linear(8, 16).double()
    parametrize.register_parametrization(layer, "weight", Mask((torch.rand(16, 8) < 0.4).double()))
    fast, x = bppsa.compile(layer), torch.randn(3, 8).double()
    for _ in range(CALLS):
        expected = fast(x)
    assert error(expected, copy.deepcopy(fast)(x)) == 0


@pytest.mark.parametrize("name", ["momentum", "eps"])
def test_numbers_of_a_batch_norm(name: str) -> None:
    plain, fast, batch = twins("residual")
    warm(plain, fast, batch(4))
    for model in (plain, fast):
        setattr(model.stem[1], name, 0.3)
    warm(plain, fast, batch(4))
    assert all("in a region of 7 layers" in decision.reason for decision in fast.report.decisions), fast.report


def test_one_batch_norm_that_trains_no_more() -> None:
    plain, fast, batch = twins("residual")
    warm(plain, fast, batch(4))
    for model in (plain, fast):
        model.stem[1].eval()
    warm(plain, fast, batch(4))


def test_another_rate_of_dropout() -> None:
    torch.manual_seed(0)
    fast = bppsa.compile(pruned(nn.Sequential(nn.Linear(20, 400), nn.ReLU(), nn.Dropout(0.1)), 0.5))
    x = torch.randn(40, 20)
    for p in (0.1, 0.9):
        fast[2].p = p
        for _ in range(CALLS):
            dropped = (fast(x) == 0).float().mean() - (fast.eval()(x) == 0).float().mean()
            fast.train()
            assert 0.4 * p < dropped < 0.6 * p  # of the half that the ReLU has passed


def test_a_parameter_of_another_shape_is_pytorchs_error() -> None:
    _, fast, batch = twins("lenet")
    for _ in range(CALLS):
        fast(batch(2))
    fast[7].bias.data = fast[7].bias.data[:3]
    with pytest.raises(RuntimeError, match="must match"):
        fast(batch(2))


def test_one_dtype_after_the_other() -> None:
    """Which memory given by `Tensor.data` to the same Parameters, and other entries for the same masks."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 4))
    fast, x = bppsa.compile(pruned(copy.deepcopy(plain), 0.7)), torch.randn(4, 20).double()
    plain = pruned(plain, 0.7)
    for _ in range(CALLS):
        warm(plain.double(), fast.double(), x)
        for _ in range(CALLS):
            assert error(plain.float()(x.float()), fast.float()(x.float())) < 1e-5
            assert set(kernels(fast)) == {"sparse"}


def test_frozen_and_freed_parameters() -> None:
    plain, fast, batch = twins("lenet")
    x = batch(4)
    warm(plain, fast, x)
    for frozen in (True, False):
        for model in (plain, fast):
            model[3].weight_orig.requires_grad_(not frozen)
        for _ in range(CALLS):
            for model in (plain, fast):
                model.zero_grad()
                model(x).square().sum().backward()
            assert (fast[3].weight_orig.grad is None) == frozen
            assert error(plain[0].weight_orig.grad, fast[0].weight_orig.grad) < 1e-11
    warm(plain, fast, x)


def test_a_hook_that_changes_what_comes_later_in_its_own_call() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Softmax2d(), nn.Flatten(), nn.Linear(144, 5)).double()
    fast = copy.deepcopy(plain)
    pruned(plain, 0.5), pruned(fast, 0.5)
    fast, x = bppsa.compile(fast), torch.randn(4, 3, 8, 8).double()
    for model in (plain, fast):
        mask = model[3].weight_mask
        model[1].register_forward_hook(lambda *_, mask=mask: mask.copy_(mask.roll(1)).data_ptr() and None)
    warm(plain, fast, x)
    assert kernels(fast) == ["sparse", "sparse"]


def test_a_mask_that_a_hook_lends_its_layer_in_one_call() -> None:
    torch.manual_seed(0)
    fast = bppsa.compile(
        pruned(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Softmax2d(), nn.Flatten(), nn.Linear(144, 5)), 0.5)
    )
    mask, x, lends = fast[3].weight_mask, torch.randn(4, 3, 8, 8), False
    own, lent = mask.data, torch.zeros_like(mask)
    fast[1].register_forward_hook(lambda *_: setattr(mask, "data", lent) if lends else None)
    before = [fast(x) for _ in range(CALLS)][-1]
    lends = True
    assert error(fast[3].bias.expand(4, 5), fast(x)) < 1e-6
    mask.data, lends = own, False
    assert torch.equal(before, fast(x))


def test_a_mask_from_inference_mode_is_left_to_pytorch() -> None:
    with torch.inference_mode():
        plain = pruned(nn.Sequential(nn.Linear(8, 8), nn.ReLU()), 0.5)
    fast, x = bppsa.compile(plain), torch.randn(4, 8)
    with torch.inference_mode():
        assert torch.equal(plain(x), fast(x))
    assert "from torch.inference_mode()" in fast.report.decisions[0].reason


class WithScript(nn.Module):
    """A part that its forward does not read, whose tables are torch.jit's."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.part = nn.Linear(8, 8), torch.jit.trace(nn.Linear(3, 3), torch.randn(1, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).relu()


def test_a_module_of_torch_jit_in_the_model() -> None:
    torch.manual_seed(0)
    model, x = WithScript(), torch.randn(4, 8)
    prune.l1_unstructured(model.layer, "weight", 0.5)
    fast = bppsa.compile(model)
    for _ in range(CALLS):
        assert error(model(x), fast(x)) < 1e-6
        assert kernels(fast) == ["sparse"]
    fast.layer.weight_mask.zero_()
    assert error(model.layer.bias.relu().expand(4, 8), fast(x)) < 1e-6


def test_a_model_that_is_let_go_is_gone() -> None:
    gc.collect()
    gc.disable()
    try:
        _, fast, batch = twins("lenet")
        for _ in range(CALLS):
            fast(batch(2)).sum().backward()
        fast[3](torch.randn(2, 4, 6, 6).double())
        gone = weakref.ref(fast)
        del fast
        assert gone() is None
    finally:
        gc.enable()


def test_a_weight_that_is_computed_with_besides() -> None:
    """As in a penalty: its product with the mask is an image of the region that squares it."""

    class Penalized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.head = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            y = self.head(self.first(x).mean((2, 3)))
            return y + self.first.weight.abs().sum() + self.second.weight.pow(2).mean()

    torch.manual_seed(0)
    plain = pruned(Penalized().double(), 0.5)
    fast = bppsa.compile(plain)
    x = torch.randn(4, 3, 8, 8).double()
    for _ in range(3):
        for layer in (plain.first, plain.second):
            layer.weight = layer.weight_orig * layer.weight_mask  # as its hook would: it is not called
        assert error(plain(x), fast(x)) < 1e-11
    assert "sparse" in kernels(fast)

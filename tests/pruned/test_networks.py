"""Whole networks: outputs, all gradients and running statistics are those of masked PyTorch."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune

import bppsa
from tests.pruned.support import (
    NETWORKS,
    Mask,
    assert_same_step,
    error,
    kernels,
    pruned,
    twins,
)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_training_step_is_pytorchs(name: str) -> None:
    plain, fast, batch = twins(name)
    for samples in (3, 8, 11):  # less than a block, a whole one, and more
        assert_same_step(plain, fast, batch(samples))
        assert set(kernels(fast)) == {"sparse"}


@pytest.mark.parametrize("name", ["residual", "perceptron"])
def test_eval_uses_the_running_statistics(name: str) -> None:
    plain, fast, batch = twins(name)
    assert_same_step(plain, fast, batch(9))
    plain.eval(), fast.eval()
    assert_same_step(plain, fast, batch(5))
    with torch.no_grad():
        x = batch(1)
        assert error(plain(x), fast(x)) < 1e-12


def test_training_with_an_optimizer_follows_pytorch() -> None:
    plain, fast, batch = twins("residual")
    optimizers = [torch.optim.SGD(m.parameters(), 0.05, momentum=0.9, weight_decay=1e-3) for m in (plain, fast)]
    for _ in range(4):
        assert_same_step(plain, fast, batch(6))
        for optimizer in optimizers:
            optimizer.step()
    for a, b in zip(plain.parameters(), fast.parameters(), strict=True):
        assert error(a, b) < 1e-9


def test_two_forwards_before_a_backward_keep_their_values() -> None:
    """The second forward reads other values, changed behind autograd's back, into the same entries."""
    plain, fast, batch = twins("lenet")
    xs = batch(4), batch(4)
    for model in (plain, fast):
        first = model(xs[0])
        with torch.no_grad():
            second = model(xs[1])
        (first.sum() * 2).backward()
        assert second.isfinite().all()
    for a, b in zip(plain.parameters(), fast.parameters(), strict=True):
        assert error(a.grad, b.grad) < 1e-12


def test_frozen_layers_get_no_gradient() -> None:
    plain, fast, batch = twins("lenet")
    for model in (plain, fast):
        for p in list(model.parameters())[:3]:
            p.requires_grad_(False)
        model(batch(2) * 0 + 1).sum().backward()
    for a, b in zip(plain.parameters(), fast.parameters(), strict=True):
        assert (a.grad is None) == (b.grad is None)
        assert a.grad is None or error(a.grad, b.grad) < 1e-12


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_spreads_along_kept_weights(value: float) -> None:
    """Masked PyTorch multiplies it with the zeros of the mask too, and spreads it further."""
    plain, fast, batch = twins("lenet")
    x = batch(3)
    x[1] = value
    expected, got = plain(x), fast(x)
    assert torch.equal(expected.isfinite(), got.isfinite())
    assert not got[1].isfinite().any()
    expected.sum().backward(), got.sum().backward()
    for (name, p), q in zip(plain.named_parameters(), fast.parameters(), strict=True):
        assert not (p.grad.isfinite() & ~q.grad.isfinite()).any(), name
    assert not fast[9].weight_orig.grad[fast[9].weight_mask.bool()].isfinite().all()


def test_results_are_the_same_in_every_run() -> None:
    _, fast, batch = twins("residual")
    x = batch(10)
    runs = []
    for _ in range(3):
        fast.zero_grad()
        fast(x).sum().backward()
        runs.append([p.grad.clone() for p in fast.parameters()])
    assert all(torch.equal(a, b) for run in runs[1:] for a, b in zip(runs[0], run, strict=True))


def test_float32_is_computed_in_float32() -> None:
    plain, fast, batch = twins("perceptron")
    x = batch(20)
    assert error(plain(x).detach(), fast.float()(x.float()).detach().double()) < 1e-5
    assert set(kernels(fast)) == {"sparse"}


def test_copies_and_pickles_run_alone() -> None:
    torch.manual_seed(0)
    model = NETWORKS["lenet"][0]().double()
    with torch.no_grad():
        model[7].weight[:, ::2] = 0
    fast, x = bppsa.compile(model, sparse="auto"), torch.randn(3, 1, 16, 16).double()
    expected = fast(x)
    for twin in (copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))):
        assert torch.equal(twin(x), expected)
        assert set(kernels(twin)) == {"blocked", "sparse"}
        with torch.no_grad():
            twin[9].weight.zero_()
        assert not torch.equal(twin(x), expected)
    assert torch.equal(fast(x), expected)
    assert torch.equal(model(x).isfinite(), expected.isfinite())


LONE = [
    (lambda: nn.Linear(9, 7), (9,)),
    (lambda: nn.Linear(9, 7, bias=False), (9,)),
    (lambda: nn.Linear(9, 7), (5, 9)),
    (lambda: nn.Linear(9, 7, bias=False), (2, 5, 9)),
    (lambda: nn.Conv2d(4, 6, 3, 2, 1, groups=2), (4, 9, 9)),
    (lambda: nn.Sequential(nn.Linear(9, 7)), (9,)),
    (lambda: nn.Sequential(nn.Sequential(nn.Conv2d(4, 6, 3))), (4, 9, 9)),
]


@pytest.mark.parametrize(("make", "shape"), LONE)
@pytest.mark.parametrize("how", ["prune", "parametrization", "masks"])
def test_a_model_of_one_layer(make: Callable[[], nn.Module], shape: tuple[int, ...], how: str) -> None:
    torch.manual_seed(0)
    plain = make().double()
    fast, mask = copy.deepcopy(plain), {}
    for model in (plain, fast):
        path, layer = next((path, m) for path, m in model.named_modules() if isinstance(m, (nn.Conv2d, nn.Linear)))
        kept = torch.rand(layer.weight.shape, generator=torch.Generator().manual_seed(1)) < 0.4
        if how == "parametrization":
            parametrize.register_parametrization(layer, "weight", Mask(kept.double()))
        elif how == "prune":
            prune.custom_from_mask(layer, "weight", kept)
        else:
            mask[f"{path}.weight" if path else "weight"] = kept
            with torch.no_grad():
                layer.weight.mul_(kept)
    called: list[nn.Module] = []
    before = type(fast)
    fast = bppsa.compile(fast, masks=mask or None)
    assert isinstance(fast, before)
    assert before.__name__ == type(fast).__name__
    hook = fast.register_forward_hook(lambda module, *_: called.append(module))
    if how == "masks":
        results = []
        for model in (plain, fast):
            y = model(torch.ones(3, *shape).double())
            y.square().sum().backward()
            results.append([y, *(p.grad for p in model.parameters())])
        results[0][1] = results[0][1] * kept
        assert all(error(a, b) < 1e-12 for a, b in zip(*results, strict=True))
    else:
        for samples in (3, 11):
            assert_same_step(plain, fast, torch.randn(samples, *shape).double())
    assert kernels(fast) == ["sparse"]
    assert called
    hook.remove()
    x = torch.randn(5, *shape).double()
    assert error(plain(x), fast(x)) < 1e-12
    for twin in (copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))) if how == "masks" else ():
        assert error(plain(x), twin(x)) < 1e-12
        assert kernels(twin) == ["sparse"]
    assert error(plain(x[:0]), fast(x[:0])) == 0
    assert kernels(fast) == ["pytorch"]
    assert fast.bfloat16()(x.bfloat16()).dtype is torch.bfloat16


class Shared(nn.Module):
    """Layers called several times, in a loop, on images of two sizes; a batch norm among them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.layers = nn.ModuleList([nn.Conv2d(4, 4, 1), self.conv])
        self.head = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = F.relu(x + self.norm(self.conv(x)))
        x = F.avg_pool2d(x, 2)
        for layer in self.layers:
            x = F.silu(layer(x))
        x = torch.flatten(F.max_pool2d(x, 2), 1)
        return self.head(torch.tanh(self.head(x)))


def test_layers_called_several_times() -> None:
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(pruned(Shared().double(), 0.6))
    plain, fast = models[0], bppsa.compile(models[1])
    for _ in range(2):
        assert_same_step(plain, fast, torch.randn(5, 4, 8, 8).double())
        assert kernels(fast) == ["sparse"] * 7


@pytest.mark.parametrize("shape", [(3, 4, 12, 10), (3, 4, 3, 3)])
@pytest.mark.parametrize("of_weight", [False, True])
def test_memory_formats_are_pytorchs(of_weight: bool, shape: tuple[int, ...]) -> None:
    class Looks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm, self.second = nn.Conv2d(4, 6, 3, bias=False), nn.BatchNorm2d(6), nn.Conv2d(6, 4, 1)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            y = self.norm(self.first(x))
            z = F.relu(self.second(y))
            return y, z, z.as_strided((3, 4), (4, 1))

    found = []
    for compiled in (False, True):
        torch.manual_seed(0)
        made = pruned(Looks().double(), 0.5)
        made = bppsa.compile(made) if compiled else made
        if of_weight:
            made.to(memory_format=torch.channels_last)
        x = torch.randn(shape).double()
        x = (x if of_weight else x.to(memory_format=torch.channels_last)).requires_grad_()
        outputs = made(x)
        sum(y.square().sum() for y in outputs).backward()
        found.append([*outputs, x.grad, *(p.grad for p in made.parameters())])
    for expected, got in zip(*found, strict=True):
        assert error(expected.detach(), got.detach()) < 1e-9
    for expected, got in zip(found[0][:3], found[1][:3], strict=True):
        assert expected.stride() == got.stride()
    assert set(kernels(made)) == {"sparse"}

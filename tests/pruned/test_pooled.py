"""Max pools within the convolution before them: where that is so, and that values and gradients are PyTorch's."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import prune

import bppsa
from bppsa.frontend.pruned.regions.grow import GraphSegment, grow
from bppsa.runtime.sparse_conv.apply import run_forward
from bppsa.runtime.sparse_conv.conv import Conv
from tests.breadth import alternate, diagonal
from tests.pruned.support import assert_same_step, captured, error, kernels, pruned

ORDERS = {
    "conv, relu, pool": [nn.ReLU(), nn.MaxPool2d(2)],
    "conv, pool, relu": [nn.MaxPool2d(2), nn.ReLU()],
    "conv, pool": [nn.MaxPool2d(2)],
}


def conv(inputs: int = 4, outputs: int = 6, **more: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, **({"padding": 1} | more))


def segment_of(fn: Callable[[Tensor], Tensor], x: Tensor) -> GraphSegment:
    nodes, known = captured(fn, x)
    return grow(nodes, len(known), known, {})


def dtype_of(fn: object) -> torch.dtype:
    return next(fn.parameters()).dtype if isinstance(fn, nn.Module) else torch.float32


def pools_within(fn: Callable[[Tensor], Tensor], size: tuple[int, int] = (8, 12)) -> tuple[int, int]:
    """How many pools of a region convolutions have taken, and how many steps there are."""
    region = segment_of(fn, torch.randn(3, 4, *size).to(dtype_of(fn))).region
    assert region is not None
    steps = [node.step for node in region.nodes]
    return sum(isinstance(step, Conv) and step.pool is not None for step in steps), len(steps)


class Reads(nn.Module):
    """`also` reads the convolution's output besides the pool."""

    def __init__(self, also: Callable[[Tensor, Tensor], Tensor], *, relu: bool) -> None:
        super().__init__()
        self.conv, self.also, self.relu = conv(), also, relu

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.conv(x)) if self.relu else self.conv(x)
        return self.also(F.max_pool2d(y, 2), y)


ALSO: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "another pool": lambda pooled, y: pooled + F.avg_pool2d(y, 2),
    "the rest of the model": lambda pooled, y: pooled.sum() + y.sum(),
}


@pytest.mark.parametrize("after", ORDERS.values(), ids=ORDERS)
def test_complete_quarters_are_pooled_within_the_convolution(after: list[nn.Module]) -> None:
    assert pools_within(nn.Sequential(conv(), *after)) == (1, 1)
    assert pools_within(nn.Sequential(conv(), nn.Identity(), *after, conv(6, 4), *after)) == (2, 2)
    assert pools_within(nn.Sequential(conv(), *after, nn.MaxPool2d(2))) == (1, 2)
    assert pools_within(nn.Sequential(conv(), *after, nn.Flatten(), nn.Linear(144, 3))) == (1, 3)


@pytest.mark.parametrize(
    "pool",
    [
        nn.MaxPool2d(3),
        nn.MaxPool2d(2, 1),
        nn.MaxPool2d(2, padding=1),
        nn.MaxPool2d(2, dilation=2),
        nn.MaxPool2d((2, 1)),
        nn.MaxPool2d((2, 2), (2, 1)),
        nn.AvgPool2d(2),
    ],
    ids=str,
)
def test_other_pools_are_steps_of_their_own(pool: nn.Module) -> None:
    assert pools_within(nn.Sequential(conv(), nn.ReLU(), pool)) == (0, 2)


@pytest.mark.parametrize("size", [(7, 12), (8, 11), (9, 9)])
def test_images_of_odd_sizes_are_pooled_on_their_own(size: tuple[int, int]) -> None:
    assert pools_within(nn.Sequential(conv(), nn.MaxPool2d(2)), size) == (0, 2)


@pytest.mark.parametrize(("also", "relu"), diagonal(ALSO, [True, False]))
def test_what_others_read_is_pooled_on_its_own(also: str, relu: bool) -> None:
    torch.manual_seed(0)
    plain = Reads(ALSO[also], relu=relu).double()
    fast = bppsa.compile(pruned(copy.deepcopy(plain), 0.5))
    assert pools_within(copy.deepcopy(plain))[0] == 0
    assert_same_step(pruned(plain, 0.5), fast, torch.randn(5, 4, 8, 12).double())


LAYERS = {
    "padding": conv(),
    "groups": nn.Conv2d(4, 6, 3, padding=1, groups=2, bias=False),
    "stride and dilation": nn.Conv2d(4, 6, (3, 2), (1, 2), (2, 1), (2, 1)),
    "pixels alone": nn.Conv2d(4, 6, 1),
}


@pytest.mark.parametrize(("layer", "order"), diagonal(LAYERS, ORDERS))
def test_a_step_is_pytorchs(layer: str, order: str) -> None:
    torch.manual_seed(0)
    for size in ((2, 2), (10, 38)):  # less than a tile; tiles of several sizes, at the borders and between them
        model = nn.Sequential(copy.deepcopy(LAYERS[layer]), *ORDERS[order], nn.Conv2d(6, 4, 1), nn.Tanh()).double()
        plain, fast = pruned(copy.deepcopy(model), 0.5), bppsa.compile(pruned(model, 0.5))
        for samples in (1, 8, 35):  # up to more blocks than a small image's tile takes at once
            assert_same_step(plain, fast, torch.randn(samples, 4, *size).double())
        assert kernels(fast) == ["sparse", "sparse"]
        with torch.no_grad():
            x = torch.randn(3, 4, *size).double()
            assert error(plain(x), fast(x)) < 1e-12


def whole_numbers(*sizes: int) -> Tensor:
    return torch.randint(-1, 2, sizes).double()


@pytest.mark.parametrize("after", ORDERS.values(), ids=ORDERS)
@pytest.mark.parametrize("value", [0.0, float("nan"), float("-inf")])
def test_of_equal_pixels_the_first_wins_but_a_later_nan(after: list[nn.Module], value: float) -> None:
    """Small whole numbers: every sum is exact, and most quarters have several maxima."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 1), *after).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(whole_numbers(*parameter.shape))
    x = whole_numbers(11, 3, 8, 20)
    x[torch.rand(x.shape) < 0.1] = value
    plain, fast = model, copy.deepcopy(model)
    for m in (plain, fast):  # nothing is pruned: masked PyTorch multiplies what is no number with zeros too
        prune.identity(m[0], "weight")
    fast = bppsa.compile(fast)
    results, g = [], whole_numbers(11, 8, 4, 10)
    for m in (plain, fast):
        given = x.clone().requires_grad_()
        y = m(given)
        results.append((y, *torch.autograd.grad(y, [given, *m.parameters()], g)))
    for expected, got in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)
    assert kernels(fast) == ["blocked"]


@pytest.mark.parametrize("order", alternate(ORDERS))
def test_gradients_of_gradients(order: str) -> None:
    after = ORDERS[order]
    torch.manual_seed(0)
    model = nn.Sequential(conv(), *after, nn.Flatten(), nn.Linear(144, 3), nn.Tanh()).double()
    plain, fast = pruned(copy.deepcopy(model), 0.5), bppsa.compile(pruned(model, 0.5))
    x, found = torch.randn(5, 4, 8, 12).double(), []
    for m in (plain, fast):
        given = x.clone().requires_grad_()
        inner = torch.autograd.grad(m(given).square().sum(), [given, *m.parameters()], create_graph=True)
        outer = torch.autograd.grad(sum(g.square().sum() for g in inner), [given, *m.parameters()])
        found.append([*inner, *outer])
    for expected, got in zip(*found, strict=True):
        assert error(expected.detach(), got.detach()) < 1e-10


def test_frozen_weights_and_biases_alone() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(conv(), nn.ReLU(), nn.MaxPool2d(2), conv(6, 4), nn.MaxPool2d(2)).double()
    plain, fast = pruned(copy.deepcopy(model), 0.5), bppsa.compile(pruned(model, 0.5))
    x = torch.randn(5, 4, 8, 12).double()
    for frozen in (("0.weight_orig",), ("3.weight_orig", "3.bias"), ("0.weight_orig", "0.bias", "3.weight_orig")):
        found = []
        for m in (plain, fast):
            m.zero_grad()
            for name, p in m.named_parameters():
                p.requires_grad_(name not in frozen)
            m(x).square().sum().backward()
            found.append({name: p.grad for name, p in m.named_parameters() if p.requires_grad})
        assert all(error(g, found[1][name]) < 1e-12 for name, g in found[0].items())


def test_the_image_before_the_pool_is_not_kept() -> None:
    x = torch.randn(64, 4, 8, 12).double()
    model = nn.Sequential(conv(4, 16), nn.ReLU(), nn.MaxPool2d(2), conv(16, 4), nn.MaxPool2d(2)).double()
    nodes, known = captured(model, x)
    segment = grow(nodes, len(known), known, {})
    assert segment.region is not None
    own = [known[node].detach() for node in segment.params]
    _, tape = run_forward(segment.region, [x, *own], [], save=True)
    pooled, last = 64 * 16 * 4 * 6, 64 * 4 * 2 * 3
    assert tape.forward.program.tape < x.nbytes + (pooled + last) * (8 + 1) + 10_000  # values; places are bytes

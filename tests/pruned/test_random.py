"""Random small networks: every geometry, masks of any density, whole layers empty or full; against masked PyTorch."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import prune

import bppsa
from tests.breadth import examples
from tests.pruned.support import error, kernels

TOLERANCE = 1e-10
sizes = st.integers(1, 3)
# Smooth, or with a kink that no sum of random numbers falls onto.
ACTIVATIONS = (nn.Identity, nn.ReLU, nn.SiLU, nn.Tanh)


@st.composite
def convolutions(draw: st.DrawFn, channels: int, size: tuple[int, int]) -> nn.Conv2d | None:
    """None where the kernel would not fit."""
    kernel, stride, dilation = (draw(st.tuples(sizes, sizes)) for _ in range(3))
    padding = draw(st.tuples(st.integers(0, 2), st.integers(0, 2)))
    groups = draw(st.sampled_from([g for g in range(1, channels + 1) if channels % g == 0]))
    out = groups * draw(st.integers(1, 3))
    fits = all(n + 2 * p > d * (k - 1) for n, p, d, k in zip(size, padding, dilation, kernel, strict=True))
    bias = draw(st.booleans())
    return nn.Conv2d(channels, out, kernel, stride, padding, dilation, groups, bias) if fits else None


@st.composite
def networks(draw: st.DrawFn) -> tuple[nn.Module, Tensor]:
    channels, size = draw(st.integers(1, 6)), draw(st.tuples(st.integers(1, 9), st.integers(1, 9)))
    samples = draw(st.integers(1, 18))
    x = torch.randn(samples, channels, *size).double()
    layers: list[nn.Module] = []
    for _ in range(draw(st.integers(1, 3))):
        layer = draw(convolutions(channels, size))
        if layer is None:
            break
        with torch.no_grad():
            _, channels, *rest = layer(torch.zeros(1, channels, *size)).shape
        size = rest[0], rest[1]
        layers += [layer, draw(st.sampled_from(ACTIVATIONS))()]
        if draw(st.booleans()) and samples * size[0] * size[1] > 3 and layer.bias is None:
            layers.insert(-1, nn.BatchNorm2d(channels))
    if draw(st.booleans()) and min(size) > 1:
        layers.append(draw(st.sampled_from([nn.AvgPool2d(2, 1), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d((1, 2))])))
        with torch.no_grad():
            size = tuple(layers[-1](torch.zeros(1, 1, *size)).shape[2:])
    layers += [nn.Flatten(), nn.Linear(channels * size[0] * size[1], draw(st.integers(1, 9)))]
    return nn.Sequential(*layers).double(), x


@st.composite
def masked(draw: st.DrawFn) -> tuple[nn.Module, nn.Module, Tensor]:
    torch.manual_seed(draw(st.integers(0, 1000)))
    plain, x = draw(networks())
    fast = copy.deepcopy(plain)
    for path, layer in plain.named_modules():
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            density = draw(st.sampled_from([0.0, 0.05, 0.3, 0.8, 1.0]))
            mask = torch.rand(layer.weight.shape) < density
            if draw(st.booleans()):
                mask[0] = False  # a channel that nothing reaches
            for model in (plain, fast):
                prune.custom_from_mask(model.get_submodule(path), "weight", mask)
    return plain, bppsa.compile(fast), x


@examples(30)
@given(masked())
def test_a_step_of_a_random_network_is_pytorchs(case: tuple[nn.Module, nn.Module, Tensor]) -> None:
    plain, fast, x = case
    results = []
    for model in (plain, fast):
        given = x.clone().requires_grad_()
        y = model(given)
        F.mse_loss(y, torch.linspace(-1, 1, y.numel()).double().view_as(y)).backward()
        gradients = {name: p.grad for name, p in model.named_parameters()}
        results.append({"y": y.detach(), "x": given.grad, **gradients, **dict(model.named_buffers())})
    expected, got = results
    assert set(kernels(fast)) <= {"sparse", "blocked"}
    for name, value in expected.items():
        if value is None or got[name] is None:
            assert value is got[name], name
        else:
            assert error(value.double(), got[name].double()) < TOLERANCE or float((value - got[name]).norm()) < 1e-13, (
                name
            )

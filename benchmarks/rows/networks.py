"""Networks at CIFAR size, and the ways to prune them."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import prune

from harness.timing import interleave, milliseconds

CLASSES = 10
VGG = (64, "M", 128, "M", 256, 256, "M", 512, 512, "M", 512, 512, "M")


def vgg11(width: int = 64, norm: bool = False) -> nn.Sequential:
    """Convolutions with bias and ReLU; or without bias, with batch normalization between."""
    layers: list[nn.Module] = []
    channels = 3
    for stage in VGG:
        if stage == "M":
            layers.append(nn.MaxPool2d(2))
            continue
        out = int(stage) * width // 64
        layers.append(nn.Conv2d(channels, out, 3, padding=1, bias=not norm))
        layers += [nn.BatchNorm2d(out), nn.ReLU()] if norm else [nn.ReLU()]
        channels = out
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels, CLASSES))


class Block(nn.Module):
    """ResNet's basic block."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first, self.norm1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
        self.second, self.norm2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        self.skip: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.skip = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm2(self.second(F.relu(self.norm1(self.first(x))))) + self.skip(x))


def resnet18(width: int = 64) -> nn.Sequential:
    """Four stages of two basic blocks for images of 32 x 32: residual sums, strides of 2, convolutions 1 x 1."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    channels = width
    for stage in range(4):
        for block in range(2):
            stride = 2 if stage and not block else 1
            layers.append(Block(channels, width << stage, stride))
            channels = width << stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES))


def mobilenet(width: int = 32) -> nn.Sequential:
    """Depthwise and pointwise convolutions by turns, as in MobileNet's first version."""

    def conv(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
        layer = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
        return [layer, nn.BatchNorm2d(outputs), nn.ReLU()]

    layers, channels = conv(3, width, 3), width
    for out, stride in ((2, 1), (4, 2), (4, 1), (8, 2), (8, 1), (16, 2), (16, 1)):
        layers += conv(channels, channels, 3, stride, groups=channels) + conv(channels, out * width, 1)
        channels = out * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES))


def uniform(model: nn.Module, amount: float) -> None:
    """The smallest weights of each convolution, and of linear layers but the last; depthwise ones are left whole."""
    for layer in prunable(model):
        prune.l1_unstructured(layer, "weight", amount)


def globally(model: nn.Module, amount: float) -> None:
    """The smallest weights of all these layers together."""
    prune.global_unstructured([(layer, "weight") for layer in prunable(model)], prune.L1Unstructured, amount=amount)


def prunable(model: nn.Module) -> list[nn.Module]:
    layers = [m for m in model.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
    return [m for m in layers if m is not layers[-1] and getattr(m, "groups", 1) == 1] or layers


def prepared(make: Callable[[], nn.Module], scheme: Callable[[nn.Module, float], None], amount: float) -> nn.Module:
    """kaiming-normal weights, pruned; the same in each call."""
    torch.manual_seed(0)
    model = make()
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight)
    scheme(model, amount)
    return model


def in_sparseprop(model: nn.Module, batch: Tensor) -> nn.Module:
    """Each pruned convolution by whichever takes least for this batch: either of sparseprop's modules, or itself.

    sparseprop's own `swap_modules_with_sparse` decides likewise, by one cold run of each.
    """
    from sparseprop.modules import SparseConv2d  # type: ignore[import-not-found]

    inputs: dict[nn.Module, Tensor] = {}
    layers = prunable(model)
    hooks = [m.register_forward_hook(lambda module, given, _: inputs.update({module: given[0]})) for m in layers]
    model(batch)
    for hook in hooks:
        hook.remove()
    for name, layer in list(model.named_modules()):
        if layer in layers:
            others = [SparseConv2d.from_dense(layer, vectorizing_over_on=over) for over in (False, True)]
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, fastest([layer, *others], inputs[layer]))
    return model


def fastest(layers: list[nn.Module], given: Tensor) -> nn.Module:
    """Of a forward and a backward."""
    x = given.detach().requires_grad_(given.requires_grad)

    def step(layer: nn.Module) -> tuple[float]:
        start = time.perf_counter()
        y = layer(x)
        y.backward(torch.ones_like(y))
        return (time.perf_counter() - start,)

    samples = interleave({str(i): partial(step, layer) for i, layer in enumerate(layers)}, 5)
    for layer in layers:
        layer.zero_grad()
    return min(zip(layers, samples.values(), strict=True), key=lambda pair: milliseconds(pair[1]))[0]

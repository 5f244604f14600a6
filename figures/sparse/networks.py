"""The feed-forward networks of the paper, layer by layer, and the patterns of their transposed Jacobians."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils import prune

import bppsa
from bppsa.sparsity import TransposedJacobian

IMAGE = (3, 32, 32)
CLASSES = 10
POOL = 0
VGG11 = (64, POOL, 128, POOL, 256, 256, POOL, 512, 512, POOL, 512, 512, POOL)  # channels of a convolution, or a pool


def vgg11(narrower: int = 1) -> nn.Sequential:
    """The convolutional layers of VGG-11, 21 operators; narrower: what the channels are divided by."""
    layers: list[nn.Module] = []
    channels = IMAGE[0]
    for plan in VGG11:
        if plan == POOL:
            layers.append(nn.MaxPool2d(2))
        else:
            layers += [nn.Conv2d(channels, plan // narrower, 3, padding=1), nn.ReLU()]
            channels = plan // narrower
    return nn.Sequential(*layers)


def pruned(model: nn.Sequential, amount: float) -> nn.Sequential:
    """The model, without the smallest weights of each convolution, this part of all."""
    for layer in model:
        if isinstance(layer, nn.Conv2d):
            prune.l1_unstructured(layer, "weight", amount)
    return model


def chain(model: nn.Sequential, x: Tensor) -> list[TransposedJacobian]:
    """J^T of each layer at x [1, *n], those of the input's side first."""
    values = [x]
    with torch.no_grad():
        for layer in model:
            values.append(layer(values[-1]))
    return [bppsa.transposed_jacobian(layer, value) for layer, value in zip(model, values, strict=False)]


def lenet5(channels: int) -> nn.Sequential:
    """LeNet-5 on images [B, channels, 32, 32], with ReLU and max-pooling, to the scores of the classes."""
    return nn.Sequential(
        *(nn.Conv2d(channels, 6, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, CLASSES)),
    )

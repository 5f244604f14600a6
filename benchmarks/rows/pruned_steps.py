"""What is timed of pruned networks. It loads nothing of bppsa's, so that another revision's can be timed by it too."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from harness.timing import Step
from rows.networks import mobilenet, resnet18, vgg11

NETWORKS: dict[str, Callable[..., nn.Module]] = {
    "vgg11": vgg11,
    "vgg11 with batch norm": partial(vgg11, norm=True),
    "resnet18": resnet18,
    "mobilenet": mobilenet,
    "linear 1024x1024": lambda width=1024: nn.Sequential(nn.Linear(width, width, bias=False)),
}
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": partial(torch.optim.SGD, lr=1e-3),
    "momentum": partial(torch.optim.SGD, lr=1e-3, momentum=0.9),
    "momentum, decay": partial(torch.optim.SGD, lr=1e-3, momentum=0.9, weight_decay=5e-4),
    "AdamW, fused": partial(torch.optim.AdamW, lr=1e-3, fused=True),
}


def training_step(
    model: nn.Module, batch: torch.Tensor, optimizer: Callable[[Any], torch.optim.Optimizer] = OPTIMIZERS["SGD"]
) -> Step:
    stepping = optimizer(model.parameters())
    with torch.no_grad():
        labels = torch.randint(0, model(batch).shape[1], batch.shape[:1])

    def step() -> tuple[float, ...]:
        stepping.zero_grad()
        start = time.perf_counter()
        loss = F.cross_entropy(model(batch), labels)
        middle = time.perf_counter()
        loss.backward()
        stepping.step()
        return middle - start, time.perf_counter() - middle

    return step


def inference(model: nn.Module, batch: torch.Tensor) -> Step:
    model.eval()

    def step() -> tuple[float]:
        with torch.no_grad():
            start = time.perf_counter()
            model(batch)
            return (time.perf_counter() - start,)

    return step


def layer(model: nn.Module, batch: torch.Tensor) -> Step:
    x = batch.requires_grad_()
    cotangent = torch.randn_like(model(x))

    def step() -> tuple[float, ...]:
        model.zero_grad()
        x.grad = None
        start = time.perf_counter()
        y = model(x)
        middle = time.perf_counter()
        y.backward(cotangent)
        return middle - start, time.perf_counter() - middle

    return step


STEPS: dict[str, Callable[..., Step]] = {"step": training_step, "inference": inference, "layer": layer}

"""Layers that fail when they are told to: in a forward, a backward, or a backward of weights."""

from __future__ import annotations

import _thread
import os
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

WIDTH = 4


class Armed:
    """Which kind of job of which layer does something else, once; the same for all threads of a process."""

    kind = ""
    layer = -1
    act: Callable[[], None]
    went_off = False

    @classmethod
    def arm(cls, kind: str, layer: int, act: Callable[[], None]) -> None:
        cls.kind, cls.layer, cls.act, cls.went_off = kind, layer, staticmethod(act), False

    @classmethod
    def disarm(cls) -> None:
        cls.kind = ""

    @classmethod
    def pass_by(cls, kind: str, layer: int) -> None:
        if (kind, layer) == (cls.kind, cls.layer):
            cls.kind, cls.went_off = "", True
            cls.act()


def explode() -> None:
    raise ZeroDivisionError("of the test")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dawdle() -> None:
    time.sleep(2)


def stop_and_go() -> None:
    """The process is stopped for two seconds, as by a debugger."""
    subprocess.Popen(["sh", "-c", f"kill -STOP {os.getpid()}; sleep 2; kill -CONT {os.getpid()}"])
    time.sleep(0.5)


def interrupt() -> None:
    """As ctrl-C does, in the main thread."""
    _thread.interrupt_main()
    time.sleep(0.2)


class Passing(torch.autograd.Function):
    """The identity, whose backward passes by as `kind`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kind: str, layer: int) -> Tensor:
        ctx.kind, ctx.layer = kind, layer
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        Armed.pass_by(ctx.kind, ctx.layer)
        return grads[0], None, None


class Layer(nn.Module):
    """tanh(W x): [B, WIDTH] -> [B, WIDTH]. The gradient of W is of kind W, that of x of kind B."""

    def __init__(self, number: int, width: int = WIDTH) -> None:
        super().__init__()
        self.number = number
        self.weight = nn.Parameter(torch.randn(width, width, dtype=torch.float64) / width**0.5)

    def forward(self, x: Tensor) -> Tensor:
        Armed.pass_by("F", self.number)
        x, weight = Passing.apply(x, "B", self.number), Passing.apply(self.weight, "W", self.number)
        return torch.tanh(functional.linear(x, weight))


def model(layers: int = 4, width: int = WIDTH, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(*(Layer(number, width) for number in range(layers)))


def batch(rows: int = 6, width: int = WIDTH) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, rows, width, generator=generator, dtype=torch.float64).unbind()


def loss_fn(output: Tensor, target: Tensor) -> Tensor:
    Armed.pass_by("loss", 0)
    return functional.mse_loss(output, target)


def exact(net: nn.Module, compiled: nn.Module, x: Tensor, target: Tensor) -> bool:
    """Whether what this rank owns has the gradients of one process, from one step and no other."""
    net.zero_grad()
    functional.mse_loss(net(x), target).backward()
    wanted = {name: parameter.grad for name, parameter in net.named_parameters()}
    return all(
        parameter.grad is not None and torch.allclose(parameter.grad, wanted[name], rtol=1e-10, atol=1e-14)
        for name, parameter in compiled.named_parameters()
    )

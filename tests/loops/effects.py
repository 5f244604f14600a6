"""Models that do what no op shows, in their loop or around it: a row each, with a word of the reason that is told."""

from __future__ import annotations

import itertools
import math
import os
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tests.loops.cells import Cell, H

AROUND = ""  # the loop itself has no effect, and is a scan
EFFECTS: dict[str, tuple[type[Cell], str]] = {}
counted = 0
told: list[str] = []


def row(name: str, reason: str) -> Callable[[type[Cell]], type[Cell]]:
    def add(cls: type[Cell]) -> type[Cell]:
        EFFECTS[name] = cls, reason
        return cls

    return add


class Steps(Cell):
    """A loop whose steps do something beside."""

    def forward(self, x: Tensor) -> Any:
        h, out = self.start(x), []
        for t in range(x.shape[1]):
            h = self.beside(self.cell(x[:, t], h))
            out.append(h)
        return torch.stack(out, 1)

    def beside(self, h: Tensor) -> Tensor:
        return h


@row("a global counter that decides", "counted")
class Global(Steps):
    def beside(self, h: Tensor) -> Tensor:
        global counted
        counted += 1
        return h * 2 if counted > 40 else h


@row("Python's random numbers", "random")
class Random(Steps):
    def beside(self, h: Tensor) -> Tensor:
        return h * (0.5 if random.random() < 0.5 else 1.0)


@row("a random number before the loop", AROUND)
class RandomBefore(Steps):
    def forward(self, x: Tensor) -> Any:
        self_scale = random.uniform(0.5, 1.5)
        return super().forward(x * self_scale)


@row("numpy's random numbers", "numpy")
class Numpy(Steps):
    def beside(self, h: Tensor) -> Tensor:
        return h * float(np.random.rand())


@row("numbers of a new generator of numpy's", "numpy")
class NumpyNew(Steps):
    def beside(self, h: Tensor) -> Tensor:
        return h * float(np.random.default_rng().normal())


@row("a view of what is returned is kept", AROUND)
class Kept(Steps):
    def __init__(self) -> None:
        super().__init__()
        self.h = torch.zeros(3, H, dtype=torch.float64)

    def forward(self, x: Tensor) -> Any:
        out = super().forward(x + self.h.mean())
        self.h = out[:, -1].detach()
        return out


@row("a list of the module grows", "log")
class Logs(Steps):
    def __init__(self) -> None:
        super().__init__()
        self.log: list[int] = []

    def beside(self, h: Tensor) -> Tensor:
        self.log.append(1)
        return h * (1.0 if len(self.log) < 60 else 0.5)


@row("a number deep in a container of the module", "changes")
class Deep(Steps):
    def __init__(self) -> None:
        super().__init__()
        self.config: dict[str, dict[str, int]] = {"a": {"n": 0}}

    def beside(self, h: Tensor) -> Tensor:
        self.config["a"]["n"] += 1
        return h * (1.0 if self.config["a"]["n"] < 60 else 0.5)


@row("a class attribute", "changes")
class OfClass(Steps):
    calls = 0

    def beside(self, h: Tensor) -> Tensor:
        OfClass.calls += 1
        return h * (1.0 if OfClass.calls < 60 else 0.5)


def counting() -> Callable[[], int]:
    count = 0

    def next_one() -> int:
        nonlocal count
        count += 1
        return count

    return next_one


next_one = counting()


@row("a variable of a closure", "count")
class Closure(Steps):
    def beside(self, h: Tensor) -> Tensor:
        return h * (1.0 if next_one() < 60 else 0.5)


@row("an iterator of the module's", "changes numbers")
class Iterates(Steps):
    def __init__(self) -> None:
        super().__init__()
        self.numbers = itertools.count()

    def beside(self, h: Tensor) -> Tensor:
        return h * (1.0 if next(self.numbers) < 60 else 0.5)


@row("an attribute of a function", "changes")
class OfFunction(Steps):
    def beside(self, h: Tensor) -> Tensor:
        remember.calls += 1  # type: ignore[attr-defined]
        return h * (1.0 if remember.calls < 60 else 0.5)  # type: ignore[attr-defined]


def remember() -> None: ...


remember.calls = 0  # type: ignore[attr-defined]


@row(".item()", "value")
class Item(Steps):
    def beside(self, h: Tensor) -> Tensor:
        return h * 0.5 if h.mean().item() > 0 else h


@row("bool()", "value")
class Bool(Steps):
    def beside(self, h: Tensor) -> Tensor:
        return h * 0.5 if (h * 1e4).long().sum() % 2 == 0 else h  # which steps decide in both ways


@row(".tolist()", "values")
class ToList(Steps):
    def beside(self, h: Tensor) -> Tensor:
        return h * math.tanh(h.detach().tolist()[0][0])


@row(".numpy()", "values")
class ToNumpy(Steps):
    def beside(self, h: Tensor) -> Tensor:
        return h * float(h.detach().numpy().mean())


@row("print", "print")
class Prints(Steps):
    def beside(self, h: Tensor) -> Tensor:
        print("step", h.shape)
        return h


@row("a clock", "time")
class Clock(Steps):
    def beside(self, h: Tensor) -> Tensor:
        time.time()
        return h


@row("the process's environment", "environ")
class OfProcess(Steps):
    def beside(self, h: Tensor) -> Tensor:
        return h * float(os.environ.get("NOT_THERE", "1"))


@row("a list of a module of Python", "told")
class Told(Steps):
    def beside(self, h: Tensor) -> Tensor:
        told.append("step")
        return h * (1.0 if len(told) < 60 else 0.5)


@row("a generator of its own", AROUND)
class Generator(Steps):
    def __init__(self) -> None:
        super().__init__()
        self.seed = 3

    def forward(self, x: Tensor) -> Any:
        generator = torch.Generator().manual_seed(self.seed)
        noise = torch.randn(x.shape[1], generator=generator, dtype=x.dtype)
        return super().forward(x * noise[:, None])


@row("the seed", AROUND)
class Seeds(Steps):
    def forward(self, x: Tensor) -> Any:
        torch.manual_seed(5)
        return super().forward(x + torch.randn_like(x))


@row("a hook on a gradient", "register_hook")
class Hook(Steps):
    def beside(self, h: Tensor) -> Tensor:
        if h.requires_grad:
            h.register_hook(lambda g: g * 0.5)
        return h


@row(".data", "data")
class Data(Steps):
    def beside(self, h: Tensor) -> Tensor:
        return h * h.data


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:  # type: ignore[override]
        return g.clamp(-0.1, 0.1)


@row("a gradient of its own", "gradient")
class Own(Steps):
    def beside(self, h: Tensor) -> Tensor:
        result: Tensor = Doubled.apply(h) * 0.4  # type: ignore[no-untyped-call]
        return result


@row("a buffer changed in place", "in place")
class Buffer(Steps):
    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def beside(self, h: Tensor) -> Tensor:
        self.seen += 1
        return h * (1 / self.seen)


@row("batch statistics", "in place")
class Statistics(Steps):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(H)

    def beside(self, h: Tensor) -> Tensor:
        result: Tensor = self.norm(h)
        return result


@row("numpy in the loop", "values")
class NumpyMath(Steps):
    def beside(self, h: Tensor) -> Tensor:
        return h + torch.from_numpy(np.sqrt(np.abs(h.detach().numpy())))


@row("reads a gradient", "gradient")
class ReadsGradient(Steps):
    def beside(self, h: Tensor) -> Tensor:
        grad = self.head.weight.grad
        return h if grad is None else h * 0.5


@row("a file", "open")
class File(Steps):
    def beside(self, h: Tensor) -> Tensor:
        with open(os.devnull) as file:
            return h * (1.0 + len(file.read()))


@row("identity of objects", "id")
class Identity(Steps):
    def beside(self, h: Tensor) -> Tensor:
        return h * (1.0 + id(h) % 3)

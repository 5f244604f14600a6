"""Forwards that use what Python has: branches, loops, exceptions, arguments and results of every kind."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.pruned.forwards.net import Net, table

PYTHON, case = table()


@case
class BranchOfValues(Net):
    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        if x.sum() > 0:
            h = h + self.conv(x.flip(-1))
        return self.last(h)


@case
class LoopOfValues(Net):
    def between(self, h: Tensor) -> Tensor:
        while h.norm() > 3:
            h = h * 0.7
        for i in range(int(h.argmax()) % 3):
            h = h + i
        return h


@case
class ValuesAsNumbers(Net):
    def between(self, h: Tensor) -> Tensor:
        scale, offsets = h.mean().item(), h.detach().flatten()[:4].tolist()
        return h * scale + torch.tensor(offsets)[:, None, None] + float(h.sum()) * bool(h[0, 0, 0, 0] > 0)


@case
class ThroughNumpy(Net):
    def between(self, h: Tensor) -> Tensor:
        return h * torch.from_numpy(h.detach().numpy() * 2)


@case
class BooleanIndices(Net):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.first(x)
        return self.last(h), h[h > 0.2]


@case
class InPlace(Net):
    def forward(self, x: Tensor) -> Tensor:
        h = self.conv(x)
        h += 1
        h.mul_(2).clamp_(max=3)
        h[:, 0] = 0
        h[:, 1:3] *= 2
        return self.last(h)


@case
class InPlaceOnViews(Net):
    def forward(self, x: Tensor) -> Tensor:
        h = self.conv(x)
        h.view(-1)[::2].mul_(3)
        h.transpose(1, 2)[0].add_(1)
        y = self.last(h)
        y.T[2:].zero_()
        return y


@case
class InPlaceSeenThroughAnotherName(Net):
    def forward(self, x: Tensor) -> Tensor:
        h = self.conv(x)
        also = h
        F.relu_(h)
        return self.last(h + also)


@case
class InPlaceOnItsInput(Net):
    leaf = False

    def forward(self, x: Tensor) -> Tensor:
        x.mul_(2).add_(1)
        return self.last(self.first(x))


@case
class InPlaceBeforeALayer(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = x * 2
        x[:, 0] = 1
        return self.last(self.first(x))


@case
class OutArgument(Net):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            room = torch.empty(len(x), 8, dtype=x.dtype)
            torch.mul(self.lin(self.conv(x).flatten(1)), 2, out=room)
        return self.last(self.first(x)) + room


@case
class Prints(Net):
    def between(self, h: Tensor) -> Tensor:
        print("between", tuple(h.shape), f"{len(h)=}")
        return h


@case
class TryFinally(Net):
    busy, left = False, 0

    def between(self, h: Tensor) -> Tensor:
        self.busy = True
        try:
            return h * (2 if self.busy else 3)
        finally:
            self.busy = False
            self.left += 1


@case
class TryExcept(Net):
    def between(self, h: Tensor) -> Tensor:
        try:
            h = h * self.missing
        except AttributeError:
            h = h * 3
        try:
            raise ValueError("of its own")
        except (ValueError, KeyError) as error:
            return h + len(str(error))


@case
class TryAnOp(Net):
    def between(self, h: Tensor) -> Tensor:
        try:
            return h + torch.zeros(5, dtype=h.dtype)
        except RuntimeError:
            return h * 3


@case
class Generators(Net):
    def scales(self) -> Iterator[float]:
        yield 1.0
        yield from (2.0, 3.0)

    def between(self, h: Tensor) -> Tensor:
        parts = [c * s for c, s in zip(h.unbind(1), (*self.scales(), 4.0), strict=True)]
        h = torch.stack(list(parts), 1)
        named = {i: part for i, part in enumerate(h.chunk(2, 1))}
        total = functools.reduce(torch.add, (named[i] for i in sorted(named, reverse=True)))
        return h + sum(p.mean() for p in parts) + torch.cat([total, total], 1)


@case
class Closures(Net):
    def between(self, h: Tensor) -> Tensor:
        scale = 2.0

        def inner(depth: int) -> Tensor:
            return h * scale if depth == 0 else inner(depth - 1) + depth

        scale = 3.0
        return inner(2)


@case
class Blocks(Net):
    lock = threading.Lock()

    @contextlib.contextmanager
    def noted(self) -> Iterator[float]:
        self.depth = 1
        yield 2.0
        self.depth = 0

    def between(self, h: Tensor) -> Tensor:
        with self.lock, self.noted() as scale, contextlib.nullcontext(), contextlib.ExitStack() as stack:
            stack.callback(lambda: None)
            return h * scale


@case
class Asserts(Net):
    def between(self, h: Tensor) -> Tensor:
        assert h.shape[1:] == (4, 6, 6), h.shape
        assert torch.isfinite(h).all(), "must be finite"
        return h


@case
class SizesAsNumbers(Net):
    def between(self, h: Tensor) -> Tensor:
        b, c, *size = h.shape
        return h * (b / 3) + h.sum(0) / h.size(0) + torch.arange(b)[:, None, None, None] + len(size) * c


@case
class BranchOfSizes(Net):
    def between(self, h: Tensor) -> Tensor:
        return h * 2 if h.shape[0] > 5 else torch.sin(h)


@case
class Arguments(Net):
    def forward(self, x: Tensor, *scales: float, shift: float = 0.0, also: Tensor | None = None, **more: Any) -> Any:
        h = self.first(x)
        for s in scales:
            h = h * s
        if also is not None:
            h = h + also
        return self.last(h + shift + more.get("extra", 0)), sorted(more)

    def inputs(self, x: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
        self.turn = getattr(self, "turn", 0) + 1
        also = None if self.turn % 2 else x[:, :1] * 2
        return (x, 2.0, 1.0 + self.turn), {"shift": 0.5 * self.turn, "also": also, "extra": self.turn}


@case
class InputsInContainers(Net):
    def forward(self, batch: dict[str, Any], *, sides: list[Tensor], nothing: None = None) -> dict[str, Any]:
        h = self.first(batch["x"]) + sum(side.mean() for side in sides)
        return {"y": self.last(h), "x": batch["x"], "name": batch["name"], "nothing": nothing}

    def inputs(self, x: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return ({"x": x, "name": "batch"},), {"sides": [x * 2, x + 1]}


@dataclass
class Result:
    y: Tensor
    hidden: Tensor | None = None
    name: str = "result"


class Named(NamedTuple):
    y: Tensor
    more: tuple[Tensor, ...]


@case
class Outputs(Net):
    def forward(self, x: Tensor) -> Any:
        h = self.first(x)
        y = self.last(h)
        return Result(y, h), Named(y * 2, (h.mean(), h.detach())), {"y": [y, None, 3, "text"], 5: h.flatten(1)}


@case
class SameTensorTwice(Net):
    """And its own input; what it returns may be changed by its owner afterwards."""

    def forward(self, x: Tensor) -> Any:
        y = self.last(self.first(x))
        return y, y, x, y.view(-1)

    def loss(self, output: Any) -> Tensor:
        output[0].mul_(2)
        return super().loss(output[:2])


@case
class NoTensor(Net):
    def forward(self, x: Tensor) -> Any:
        h = self.first(x)
        return self.last(h), float(h.detach().mean()), None, len(x)


@case
class EarlyReturn(Net):
    def forward(self, x: Tensor, early: bool = False) -> Tensor:
        h = self.first(x)
        if early:
            return h
        return self.last(h)

    def inputs(self, x: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
        self.turn = getattr(self, "turn", 0) + 1
        return (x,), {"early": self.turn % 3 == 0}


@case
class ParameterArithmetic(Net):
    """A penalty within forward, over all parameters."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        penalty = sum(p.square().sum() for p in self.parameters())
        names = sorted(name for name, _ in self.named_parameters())
        return self.last(self.first(x)), penalty * len(names)

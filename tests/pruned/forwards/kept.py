"""Forwards that read and write what outlives a call: counters, globals, closures, attributes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.pruned.forwards.net import Net, table

KEPT, case = table()
SCALE = 1.0
SETTINGS: dict[str, Any] = {"scale": 1.0, "last": None}


@case
class Counts(Net):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def between(self, h: Tensor) -> Tensor:
        self.calls += 1
        return h * self.calls if self.calls % 2 else torch.sin(h)


@case
class WarmsUp(Net):
    def __init__(self) -> None:
        super().__init__()
        self.step, self.temperature = 0, 1.0

    def between(self, h: Tensor) -> Tensor:
        if self.training:
            self.step += 1
            self.temperature = max(0.5, 0.8 * self.temperature)
        return h / self.temperature


@case
class ReadsAGlobal(Net):
    def between(self, h: Tensor) -> Tensor:
        return h * SCALE

    def change(self, turn: int) -> None:
        global SCALE
        SCALE = 1.0 + turn


@case
class ReadsAGlobalTable(Net):
    def between(self, h: Tensor) -> Tensor:
        return h * SETTINGS["scale"]

    def change(self, turn: int) -> None:
        SETTINGS["scale"] = [0.5, 2.0, 3.0][turn % 3]


@case
class WritesAGlobal(Net):
    def between(self, h: Tensor) -> Tensor:
        SETTINGS["last"] = h
        return h

    def loss(self, output: Any) -> Tensor:
        return super().loss(output) + SETTINGS["last"].square().mean()

    def seen(self) -> Any:
        return SETTINGS["last"]


@case
class ClosureOverANumber(Net):
    def __init__(self) -> None:
        super().__init__()
        factor = 1.0

        def scaled(h: Tensor) -> Tensor:
            return h * factor

        def double() -> None:
            nonlocal factor
            factor *= 1.5

        self.scaled: Callable[[Tensor], Tensor] = scaled
        self.double_factor = double

    def between(self, h: Tensor) -> Tensor:
        return self.scaled(h)

    def change(self, turn: int) -> None:
        self.double_factor()


@case
class ClosureOverATensor(Net):
    def __init__(self) -> None:
        super().__init__()
        shift = torch.zeros(4, 1, 1, dtype=torch.float64)
        self.shifted = lambda h: h + shift * 2
        self.shift_on = lambda: shift.add_(1)

    def between(self, h: Tensor) -> Tensor:
        return self.shifted(h)

    def change(self, turn: int) -> None:
        self.shift_on()


@case
class AttributesThatChange(Net):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.twice, self.name = 1.0, False, "sin"
        self.shift, self.plain = torch.zeros(4, 1, 1, dtype=torch.float64), [1.0, 2.0]
        self.table: dict[str, Any] = {"a": 1, "inner": {"b": [3.0]}}

    def between(self, h: Tensor) -> Tensor:
        h = h * self.scale + self.shift * 2 + sum(self.plain) + self.table["a"] - self.table["inner"]["b"][0]
        h = h * 2 if self.twice else h
        return getattr(torch, self.name)(h)

    def change(self, turn: int) -> None:
        change = turn % 7
        if change == 0:
            self.scale += 0.5
        elif change == 1:
            self.shift.add_(1)
        elif change == 2:
            self.plain.append(0.5)
        elif change == 3:
            self.table["inner"]["b"][0] = 4.0
        elif change == 4:
            self.twice = not self.twice
        elif change == 5:
            self.name = "cos"
        else:
            self.shift = self.shift + 1


@case
class ClassAttributeThatChanges(Net):
    scale = 1.0

    def between(self, h: Tensor) -> Tensor:
        return h * ClassAttributeThatChanges.scale + type(self).scale

    def change(self, turn: int) -> None:
        ClassAttributeThatChanges.scale = 1.0 + turn / 2


@case
class KeepsAnActivation(Net):
    def between(self, h: Tensor) -> Tensor:
        self.hidden = h
        return h * 2

    def loss(self, output: Any) -> Tensor:
        return super().loss(output) + self.hidden.square().mean()

    def seen(self) -> Any:
        return self.hidden


@case
class AppendsActivations(Net):
    """To a list, a dict and a list of a part's."""

    def __init__(self) -> None:
        super().__init__()
        self.features: list[Tensor] = []
        self.named: dict[str, Tensor] = {}
        self.part = nn.Identity()
        self.part.losses = []

    def between(self, h: Tensor) -> Tensor:
        self.features.append(h)
        self.named["double"] = h * 2
        self.part.losses.append(h.abs().mean())
        return h

    def change(self, turn: int) -> None:
        if turn % 2 == 0:
            self.features.clear()
            self.part.losses = []

    def loss(self, output: Any) -> Tensor:
        return super().loss([output, self.features[-1], self.named]) + self.part.losses[-1]

    def seen(self) -> Any:
        return self.features, self.named, self.part.losses


@case
class LogsNumbers(Net):
    def __init__(self) -> None:
        super().__init__()
        self.log: list[float] = []

    def between(self, h: Tensor) -> Tensor:
        self.log.append(h.mean().item())
        self.log.append(float(h.shape[0]))
        return h


@case
class PassesOnToTheNextCall(Net):
    def __init__(self) -> None:
        super().__init__()
        self.before: Tensor | None = None

    def between(self, h: Tensor) -> Tensor:
        if self.before is not None and self.before.shape == h.shape:
            h = h + 0.5 * self.before
        self.before = h.detach()
        return h


@case
class CachesATable(Net):
    """By shape, as positional encodings are."""

    def __init__(self) -> None:
        super().__init__()
        self.cache: dict[int, Tensor] = {}

    def between(self, h: Tensor) -> Tensor:
        if len(h) not in self.cache:
            self.cache[len(h)] = torch.arange(len(h), dtype=h.dtype)[:, None, None, None]
        return h + self.cache[len(h)]


class ChannelsLast(Net):
    def inputs(self, x: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (x.to(memory_format=torch.channels_last),), {}


@case
class CopyInAnotherLayout(ChannelsLast):
    """Written to, it leaves what it is a copy of as it was."""

    def between(self, h: Tensor) -> Tensor:
        z = h.contiguous()
        return z.mul_(2).tanh() + h

    def forward(self, x: Tensor) -> Any:
        y = super().forward(x)
        return y, x.contiguous().mul_(3)


@case
class ViewOfACopyInAnotherLayout(ChannelsLast):
    def between(self, h: Tensor) -> Tensor:
        self.kept = h
        return h.contiguous().view(-1).view(h.shape)

    def seen(self) -> Any:
        return self.kept, torch.tensor(self.kept.stride())

"""A list that a loop fills for one `torch.stack` is joined within the loop, where Python runs what is around it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch as th
from torch import Tensor, nn

from bppsa.fxpasses.reroll.outline.split import split
from tests.loops.beside import Pair
from tests.loops.cells import Cell, x

JOINED: dict[str, type[nn.Module]] = {}
APART: dict[str, type[nn.Module]] = {}


def joined(cls: type[nn.Module]) -> type[nn.Module]:
    JOINED[cls.__name__] = cls
    return cls


def apart(cls: type[nn.Module]) -> type[nn.Module]:
    APART[cls.__name__] = cls
    return cls


class Counted(Cell):
    """Python runs what is around its loop, as it counts its calls."""

    calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0


@joined
class Returned(Counted):
    def forward(self, x: Tensor) -> Any:
        self.calls += 1
        h, out = self.start(x), []
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            out.append(self.head(h))
        return torch.stack(out, 1), h


@joined
class TwoLists(Counted):
    def forward(self, x: Tensor) -> Any:
        self.calls += 1
        h = self.start(x)
        states: list[Tensor] = []
        heads: list[Tensor] = []
        for item in x.unbind(1):
            h = self.cell(item, h)
            states.append(h)
            heads += [self.head(h)]
        made = th.stack(states, dim=-2)
        other = torch.cat(heads).view(len(heads_of(made)), -1)
        return self.head(made) + 0 * other.sum(), other


def heads_of(made: Tensor) -> Tensor:
    return made


@joined
class Once(Counted):
    """The lists are joined in the arguments of a call."""

    def forward(self, x: Tensor) -> Any:
        self.calls += 1
        if self.calls > 0:
            h, out = self.start(x), []
            for t in reversed(range(x.shape[1])):
                h = self.cell(x[:, t], h)
                out.insert(0, h)
            x = self.head(torch.stack(out).transpose(0, 1))
        return x


@apart
class ReadAgain(Counted):
    def forward(self, x: Tensor) -> Any:
        self.calls += 1
        h, out = self.start(x), []
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            out.append(h)
        return torch.stack(out, 1), out[-1]


@apart
class Begun(Counted):
    def forward(self, x: Tensor) -> Any:
        self.calls += 1
        h = self.start(x)
        out = [h]
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            out.append(h)
        return torch.stack(out, 1)


@apart
class ChangedBefore(Counted):
    """What is called first changes a tensor of the list."""

    def forward(self, x: Tensor) -> Any:
        self.calls += 1
        h, out = self.start(x), []
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            out.append(h * 1)
            h = out[-1]
        return doubled(h), torch.stack(out, 1)


@apart
class OnlyIfAsked(Counted):
    """What is not stacked may not be of one shape."""

    asked = False

    def forward(self, x: Tensor) -> Any:
        self.calls += 1
        h, out = self.start(x), []
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            out.append(h[:, : 1 + t % 2])
        return torch.stack(out, 1) if self.asked else h


def doubled(h: Tensor) -> Tensor:
    with torch.no_grad():
        h.mul_(2)
    return h


@apart
class InAFunction(Counted):
    def forward(self, x: Tensor) -> Any:
        self.calls += 1
        h, out = self.start(x), []

        def last() -> Tensor:
            return out[-1]

        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            out.append(h)
        return torch.stack(out, 1) + last()[:, None]


@pytest.mark.parametrize("name", [*JOINED, *APART])
def test_numbers_are_pythons(name: str) -> None:
    pair = Pair({**JOINED, **APART}[name]())
    for seed in range(4):
        pair.call(x(), seed=seed)
    assert pair.fast.calls == 4


@pytest.mark.parametrize("name", JOINED)
def test_no_list_leaves_the_loop(name: str) -> None:
    found = split(JOINED[name].forward)  # type: ignore[arg-type]
    assert found is not None
    assert not {"out", "states", "heads"} & set(found.loops[0].bound)


@pytest.mark.parametrize("name", APART)
def test_a_list_that_others_read_leaves_it(name: str) -> None:
    found = split(APART[name].forward)  # type: ignore[arg-type]
    assert found is None or "out" in {*found.loops[0].bound, *found.loops[0].names}


def test_no_step_is_pythons_error() -> None:
    pair = Pair(Returned())
    for _ in range(2):
        with pytest.raises(RuntimeError, match="non-empty"):
            pair.fast(x()[:, :0])

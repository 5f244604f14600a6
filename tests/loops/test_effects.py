"""A loop that does what no op shows runs as PyTorch runs it, and the report says why and where."""

from __future__ import annotations

import random
from types import CellType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bppsa.frontend.loops.state import IDLE
from bppsa.frontend.state import state_of
from tests.loops import effects
from tests.loops.beside import Pair
from tests.loops.cells import B, N, x
from tests.loops.effects import EFFECTS


def closure() -> CellType:
    assert effects.next_one.__closure__ is not None
    return effects.next_one.__closure__[0]


def reset() -> None:
    random.seed(0)
    np.random.seed(0)
    effects.counted = 0
    effects.told.clear()
    closure().cell_contents = 0
    effects.OfClass.calls = 0
    effects.remember.calls = 0  # type: ignore[attr-defined]


class Alone(Pair):
    """Both models on their own: what is of the process is as it was for each."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.kept: dict[nn.Module, Any] = {}

    def around(self, model: nn.Module) -> None:
        reset()
        if model in self.kept:
            state = self.kept[model]
            random.setstate(state[0])
            np.random.set_state(state[1])
            effects.counted, effects.OfClass.calls, effects.remember.calls = state[2]  # type: ignore[attr-defined]
            effects.told.extend(state[3])
            closure().cell_contents = state[4]

    def behind(self, model: nn.Module) -> None:
        counts = effects.counted, effects.OfClass.calls, effects.remember.calls  # type: ignore[attr-defined]
        self.kept[model] = (
            *(random.getstate(), np.random.get_state(), counts, list(effects.told)),
            closure().cell_contents,
        )


NEVER_TWICE_ALIKE = {"numbers of a new generator of numpy's", "identity of objects"}


@pytest.mark.parametrize("name", EFFECTS)
def test_effect_is_kept(name: str) -> None:
    cls, word = EFFECTS[name]
    torch.manual_seed(0)
    pair = Alone(cls())
    for seed in range(6):
        if name in NEVER_TWICE_ALIKE:
            pair.fast(x())
        else:
            pair.call(x(), seed=seed)
    (decision,) = [d for d in pair.decisions() if d.kind == "loop"]
    assert decision.strategy == ("sequential" if word == effects.AROUND else "pytorch")
    assert word in decision.reason


def test_model_without_a_loop_over_time_is_soon_left_alone() -> None:
    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = torch.tanh(layer(x))
            return x

    pair = Pair(Layers())
    for seed in range(IDLE + 2):
        assert pair.call(x(), seed=seed) == ()
    assert state_of(pair.fast).loops.is_closed


class Slope(nn.Module):
    """Counts its evaluations, as a differential equation's right side often does."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.evaluations = nn.Linear(N, N), 0

    def forward(self, y: Tensor) -> Tensor:
        self.evaluations += 1
        return torch.tanh(self.net(y))


class Read(Slope):
    def forward(self, y: Tensor) -> Tensor:
        return super().forward(y) / self.evaluations


class Overridden(Slope):
    """Counts by a property, whose code runs each time."""

    evaluations = property(lambda self: 2 * self.scale, lambda self, to: setattr(self, "scale", 0.5 * to))

    def forward(self, y: Tensor) -> Tensor:
        return self.scale * super().forward(y)


class Counted(nn.Module):
    def __init__(self, slope: nn.Module) -> None:
        super().__init__()
        self.slope, self.steps = slope, 0

    def forward(self, y: Tensor) -> Tensor:
        found = []
        for _ in range(12):
            y = y + 0.1 * self.slope(y + 0.05 * self.slope(y))
            self.steps -= 2
            found.append(y)
        return torch.stack(found)


@pytest.mark.parametrize("kind", [Slope, Read, Overridden])
def test_counts_go_on(kind: type[Slope]) -> None:
    """A plan adds what the call would have; where a number is read as well, the loop is PyTorch's."""
    torch.manual_seed(0)
    pair, y = Pair(Counted(kind())), torch.randn(B, N, dtype=torch.float64, requires_grad=True)
    for seed in range(6):
        (decision,) = pair.call(y, seed=seed)
        counts = [(each.steps, each.slope.evaluations) for each in (pair.plain, pair.fast)]
        assert counts[0] == counts[1]
        if seed == 3:
            pair.both(lambda each: setattr(each, "steps", 1000))
    assert decision.strategy == ("sequential" if kind is Slope else "pytorch")

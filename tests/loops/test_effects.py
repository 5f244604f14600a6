"""A loop that does what no op shows runs as PyTorch runs it, and the report says why and where."""

from __future__ import annotations

import random
from types import CellType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from bppsa.frontend.loops.state import IDLE
from bppsa.frontend.state import state_of
from tests.loops import effects
from tests.loops.beside import Pair
from tests.loops.cells import x
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

"""What a worker holds for each Parameter that it owns: itself, its gradient, and the state of an optimizer by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bppsa.errors import StrategyError

STEP = 4  # bytes of the count that torch.optim keeps for each Parameter, in float32


@dataclass(frozen=True)
class OptimizerState:
    """copies: tensors like the Parameter, in its dtype. counted: whether it counts steps. floats: tensors in float32,
    such as the copy of the weights that mixed precision steps."""

    copies: int = 0
    counted: bool = False
    floats: int = 0

    def bytes(self, elements: int, size: int) -> int:
        """The bytes of the optimizer's state for one Parameter of so many elements, and bytes."""
        return self.copies * size + self.counted * STEP + self.floats * 4 * elements


# torch.optim's with their default options; "adamw32" steps a float32 copy of weights in a smaller dtype.
OPTIMIZERS: Mapping[str, OptimizerState] = {
    "sgd": OptimizerState(),
    "momentum": OptimizerState(copies=1),
    "adagrad": OptimizerState(copies=1, counted=True),
    "rmsprop": OptimizerState(copies=1, counted=True),
    "adam": OptimizerState(copies=2, counted=True),
    "adamw": OptimizerState(copies=2, counted=True),
    "adamw32": OptimizerState(counted=True, floats=3),
}


def state_of_optimizer(name: str) -> OptimizerState:
    """Raises StrategyError where no optimizer has this name."""
    if name not in OPTIMIZERS:
        raise StrategyError(f"optimizer={name!r} is none of {', '.join(OPTIMIZERS)}")
    return OPTIMIZERS[name]

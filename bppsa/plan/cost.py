"""How long a call of a recurrence takes, predicted: a sum of five terms, fitted to measured calls.

What decides is the quotient of two predictions, in which most of a machine's speed cancels. The defaults were fitted to
590 calls (T 1 to 1000, B 1 to 64, H 8 to 512; float32) on two cores of an AMD EPYC with AVX-512 and torch 2.13.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Size:
    """Of one layer and direction. gates: columns of the recurrent product over H; inputs: columns of x."""

    steps: int
    rows: int
    hidden: int
    inputs: int
    gates: int

    @property
    def points(self) -> int:
        """Pointwise work: gates of all units, rows and steps."""
        return self.steps * self.rows * self.gates * self.hidden

    @property
    def products(self) -> int:
        """Floating-point operations of x @ W_ih and h @ W_hh; a backward has twice as many."""
        return 2 * self.points * (self.inputs + self.hidden)

    @property
    def weights(self) -> int:
        return self.gates * self.hidden * (self.inputs + self.hidden)


@dataclass(frozen=True)
class Rates:
    """Microseconds: for a call, for a step, for a thousand points, a million products, a thousand weights."""

    call: float
    step: float
    points: float
    products: float
    weights: float

    def us(self, layers: Sequence[Size]) -> float:
        return sum(
            self.call
            + self.step * size.steps
            + self.points * size.points / 1e3
            + self.products * size.products / 1e6
            + self.weights * size.weights / 1e3
            for size in layers
        )


Both = tuple[Rates, Rates]  # of inference, of training


def sequential_rates() -> dict[int, Both]:
    return {
        1: (Rates(105, 0.12, 0.65, 5.0, 0.37), Rates(399, 0.26, 3.4, 15.0, 0.72)),
        3: (Rates(106, 0.19, 0.28, 5.3, 0.63), Rates(435, 0.59, 4.0, 15.0, 1.6)),
        4: (Rates(116, 0.18, 0.44, 5.3, 0.74), Rates(424, 0.53, 3.6, 14.7, 1.7)),
    }


def pytorch_rates() -> dict[str, Both]:
    return {
        "RNN": (Rates(32, 5.0, 7.1, 4.1, 0.15), Rates(147, 35, 16.2, 14.9, 0.32)),
        "GRU": (Rates(35, 13.5, 4.1, 6.3, 0.12), Rates(137, 106, 14.2, 17.6, 0.35)),
        "LSTM": (Rates(100, 3.4, 1.5, 4.3, 0.62), Rates(364, 3.2, 8.8, 10.3, 2.6)),
    }


@dataclass(frozen=True)
class Machine:
    """`sequential`: of generated sweeps by gates; `pytorch`: of its forward for a module that it runs op by op in every
    step ("RNN", "GRU") or fused ("LSTM")."""

    sequential: dict[int, Both] = field(default_factory=sequential_rates)
    pytorch: dict[str, Both] = field(default_factory=pytorch_rates)
